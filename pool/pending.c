/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting on the host for pending memory, the oldest first. Who polls a pending list takes it out
 * of its arena under the slow lock: with that lock held, nothing is missing. */
#include "pool/progress.h"

/* Streams that one pass waits for: of each, the last marker of the part of the list it covers,
 * behind which the earlier ones are done as well. So a pass is linear, however many blocks are
 * pending. */
enum { MOST_STREAMS = 32 };

typedef struct awaited {
    const dpool_use *last[MOST_STREAMS]; /* its stream, thread and state name the stream */
    dvmm_marker *markers[MOST_STREAMS];
    uint32_t n;
    uint64_t bytes; /* of the blocks covered */
} awaited;

static bool is_undone(const dpool_use *use) {
    return use->marker != NULL && !atomic_load(&use->marker->done);
}

/* A stream that is gone may have had the handle of one that is not: they are told apart. */
static bool is_same_stream(const dpool_use *a, const dpool_use *b) {
    return a->stream == b->stream && a->thread == b->thread && !a->is_gone && !b->is_gone;
}

static bool note_use(awaited *w, const dpool_use *use) {
    uint32_t i = 0;
    while (i < w->n && !is_same_stream(w->last[i], use)) {
        i++;
    }
    if (i == MOST_STREAMS) {
        return false;
    }
    w->n = i == w->n ? i + 1 : w->n;
    w->last[i] = use;
    w->markers[i] = use->marker;
    return true;
}

/* False: no room for its streams. */
static bool note_block(awaited *w, const dpool_use *uses) {
    bool has_undone = false;
    for (const dpool_use *use = uses; use != NULL; use = use->next) {
        if (is_undone(use)) {
            has_undone = true;
            if (!note_use(w, use)) {
                return false;
            }
        }
    }
    w->bytes += has_undone ? uses->block->size : 0;
    return true;
}

static bool note_arena(awaited *w, const dpool_arena *arena, uint64_t bytes) {
    const dpool_use *uses = arena->pending_first;
    while (uses != NULL && w->bytes < bytes && note_block(w, uses)) {
        uses = uses->pending_next;
    }
    return uses == NULL;
}

static bool is_alive_locked(const ductile_allocator *a, const dpool_arena *own) {
    const dpool_arena *arena = a->arenas;
    while (arena != NULL && arena != own) {
        arena = arena->next;
    }
    return arena != NULL;
}

/* The requester's own memory first: it needs no further proof. A trim may have dropped the arena
 * since the latest attempt. */
static void choose_locked(const ductile_allocator *a, const dpool_arena *own, uint64_t bytes,
                          awaited *w) {
    bool goes_on = !is_alive_locked(a, own) || note_arena(w, own, bytes);
    for (const dpool_arena *arena = a->arenas; goes_on && arena != NULL; arena = arena->next) {
        goes_on = arena == own || note_arena(w, arena, bytes);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        dvmm_marker_hold(w->markers[i]);
    }
}

static void take_both(ductile_allocator *a) {
    dti_lock_take(&a->slow);
    dti_lock_take(&a->hot);
}

static void open_both(ductile_allocator *a) {
    dti_lock_open(&a->hot);
    dti_lock_open(&a->slow);
}

uint64_t dpool_wait_oldest(ductile_allocator *a, const dpool_arena *own, uint64_t bytes) {
    awaited w = {.n = 0};
    take_both(a);
    choose_locked(a, own, bytes, &w);
    open_both(a);
    bool any = false;
    for (uint32_t i = 0; i < w.n; i++) {
        any |= dvmm_marker_wait(&a->markers, w.markers[i]) == DUCTILE_OK;
        dvmm_marker_drop(&a->markers, w.markers[i]);
    }
    if (!any) {
        return 0;
    }
    return w.bytes > 0 ? w.bytes : 1; /* more streams than fit, of one block */
}

static uint64_t count_marks(const dpool_use *uses) {
    uint64_t n = 0;
    for (const dpool_use *use = uses; use != NULL; use = use->next) {
        n += use->marker != NULL;
    }
    return n;
}

uint64_t dpool_count_pending_marks(ductile_allocator *a) {
    uint64_t n = 0;
    take_both(a);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (const dpool_use *u = arena->pending_first; u != NULL; u = u->pending_next) {
            n += count_marks(u);
        }
    }
    open_both(a);
    return n;
}
