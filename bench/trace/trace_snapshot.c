/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch snapshots: the pickle that torch.cuda.memory._dump_snapshot writes. Of it are read
 *
 *   device_traces[gpu][i]   action, addr, size, stream,      the history, oldest first
 *                           frames
 *                           of "oom": size, device_free
 *                           pool_id                         in newer versions
 *   segments[i]             device, stream, blocks           what was held when it was written
 *                           is_expandable, segment_pool_id
 *   segments[i].blocks[j]   address, size, requested_size, state, frames
 *   device_memory[gpu]      free, total, spills, spilled_peak  of the whole device; ours alone
 *   external_annotations    where optimizers' steps end
 *   refusals[i]             device, number, segments         what was held at a refusal; ours alone
 *
 * The history is a ring: its beginning may be lost. A block that lives before the history begins
 * shows later, by being freed though nothing allocated it, or by being in use at the end though the
 * history never names its address. Both kinds are allocated at the start of the trace, the
 * second first: what outlives the whole history was most likely there earliest.
 *
 * Two walks over the history (history.h): the first finds those blocks, the second feeds the
 * builder.
 */
#include "bench/trace/trace_snapshot.h"

#include "bench/base/array.h"
#include "bench/base/hash_map.h"
#include "bench/trace/frames.h"
#include "bench/trace/history.h"
#include "bench/trace/rewind.h"
#include "bench/trace/snapshot_blocks.h"
#include "bench/trace/snapshot_gpus.h"
#include "bench/trace/snapshot_pools.h"
#include "bench/trace/snapshot_steps.h"

#include <inttypes.h>
#include <stdlib.h>

/* A block that lives before the history begins. */
typedef struct block_before {
    uint64_t address;
    uint64_t size;
    uint64_t stream;
    uint32_t pool;       /* of the builder's */
    pickle_value frames; /* of its allocation, as far as it is known */
} block_before;

typedef struct snapshot_reader {
    history history;
    const pickle_value *trace; /* of the GPU */
    size_t n_entries;
    uint64_t gpu;
    uint64_t block_budget; /* blocks that segments may still have: none fits in less than a byte */
    block_before *from_before;
    size_t n_from_before;
    uint32_t from_before_capacity;
    hash_map
        blocks; /* first walk: addresses the history names; second: builder's block + 1 at each */
    hash_map streams; /* the driver's stream pointers to small numbers; 0 stays 0 */
    hash_map pools;   /* the builder's that were allocated in, and have not ended since */
    snapshot_steps steps;
    frames_reader frames;
    size_t worst;          /* the entry of the refused request that needed most; SIZE_MAX: none */
    uint64_t worst_number; /* among the refusals, from 1 */
    rewind_state then;     /* what is known of the moment of that */
    bool has_gaps;         /* some blocks of the segments are missing */
    bool is_held_known;    /* then `held` means something */
    int64_t held; /* by PyTorch's allocator; first walk: only what the history adds to it */
    trace_builder *builder;
    trace_error *error;
} snapshot_reader;

#define REFUSE(r, ...) trace_refuse((r)->error, 0, __VA_ARGS__)

static bool out_of_host_memory(snapshot_reader *r) {
    return REFUSE(r, "the host has no memory left");
}

/* ---- Entries of the history ---------------------------------------------------------------- */

/* From a pool of the history to one of the builder; one that is not known is none. */
static bool pool_of(snapshot_reader *r, uint16_t pool, uint32_t *out) {
    uint16_t number = 0;
    const char *reason =
        pool != 0 && pool != HISTORY_POOL_UNKNOWN
            ? trace_pools_add(&r->builder->pools, r->history.pools.ids[pool - 1], &number)
            : NULL;
    *out = number;
    return reason == NULL || REFUSE(r, "%s", reason);
}

/* What has to do with blocks; segment events,
 * annotations and what later versions may add has not. */
static bool is_of_block(const history_entry *e) {
    return e->action == HISTORY_ALLOC || e->action == HISTORY_FREE || e->action == HISTORY_COMPLETE;
}

