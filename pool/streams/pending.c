/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/pending.h"

#include "pool/streams/per_stream.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"
#include "vmm/captures.h"

/*
 * An arena's pending blocks are one list, the oldest free first.
 * 1. A poll cuts off the front of the list, and groups the uses in it by stream.
 * 2. It asks for the latest marker of each stream: where that is done, so is all before it.
 * 3. Where it is not, it asks block by block, and never for what an answer has already told.
 * 4. A hit reads a front of FRONT blocks, then of twice as many, as long as it finds done ones.
 * 5. A front that stays undone may hide done blocks of other streams. After MOST_IN_VAIN polls in
 *    vain a hit reads MOST_PER_HIT blocks instead, and those go to the end of the list.
 * 6. A slow call reads the whole list.
 */
enum { FRONT = 16, MOST_PER_HIT = 256, MOST_IN_VAIN = 2 };

/* What is known about each stream that uses the blocks. */
typedef struct inquiry {
    dpool_stream_list of;
    bool is_whole;   /* all blocks that were read are in there */
    bool is_relaxed; /* this thread is in relaxed mode */
    dvmm_capture_mode restore;
} inquiry;

/* ---- Polling ------------------------------------------------------------------------------- */

static inline void record_done(dpool_per_stream *at, const dpool_use *use) {
    at->done_upto = dti_max(at->done_upto, use->number);
}

/* Finds the stream of the use, mostly that of the use before, and records whether its marker is
 * known to be done. A stream without room in the list is queried block by block. */
static inline dpool_per_stream *record_use(inquiry *q, dpool_per_stream *before, dpool_use *use) {
    dpool_per_stream *at =
        before != NULL && dpool_is_use_of(before, use) ? before : dpool_find_stream(&q->of, use);
    use->of_stream = at;
    if (__builtin_expect(at == NULL, 0)) {
        q->is_whole = false;
    } else if (dvmm_marker_is_done(use->marker)) {
        record_done(at, use);
    } else {
        dpool_record_undone(at, use);
    }
    return at;
}

/* The uses of one block. Returns the stream of the last one. */
static inline dpool_per_stream *record_block(inquiry *q, dpool_per_stream *at, dpool_use *first) {
    for (dpool_use *use = first; use != NULL; use = use->next) {
        if (use->marker != NULL) {
            at = record_use(q, at, use);
        } else {
            q->is_whole = false;
        }
    }
    return at;
}

/* Keeps the n oldest in the list, records them, and returns the others. */
static dpool_pending_list record_oldest(inquiry *q, dpool_pending_list *list, uint32_t n) {
    dpool_per_stream *at = NULL;
    dpool_use *last = NULL;
    dpool_use *rest = list->first;
    for (; rest != NULL && n > 0; n--) {
        at = record_block(q, at, rest);
        last = rest;
        rest = rest->pending_next;
    }
    dpool_pending_list others = {rest, rest != NULL ? list->last : NULL};
    list->last = last;
    *(last != NULL ? &last->pending_next : &list->first) = NULL;
    return others;
}

/* A hit that makes no query need not be in relaxed mode. */
static bool query(ductile_allocator *a, inquiry *q, dvmm_marker *m) {
    if (!q->is_relaxed && !dvmm_marker_is_done(m)) {
        q->restore = dvmm_capture_relax(a->driver);
        q->is_relaxed = true;
    }
    return dvmm_marker_query(&a->markers, m) == DUCTILE_OK;
}

static __attribute__((noinline)) void ask(ductile_allocator *a, inquiry *q, dpool_per_stream *at,
                                          dvmm_marker *m, uint64_t number) {
    bool is_done = query(a, q, m);
    *(is_done ? &at->done_upto : &at->undone_from) = number;
}

/* Not known whether it is done. */
static inline bool is_open(const dpool_per_stream *at, uint64_t number) {
    return number > at->done_upto && number < at->undone_from;
}

