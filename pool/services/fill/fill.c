/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/services/fill/fill.h"

#include "pool/base/log.h"
#include "pool/blocks/age.h"
#include "pool/blocks/arena.h"
#include "pool/streams/marks.h"

#include "segments/granules.h"
#include "vmm/base/align.h"
#include "vmm/base/array.h"
#include "vmm/capture_gate.h"
#include "vmm/capture_mode.h"
#include "vmm/host_buffer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dpool_fill *fill_of(dpool_service *s) {
    return (dpool_fill *)s;
}

/* ---- Maps ---------------------------------------------------------------------------------- */

/* NULL: what lies there is not filled. */
static dpool_fill_map *find_map(const dpool_fill *f, ductile_addr addr) {
    dpool_fill_map *map = f->maps;
    while (map != NULL && addr - map->base >= map->size) {
        map = map->next;
    }
    return map;
}

/* Dedicated blocks are never handed out again. */
static ductile_status add_map(dpool_service *s, ductile_allocator *a, const dpool_region *region) {
    if (region->is_dedicated) {
        return DUCTILE_OK;
    }
    dpool_fill *f = fill_of(s);
    dpool_fill_map *map = dpool_fill_map_new(region->seg->range.addr, region->seg->range.size);
    if (map == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_acquire(&a->index_lock);
    map->next = f->maps;
    f->maps = map;
    dti_lock_release(&a->index_lock);
    return DUCTILE_OK;
}

static void drop_map(dpool_service *s, ductile_allocator *a, const dpool_region *region) {
    dti_lock_acquire(&a->index_lock);
    dpool_fill_map *map = find_map(fill_of(s), region->seg->range.addr);
    if (map != NULL) {
        DTI_UNLINK(fill_of(s)->maps, map, next);
    }
    dti_lock_release(&a->index_lock);
    if (map != NULL) {
        dpool_fill_map_free(map);
    }
}

static void forget_locked(dpool_service *s, ductile_allocator *a, ductile_addr addr,
                          ductile_addr end) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_fill_map *map = find_map(fill_of(s), addr);
    if (map != NULL) {
        dpool_fill_forget(map, addr, end);
    }
}

/* Where the segment maps nothing, the table of a gap is not read, which may be long. */
static bool holds_any(const dpool_fill_map *map, const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    ductile_addr end = dti_min(dpool_end(b), dseg_addr(seg, seg->high));
    return b->addr < end && dpool_fill_is_any(map, b->addr, end);
}

static void check_locked(dpool_service *s, const ductile_allocator *a, dti_fault *fault,
                         const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_fill_map *map = find_map(fill_of(s), b->addr);
    bool has_memory = b->state == DPOOL_FREE || b->state == DPOOL_LIVE ||
                      b->state == DPOOL_PENDING || b->state == DPOOL_RETIRING;
    dti_expect(fault, "B8", has_memory || map == NULL || !holds_any(map, b),
               "filled units in the state", b->state, DPOOL_FREE, b->addr);
}

/* ---- Filling ------------------------------------------------------------------------------- */

static bool is_pinned(const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    return dseg_ties_of(seg, dseg_granules_over(seg, b->addr, dpool_end(b))).pinned;
}

static bool may_fill_locked(dpool_service *s, const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_arena *arena = b->region->arena;
    return find_map(fill_of(s), b->addr) != NULL && !dpool_had_graphs(arena) &&
           !dpool_is_frozen(arena) && !arena->is_foreign && dpool_arena_may_be_named(arena) &&
           !is_pinned(b);
}

/* A capture that began between the question and the fill would make the fill a part of its graph:
 * none that is announced does. */
static ductile_status fill(ductile_allocator *a, const dpool_block *b) {
    ductile_stream stream = b->region->arena->stream;
    int captures = atomic_load_explicit(&a->captures, memory_order_relaxed);
    bool all_are_announced = captures == DUCTILE_CAPTURES_ANNOUNCED;
    if (!dvmm_captures_hold(all_are_announced)) {
        return DUCTILE_ERR_CAPTURING;
    }
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    ductile_status status = dvmm_is_capturing(a->driver, stream)
                                ? DUCTILE_ERR_CAPTURING
                                : dseg_fill(&a->store, b->addr, DPOOL_FILL_BYTE, b->size, stream);
    dvmm_capture_restore(a->driver, mode);
    dvmm_captures_release(all_are_announced);
    return status;
}

