/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/pending.h"

#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"
#include "vmm/capture_mode.h"

enum {
    MOST_LANES = 32,
    FRONT = 16, /* of the oldest, looked at first */
    MOST_PER_HIT = 256,
    MOST_IN_VAIN = 2 /* polls of the front alone */
};

/* A stream as a pending list names it. Its marker with the highest number proves what the others
 * do (U11), so one question, or one wait, is enough for a stream however many blocks are pending.
 */
typedef struct dpool_lane {
    ductile_stream stream;
    uint64_t thread;
    bool is_gone; /* a later stream may have the same handle: in a lane of its own */
    dvmm_marker *latest;
    uint64_t latest_number;
    uint32_t n_marks;
    uint64_t done_upto;   /* known: markers up to this number are done   */
    uint64_t undone_from; /* known: one is not, nor then those after it  */
} lane;

typedef struct lanes {
    lane all[MOST_LANES];
    uint32_t n;
    bool is_whole;   /* all that was looked at is in lanes */
    bool is_relaxed; /* this thread is in relaxed mode */
    dvmm_capture_mode restore;
} lanes;

static bool is_undone(const dpool_use *use) {
    return use->marker != NULL && !dvmm_marker_is_done(use->marker);
}

static inline bool is_in(const lane *at, const dpool_use *use) {
    return at->stream == use->stream && at->thread == use->thread && at->is_gone == use->is_gone;
}

static lane *add_lane(lanes *l, const dpool_use *use) {
    if (l->n == MOST_LANES) {
        return NULL;
    }
    lane *at = &l->all[l->n++];
    *at = (lane){.stream = use->stream,
                 .thread = use->thread,
                 .is_gone = use->is_gone,
                 .undone_from = UINT64_MAX,
                 .latest = use->marker,
                 .latest_number = use->number};
    return at;
}

/* NULL: there is no room for its stream. */
static __attribute__((noinline)) lane *find_lane(lanes *l, const dpool_use *use) {
    uint32_t i = 0;
    while (i < l->n && !is_in(&l->all[i], use)) {
        i++;
    }
    return i < l->n ? &l->all[i] : add_lane(l, use);
}

static inline void note_undone(lane *at, const dpool_use *use) {
    if (use->number > at->latest_number) {
        at->latest = use->marker;
        at->latest_number = use->number;
    }
    at->n_marks++;
}

/* ---- Polling ------------------------------------------------------------------------------- */

static inline void note_done(lane *at, const dpool_use *use) {
    at->done_upto = dti_max(at->done_upto, use->number);
}

/* Puts the use into its lane, mostly that of the use before; whether its marker is known to be done
 * is in the lane from now on. A stream without a lane is asked about block by block. */
static inline lane *note_use(lanes *l, lane *before, dpool_use *use) {
    lane *at = before != NULL && is_in(before, use) ? before : find_lane(l, use);
    use->lane = at;
    if (__builtin_expect(at == NULL, 0)) {
        l->is_whole = false;
    } else if (dvmm_marker_is_done(use->marker)) {
        note_done(at, use);
    } else {
        note_undone(at, use);
    }
    return at;
}

/* The n oldest stay in the list; returns the others. */
static dpool_pending_list note_oldest(lanes *l, dpool_pending_list *list, uint32_t n) {
    lane *at = NULL;
    dpool_use *last = NULL;
    dpool_use *rest = list->first;
    for (; rest != NULL && n > 0; n--) {
        for (dpool_use *use = rest; use != NULL; use = use->next) {
            if (use->marker != NULL) {
                at = note_use(l, at, use);
            } else {
                l->is_whole = false;
            }
        }
        last = rest;
        rest = rest->pending_next;
    }
    dpool_pending_list others = {rest, rest != NULL ? list->last : NULL};
    list->last = last;
    *(last != NULL ? &last->pending_next : &list->first) = NULL;
    return others;
}

/* A hit that asks nothing need not be in relaxed mode. */
static bool query(ductile_allocator *a, lanes *l, dvmm_marker *m) {
    if (!l->is_relaxed && !dvmm_marker_is_done(m)) {
        l->restore = dvmm_capture_relax(a->driver);
        l->is_relaxed = true;
    }
    return dvmm_marker_query(&a->markers, m) == DUCTILE_OK;
}

static __attribute__((noinline)) void ask(ductile_allocator *a, lanes *l, lane *at, dvmm_marker *m,
                                          uint64_t number) {
    bool is_done = query(a, l, m);
    *(is_done ? &at->done_upto : &at->undone_from) = number;
}

/* Not known to be done, nor that it is not. */
static inline bool is_open(const lane *at, uint64_t number) {
    return number > at->done_upto && number < at->undone_from;
}