static bool read_entry(snapshot_reader *r, size_t index, history_entry *out) {
    const history_entry *e = history_at(&r->history, r->trace, index);
    *out = (history_entry){0};
    if (e == NULL) {
        return REFUSE(r, "history entry %zu has no action", index);
    }
    *out = *e;
    return e->has_block || !is_of_block(e) ||
           REFUSE(r, "history entry %zu lacks addr, size or stream as a plain number", index);
}

/* ---- Held memory --------------------------------------------------------------------------- */

/* No allocator holds more; and the pieces of a map of it can be counted. */
#define MOST_HELD ((uint64_t)1 << 42)

/* Unsigned: what a file says may be anything. */
static int64_t added(int64_t to, uint64_t size) {
    return (int64_t)((uint64_t)to + size);
}

/* Whether the entry changes what is held. */
static bool changes_held(snapshot_reader *r, const history_entry *e) {
    switch ((history_action)e->action) {
    case HISTORY_SEGMENT_ALLOC:
    case HISTORY_SEGMENT_MAP:
        r->held = added(r->held, e->size);
        return true;
    case HISTORY_SEGMENT_FREE:
    case HISTORY_SEGMENT_UNMAP:
        r->held = added(r->held, -e->size);
        return true;
    case HISTORY_OTHER:
    case HISTORY_ALLOC:
    case HISTORY_FREE:
    case HISTORY_COMPLETE:
    case HISTORY_REFUSAL:
        break;
    }
    return false;
}

/* 0: it is not known. */
static uint64_t held_now(const snapshot_reader *r) {
    return r->is_held_known && r->held > 0 ? (uint64_t)r->held : 0;
}

static bool note_held(snapshot_reader *r) {
    return recorded_note_held(&r->builder->recorded, r->builder->n_blocks, held_now(r)) ||
           out_of_host_memory(r);
}

/* From what was held at the end back to the beginning. Without segments PyTorch did not say
 * it: then the recording saw the first allocation, and begins with nothing. */
static bool start_held(snapshot_reader *r) {
    recorded_memory *m = &r->builder->recorded;
    recorded_layout *end = &m->end;
    end->is_known = end->n_spans > 0 && end->held <= MOST_HELD && !r->has_gaps;
    r->is_held_known = end->is_known || end->n_spans == 0;
    r->held = end->n_spans > 0 ? added((int64_t)end->held, -(uint64_t)r->held) : 0;
    return note_held(r);
}

/* ---- First walk: blocks older than the history --------------------------------------------- */

static bool add_block_before(snapshot_reader *r, block_before block) {
    return block.size == 0 ||
           array_add(&r->from_before, sizeof block, &r->from_before_capacity, &r->n_from_before,
                     &block) ||
           out_of_host_memory(r);
}

/* Whether this is the first time that the address is named. */
static bool note_address(snapshot_reader *r, uint64_t address, bool *is_new) {
    *is_new = hash_map_find(&r->blocks, address) == 0;
    return !*is_new || hash_map_put(&r->blocks, address, 1) || out_of_host_memory(r);
}

/* How the refusals of a history compare: by what was live, up to a constant, and what was asked. */
typedef struct needs {
    int64_t live, most;
    uint64_t n_refusals;
} needs;

static void compare_need(snapshot_reader *r, needs *n, size_t index, const history_entry *e) {
    if (e->action == HISTORY_ALLOC || e->action == HISTORY_COMPLETE) {
        n->live = added(n->live, e->action == HISTORY_ALLOC ? e->size : -e->size);
    }
    if (e->action != HISTORY_REFUSAL) {
        return;
    }
    n->n_refusals++;
    const uint64_t most = (uint64_t)1 << 62; /* so that sums stay below 2^63 */
    int64_t need = added(n->live, e->size < most ? e->size : most);
    if (e->size > 0 && (r->worst == SIZE_MAX || need > n->most)) {
        r->worst = index;
        r->worst_number = n->n_refusals;
        n->most = need;
    }
}