/* Mostly all is done: then this is the only query for a stream. */
static void ask_latest(ductile_allocator *a, inquiry *q) {
    for (uint32_t i = 0; i < q->of.n; i++) {
        dpool_per_stream *at = &q->of.all[i];
        if (at->n_undone > 1 && is_open(at, at->latest_number)) {
            ask(a, q, at, at->latest, at->latest_number);
        }
    }
}

static inline bool is_passed(ductile_allocator *a, inquiry *q, const dpool_use *use) {
    dpool_per_stream *at = use->of_stream;
    if (__builtin_expect(at == NULL, 0)) {
        return query(a, q, use->marker);
    }
    if (is_open(at, use->number)) {
        ask(a, q, at, use->marker, use->number);
    }
    return use->number <= at->done_upto;
}

/* A use that could not be marked. A proof for the context stands in for the marker, except for
 * streams of other contexts, and of other GPUs, which may use the memory where peers have access:
 * of those a marker may still be recorded. */
static bool needs_no_marker(const ductile_allocator *a, const dpool_use *use, bool is_covered) {
    bool may_be_elsewhere = a->store.n_devices > 1 && !use->is_gone && use->thread == 0;
    return is_covered && !may_be_elsewhere && !use->is_foreign;
}

static inline bool is_use_done(ductile_allocator *a, inquiry *q, const dpool_use *use,
                               bool is_covered) {
    return use->marker == NULL ? needs_no_marker(a, use, is_covered) : is_passed(a, q, use);
}

static inline bool uses_are_done(ductile_allocator *a, inquiry *q, const dpool_use *first,
                                 uint64_t proven_age) {
    bool is_covered = first->block->age < proven_age;
    const dpool_use *use = first;
    while (use != NULL && is_use_done(a, q, use, is_covered)) {
        use = use->next;
    }
    return use == NULL;
}

/* One poll of the list of an arena:
 * the blocks that were read, in order, and those that were not. */
typedef struct poll {
    ductile_allocator *a;
    uint64_t proven_age; /* by context markers, when the list was taken */
    inquiry q;
    dpool_pending_list done;
    dpool_pending_list kept;
    dpool_pending_list others;
    bool found_behind; /* found a done block behind one that is not done */
} poll;

static void begin_poll(poll *p, ductile_allocator *a, dpool_arena *arena, bool is_relaxed) {
    p->a = a;
    p->q.of.n = 0;
    p->q.is_whole = true;
    p->q.is_relaxed = is_relaxed;
    p->q.restore = DVMM_CAPTURE_RELAXED;
    p->found_behind = false;
    p->done = p->kept = (dpool_pending_list){NULL, NULL};
    p->others = dpool_pending_take(a, arena, &p->proven_age);
}

/* Are all blocks that were read done? */
static bool all_is_done(const inquiry *q) {
    bool is_done = q->is_whole;
    for (uint32_t i = 0; i < q->of.n && is_done; i++) {
        is_done = q->of.all[i].done_upto >= q->of.all[i].latest_number;
    }
    return is_done;
}

static void sort_out(poll *p, dpool_pending_list asked) {
    for (dpool_use *uses = asked.first, *next; uses != NULL; uses = next) {
        next = uses->pending_next;
        bool is_done = uses_are_done(p->a, &p->q, uses, p->proven_age);
        p->found_behind |= is_done && p->kept.first != NULL;
        dpool_pending_push(is_done ? &p->done : &p->kept, uses);
    }
}

/* Polls the n oldest of the blocks that were not read yet. */
static void read_front(poll *p, uint32_t n) {
    dpool_pending_list asked = p->others;
    p->others = record_oldest(&p->q, &asked, n);
    ask_latest(p->a, &p->q);
    if (all_is_done(&p->q)) {
        p->found_behind |= p->kept.first != NULL && asked.first != NULL;
        dpool_pending_join(&p->done, asked);
    } else {
        sort_out(p, asked);
    }
}

/* No block that was read was done: the next poll begins with the others. */
static void turn_round(poll *p) {
    dpool_pending_join(&p->others, p->kept);
    p->kept = p->others;
    p->others = (dpool_pending_list){NULL, NULL};
}

