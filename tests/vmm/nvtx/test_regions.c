/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: blocks and mappings come and go in any order, and a region is registered exactly while
 * both are there. Addresses are plain numbers here; the stand-in holds what it is told and aborts
 * at a mistake.
 */
#include "tests/support/nvtx_tool.h"
#include "tests/support/rng.h"
#include "vmm/nvtx/regions.h"

#include <string.h>

#define STREAM ((ductile_stream)0x1234)

static dvmm_nvtx *n;

static void open_with(const char *path, bool memory) {
    char reason[256];
    load_tool(path);
    assert_ok(dvmm_nvtx_open(memory, &n, reason, sizeof reason));
    cr_assert_not_null(n, "%s", reason);
}

static void open_whole(void) {
    open_with(FAKE_NVTX_WHOLE, true);
}

static void close_it(void) {
    dvmm_nvtx_close(n);
}

static void expect_region(uint64_t i, uint64_t addr, uint64_t size, const char *name) {
    const fake_nvtx_region *r = tool->region(i);
    cr_assert_not_null(r, "there is no region %llu", (unsigned long long)i);
    assert_u64(r->addr, addr);
    assert_u64(r->size, size);
    cr_expect_str_eq(r->name, name);
}

TestSuite(nvtx_regions, .fini = close_it);

Test(nvtx_regions, a_block_in_a_heap_is_one_region_with_its_name) {
    open_whole();
    dvmm_nvtx_heap_begin(n, 0x10000, 0x10000);
    assert_ok(dvmm_nvtx_block_begin(n, 0x11000, 1000, STREAM));
    assert_u64(tool->n_regions, 1);
    expect_region(0, 0x11000, 1000, "ductile block 1 of stream 0x1234");
    dvmm_nvtx_block_end(n, 0x11000);
    assert_u64(tool->n_regions, 0);
    dvmm_nvtx_heap_end(n, 0x10000);
    assert_u64(tool->n_heaps, 0);
}

Test(nvtx_regions, a_block_over_three_heaps_is_three_regions_of_one_name) {
    open_whole();
    for (uint64_t at = 1; at <= 4; at++) {
        dvmm_nvtx_heap_begin(n, at << 16, 1 << 16);
    }
    assert_ok(dvmm_nvtx_block_begin(n, 0x18000, 0x20100, STREAM));
    assert_u64(tool->n_regions, 3);
    expect_region(0, 0x18000, 0x8000, "ductile block 1 of stream 0x1234");
    expect_region(1, 0x20000, 0x10000, "ductile block 1 of stream 0x1234");
    expect_region(2, 0x30000, 0x8100, "ductile block 1 of stream 0x1234");
    dvmm_nvtx_block_end(n, 0x18000);
    assert_u64(tool->n_regions, 0);
}

Test(nvtx_regions, a_block_that_ends_at_a_heaps_border_stays_out_of_the_next) {
    open_whole();
    dvmm_nvtx_heap_begin(n, 0x10000, 0x10000);
    dvmm_nvtx_heap_begin(n, 0x20000, 0x10000);
    assert_ok(dvmm_nvtx_block_begin(n, 0x1f000, 0x1000, STREAM));
    assert_ok(dvmm_nvtx_block_begin(n, 0x20000, 0x10000, STREAM));
    assert_u64(tool->n_regions, 2);
    dvmm_nvtx_heap_end(n, 0x20000);
    assert_u64(tool->n_regions, 1);
    expect_region(0, 0x1f000, 0x1000, "ductile block 1 of stream 0x1234");
}

Test(nvtx_regions, a_heap_that_goes_takes_its_regions_along_and_brings_them_back) {
    open_whole();
    dvmm_nvtx_heap_begin(n, 0x10000, 0x10000);
    assert_ok(dvmm_nvtx_block_begin(n, 0x11000, 512, STREAM));
    assert_ok(dvmm_nvtx_block_begin(n, 0x12000, 512, STREAM));
    dvmm_nvtx_heap_end(n, 0x10000);
    assert_u64(tool->n_regions, 0);
    dvmm_nvtx_block_end(n, 0x11000); /* freed meanwhile: no call */
    dvmm_nvtx_heap_begin(n, 0x10000, 0x10000);
    assert_u64(tool->n_regions, 1);
    expect_region(0, 0x12000, 512, "ductile block 2 of stream 0x1234");
}

Test(nvtx_regions, what_is_not_known_makes_no_call) {
    open_whole();
    dvmm_nvtx_heap_begin(n, 0x10000, 0x10000);
    assert_ok(dvmm_nvtx_block_begin(n, 0x11000, 512, STREAM));
    uint64_t before = tool->n_calls;
    dvmm_nvtx_block_end(n, 0x11100); /* inside */
    dvmm_nvtx_block_end(n, 0x99000);
    dvmm_nvtx_heap_end(n, 0x11000); /* inside */
    dvmm_nvtx_heap_end(n, 0x20000);
    assert_u64(tool->n_calls, before);
    dvmm_nvtx_block_end(n, 0x11000);
    dvmm_nvtx_block_end(n, 0x11000); /* twice */
    assert_u64(tool->n_calls, before + 1);
}

