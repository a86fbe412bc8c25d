/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_build.h"

#include "bench/base/array.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char no_memory[] = "the host has no memory left";

bool trace_refuse(trace_error *error, uint64_t line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error->reason, sizeof error->reason, format, arguments);
    va_end(arguments);
    error->line = line;
    return false;
}

static bool has_room_for_event(trace_builder *b) {
    b->events_file.is_wanted = b->spills;
    return spill_has_room(&b->events_file, &b->events, sizeof *b->events, &b->events_capacity,
                          b->n_events);
}

static bool has_room_for_block(trace_builder *b) {
    b->blocks_file.is_wanted = b->spills;
    return spill_has_room(&b->blocks_file, &b->blocks, sizeof *b->blocks, &b->blocks_capacity,
                          b->n_blocks);
}

static const char *add_event(trace_builder *b, trace_kind kind, uint32_t block) {
    if (!has_room_for_event(b)) {
        return no_memory;
    }
    const build_block *of = &b->blocks[block];
    b->events[b->n_events++] =
        (trace_event){.size = of->size, .slot = block, .stream = of->stream, .kind = (uint8_t)kind};
    return NULL;
}

/* The index of a stream's number, new or known; TRACE_MAX_STREAMS when there are too many. */
static size_t stream_index(trace_builder *b, uint64_t number) {
    size_t i = 0;
    while (i < b->n_streams && b->streams[i].number != number) {
        i++;
    }
    if (i == b->n_streams && i < TRACE_MAX_STREAMS) {
        b->streams[b->n_streams++].number = number;
    }
    return i;
}

static const char *wrong_size(uint64_t size) {
    return size == 0               ? "SIZE is 0"
           : size > TRACE_MAX_SIZE ? "SIZE is more than any device can address (256 TiB)"
                                   : NULL;
}

const char *trace_build_alloc(trace_builder *b, uint64_t size, uint64_t stream, uint32_t *block) {
    if (wrong_size(size) != NULL) {
        return wrong_size(size);
    }
    size_t index = stream_index(b, stream);
    if (index == TRACE_MAX_STREAMS) {
        return "more than 256 streams";
    }
    if (b->n_blocks == UINT32_MAX) {
        return "more than 4294967295 allocations";
    }
    if (!has_room_for_block(b)) {
        return no_memory;
    }
    *block = (uint32_t)b->n_blocks;
    b->blocks[b->n_blocks++] = (build_block){.size = size, .stream = (uint8_t)index};
    return add_event(b, TRACE_ALLOC, *block);
}

const char *trace_build_step(trace_builder *b) {
    if (!has_room_for_event(b)) {
        return no_memory;
    }
    b->n_steps++;
    b->events[b->n_events++] = (trace_event){.kind = TRACE_STEP};
    return NULL;
}

const char *trace_build_end_stream(trace_builder *b, uint64_t stream, bool is_told) {
    size_t n_known = b->n_streams;
    size_t index = stream_index(b, stream);
    if (index >= n_known) {
        return "a stream ends that nothing was allocated on or used by";
    }
    if (!has_room_for_event(b)) {
        return no_memory;
    }
    b->n_stream_ends++;
    b->events[b->n_events++] =
        (trace_event){.kind = TRACE_STREAM_END, .size = is_told ? 1 : 0, .stream = (uint8_t)index};
    return NULL;
}

const char *trace_build_in_pool(trace_builder *b, uint32_t block, ductile_pool_id pool) {
    b->uses_pools = b->uses_pools || !trace_pool_is_none(pool);
    return trace_pools_add(&b->pools, pool, &b->blocks[block].pool);
}

const char *trace_build_kept(trace_builder *b, uint64_t size, uint64_t stream,
                             ductile_pool_id pool) {
    trace_kept kept = {.size = size};
    const char *reason = wrong_size(size);
    if (reason == NULL) {
        reason = trace_pools_add(&b->pools, pool, &kept.pool);
    }
    if (reason != NULL) {
        return reason;
    }
    size_t index = stream_index(b, stream);
    if (index == TRACE_MAX_STREAMS) {
        return "more than 256 streams";
    }
    kept.stream = (uint8_t)index;
    b->uses_pools = true;
    return array_add(&b->kept, sizeof kept, &b->kept_capacity, &b->n_kept, &kept) ? NULL
                                                                                  : no_memory;
}

