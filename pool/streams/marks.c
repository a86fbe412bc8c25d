/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/marks.h"

#include "pool/blocks/proofs.h"

#include "vmm/base/align.h"
#include "vmm/captures.h"

bool dpool_has_context_marks(const ductile_allocator *a) {
    return dvmm_has_context_events(a->driver) &&
           atomic_load_explicit(&a->captures, memory_order_relaxed) != DUCTILE_CAPTURES_UNANNOUNCED;
}

/* ---- When one is due ----------------------------------------------------------------------- */

/* Of all frees so far; the pending ones count, whose own stream has used them too. */
static uint64_t freed_bytes_locked(const ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    return a->counts.allocated_total - a->counts.allocated;
}

bool dpool_mark_is_due_locked(const ductile_allocator *a, uint64_t bytes) {
    DTI_ASSERT_HELD(&a->index_lock);
    return a->marks.is_wanted || freed_bytes_locked(a) - a->marks.freed_bytes >= bytes;
}

void dpool_want_mark_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    a->marks.is_wanted = true;
}

/* ---- Recording ----------------------------------------------------------------------------- */

/* The clock moves on before the record. So what is freed from now on is not covered, whichever
 * comes first: the record or the free. */
uint64_t dpool_advance_clock(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    uint64_t age = ++a->age;
    dti_lock_release(&a->index_lock);
    return age;
}

/* The same for a mark of the context, after which nothing is due. */
static uint64_t advance_for_context(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    a->marks.freed_bytes = freed_bytes_locked(a);
    a->marks.is_wanted = false;
    uint64_t age = ++a->age;
    dti_lock_release(&a->index_lock);
    return age;
}

/* A full list keeps every other mark, and the oldest and the newest: what a mark that leaves would
 * have proven, the next one proves, later. Returns those that left, `n` of them. */
static uint32_t thin_out_locked(const ductile_allocator *a, dpool_marks *l, dvmm_marker **left) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint32_t n = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        if (i % 2 == 1 && i + 1 < l->n) {
            left[n++] = l->all[i].marker;
        } else {
            l->all[kept++] = l->all[i];
        }
    }
    l->n = kept;
    return n;
}

/* Threads may record in another order than their ages. */
static void insert_locked(const ductile_allocator *a, dpool_marks *l, dpool_mark mark) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint32_t at = l->n++;
    for (; at > 0 && l->all[at - 1].age > mark.age; at--) {
        l->all[at] = l->all[at - 1];
    }
    l->all[at] = mark;
}

static void add_mark(ductile_allocator *a, dpool_mark mark) {
    dvmm_marker *left[DPOOL_MOST_MARKS / 2];
    uint32_t n = 0;
    dti_lock_acquire(&a->index_lock);
    if (a->marks.n == DPOOL_MOST_MARKS) {
        n = thin_out_locked(a, &a->marks, left);
    }
    insert_locked(a, &a->marks, mark);
    dti_lock_release(&a->index_lock);
    for (uint32_t i = 0; i < n; i++) {
        dvmm_marker_drop(&a->markers, left[i]);
    }
}

/* A capture that no one announced is broken now. It happens once: from now on the allocator takes
 * it that captures are not announced. */
static void record_refusal(ductile_allocator *a) {
    atomic_store_explicit(&a->captures, DUCTILE_CAPTURES_UNANNOUNCED, memory_order_relaxed);
    atomic_store_explicit(&a->met_capture, true, memory_order_release);
}

static ductile_status record_context(ductile_allocator *a, dvmm_marker **out) {
    int captures = atomic_load_explicit(&a->captures, memory_order_relaxed);
    bool all_are_announced = captures == DUCTILE_CAPTURES_ANNOUNCED;
    if (captures == DUCTILE_CAPTURES_UNANNOUNCED || !dvmm_captures_hold(all_are_announced)) {
        return DUCTILE_ERR_CAPTURING;
    }
    ductile_status status = dvmm_marker_record_context(&a->markers, out);
    dvmm_captures_release(all_are_announced);
    if (status == DUCTILE_ERR_CAPTURING) {
        record_refusal(a);
    }
    return status;
}