static bool find_blocks_before_in_history(snapshot_reader *r) {
    needs of_refusals = {0};
    r->worst = SIZE_MAX;
    for (size_t i = 0; i < r->n_entries; i++) {
        history_entry e;
        bool is_new;
        if (!read_entry(r, i, &e)) {
            return false;
        }
        compare_need(r, &of_refusals, i, &e);
        if (changes_held(r, &e) || !is_of_block(&e)) {
            continue;
        }
        if (!note_address(r, e.address, &is_new)) {
            return false;
        }
        block_before block = {
            .address = e.address, .size = e.size, .stream = history_stream(&r->history, &e)};
        if (is_new && e.action != HISTORY_ALLOC &&
            (!pool_of(r, e.pool, &block.pool) || !add_block_before(r, block))) {
            return false;
        }
    }
    return true;
}

static bool visit_active_block(snapshot_reader *r, const pickle_value *block, uint64_t address,
                               const recorded_span *home) {
    block_before found = {.address = address, .stream = home->stream, .pool = home->pool};
    const pickle_value *frames = snapshot_block_frames(block);
    bool is_new;
    if (frames != NULL) {
        found.frames = *frames;
    }
    if (!snapshot_block_size(block, &found.size)) {
        return REFUSE(r, "a block of the segments lacks a size");
    }
    return note_address(r, address, &is_new) && (!is_new || add_block_before(r, found));
}

/* home: stream and pool of the segment, and whether the span begins it; no longer afterwards. */
static bool add_span(snapshot_reader *r, recorded_layout *l, recorded_span *home,
                     const pickle_value *block, uint64_t address, uint64_t size) {
    bool is_live = pickle_is_string(pickle_find(block, "state"), "active_allocated");
    recorded_span span = *home;
    span.address = address;
    span.size = size;
    span.state = is_live                           ? RECORDED_LIVE
                 : snapshot_block_is_active(block) ? RECORDED_PENDING
                                                   : RECORDED_FREE;
    home->begins = false;
    return size > MOST_HELD || recorded_add_span(l, span) || out_of_host_memory(r);
}

/* Blocks tile their segment; old versions wrote no addresses for them. *address moves on. */
static bool visit_block(snapshot_reader *r, const pickle_value *block, recorded_span *home,
                        uint64_t *address) {
    uint64_t size = 0;
    if (r->block_budget-- == 0) {
        return REFUSE(r, "more blocks in the segments than the file can hold");
    }
    (void)pickle_get_unsigned(pickle_find(block, "address"), address);
    if (!pickle_get_unsigned(pickle_find(block, "size"), &size)) {
        return REFUSE(r, "a block of the segments lacks a size");
    }
    if ((snapshot_block_is_active(block) && !visit_active_block(r, block, *address, home)) ||
        !add_span(r, &r->builder->recorded.end, home, block, *address, size)) {
        return false;
    }
    *address += size;
    return true;
}

/* Other programs than PyTorch leave blocks out: then nothing is known of what was free. */
static void note_segment(snapshot_reader *r, const pickle_value *segment, uint64_t size) {
    recorded_memory *m = &r->builder->recorded;
    uint64_t total = size;
    (void)pickle_get_unsigned(pickle_find(segment, "total_size"), &total);
    r->has_gaps = r->has_gaps || total != size;
    m->n_segments++;
    m->is_expandable = m->is_expandable || snapshot_is_expandable(segment);
}

static bool visit_segment(snapshot_reader *r, const pickle_value *segment) {
    const pickle_value *blocks = pickle_find(segment, "blocks");
    recorded_span home = {.begins = true};
    uint64_t gpu;
    uint64_t address;
    if (!pickle_get_unsigned(pickle_find(segment, "device"), &gpu) ||
        !pickle_get_unsigned(pickle_find(segment, "stream"), &home.stream) ||
        !pickle_get_unsigned(pickle_find(segment, "address"), &address)) {
        return REFUSE(r, "a segment lacks device, stream or address as a plain number");
    }
    if (gpu != r->gpu) {
        return true;
    }
    if (!pool_of(r, snapshot_pool_of_segment(&r->history, segment), &home.pool)) {
        return false;
    }
    uint64_t held_before = r->builder->recorded.end.held;
    for (size_t i = 0; i < pickle_count(blocks); i++) {
        if (!visit_block(r, pickle_item(blocks, i), &home, &address)) {
            return false;
        }
    }
    note_segment(r, segment, r->builder->recorded.end.held - held_before);
    return true;
}

