/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/recorded.h"

#include "pool/blocks/wait_spans.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"

enum { MOST_AT_ONCE = 64 };

/* A recorded stream that has to be waited for. */
typedef struct lane {
    ductile_stream stream;
    uint64_t thread;
    bool is_gone;        /* a later stream may have the same handle: in a lane of its own */
    bool wants_marker;   /* some use has none yet: a new one proves what the others do    */
    dvmm_marker *latest; /* may be NULL then */
    uint64_t number;     /* of latest        */
} lane;

/* One round: the lowest lanes above `after`, in order. However many streams there are, rounds need
 * no memory, and none of them is left out. */
typedef struct round {
    lane after; /* of the round before; stream NULL, which no lane has: the first one */
    lane all[MOST_AT_ONCE];
    uint32_t n;
    bool is_full; /* there may be more */
    bool has_peers;
} round;

static int compare(const lane *l, const lane *r) {
    if (l->stream != r->stream) {
        return (uintptr_t)l->stream < (uintptr_t)r->stream ? -1 : 1;
    }
    if (l->thread != r->thread) {
        return l->thread < r->thread ? -1 : 1;
    }
    return (int)l->is_gone - (int)r->is_gone;
}

/* ---- Finding them -------------------------------------------------------------------------- */

/* Default streams are this device's, whoever names them: the wait for the context is theirs. */
static bool is_default(ductile_stream stream) {
    return dpool_canonical_stream(stream) == NULL || dpool_thread_of(stream) != 0;
}

/* Work that is not done, and perhaps not covered by the wait for the context? */
static bool needs_wait(const dpool_use *use) {
    if (is_default(use->stream)) {
        return false;
    }
    return use->marker != NULL ? !dvmm_marker_is_done(use->marker) : !use->is_gone;
}

/* Of two markers of one stream the later one proves what the other does (U11). */
static void merge(lane *into, const lane *from) {
    into->wants_marker |= from->wants_marker;
    if (from->latest != NULL && (into->latest == NULL || from->number > into->number)) {
        into->latest = from->latest;
        into->number = from->number;
    }
}

/* Where it stands, or belongs. */
static uint32_t place_of(const round *r, const lane *l) {
    uint32_t low = 0;
    uint32_t high = r->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare(&r->all[middle], l) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void insert(round *r, uint32_t at, const lane *l) {
    if (r->n == MOST_AT_ONCE) {
        r->is_full = true;
        r->n--;
    }
    for (uint32_t i = r->n; i > at; i--) {
        r->all[i] = r->all[i - 1];
    }
    r->all[at] = *l;
    r->n++;
}

static void note(round *r, const dpool_use *use) {
    const lane l = {use->stream,         use->thread, use->is_gone,
                    use->marker == NULL, use->marker, use->number};
    if (!needs_wait(use) || compare(&l, &r->after) <= 0) {
        return;
    }
    uint32_t at = place_of(r, &l);
    if (at < r->n && compare(&r->all[at], &l) == 0) {
        merge(&r->all[at], &l);
    } else if (at < MOST_AT_ONCE) {
        insert(r, at, &l);
    } else {
        r->is_full = true;
    }
}

static void note_uses(round *r, const dpool_use *uses) {
    for (const dpool_use *use = uses; use != NULL; use = use->next) {
        note(r, use);
    }
}

/* Markers of a PENDING block in transit belong to the thread that records them: it is in no list
 * yet, and a caller that waits for pending blocks comes again. */
static bool has_uses(const dpool_block *b) {
    switch ((dpool_state)b->state) {
    case DPOOL_LIVE:
    case DPOOL_PAUSED:
        return b->uses != NULL;
    case DPOOL_PENDING:
        return !dpool_is_in_transit(b->uses);
    case DPOOL_FREE:
    case DPOOL_BUSY:
    case DPOOL_GAP:
    case DPOOL_RETIRING:
    case DPOOL_QUARANTINED:
        return false;
    }
    return false;
}

static void note_blocks(round *r, const dpool_region *region) {
    for (const dpool_block *b = region->first; b != NULL; b = b->next) {
        note_uses(r, has_uses(b) ? b->uses : NULL);
    }
}

static const dpool_region *first_region(const dpool_arena *arena, dpool_leaving what) {
    return what.is_all || arena->pool == what.pool ? arena->regions : NULL;
}

static void find_lanes(ductile_allocator *a, dpool_leaving what, round *r) {
    dti_lock_acquire(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (const dpool_region *g = first_region(arena, what); g != NULL; g = g->next) {
            note_blocks(r, g);
        }
    }
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->all[i].latest != NULL) {
            dvmm_marker_hold(r->all[i].latest);
        }
    }
    dti_lock_release(&a->index_lock);
}