const char *trace_build_end_pool(trace_builder *b, ductile_pool_id pool) {
    uint16_t number = trace_pools_find(&b->pools, pool);
    if (number == 0) {
        return "a pool ends that nothing was allocated in";
    }
    if (!has_room_for_event(b)) {
        return no_memory;
    }
    b->n_pool_ends++;
    b->events[b->n_events++] = (trace_event){.kind = TRACE_POOL_END, .pool = number};
    return NULL;
}

static bool is_used_by(const trace_builder *b, const build_block *block, size_t stream) {
    for (uint32_t i = block->uses; i != 0; i = b->uses[i - 1].next) {
        if (b->uses[i - 1].stream == stream) {
            return true;
        }
    }
    return false;
}

/* The block's own stream and streams it is known to be used by are not noted again. */
static const char *note_use(trace_builder *b, build_block *block, size_t stream) {
    if (stream == block->stream || is_used_by(b, block, stream)) {
        return NULL;
    }
    if (b->n_uses == UINT32_MAX - 1) {
        return "more than 4294967294 uses";
    }
    const build_use use = {.next = block->uses, .stream = (uint8_t)stream};
    if (!array_add(&b->uses, sizeof use, &b->uses_capacity, &b->n_uses, &use)) {
        return no_memory;
    }
    block->uses = (uint32_t)b->n_uses;
    return NULL;
}

const char *trace_build_use(trace_builder *b, uint32_t block, uint64_t stream) {
    if (b->blocks[block].state != BUILD_LIVE) {
        return "is used after its free";
    }
    size_t index = stream_index(b, stream);
    if (index == TRACE_MAX_STREAMS) {
        return "is used by more than 256 streams";
    }
    const char *reason = note_use(b, &b->blocks[block], index);
    if (reason == NULL) {
        reason = add_event(b, TRACE_USE, block);
    }
    if (reason == NULL) {
        b->events[b->n_events - 1].stream = (uint8_t)index;
    }
    return reason;
}

const char *trace_build_free(trace_builder *b, uint32_t block) {
    if (b->blocks[block].state != BUILD_LIVE) {
        return "is freed twice";
    }
    b->blocks[block].state = BUILD_FREED;
    return add_event(b, TRACE_FREE, block);
}

/* A block that is freed at once: so every contender has to serve it. */
static const char *add_refused(trace_builder *b, uint64_t size, uint64_t stream, uint32_t *block) {
    const char *reason = trace_build_alloc(b, size, stream, block);
    if (reason == NULL) {
        b->blocks[*block].is_refused = true;
        b->n_refused++;
        reason = trace_build_free(b, *block);
    }
    return reason;
}

const char *trace_build_refusal(trace_builder *b, const trace_refusal *of, uint64_t stream,
                                uint32_t *block) {
    trace_refusal refusal = *of;
    refusal.n_blocks = b->n_blocks;
    refusal.is_replayed = of->size <= TRACE_MAX_SIZE;
    if (!array_add(&b->refusals, sizeof refusal, &b->refusals_capacity, &b->n_refusals, &refusal)) {
        return no_memory;
    }
    return refusal.is_replayed ? add_refused(b, of->size, stream, block) : NULL;
}

const char *trace_build_free_in_use(trace_builder *b, uint32_t block) {
    const char *reason = trace_build_free(b, block);
    if (reason == NULL) {
        b->blocks[block].state = BUILD_PENDING;
    }
    return reason;
}

const char *trace_build_complete(trace_builder *b, uint32_t block) {
    switch ((build_state)b->blocks[block].state) {
    case BUILD_LIVE:
        return "completes but was not freed";
    case BUILD_FREED:
    case BUILD_PENDING:
        if (b->names_uses && b->blocks[block].uses == 0) {
            return "completes but no other stream uses it";
        }
        b->blocks[block].state = BUILD_COMPLETED;
        return add_event(b, TRACE_OPEN, block);
    case BUILD_COMPLETED:
        break;
    }
    return "completes twice";
}

void trace_build_drop(trace_builder *b) {
    spill_free(&b->events_file, b->events);
    spill_free(&b->blocks_file, b->blocks);
    free(b->uses);
    free(b->refusals);
    free(b->kept);
    recorded_drop(&b->recorded);
    trace_stacks_drop(&b->stacks);
    trace_pools_drop(&b->pools);
    *b = (trace_builder){0};
}