/* The pool is pinned: a pause that begins now waits for the end of the call, and so does
 * ductile_stream_done. */
static bool begin(dpool_service *s, ductile_allocator *a, const dpool_block *b) {
    dpool_arena *arena = b->region->arena;
    dti_lock_acquire(&a->index_lock);
    bool may = may_fill_locked(s, a, b);
    arena->n_stream_refs += may;
    arena->pool->n_users += may;
    dti_lock_release(&a->index_lock);
    return may;
}

/* The fill is work on the memory too: a proof has to be recorded behind it. */
static void note_filled(dpool_fill *f, ductile_allocator *a, dpool_block *b) {
    dti_lock_acquire(&a->index_lock);
    dpool_fill_set(find_map(f, b->addr), b->addr, dpool_end(b));
    dpool_make_young_locked(a, b);
    dpool_want_mark_locked(a);
    f->filled += b->size;
    dti_lock_release(&a->index_lock);
}

static void fill_block(dpool_service *s, ductile_allocator *a, dpool_block *b) {
    dpool_arena *arena = b->region->arena; /* stays: the block is pending */
    if (!begin(s, a, b)) {
        return;
    }
    if (fill(a, b) == DUCTILE_OK) {
        note_filled(fill_of(s), a, b);
    }
    dpool_stream_ref_end(a, arena);
    dpool_unpin(a, arena->pool);
}

/* ---- Buffers ------------------------------------------------------------------------------- */

#define BUFFER_BYTES (8 * DTI_MIB)

/* Kept for the next check. */
struct dpool_fill_buffer {
    union {
        dpool_fill_buffer *next; /* spare */
        uint8_t bytes[BUFFER_BYTES];
    };
};

static dpool_fill_buffer *take_buffer(dpool_fill *f, ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    dpool_fill_buffer *buffer = f->spare_buffers;
    if (buffer != NULL) {
        f->spare_buffers = buffer->next;
    }
    dti_lock_release(&a->index_lock);
    return buffer != NULL ? buffer : dvmm_host_buffer_make(a->driver, sizeof *buffer);
}

static void give_buffer(dpool_fill *f, ductile_allocator *a, dpool_fill_buffer *buffer) {
    dti_lock_acquire(&a->index_lock);
    buffer->next = f->spare_buffers;
    f->spare_buffers = buffer;
    dti_lock_release(&a->index_lock);
}

/* ---- Comparing ----------------------------------------------------------------------------- */

enum { SHOWN_BYTES = 16 };

/* What a check of a block has found. */
typedef struct finding {
    uint64_t checked;
    uint64_t wrong;     /* bytes that differ           */
    ductile_addr first; /* the first of them; valid, as what follows, when there are any */
    uint8_t shown[SHOWN_BYTES];
    uint32_t n_shown;
} finding;

static bool is_filled(const uint8_t *bytes, uint64_t n) {
    return n == 0 || (bytes[0] == DPOOL_FILL_BYTE && memcmp(bytes, bytes + 1, n - 1) == 0);
}

static void show(finding *f, ductile_addr addr, const uint8_t *bytes, uint64_t n) {
    f->first = addr;
    f->n_shown = (uint32_t)dti_min(n, SHOWN_BYTES);
    memcpy(f->shown, bytes, f->n_shown);
}

static void compare(finding *f, ductile_addr addr, const uint8_t *bytes, uint64_t n) {
    bool is_right = is_filled(bytes, n);
    for (uint64_t at = 0; at < n && !is_right; at++) {
        if (bytes[at] != DPOOL_FILL_BYTE && f->wrong++ == 0) {
            show(f, addr + at, bytes + at, n - at);
        }
    }
    f->checked += n;
}

/* ---- Checking ------------------------------------------------------------------------------ */

/* Runs of the pattern in a block. */
typedef struct runs {
    dpool_fill *fill;
    const dpool_block *b;
    ductile_addr at, end; /* the present one */
} runs;

