/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the virtual GPU beyond what the rows of tests/conformance state, which hold codes and
 * state to those of an H200: what is a violation, where memory and addresses end, that nothing
 * overlaps, what calls cost. Misuse goes through the raw table: the wrappers' own checks forbid it.
 */
#include "tests/support/rig.h"
#include "tests/support/rng.h"

#include <string.h>

static rig r;

static const uint64_t TIB = (uint64_t)1 << 40;

static void open_rig(void) {
    rig_open(&r, NULL);
}

static void close_rig(void) {
    rig_close(&r);
}

TestSuite(virtual_memory, .init = open_rig, .fini = close_rig);

static const dvmm_phys_props plain;

/* ---- Addresses ----------------------------------------------------------------------------- */

Test(virtual_memory, addresses_lie_where_no_host_memory_does) {
    ductile_addr addr = rig_reserve(&r, 1);
    cr_assert_geq(addr, (ductile_addr)1 << 48);
    assert_ok(dvmm_address_free(r.d, addr, r.granule));
}

Test(virtual_memory, a_process_has_125_tib_of_addresses) {
    ductile_addr addr[125];
    ductile_addr more = 1;
    for (size_t i = 0; i < 125; i++) {
        assert_ok(dvmm_address_reserve(r.d, TIB, &addr[i]));
    }
    assert_status(dvmm_address_reserve(r.d, r.granule, &more), DUCTILE_ERR_OUT_OF_ADDRESSES);
    assert_u64(more, 0);
    for (size_t i = 0; i < 125; i++) {
        assert_ok(dvmm_address_free(r.d, addr[i], TIB));
    }
}

Test(virtual_memory, freed_addresses_are_handed_out_again) {
    for (int i = 0; i < 1000; i++) {
        ductile_addr addr = 0;
        assert_ok(dvmm_address_reserve(r.d, TIB, &addr));
        assert_ok(dvmm_address_free(r.d, addr, TIB));
    }
}

/* Any sequence of reservations and frees, with or without a seed, never gives overlapping ones. */
static void churn_addresses(uint64_t seed) {
    enum { N = 40 };
    ductile_addr addr[N] = {0};
    uint64_t size[N] = {0};
    rng random = rng_seeded(seed);
    for (int step = 0; step < 4000; step++) {
        size_t i = rng_below(&random, N);
        if (addr[i] != 0) {
            assert_ok(dvmm_address_free(r.d, addr[i], size[i]));
            addr[i] = 0;
            continue;
        }
        size[i] = r.granule * (1 + rng_below(&random, 1 << 18));
        assert_ok(dvmm_address_reserve(r.d, size[i], &addr[i]));
        for (size_t j = 0; j < N; j++) {
            bool apart = j == i || addr[j] == 0 || addr[j] + size[j] <= addr[i] ||
                         addr[i] + size[i] <= addr[j];
            cr_assert(apart, "step %d: reservations %zu and %zu overlap", step, i, j);
        }
    }
    for (size_t i = 0; i < N; i++) {
        if (addr[i] != 0) {
            assert_ok(dvmm_address_free(r.d, addr[i], size[i]));
        }
    }
}

Test(virtual_memory, reservations_never_overlap) {
    churn_addresses(1);
}

Test(virtual_memory, reservations_placed_by_a_seed_never_overlap) {
    close_rig();
    rig_open_scheduled(&r, DUCTILE_SCHEDULE_EAGER, 0, 99);
    churn_addresses(2);
}

/* ---- Handles ------------------------------------------------------------------------------- */