ductile_status dpool_mark_context(ductile_allocator *a, dpool_mark *held) {
    dpool_mark mark = {NULL, 0};
    if (!dpool_has_context_marks(a)) {
        return DUCTILE_ERR_CAPTURING;
    }
    mark.age = advance_for_context(a);
    ductile_status status = record_context(a, &mark.marker);
    if (status != DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        dpool_want_mark_locked(a);
        dti_lock_release(&a->index_lock);
        return status;
    }
    if (held != NULL) {
        dvmm_marker_hold(mark.marker);
        *held = mark;
    }
    add_mark(a, mark);
    return DUCTILE_OK;
}

/* Only the first one under way is kept: a later call records the next, once this one is done.
 * `is_last`: no later call can, so this one replaces it; it is not recorded in an allocation, so
 * that it proves no more than was joined. */
static ductile_status mark_stream(ductile_allocator *a, dpool_arena *arena, bool is_last) {
    dti_lock_acquire(&a->index_lock);
    bool may =
        dpool_arena_may_be_named(arena) && (is_last || arena->proofs.own_mark.marker == NULL);
    arena->proofs.joined_age = !is_last ? ++a->age : arena->proofs.joined_age;
    dpool_mark mark = {NULL, arena->proofs.joined_age};
    dti_lock_release(&a->index_lock);
    DTI_TRY(may ? dvmm_marker_record(&a->markers, arena->stream, &mark.marker)
                : DUCTILE_ERR_CAPTURING);
    dti_lock_acquire(&a->index_lock);
    if (is_last) {
        dpool_drop_own_mark_locked(a, arena);
    }
    bool is_first = arena->proofs.own_mark.marker == NULL;
    if (is_first) {
        arena->proofs.own_mark = mark;
        a->marks.n_own++;
    }
    dti_lock_release(&a->index_lock);
    if (!is_first) {
        dvmm_marker_drop(&a->markers, mark.marker);
    }
    return DUCTILE_OK;
}

static ductile_status record_mark(ductile_allocator *a, dpool_arena *arena, bool is_last) {
    dti_lock_acquire(&a->index_lock);
    bool is_due = dpool_mark_is_due_locked(a, 1);
    if (arena != NULL && !is_last) {
        arena->proofs.joined_age = a->age;
    }
    dti_lock_release(&a->index_lock);
    bool is_foreign = arena != NULL && arena->is_foreign;
    if (!is_due && !is_foreign && dpool_has_context_marks(a)) {
        return DUCTILE_OK;
    }
    bool is_seen = arena != NULL && dvmm_is_capturing(a->driver, arena->stream);
    ductile_status status = is_seen ? DUCTILE_ERR_CAPTURING : dpool_mark_context(a, NULL);
    bool needs_own = arena != NULL && !is_seen && (status != DUCTILE_OK || is_foreign);
    return needs_own ? mark_stream(a, arena, is_last) : status;
}

ductile_status dpool_record_mark(ductile_allocator *a, dpool_arena *arena) {
    return record_mark(a, arena, false);
}

ductile_status dpool_record_last_mark(ductile_allocator *a, dpool_arena *arena) {
    return record_mark(a, arena, true);
}

/* ---- Reading ------------------------------------------------------------------------------- */

/* Holds the marks of a copy. */
static void copy_marks(ductile_allocator *a, dpool_marks *copy) {
    dti_lock_acquire(&a->index_lock);
    *copy = a->marks;
    for (uint32_t i = 0; i < copy->n; i++) {
        dvmm_marker_hold(copy->all[i].marker);
    }
    dti_lock_release(&a->index_lock);
}

static bool is_done(ductile_allocator *a, const dpool_mark *mark) {
    return dvmm_marker_query(&a->markers, mark->marker) == DUCTILE_OK;
}

/* The number of the oldest marks that are done. Mostly all are, or none; a mark that is done proves
 * that all before it are. */
static uint32_t count_done(ductile_allocator *a, const dpool_marks *l) {
    if (l->n == 0 || is_done(a, &l->all[l->n - 1])) {
        return l->n;
    }
    uint32_t done = 0;
    uint32_t undone = l->n - 1;
    for (uint32_t at = 0; done < undone; at = (done + undone) / 2) {
        if (is_done(a, &l->all[at])) {
            done = at + 1;
        } else {
            undone = at;
        }
    }
    return done;
}

/* Takes the marks up to an age out of the list into `gone`. */
static uint32_t take_out_locked(const ductile_allocator *a, dpool_marks *l, uint64_t upto,
                                dvmm_marker **gone) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint32_t n = 0;
    while (n < l->n && l->all[n].age <= upto) {
        gone[n] = l->all[n].marker;
        n++;
    }
    l->n -= n;
    for (uint32_t i = 0; i < l->n; i++) {
        l->all[i] = l->all[i + n];
    }
    return n;
}