static bool next_run(ductile_allocator *a, runs *r) {
    r->at = r->end;
    r->end = dpool_end(r->b);
    dti_lock_acquire(&a->index_lock);
    const dpool_fill_map *map = find_map(r->fill, r->at);
    bool is_any = map != NULL && dpool_fill_take(map, &r->at, &r->end, BUFFER_BYTES);
    dti_lock_release(&a->index_lock);
    return is_any;
}

/* After a wait that failed the copy may land at any time: the buffer is left to it. */
static bool check_run(ductile_allocator *a, const runs *r, finding *f) {
    ductile_stream stream = r->b->region->arena->stream;
    dpool_fill_buffer *buffer = take_buffer(r->fill, a);
    if (buffer == NULL) {
        return false;
    }
    uint64_t n = r->end - r->at;
    bool is_idle = false;
    ductile_status status =
        dvmm_host_buffer_read(a->driver, buffer->bytes, r->at, n, stream, &is_idle);
    if (status == DUCTILE_OK) {
        compare(f, r->at, buffer->bytes, n);
    }
    if (is_idle) {
        give_buffer(r->fill, a, buffer);
    }
    return status == DUCTILE_OK;
}

/* What cannot be checked is forgotten: the caller is about to get the memory. */
static void check_runs(ductile_allocator *a, runs *r, finding *f) {
    bool goes_on = !dvmm_is_capturing(a->driver, r->b->region->arena->stream);
    while (goes_on && check_run(a, r, f)) {
        goes_on = next_run(a, r);
    }
    dti_lock_acquire(&a->index_lock);
    forget_locked(&r->fill->service, a, r->b->addr, dpool_end(r->b));
    r->fill->checked += f->checked;
    r->fill->mismatches += f->wrong > 0;
    dti_lock_release(&a->index_lock);
}

static void tell(const ductile_allocator *a, const dpool_block *b, const finding *f) {
    char bytes[3 * SHOWN_BYTES + 1] = "";
    for (uint32_t i = 0; i < f->n_shown; i++) {
        (void)snprintf(bytes + (size_t)3 * i, 4, " %02x", f->shown[i]);
    }
    dpool_log(a, DUCTILE_LOG_WARNING,
              "memory was written after it was freed: %" PRIu64
              " bytes, the first at 0x%llx, which "
              "is byte %llu of the block of %" PRIu64 " bytes that is handed out there now; "
              "from there:%s (the fill is %02x)",
              f->wrong, f->first, f->first - b->addr, b->size, bytes, (unsigned)DPOOL_FILL_BYTE);
}

static void check_block(dpool_service *s, ductile_allocator *a, const dpool_block *b) {
    runs r = {.fill = fill_of(s), .b = b, .end = b->addr};
    if (!next_run(a, &r)) {
        return;
    }
    finding f = {.wrong = 0};
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    check_runs(a, &r, &f);
    dvmm_capture_restore(a->driver, mode);
    if (f.wrong > 0) {
        tell(a, b, &f);
    }
}

/* ---- The service --------------------------------------------------------------------------- */

static void count_locked(dpool_service *s, const ductile_allocator *a, ductile_stats *out) {
    DTI_ASSERT_HELD(&a->index_lock);
    out->fill_total_bytes = fill_of(s)->filled;
    out->fill_checked_total_bytes = fill_of(s)->checked;
    out->fill_mismatches = fill_of(s)->mismatches;
}

static void end(dpool_service *s, ductile_allocator *a) {
    dpool_fill *f = fill_of(s);
    while (f->spare_buffers != NULL) {
        dpool_fill_buffer *buffer = f->spare_buffers;
        f->spare_buffers = buffer->next;
        dvmm_host_buffer_drop(a->driver, buffer);
    }
    free(f);
}

ductile_status dpool_fill_begin(ductile_allocator *a) {
    static const dpool_events events = {
        .wants_freed_locked = may_fill_locked,
        .freed = fill_block,
        .handed_out = check_block,
        .region_made = add_map,
        .region_gone = drop_map,
        .left_locked = forget_locked,
        .check_locked = check_locked,
        .count_locked = count_locked,
        .end = end,
    };
    dpool_fill *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    f->service.events = &events;
    dpool_service_add(a, &f->service);
    return DUCTILE_OK;
}