Test(nvtx_regions, a_heap_that_the_tool_refuses_gets_no_regions_and_is_counted_once) {
    open_whole();
    tool->refuses_heaps = true;
    dvmm_nvtx_heap_begin(n, 0x10000, 0x10000);
    tool->refuses_heaps = false;
    dvmm_nvtx_heap_begin(n, 0x20000, 0x10000);
    assert_ok(dvmm_nvtx_block_begin(n, 0x18000, 0x10000, STREAM));
    assert_u64(tool->n_regions, 1);
    expect_region(0, 0x20000, 0x8000, "ductile block 1 of stream 0x1234");
    dvmm_nvtx_heap_end(n, 0x10000);
    dvmm_nvtx_block_end(n, 0x18000);
    assert_u64(dvmm_nvtx_take_refusals(n), 1);
    assert_u64(dvmm_nvtx_take_refusals(n), 0);
}

Test(nvtx_regions, names_fit_whatever_they_say) {
    open_whole();
    dvmm_nvtx_heap_begin(n, 0x10000, 0x10000);
    assert_ok(dvmm_nvtx_block_begin(n, 0x10000, 512, (ductile_stream)UINTPTR_MAX));
    cr_expect_str_eq(tool->region(0)->name, "ductile block 1 of stream 0xffffffffffffffff");
}

Test(nvtx_regions, without_memory_nothing_is_registered) {
    open_with(FAKE_NVTX_WHOLE, false);
    cr_expect(!dvmm_nvtx_has_memory(n) && !dvmm_nvtx_has_memory(NULL));
    dvmm_nvtx_heap_begin(n, 0x10000, 0x10000);
    assert_ok(dvmm_nvtx_block_begin(n, 0x10000, 512, STREAM));
    dvmm_nvtx_block_end(n, 0x10000);
    dvmm_nvtx_heap_end(n, 0x10000);
    assert_u64(tool->n_calls, 0);
}

/* ---- Random orders --------------------------------------------------------------------------- */

enum { N_HEAPS = 8, HEAP = 1024, N_STEPS = 5000 };

static uint64_t block_size[N_HEAPS * HEAP]; /* by start, in a space of N_HEAPS heaps */
static bool is_mapped[N_HEAPS];

static bool is_free(uint64_t from, uint64_t size) {
    for (uint64_t at = 0; at < N_HEAPS * HEAP; at++) {
        if (block_size[at] != 0 && at < from + size && from < at + block_size[at]) {
            return false;
        }
    }
    return from + size <= N_HEAPS * HEAP;
}

static void step(rng *r) {
    uint64_t at = rng_below(r, N_HEAPS * HEAP);
    uint64_t size = 1 + rng_below(r, 3 * HEAP);
    uint64_t h = at / HEAP;
    switch (rng_below(r, 4)) {
    case 0:
        is_mapped[h] ? dvmm_nvtx_heap_end(n, 0x10000 + h * HEAP)
                     : dvmm_nvtx_heap_begin(n, 0x10000 + h * HEAP, HEAP);
        is_mapped[h] = !is_mapped[h];
        break;
    case 1:
        dvmm_nvtx_block_end(n, 0x10000 + at);
        block_size[at] = 0;
        break;
    default:
        if (is_free(at, size)) {
            assert_ok(dvmm_nvtx_block_begin(n, 0x10000 + at, size, STREAM));
            block_size[at] = size;
        }
    }
}

/* Byte by byte what must be registered. */
static void expect_what_is_known(void) {
    static char wanted[N_HEAPS * HEAP];
    static char got[N_HEAPS * HEAP];
    memset(wanted, 0, sizeof wanted);
    memset(got, 0, sizeof got);
    for (uint64_t at = 0; at < N_HEAPS * HEAP; at++) {
        for (uint64_t i = at; i < at + block_size[at]; i++) {
            wanted[i] = is_mapped[i / HEAP];
        }
    }
    for (uint64_t i = 0; tool->region(i) != NULL; i++) {
        memset(&got[tool->region(i)->addr - 0x10000], 1, tool->region(i)->size);
    }
    cr_assert_eq(memcmp(wanted, got, sizeof got), 0);
}

Test(nvtx_regions, any_order_registers_what_is_both_mapped_and_in_use) {
    open_whole();
    rng r = rng_seeded(7);
    for (int i = 0; i < N_STEPS; i++) {
        step(&r);
        if (i % 16 == 0) {
            expect_what_is_known();
        }
    }
    cr_expect_gt(tool->n_regions_ever, 500);
}