static bool find_blocks_before_in_segments(snapshot_reader *r, const pickle_value *segments) {
    for (size_t i = 0; i < pickle_count(segments); i++) {
        if (!visit_segment(r, pickle_item(segments, i))) {
            return false;
        }
    }
    return true;
}

/* ---- Second walk: the builder -------------------------------------------------------------- */

static bool stream_number(snapshot_reader *r, uint64_t stream, uint64_t *out) {
    if (stream == 0) {
        *out = 0;
        return true;
    }
    uintptr_t known = hash_map_find(&r->streams, stream);
    *out = known != 0 ? known : r->streams.n_used + 1;
    return known != 0 || hash_map_put(&r->streams, stream, *out) || out_of_host_memory(r);
}

static bool note_stack(snapshot_reader *r, uint32_t block, const pickle_value *frames) {
    trace_stacks *stacks = &r->builder->stacks;
    uint32_t stack = 0;
    bool ok =
        frames_read(&r->frames, frames, stacks, &stack) && trace_stacks_note(stacks, block, stack);
    return ok || out_of_host_memory(r);
}

/* pool: of the builder's. */
static bool build_in_pool(snapshot_reader *r, uint32_t block, uint32_t pool) {
    trace_builder *b = r->builder;
    const char *reason = pool != 0 ? trace_build_in_pool(b, block, b->pools.ids[pool - 1]) : NULL;
    if (reason != NULL) {
        return REFUSE(r, "%s", reason);
    }
    return pool == 0 || hash_map_put(&r->pools, pool, 1) || out_of_host_memory(r);
}

static bool build_alloc(snapshot_reader *r, const block_before *of) {
    uint64_t number = 0;
    uint32_t block = 0;
    if (!stream_number(r, of->stream, &number)) {
        return false;
    }
    const char *reason = trace_build_alloc(r->builder, of->size, number, &block);
    if (reason != NULL) {
        return REFUSE(r, "block 0x%" PRIx64 ": %s", of->address, reason);
    }
    return build_in_pool(r, block, of->pool) && note_stack(r, block, &of->frames) &&
           (hash_map_put(&r->blocks, of->address, (uintptr_t)block + 1) || out_of_host_memory(r));
}

static bool build_kept(snapshot_reader *r, const pickle_value *segments) {
    const trace_pools *pools = &r->history.pools;
    snapshot_kept_list kept = {0};
    bool ok = snapshot_pools_find(&r->history, r->trace, r->gpu, segments, &kept) ||
              out_of_host_memory(r);
    for (size_t i = 0; ok && i < kept.n; i++) {
        const snapshot_kept *of = &kept.all[i];
        uint64_t stream = 0;
        ok = stream_number(r, of->stream, &stream);
        const char *reason =
            trace_build_kept(r->builder, of->size, stream, pools->ids[of->pool - 1]);
        ok = ok && (reason == NULL || REFUSE(r, "what a pool held: %s", reason));
    }
    free(kept.all);
    return ok;
}

static bool build_blocks_before(snapshot_reader *r, size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        if (!build_alloc(r, &r->from_before[i])) {
            return false;
        }
    }
    r->builder->n_from_before = r->builder->n_blocks;
    return true;
}

/* The builder's latest block at an address. */
static bool find_block(const snapshot_reader *r, uint64_t address, uint32_t *block) {
    uintptr_t found = hash_map_find(&r->blocks, address);
    *block = (uint32_t)(found - 1);
    return found != 0;
}

static bool is_live(const snapshot_reader *r, uint64_t address, uint32_t *block) {
    return find_block(r, address, block) && r->builder->blocks[*block].state == BUILD_LIVE;
}

static bool feed_alloc(snapshot_reader *r, size_t index, const history_entry *e) {
    block_before block = {.address = e->address,
                          .size = e->size,
                          .stream = history_stream(&r->history, e),
                          .frames = history_frames(e)};
    uint32_t unused;
    if (e->size == 0) {
        return true;
    }
    if (is_live(r, e->address, &unused)) {
        return REFUSE(r,
                      "history entry %zu allocates 0x%" PRIx64
                      ", which was not freed before: the history has a gap",
                      index, e->address);
    }
    r->builder->n_poolless += r->history.pools.n > 0 && e->pool == HISTORY_POOL_UNKNOWN;
    return pool_of(r, e->pool, &block.pool) && build_alloc(r, &block);
}

