/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/fill.h"

#include "pool/base/log.h"
#include "pool/blocks/age.h"
#include "pool/blocks/fill_map.h"
#include "pool/streams/marks.h"

#include "segments/granules.h"
#include "vmm/base/align.h"
#include "vmm/capture_gate.h"
#include "vmm/capture_mode.h"
#include "vmm/host_buffer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Filling ------------------------------------------------------------------------------- */

static bool is_pinned(const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    return dseg_ties_of(seg, dseg_granules_over(seg, b->addr, dpool_end(b))).pinned;
}

bool dpool_fill_is_possible_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_arena *arena = b->region->arena;
    return dpool_has_fill_map(b->region) && !dpool_had_graphs(arena) && !dpool_is_frozen(arena) &&
           !arena->is_foreign && dpool_arena_may_be_named(arena) && !is_pinned(b);
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
static bool begin(ductile_allocator *a, const dpool_block *b) {
    dpool_arena *arena = b->region->arena;
    dti_lock_acquire(&a->index_lock);
    bool may = dpool_fill_is_possible_locked(a, b);
    arena->n_stream_refs += may;
    if (may && arena->pool != NULL) {
        arena->pool->n_users++;
    }
    dti_lock_release(&a->index_lock);
    return may;
}

/* The fill is work on the memory too: a proof has to be recorded behind it. */
static void note_filled(ductile_allocator *a, dpool_block *b) {
    dti_lock_acquire(&a->index_lock);
    dpool_fill_set(b->region, b->addr, dpool_end(b));
    dpool_make_young_locked(a, b);
    dpool_want_mark_locked(a);
    a->counts.filled += b->size;
    dti_lock_release(&a->index_lock);
}

void dpool_fill_block(ductile_allocator *a, dpool_block *b) {
    dpool_arena *arena = b->region->arena; /* stays: the block is pending */
    if (!begin(a, b)) {
        return;
    }
    if (fill(a, b) == DUCTILE_OK) {
        note_filled(a, b);
    }
    dpool_stream_ref_end(a, arena);
    dpool_unpin(a, arena->pool);
}

/* ---- Buffers ------------------------------------------------------------------------------- */

#define BUFFER_BYTES (8 * DTI_MIB)

/* Kept for the next check. */
typedef struct dpool_fill_buffer dpool_fill_buffer;
struct dpool_fill_buffer {
    union {
        dpool_fill_buffer *next; /* spare */
        uint8_t bytes[BUFFER_BYTES];
    };
};

static dpool_fill_buffer *take_buffer(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    dpool_fill_buffer *buffer = a->spare_fill_buffers;
    if (buffer != NULL) {
        a->spare_fill_buffers = buffer->next;
    }
    dti_lock_release(&a->index_lock);
    return buffer != NULL ? buffer : dvmm_host_buffer_make(a->driver, sizeof *buffer);
}

static void give_buffer(ductile_allocator *a, dpool_fill_buffer *buffer) {
    dti_lock_acquire(&a->index_lock);
    buffer->next = a->spare_fill_buffers;
    a->spare_fill_buffers = buffer;
    dti_lock_release(&a->index_lock);
}

void dpool_fill_fini(ductile_allocator *a) {
    while (a->spare_fill_buffers != NULL) {
        dpool_fill_buffer *buffer = a->spare_fill_buffers;
        a->spare_fill_buffers = buffer->next;
        dvmm_host_buffer_drop(a->driver, buffer);
    }
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
    const dpool_block *b;
    ductile_addr at, end; /* the present one */
} runs;

static bool next_run(ductile_allocator *a, runs *r) {
    r->at = r->end;
    r->end = dpool_end(r->b);
    dti_lock_acquire(&a->index_lock);
    bool is_any = dpool_fill_take(r->b->region, &r->at, &r->end, BUFFER_BYTES);
    dti_lock_release(&a->index_lock);
    return is_any;
}

/* After a wait that failed the copy may land at any time: the buffer is left to it. */
static bool check_run(ductile_allocator *a, const runs *r, finding *f) {
    ductile_stream stream = r->b->region->arena->stream;
    dpool_fill_buffer *buffer = take_buffer(a);
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
        give_buffer(a, buffer);
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
    dpool_fill_forget(r->b->region, r->b->addr, dpool_end(r->b));
    a->counts.fill_checked += f->checked;
    a->counts.fill_mismatches += f->wrong > 0;
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

void dpool_fill_check(ductile_allocator *a, const dpool_block *b) {
    runs r = {.b = b, .end = b->addr};
    if (a->options.find != DUCTILE_FIND_STALE_WRITES || !next_run(a, &r)) {
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