Test(virtual_memory, memory_ends_at_the_capacity) {
    uint64_t n = dvmm_get_caps(r.d)->total_bytes / r.granule;
    dvmm_phys most = rig_create(&r, n - 1);
    dvmm_phys last = rig_create(&r, 1);
    dvmm_phys more = 1;
    assert_status(dvmm_phys_create(r.d, r.granule, &plain, &more), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(more, 0);
    assert_ok(dvmm_phys_release(r.d, last));
    assert_ok(dvmm_phys_create(r.d, r.granule, &plain, &last));
    assert_ok(dvmm_phys_release(r.d, last));
    assert_ok(dvmm_phys_release(r.d, most));
    assert_u64(rig_state(&r).used_peak_bytes, n * r.granule);
}

/* ---- Maps ---------------------------------------------------------------------------------- */

Test(virtual_memory, a_mapping_ends_within_the_address_space) {
    dvmm_phys two = rig_create(&r, 2);
    ductile_addr addr = 0;
    assert_ok(dvmm_address_reserve(r.d, 125 * TIB, &addr));
    ductile_addr last = addr + 125 * TIB - r.granule;
    assert_code(RAW(&r, map, last, 2 * r.granule, 0, two), DVMM_INVALID_VALUE);
    assert_ok(dvmm_phys_release(r.d, two));
    assert_ok(dvmm_address_free(r.d, addr, 125 * TIB));
}

/* ---- cuMemAlloc ---------------------------------------------------------------------------- */

Test(virtual_memory, allocations_take_whole_granules) {
    ductile_addr large = 0;
    assert_ok(dvmm_mem_alloc(r.d, r.granule + 1, &large));
    assert_u64(rig_state(&r).used_bytes, 2 * r.granule);
    assert_u64(rig_state(&r).allocations, 1);
    assert_ok(dvmm_mem_free(r.d, large));
}

Test(virtual_memory, small_allocations_share_granules) {
    ductile_addr addr[1000];
    for (size_t i = 0; i < 1000; i++) {
        assert_ok(dvmm_mem_alloc(r.d, 1 + 5 * i, &addr[i]));
        assert_u64(addr[i] % 512, 0);
    }
    cr_assert_leq(rig_state(&r).used_bytes, 2 * r.granule);
    for (size_t i = 0; i < 1000; i++) {
        assert_ok(dvmm_mem_free(r.d, addr[(i * 7) % 1000]));
    }
}

/* Allocations live at the same time are disjoint, whatever came and went before. */
Test(virtual_memory, allocations_never_overlap) {
    enum { N = 200 };
    ductile_addr addr[N] = {0};
    uint64_t size[N] = {0};
    rng random = rng_seeded(7);
    for (int step = 0; step < 20000; step++) {
        size_t i = rng_below(&random, N);
        if (addr[i] != 0) {
            assert_ok(dvmm_mem_free(r.d, addr[i]));
            addr[i] = 0;
            continue;
        }
        uint64_t bound = rng_below(&random, 2) == 0 ? 100000 : 20 * r.granule;
        size[i] = 1 + rng_below(&random, bound);
        assert_ok(dvmm_mem_alloc(r.d, size[i], &addr[i]));
        for (size_t j = 0; j < N; j++) {
            bool apart = j == i || addr[j] == 0 || addr[j] + size[j] <= addr[i] ||
                         addr[i] + size[i] <= addr[j];
            cr_assert(apart, "step %d: allocations %zu and %zu overlap", step, i, j);
        }
    }
    for (size_t i = 0; i < N; i++) {
        if (addr[i] != 0) {
            assert_ok(dvmm_mem_free(r.d, addr[i]));
        }
    }
}

Test(virtual_memory, the_stream_ordered_pool_is_absent) {
    ductile_addr addr = 1;
    cr_assert_not(dvmm_get_caps(r.d)->has_async_pool);
    assert_status(dvmm_mem_alloc_async(r.d, 512, NULL, &addr), DUCTILE_ERR_UNSUPPORTED);
    assert_u64(addr, 0);
}

/* ---- Scale --------------------------------------------------------------------------------- */

/* All of an H200 in the smallest handles. */
Test(virtual_memory, a_full_device_of_granules_is_held) {
    uint64_t n = dvmm_get_caps(r.d)->total_bytes / r.granule;
    ductile_addr addr = rig_row(&r, n);
    ductile_virtual_state s = rig_state(&r);
    assert_u64(s.handles, n);
    assert_u64(s.mappings, n);
    assert_u64(s.used_bytes, n * r.granule);
    rig_unrow(&r, addr, n);
}

/* ---- Cost ---------------------------------------------------------------------------------- */

static uint64_t time_of_mapping(uint64_t n_granules, ductile_addr addr) {
    uint64_t before = dvmm_clock_ns(r.d);
    rig_back(&r, addr, n_granules);
    return dvmm_clock_ns(r.d) - before;
}

Test(virtual_memory, time_passes_as_on_an_h200) {
    ductile_addr addr = rig_reserve(&r, 1024);
    assert_u64(time_of_mapping(1, addr), 6100 + 400 + 18500 + 7400);
    assert_u64(time_of_mapping(32, addr + 32 * r.granule), 7100 + 340 + 19400 + 25000);
    uint64_t before = dvmm_clock_ns(r.d);
    assert_ok(dvmm_unmap(r.d, addr, r.granule));
    assert_u64(dvmm_clock_ns(r.d) - before, 12800);
    assert_ok(dvmm_unmap(r.d, addr + 32 * r.granule, 32 * r.granule));
    assert_ok(dvmm_address_free(r.d, addr, 1024 * r.granule));
}

Test(virtual_memory, one_call_over_many_mappings_is_no_cheaper) {
    ductile_addr addr = rig_row(&r, 10);
    uint64_t before = dvmm_clock_ns(r.d);
    assert_ok(dvmm_unmap(r.d, addr, 10 * r.granule));
    assert_u64(dvmm_clock_ns(r.d) - before, 10 * 12800);
    assert_ok(dvmm_address_free(r.d, addr, 10 * r.granule));
}