/* The first walk has read every entry: none can fail here. */
static bool completes_at_once(snapshot_reader *r, size_t index, const history_entry *freed) {
    history_entry next;
    return index + 1 < r->n_entries && read_entry(r, index + 1, &next) &&
           next.action == HISTORY_COMPLETE && next.address == freed->address;
}

/*
 * PyTorch writes a completion for every free, right behind it unless another stream still uses the
 * block: only in that case is it an event of its own, and it may be one that the history does not
 * reach. *skip counts entries used up.
 */
static bool feed_free(snapshot_reader *r, size_t index, const history_entry *e, size_t *skip) {
    uint32_t block;
    if (e->size == 0) {
        return true;
    }
    if (!is_live(r, e->address, &block)) {
        return REFUSE(r, "history entry %zu frees 0x%" PRIx64 " twice: the history has a gap",
                      index, e->address);
    }
    *skip = completes_at_once(r, index, e);
    const char *reason = *skip > 0 ? trace_build_free(r->builder, block)
                                   : trace_build_free_in_use(r->builder, block);
    return reason == NULL || REFUSE(r, "history entry %zu: %s", index, reason);
}

/* The free of a block may have been lost where the history begins: then this is its free. */
static bool feed_completion(snapshot_reader *r, size_t index, const history_entry *e) {
    uint32_t block;
    if (!find_block(r, e->address, &block)) {
        return true; /* of size 0 */
    }
    const char *reason = is_live(r, e->address, &block) ? trace_build_free(r->builder, block)
                                                        : trace_build_complete(r->builder, block);
    return reason == NULL ||
           REFUSE(r, "history entry %zu: 0x%" PRIx64 " %s", index, e->address, reason);
}

/* What is in use while the worst refusal is fed. */
static bool keep_blocks(snapshot_reader *r) {
    bool ok = true;
    r->builder->recorded.refusal = r->builder->n_refusals;
    for (size_t i = 0; ok && i < r->blocks.n_slots; i++) {
        const hash_map_slot *slot = &r->blocks.slots[i];
        uint32_t number = (uint32_t)(slot->value - 1);
        const build_block *block = slot->value != 0 ? &r->builder->blocks[number] : NULL;
        if (block != NULL && (block->state == BUILD_LIVE || block->state == BUILD_PENDING)) {
            ok = rewind_add_block(&r->then,
                                  (rewind_block){.address = slot->key,
                                                 .size = block->size,
                                                 .number = number,
                                                 .is_pending = block->state == BUILD_PENDING});
        }
    }
    return ok || out_of_host_memory(r);
}

/* Memory that was taken or given back since the worst refusal. */
static bool keep_region(snapshot_reader *r, size_t index, const history_entry *e) {
    bool was_held = e->action == HISTORY_SEGMENT_FREE || e->action == HISTORY_SEGMENT_UNMAP;
    bool is_mapping = e->action == HISTORY_SEGMENT_MAP || e->action == HISTORY_SEGMENT_UNMAP;
    rewind_region region = {
        .address = e->address, .size = e->size, .was_held = was_held, .is_expandable = is_mapping};
    if (e->has_block) {
        region.stream = history_stream(&r->history, e);
    }
    r->has_gaps = r->has_gaps || !e->has_block;
    if (!pool_of(r, e->pool, &region.pool)) {
        return false;
    }
    return index < r->worst || rewind_add_region(&r->then, region) || out_of_host_memory(r);
}

/* PyTorch gives back what a private pool holds only once nothing uses the pool any more. */
static bool feed_pool_end(snapshot_reader *r, const history_entry *e) {
    uint32_t pool = 0;
    bool gives = e->action == HISTORY_SEGMENT_FREE || e->action == HISTORY_SEGMENT_UNMAP;
    if (gives && !pool_of(r, e->pool, &pool)) {
        return false;
    }
    if (pool == 0 || hash_map_find(&r->pools, pool) == 0) {
        return true;
    }
    hash_map_remove(&r->pools, pool);
    const char *reason = trace_build_end_pool(r->builder, r->builder->pools.ids[pool - 1]);
    return reason == NULL || REFUSE(r, "%s", reason);
}