void dpool_accept_mark(ductile_allocator *a, const dpool_mark *done) {
    dvmm_marker *gone[DPOOL_MOST_MARKS];
    dti_lock_acquire(&a->index_lock);
    dpool_raise_proof(&a->proven, (dpool_proof){done->age, dseg_idle_by_marker(done->marker)});
    uint32_t n = take_out_locked(a, &a->marks, done->age, gone);
    dti_lock_release(&a->index_lock);
    for (uint32_t i = 0; i < n; i++) {
        dvmm_marker_drop(&a->markers, gone[i]);
    }
}

static void poll_context(ductile_allocator *a) {
    dpool_marks marks;
    copy_marks(a, &marks);
    uint32_t n = count_done(a, &marks);
    if (n > 0) {
        dpool_accept_mark(a, &marks.all[n - 1]);
    }
    for (uint32_t i = 0; i < marks.n; i++) {
        dvmm_marker_drop(&a->markers, marks.all[i].marker);
    }
}

/* Only the holder of the grow lock takes an arena's own mark away. */
static void poll_stream(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    dpool_mark mark = arena->proofs.own_mark;
    dti_lock_release(&a->index_lock);
    if (mark.marker == NULL || !is_done(a, &mark)) {
        return;
    }
    dti_lock_acquire(&a->index_lock);
    dseg_stream_idle idle = dseg_stream_idle_by_marker(mark.marker);
    dpool_raise_proof(&arena->proofs.own, (dpool_proof){mark.age, dseg_idle_if_joined(idle)});
    arena->is_silent = arena->is_gone && arena->is_foreign;
    dpool_drop_own_mark_locked(a, arena);
    dti_lock_release(&a->index_lock);
}

static bool has_own_marks(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    bool has = a->marks.n_own > 0;
    dti_lock_release(&a->index_lock);
    return has;
}

void dpool_poll_marks(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->grow_lock);
    poll_context(a);
    bool has_own = has_own_marks(a);
    for (dpool_arena *arena = a->arenas; has_own && arena != NULL; arena = arena->next) {
        poll_stream(a, arena);
    }
}

dvmm_marker *dpool_hold_mark_of_locked(const ductile_allocator *a, uint64_t age) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_mark *m = NULL;
    for (uint32_t i = 0; i < a->marks.n && m == NULL; i++) {
        m = a->marks.all[i].age > age ? &a->marks.all[i] : NULL;
    }
    if (m == NULL) {
        return NULL;
    }
    dvmm_marker_hold(m->marker);
    return m->marker;
}

uint64_t dpool_marked_age_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_marks *l = &a->marks;
    dpool_proof marked = {.age = l->n > 0 ? l->all[l->n - 1].age : a->proven.age};
    return arena->is_foreign ? dpool_proof_to_leave(a, arena).age
                             : dpool_restrict_proof(arena, marked).age;
}

/* ---- Recounting ---------------------------------------------------------------------------- */

void dpool_marks_check_locked(const ductile_allocator *a, dti_fault *fault) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t age = 0;
    dti_expect(fault, "A6", a->proven.age <= a->age, "the age of the proof", a->proven.age, a->age,
               0);
    dti_expect(fault, "A6", a->marks.n <= DPOOL_MOST_MARKS, "markers under way", a->marks.n,
               DPOOL_MOST_MARKS, 0);
    for (uint32_t i = 0; i < a->marks.n && dti_is_sound(fault); i++) {
        const dpool_mark *mark = &a->marks.all[i];
        dti_expect(fault, "A6", mark->marker != NULL, "a marker", 0, 1, 0);
        dti_expect(fault, "A6", mark->age > age, "a marker's age", mark->age, age, 0);
        age = mark->age;
    }
    dti_expect(fault, "A6", age <= a->age, "the newest marker's age", age, a->age, 0);
}

/* ---- The end ------------------------------------------------------------------------------- */

void dpool_marks_fini(ductile_allocator *a) {
    for (uint32_t i = 0; i < a->marks.n; i++) {
        dvmm_marker_drop(&a->markers, a->marks.all[i].marker);
    }
    a->marks.n = 0;
}
