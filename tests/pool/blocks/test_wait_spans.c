/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that a step frees beside a stream lie in regular strides, and so do the spans that wait:
 * their tree must stay as shallow there as with addresses by chance (tests/pool/blocks/
 * test_free_index.c). What the spans are for is in tests/scenarios/gpu_waits.txt. */
#include "pool/blocks/wait_spans.h"

#include "pool/blocks/block.h"
#include "pool/blocks/use_store.h"
#include "tests/support/expect.h"

#include <criterion/parameterized.h>
#include <stdlib.h>

#define FIRST_ADDRESS ((ductile_addr)1 << 48)

enum { N_SPANS = 20000, MOST_DEPTH = 60 };

static uint64_t depth_of(const dpool_use *s) {
    uint64_t most = 0;
    for (uint64_t above = 1; s != NULL; above++, s = s->right) {
        uint64_t deepest = above + (s->left != NULL ? depth_of(s->left) : 0);
        most = deepest > most ? deepest : most;
    }
    return most;
}

static uint64_t strides[] = {4181, 17711, 6765, 10946, 2584, 1597, 1024, 4096, 4095, 4097, 1000};

ParameterizedTestParameters(wait_spans, in_strides_stay_shallow) {
    return cr_make_param_array(uint64_t, strides, sizeof strides / sizeof *strides, NULL);
}

ParameterizedTest(uint64_t *stride, wait_spans, in_strides_stay_shallow) {
    static ductile_allocator a;
    dpool_use *spans = calloc(N_SPANS, sizeof *spans);
    cr_assert_not_null(spans);
    dti_lock_init(&a.index_lock, DTI_RANK_INDEX);
    dti_lock_acquire(&a.index_lock);
    for (size_t i = 0; i < N_SPANS; i++) {
        spans[i].addr = FIRST_ADDRESS + i * *stride * DPOOL_UNIT;
        spans[i].end = spans[i].addr + DPOOL_UNIT;
        dpool_span_add_locked(&a, &spans[i]);
    }
    uint64_t depth = depth_of(a.waits.root);
    dti_lock_release(&a.index_lock);
    cr_assert_leq(depth, MOST_DEPTH, "stride %llu: depth %llu", (unsigned long long)*stride,
                  (unsigned long long)depth);
    free(spans);
}