static bool feed_refusal(snapshot_reader *r, size_t index, const history_entry *e) {
    const pickle_value frames = history_frames(e);
    trace_refusal of = {
        .size = e->size, .held_bytes = held_now(r), .device_free_bytes = e->address};
    uint64_t number = 0;
    uint32_t block = 0;
    uint32_t pool = 0;
    if (e->size == 0) {
        return true;
    }
    if (!pool_of(r, e->pool, &pool) || (index == r->worst && !keep_blocks(r)) ||
        !stream_number(r, history_stream(&r->history, e), &number)) {
        return false;
    }
    if (index == r->worst) {
        r->builder->recorded.refused_stream = history_stream(&r->history, e);
        r->builder->recorded.refused_pool = pool;
    }
    if (!frames_read(&r->frames, &frames, &r->builder->stacks, &of.stack)) {
        return out_of_host_memory(r);
    }
    const char *reason = trace_build_refusal(r->builder, &of, number, &block);
    if (reason != NULL) {
        return REFUSE(r, "a refused request: %s", reason);
    }
    if (of.size > TRACE_MAX_SIZE) {
        return true;
    }
    return build_in_pool(r, block, pool) &&
           (trace_stacks_note(&r->builder->stacks, block, of.stack) || out_of_host_memory(r));
}

/* *skip counts further entries that were used up. */
static bool feed_entry(snapshot_reader *r, size_t index, const history_entry *e, size_t *skip) {
    *skip = 0;
    if (changes_held(r, e)) {
        return keep_region(r, index, e) && note_held(r) && feed_pool_end(r, e);
    }
    switch ((history_action)e->action) {
    case HISTORY_ALLOC:
        return feed_alloc(r, index, e);
    case HISTORY_FREE:
        return feed_free(r, index, e, skip);
    case HISTORY_COMPLETE:
        return feed_completion(r, index, e);
    case HISTORY_REFUSAL:
        return feed_refusal(r, index, e);
    case HISTORY_OTHER:
    case HISTORY_SEGMENT_ALLOC:
    case HISTORY_SEGMENT_MAP:
    case HISTORY_SEGMENT_FREE:
    case HISTORY_SEGMENT_UNMAP:
        break;
    }
    return true;
}

/* A step without an event is none: two optimizers may end together. */
static bool end_step(snapshot_reader *r) {
    trace_builder *b = r->builder;
    if (b->n_events == 0 || b->events[b->n_events - 1].kind == TRACE_STEP) {
        return true;
    }
    const char *reason = trace_build_step(b);
    return reason == NULL || REFUSE(r, "%s", reason);
}

static bool feed_history(snapshot_reader *r) {
    size_t skip;
    for (size_t i = 0; i < r->n_entries; i += 1 + skip) {
        history_entry e;
        if (!read_entry(r, i, &e)) {
            return false;
        }
        bool ends_step = e.has_time && snapshot_steps_pass(&r->steps, e.time_us);
        if ((ends_step && i > 0 && !end_step(r)) || !feed_entry(r, i, &e, &skip)) {
            return false;
        }
    }
    return !snapshot_steps_end(&r->steps) || end_step(r);
}

/* ---- What was held at the worst refusal ---------------------------------------------------- */

/* Of blocks that are in use to the end, the segments tell how they were rounded. */
static bool round_survivors(snapshot_reader *r) {
    const recorded_layout *end = &r->builder->recorded.end;
    hash_map sizes = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < end->n_spans; i++) {
        const recorded_span *span = &end->spans[i];
        ok = span->state == RECORDED_FREE || span->size == 0 ||
             hash_map_put(&sizes, span->address, (uintptr_t)span->size);
    }
    for (size_t i = 0; ok && i < r->then.n_blocks; i++) {
        rewind_block *block = &r->then.blocks[i];
        build_state state = (build_state)r->builder->blocks[block->number].state;
        uintptr_t size = hash_map_find(&sizes, block->address);
        if (size != 0 && (state == BUILD_LIVE || state == BUILD_PENDING)) {
            block->size = size;
        }
    }
    hash_map_drop(&sizes);
    return ok || out_of_host_memory(r);
}