static void end_poll(poll *p, dpool_arena *arena) {
    dvmm_capture_restore(p->a->driver, p->q.restore);
    dpool_pending_join(&p->kept, p->others);
    dti_lock_acquire(&p->a->index_lock);
    dpool_pending_put_back_locked(p->a, arena, p->kept);
    dpool_use *rest = dpool_pending_finish_some_locked(p->a, p->done.first);
    dti_lock_release(&p->a->index_lock);
    dpool_pending_finish(p->a, rest);
}

/* Polls the n oldest. True when reading the front alone misses a done block, or may miss one. */
static bool poll_oldest(ductile_allocator *a, dpool_arena *arena, uint32_t n, bool is_relaxed) {
    poll p;
    begin_poll(&p, a, arena, is_relaxed);
    read_front(&p, n);
    bool is_stuck = p.done.first == NULL;
    bool misses = is_stuck ? p.others.first != NULL : p.found_behind;
    if (is_stuck) {
        turn_round(&p);
    }
    end_poll(&p, arena);
    return misses;
}

/* Polls as long as it finds done blocks. True when it found any. */
static bool poll_front(ductile_allocator *a, dpool_arena *arena) {
    poll p;
    begin_poll(&p, a, arena, false);
    bool goes_on = true;
    for (uint32_t n = FRONT; n <= MOST_PER_HIT / 2 && goes_on; n *= 2) {
        p.found_behind = false;
        read_front(&p, n);
        goes_on = p.kept.first == NULL || p.found_behind;
    }
    bool is_any = p.done.first != NULL;
    end_poll(&p, arena);
    return is_any;
}

void dpool_poll_pending_all(ductile_allocator *a, dpool_arena *arena) {
    (void)poll_oldest(a, arena, UINT32_MAX, true);
}

/* A stream finishes its work in order, and mostly one stream holds nearly all blocks: behind an
 * oldest block that is not done, a done block is rare. */
void dpool_poll_pending_some(ductile_allocator *a, dpool_arena *arena) {
    if (arena->pending.fruitless_polls < MOST_IN_VAIN) {
        arena->pending.fruitless_polls =
            poll_front(a, arena) ? 0 : arena->pending.fruitless_polls + 1;
    } else if (!poll_oldest(a, arena, MOST_PER_HIT, false)) {
        arena->pending.fruitless_polls = 0;
    }
}

/* ---- Recounting ---------------------------------------------------------------------------- */

/* PENDING blocks, except those whose markers a thread is recording just now. */
static uint64_t count_pending(const dpool_arena *arena, const dti_fault *fault) {
    uint64_t n = 0;
    for (const dpool_region *r = arena->blocks.regions; r != NULL && dti_is_sound(fault);
         r = r->next) {
        for (const dpool_block *b = r->first; b != NULL; b = b->next) {
            n += b->state == DPOOL_PENDING && !dpool_is_in_transit(b->uses);
        }
    }
    return n;
}

void dpool_pending_check_locked(const ductile_allocator *a, const dpool_arena *arena,
                                dti_fault *fault) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t where = (uint64_t)(uintptr_t)arena->stream;
    uint64_t listed = count_pending(arena, fault);
    uint64_t n = 0;
    const dpool_use *last = NULL;
    for (const dpool_use *use = arena->pending.list.first;
         use != NULL && n <= listed && dti_is_sound(fault); use = use->pending_next) {
        const dpool_block *b = use->block;
        dti_expect(fault, "A7", b->state == DPOOL_PENDING && b->uses == use,
                   "a block in the pending list, its state", b->state, DPOOL_PENDING, b->addr);
        dti_expect(fault, "A7", b->region->arena == arena, "a pending block's arena", 0, 1,
                   b->addr);
        last = use;
        n++;
    }
    dti_expect_equal(fault, "A7", "blocks in the pending list", n, listed, where);
    dti_expect(fault, "A7", arena->pending.list.last == last, "the pending list's end", 0, 1,
               where);
}