/* ---- Marking and waiting ------------------------------------------------------------------- */

static ductile_status mark(ductile_allocator *a, lane *l) {
    dvmm_marker *m = NULL;
    ductile_status status = dvmm_marker_record(&a->markers, l->stream, &m);
    if (status == DUCTILE_OK) {
        if (l->latest != NULL) {
            dvmm_marker_drop(&a->markers, l->latest);
        }
        l->latest = m;
    }
    return status;
}

/* Under the grow lock no stream gets done: those that are found can be named (U7). */
static ductile_status mark_lanes(ductile_allocator *a, dpool_leaving what, round *r) {
    ductile_status status = DUCTILE_OK;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    r->has_peers = a->store.n_devices > 1;
    if (r->has_peers) {
        dpool_mark_unmarked(a, NULL, true);
        find_lanes(a, what, r);
    }
    for (uint32_t i = 0; i < r->n && status == DUCTILE_OK; i++) {
        status = r->all[i].wants_marker ? mark(a, &r->all[i]) : DUCTILE_OK;
    }
    dpool_grow_unlock(a, mode);
    return status;
}

static ductile_status wait_for(ductile_allocator *a, const lane *l, ductile_status status) {
    if (l->latest == NULL) {
        return status;
    }
    if (status == DUCTILE_OK) {
        status = dvmm_marker_wait(&a->markers, l->latest);
    }
    dvmm_marker_drop(&a->markers, l->latest);
    return status;
}

static ductile_status wait_for_blocks(ductile_allocator *a, dpool_leaving what, bool *has_peers) {
    ductile_status status = DUCTILE_OK;
    round r = {.is_full = true};
    while (r.is_full && status == DUCTILE_OK) {
        r.is_full = false;
        r.n = 0;
        status = mark_lanes(a, what, &r);
        for (uint32_t i = 0; i < r.n; i++) {
            status = wait_for(a, &r.all[i], status);
        }
        r.after = r.all[r.n > 0 ? r.n - 1 : 0];
    }
    *has_peers = r.has_peers;
    return status;
}

/* ---- Spans with waits ---------------------------------------------------------------------- */

/* The region with the lowest addresses that does not end before `from`. */
static const dpool_region *region_from(const ductile_allocator *a, dpool_leaving what,
                                       ductile_addr from) {
    const dpool_region *best = NULL;
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (const dpool_region *g = first_region(arena, what); g != NULL; g = g->next) {
            const dvmm_range *range = &g->seg->range;
            bool is_ahead = range->addr + range->size > from;
            best = is_ahead && (best == NULL || range->addr < best->seg->range.addr) ? g : best;
        }
    }
    return best;
}

/* The first from *at on whose work the host does not know done. In the order of addresses, so that
 * each of those that are done is passed once. */
static bool find_span(ductile_allocator *a, dpool_leaving what, ductile_addr *at) {
    const dpool_use *span = NULL;
    dti_lock_acquire(&a->index_lock);
    const dpool_region *g = region_from(a, what, *at);
    while (g != NULL && span == NULL) {
        ductile_addr end = g->seg->range.addr + g->seg->range.size;
        span = dpool_wait_find_due_locked(a, dti_max(*at, g->seg->range.addr), end);
        *at = span != NULL ? span->addr : end;
        g = span != NULL ? g : region_from(a, what, end);
    }
    dti_lock_release(&a->index_lock);
    return span != NULL;
}

/* Their markers were recorded at the frees, and are waited for one by one. */
static ductile_status wait_for_spans(ductile_allocator *a, dpool_leaving what) {
    ductile_addr at = 0;
    ductile_addr failed = 0;
    while (find_span(a, what, &at)) {
        if (at == failed) {
            ductile_status status = dvmm_usable(a->driver);
            return status == DUCTILE_OK ? DUCTILE_ERR_DRIVER : status;
        }
        ductile_addr from = at;
        failed = dpool_wait_on_host(a, &from, at + 1) ? 0 : at;
    }
    return DUCTILE_OK;
}

ductile_status dpool_wait_recorded(ductile_allocator *a, dpool_leaving what) {
    bool has_peers = false;
    ductile_status status = wait_for_blocks(a, what, &has_peers);
    return status == DUCTILE_OK && has_peers ? wait_for_spans(a, what) : status;
}