static bool is_of_gpu(const snapshot_reader *r, const pickle_value *of) {
    uint64_t gpu;
    return pickle_get_unsigned(pickle_find(of, "device"), &gpu) && gpu == r->gpu;
}

static bool keep_segments(snapshot_reader *r, const pickle_value *segments) {
    bool ok = true;
    for (size_t i = 0; ok && i < pickle_count(segments); i++) {
        const pickle_value *segment = pickle_item(segments, i);
        rewind_region region = {.was_held = true, .is_expandable = snapshot_is_expandable(segment)};
        uint16_t pool = snapshot_pool_of_segment(&r->history, segment);
        if (is_of_gpu(r, segment) && !pool_of(r, pool, &region.pool)) {
            return false;
        }
        (void)pickle_get_unsigned(pickle_find(segment, "stream"), &region.stream);
        ok = !is_of_gpu(r, segment) ||
             !pickle_get_unsigned(pickle_find(segment, "address"), &region.address) ||
             !pickle_get_unsigned(pickle_find(segment, "total_size"), &region.size) ||
             rewind_add_region(&r->then, region);
    }
    return ok || out_of_host_memory(r);
}

static bool rewind_to_refusal(snapshot_reader *r, const pickle_value *segments) {
    recorded_memory *m = &r->builder->recorded;
    if (!round_survivors(r) || !keep_segments(r, segments)) {
        return false;
    }
    if (!rewind_find(&r->then, &m->refused)) {
        return out_of_host_memory(r);
    }
    if (m->refused.held != r->builder->refusals[m->refusal].held_bytes) {
        recorded_forget(&m->refused);
    }
    return true;
}

/* The recorder keeps what was held at the refusal that needed most. */
static const pickle_value *kept_segments(const snapshot_reader *r, const pickle_value *refusals) {
    for (size_t i = 0; i < pickle_count(refusals) && i < HISTORY_MAX_GPUS; i++) {
        const pickle_value *kept = pickle_item(refusals, i);
        uint64_t number;
        if (is_of_gpu(r, kept) && pickle_get_unsigned(pickle_find(kept, "number"), &number) &&
            number == r->worst_number) {
            return pickle_find(kept, "segments");
        }
    }
    return NULL;
}

static bool take_kept_segment(snapshot_reader *r, const pickle_value *segment) {
    const pickle_value *blocks = pickle_find(segment, "blocks");
    recorded_span home = {.begins = true};
    uint64_t address;
    bool ok = pickle_get_unsigned(pickle_find(segment, "address"), &address) &&
              pool_of(r, snapshot_pool_of_segment(&r->history, segment), &home.pool);
    (void)pickle_get_unsigned(pickle_find(segment, "stream"), &home.stream);
    for (size_t i = 0; ok && i < pickle_count(blocks); i++) {
        const pickle_value *block = pickle_item(blocks, i);
        uint64_t size = 0;
        ok = r->block_budget-- > 0 && pickle_get_unsigned(pickle_find(block, "size"), &size) &&
             add_span(r, &r->builder->recorded.refused, &home, block, address, size);
        address += size;
    }
    return ok || REFUSE(r, "a segment of a refusal is not as it was recorded");
}

/* Which block lies in each span: blocks has the address of each, to its number + 1. */
static void name_spans(recorded_layout *l, const hash_map *blocks) {
    for (size_t i = 0; i < l->n_spans; i++) {
        recorded_span *span = &l->spans[i];
        if (span->state != RECORDED_FREE) {
            span->block = (uint32_t)hash_map_find(blocks, span->address);
        }
    }
}

/* As the blocks were that lived at the worst refusal. */
static bool name_kept(snapshot_reader *r) {
    hash_map blocks = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < r->then.n_blocks; i++) {
        const rewind_block *block = &r->then.blocks[i];
        ok = hash_map_put(&blocks, block->address, (uintptr_t)block->number + 1);
    }
    if (ok) {
        name_spans(&r->builder->recorded.refused, &blocks);
    }
    hash_map_drop(&blocks);
    return ok || out_of_host_memory(r);
}