/* Mostly all of it is done: then this is the only question about a stream. */
static void ask_latest(ductile_allocator *a, lanes *l) {
    for (uint32_t i = 0; i < l->n; i++) {
        lane *at = &l->all[i];
        if (at->n_marks > 1 && is_open(at, at->latest_number)) {
            ask(a, l, at, at->latest, at->latest_number);
        }
    }
}

static inline bool is_passed(ductile_allocator *a, lanes *l, const dpool_use *use) {
    lane *at = use->lane;
    if (__builtin_expect(at == NULL, 0)) {
        return query(a, l, use->marker);
    }
    if (is_open(at, use->number)) {
        ask(a, l, at, use->marker, use->number);
    }
    return use->number <= at->done_upto;
}

/* A wait for the context says nothing about another GPU's streams: where peers have access, markers
 * do, and it stands in only for those that nobody will record any more. */
static bool needs_no_marker(const dpool_use *use, bool is_covered) {
    return is_covered && (use->is_gone || use->thread != 0);
}

static inline bool is_use_done(ductile_allocator *a, lanes *l, const dpool_use *use,
                               bool is_covered) {
    return use->marker == NULL ? needs_no_marker(use, is_covered) : is_passed(a, l, use);
}

/* Without any wait for the context, nobody looks at the block. */
static inline bool uses_are_done(ductile_allocator *a, lanes *l, const dpool_use *first,
                                 uint64_t context_epoch) {
    bool is_covered = context_epoch > 0 && first->block->epoch < context_epoch;
    if (is_covered && a->store.n_devices == 1) {
        return true;
    }
    const dpool_use *use = first;
    while (use != NULL && is_use_done(a, l, use, is_covered)) {
        use = use->next;
    }
    return use == NULL;
}

static void push(dpool_pending_list *list, dpool_use *uses) {
    uses->pending_next = NULL;
    *(list->last != NULL ? &list->last->pending_next : &list->first) = uses;
    list->last = uses;
}

static void join(dpool_pending_list *list, dpool_pending_list more) {
    if (more.first != NULL) {
        *(list->last != NULL ? &list->last->pending_next : &list->first) = more.first;
        list->last = more.last;
    }
}

/* One poll of an arena's list: what of it was looked at, in order, and what was not. */
typedef struct poll {
    ductile_allocator *a;
    uint64_t context_epoch;
    lanes l;
    dpool_pending_list done;
    dpool_pending_list kept;
    dpool_pending_list others;
    bool found_behind; /* something done behind something that is not */
} poll;

static void begin_poll(poll *p, ductile_allocator *a, dpool_arena *arena, bool is_relaxed) {
    p->a = a;
    p->l.n = 0;
    p->l.is_whole = true;
    p->l.is_relaxed = is_relaxed;
    p->l.restore = DVMM_CAPTURE_RELAXED;
    p->found_behind = false;
    p->done = p->kept = (dpool_pending_list){NULL, NULL};
    p->others = dpool_pending_take(a, arena, &p->context_epoch);
}

/* Is everything done that was looked at? */
static bool all_is_done(const lanes *l) {
    bool is_done = l->is_whole;
    for (uint32_t i = 0; i < l->n && is_done; i++) {
        is_done = l->all[i].done_upto >= l->all[i].latest_number;
    }
    return is_done;
}

static void sort_out(poll *p, dpool_pending_list asked) {
    for (dpool_use *uses = asked.first, *next; uses != NULL; uses = next) {
        next = uses->pending_next;
        bool is_done = uses_are_done(p->a, &p->l, uses, p->context_epoch);
        p->found_behind |= is_done && p->kept.first != NULL;
        push(is_done ? &p->done : &p->kept, uses);
    }
}

/* At the n oldest of the others. */
static void look_at(poll *p, uint32_t n) {
    dpool_pending_list asked = p->others;
    p->others = note_oldest(&p->l, &asked, n);
    ask_latest(p->a, &p->l);
    if (all_is_done(&p->l)) {
        p->found_behind |= p->kept.first != NULL && asked.first != NULL;
        join(&p->done, asked);
    } else {
        sort_out(p, asked);
    }
}

/* Nothing of what was looked at was done: the next poll begins with the others. */
static void turn_round(poll *p) {
    join(&p->others, p->kept);
    p->kept = p->others;
    p->others = (dpool_pending_list){NULL, NULL};
}

