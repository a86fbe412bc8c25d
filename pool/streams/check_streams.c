/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/check_streams.h"

#include "pool/streams/stream_use.h"

/* PENDING blocks, except those whose markers a thread is recording just now. */
static uint64_t count_pending(const dpool_arena *arena, const dti_fault *fault) {
    uint64_t n = 0;
    for (const dpool_region *r = arena->regions; r != NULL && dti_is_sound(fault); r = r->next) {
        for (const dpool_block *b = r->first; b != NULL; b = b->next) {
            n += b->state == DPOOL_PENDING && !dpool_is_in_transit(b->uses);
        }
    }
    return n;
}

static void check_pending(const dpool_arena *arena, dti_fault *fault) {
    uint64_t where = (uint64_t)(uintptr_t)arena->stream;
    uint64_t listed = count_pending(arena, fault);
    uint64_t n = 0;
    const dpool_use *last = NULL;
    for (const dpool_use *use = arena->pending.first;
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
    dti_expect(fault, "A7", arena->pending.last == last, "the pending list's end", 0, 1, where);
}

/* Once for the allocator. */
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

void dpool_streams_check_locked(const ductile_allocator *a, const dpool_arena *arena,
                                dti_fault *fault) {
    DTI_ASSERT_HELD(&a->index_lock);
    check_pending(arena, fault);
}