static bool take_kept(snapshot_reader *r, const pickle_value *segments) {
    recorded_layout *l = &r->builder->recorded.refused;
    for (size_t i = 0; i < pickle_count(segments); i++) {
        const pickle_value *segment = pickle_item(segments, i);
        if (is_of_gpu(r, segment) && !take_kept_segment(r, segment)) {
            return false;
        }
    }
    l->is_known = l->n_spans > 0 && l->held <= MOST_HELD;
    return name_kept(r);
}

static bool find_refused(snapshot_reader *r, const pickle_value *segments,
                         const pickle_value *refusals) {
    if (r->worst == SIZE_MAX || !r->builder->recorded.end.is_known) {
        return true;
    }
    const pickle_value *kept = kept_segments(r, refusals);
    return kept != NULL ? take_kept(r, kept) : r->has_gaps || rewind_to_refusal(r, segments);
}

/* ---- The whole ----------------------------------------------------------------------------- */

static bool convert(snapshot_reader *r, const pickle_value *segments,
                    const pickle_value *refusals) {
    if (!build_kept(r, segments)) {
        return false;
    }
    if (!find_blocks_before_in_history(r)) {
        return false;
    }
    size_t n_freed_later = r->n_from_before;
    if (!find_blocks_before_in_segments(r, segments)) {
        return false;
    }
    hash_map_drop(&r->blocks);
    bool ok = build_blocks_before(r, n_freed_later, r->n_from_before) &&
              build_blocks_before(r, 0, n_freed_later) && start_held(r) && feed_history(r);
    if (!ok) {
        return false;
    }
    name_spans(&r->builder->recorded.end, &r->blocks);
    return find_refused(r, segments, refusals);
}

/* Not of PyTorch, but of `ductile-gpu record`. */
static void read_device(snapshot_reader *r, const pickle_value *devices) {
    const pickle_value *device = pickle_item(devices, r->gpu);
    recorded_memory *m = &r->builder->recorded;
    if (pickle_get_unsigned(pickle_find(device, "total"), &m->device_bytes)) {
        (void)pickle_get_unsigned(pickle_find(device, "free"), &m->device_free_bytes);
        (void)pickle_get_unsigned(pickle_find(device, "spills"), &m->spills);
        (void)pickle_get_unsigned(pickle_find(device, "spilled_peak"), &m->spilled_peak);
    }
}

static bool read_document(const pickle_document *document, uint64_t size, int gpu,
                          snapshot_reader *r) {
    const pickle_value *root = pickle_root(document);
    if (root->kind != PICKLE_DICT) {
        return REFUSE(r, "the pickle is not a PyTorch snapshot (a dict with device_traces)");
    }
    r->block_budget = size;
    r->steps.annotations = pickle_find(root, "external_annotations");
    snapshot_gpus_wish wish = {.gpu = gpu, .takes_held = r->builder->takes_held};
    if (!snapshot_gpus_choose(&r->history, root, wish, size, &r->builder->recorded, &r->gpu,
                              r->error)) {
        return false;
    }
    r->trace = pickle_item(pickle_find(root, "device_traces"), r->gpu);
    r->n_entries = pickle_count(r->trace);
    r->steps.gpu = r->gpu;
    read_device(r, pickle_find(root, "device_memory"));
    return convert(r, pickle_find(root, "segments"), pickle_find(root, "refusals"));
}

bool trace_read_snapshot(input *in, int gpu, trace_builder *b, trace_error *error) {
    snapshot_reader r = {.builder = b, .error = error};
    pickle_error pickle;
    r.history.file.is_wanted = b->spills;
    pickle_document *document = history_open(&r.history, in, &pickle);
    bool ok = document != NULL ? read_document(document, in->n_bytes, gpu, &r)
              : in->reason != NULL
                  ? REFUSE(&r, "%s", in->reason)
                  : REFUSE(&r, "byte %" PRIu64 " of the pickle: %s", pickle.offset, pickle.reason);
    b->gpu = (int)r.gpu;
    free(r.from_before);
    rewind_drop(&r.then);
    hash_map_drop(&r.blocks);
    hash_map_drop(&r.streams);
    hash_map_drop(&r.pools);
    frames_drop(&r.frames);
    history_drop(&r.history);
    pickle_close(document);
    return ok;
}