static void end_poll(poll *p, dpool_arena *arena) {
    dvmm_capture_restore(p->a->driver, p->l.restore);
    join(&p->kept, p->others);
    dti_lock_acquire(&p->a->index_lock);
    dpool_pending_put_back_locked(p->a, arena, p->kept);
    dpool_use *rest = dpool_pending_finish_some_locked(p->a, p->done.first);
    dti_lock_release(&p->a->index_lock);
    dpool_pending_finish(p->a, rest);
}

/* At the n oldest. True when a look at the front alone misses something, or may. */
static bool poll_oldest(ductile_allocator *a, dpool_arena *arena, uint32_t n, bool is_relaxed) {
    poll p;
    begin_poll(&p, a, arena, is_relaxed);
    look_at(&p, n);
    bool is_stuck = p.done.first == NULL;
    bool misses = is_stuck ? p.others.first != NULL : p.found_behind;
    if (is_stuck) {
        turn_round(&p);
    }
    end_poll(&p, arena);
    return misses;
}

/* As far as there is anything done. True when that is anything. */
static bool poll_front(ductile_allocator *a, dpool_arena *arena) {
    poll p;
    begin_poll(&p, a, arena, false);
    bool goes_on = true;
    for (uint32_t n = FRONT; n <= MOST_PER_HIT / 2 && goes_on; n *= 2) {
        p.found_behind = false;
        look_at(&p, n);
        goes_on = p.kept.first == NULL || p.found_behind;
    }
    bool is_any = p.done.first != NULL;
    end_poll(&p, arena);
    return is_any;
}

void dpool_poll_pending_all(ductile_allocator *a, dpool_arena *arena) {
    (void)poll_oldest(a, arena, UINT32_MAX, true);
}

/* A stream is done with its work in the order in which it got it, and mostly one stream holds
 * nearly everything: behind an oldest block that is not done there is seldom one that is. */
void dpool_poll_pending_some(ductile_allocator *a, dpool_arena *arena) {
    if (arena->fruitless_polls < MOST_IN_VAIN) {
        arena->fruitless_polls = poll_front(a, arena) ? 0 : arena->fruitless_polls + 1;
    } else if (!poll_oldest(a, arena, MOST_PER_HIT, false)) {
        arena->fruitless_polls = 0;
    }
}

/* ---- Waiting ------------------------------------------------------------------------------- */

typedef struct awaited {
    lanes of;
    uint64_t bytes; /* of the blocks covered */
} awaited;

/* False: no room for its streams. */
static bool note_uses(lanes *l, const dpool_use *uses, bool *any) {
    for (const dpool_use *use = uses; use != NULL; use = use->next) {
        if (is_undone(use)) {
            *any = true;
            lane *at = find_lane(l, use);
            if (at == NULL) {
                return false;
            }
            note_undone(at, use);
        }
    }
    return true;
}

static bool note_block(awaited *w, const dpool_use *uses) {
    bool any = false;
    bool is_noted = note_uses(&w->of, uses, &any);
    w->bytes += is_noted && any ? uses->block->size : 0;
    return is_noted;
}

static bool note_arena(awaited *w, const dpool_arena *arena, uint64_t bytes) {
    const dpool_use *uses = arena->pending_first;
    while (uses != NULL && w->bytes < bytes && note_block(w, uses)) {
        uses = uses->pending_next;
    }
    return uses == NULL;
}

static bool is_alive_locked(const ductile_allocator *a, const dpool_arena *own) {
    DTI_ASSERT_HELD(&a->index_lock);
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
    DTI_ASSERT_HELD(&a->index_lock);
    bool goes_on = !is_alive_locked(a, own) || note_arena(w, own, bytes);
    for (const dpool_arena *arena = a->arenas; goes_on && arena != NULL; arena = arena->next) {
        goes_on = arena == own || note_arena(w, arena, bytes);
    }
    for (uint32_t i = 0; i < w->of.n; i++) {
        dvmm_marker_hold(w->of.all[i].latest);
    }
}

static void take_both(ductile_allocator *a) {
    dti_lock_acquire(&a->grow_lock);
    dti_lock_acquire(&a->index_lock);
}

static void open_both(ductile_allocator *a) {
    dti_lock_release(&a->index_lock);
    dti_lock_release(&a->grow_lock);
}

uint64_t dpool_wait_oldest(ductile_allocator *a, const dpool_arena *own, uint64_t bytes) {
    awaited w;
    w.of.n = 0;
    w.bytes = 0;
    take_both(a);
    choose_locked(a, own, bytes, &w);
    open_both(a);
    bool any = false;
    for (uint32_t i = 0; i < w.of.n; i++) {
        any |= dvmm_marker_wait(&a->markers, w.of.all[i].latest) == DUCTILE_OK;
        dvmm_marker_drop(&a->markers, w.of.all[i].latest);
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
