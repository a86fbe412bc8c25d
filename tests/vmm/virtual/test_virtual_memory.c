/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the virtual GPU beyond what claims.txt and the rows of tests/conformance state: where
 * addresses end, that nothing overlaps, and how small allocations lie.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/device_fixture.h"
#include "tests/support/rng.h"

static device_fixture r;

static const uint64_t TIB = (uint64_t)1 << 40;

static void open_device(void) {
    device_open(&r, NULL);
}

static void close_device(void) {
    device_close(&r);
}

TestSuite(virtual_memory, .init = open_device, .fini = close_device);

/* ---- Addresses ----------------------------------------------------------------------------- */

Test(virtual_memory, addresses_lie_where_no_host_memory_does) {
    ductile_addr addr = device_reserve(&r, 1);
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

/* Any sequence of spans that come and go, whatever they are, never gives overlapping ones. */
typedef struct span_kind {
    ductile_status (*take)(uint64_t size, ductile_addr *out);
    ductile_status (*give)(ductile_addr addr, uint64_t size);
    uint64_t (*size)(rng *random);
} span_kind;

static void churn(const span_kind *kind, uint64_t seed) {
    enum { N = 100, STEPS = 10000 };
    ductile_addr addr[N] = {0};
    uint64_t size[N] = {0};
    rng random = rng_seeded(seed);
    for (int step = 0; step < STEPS; step++) {
        size_t i = rng_below(&random, N);
        if (addr[i] != 0) {
            assert_ok(kind->give(addr[i], size[i]));
            addr[i] = 0;
            continue;
        }
        size[i] = kind->size(&random);
        assert_ok(kind->take(size[i], &addr[i]));
        for (size_t j = 0; j < N; j++) {
            bool apart = j == i || addr[j] == 0 || addr[j] + size[j] <= addr[i] ||
                         addr[i] + size[i] <= addr[j];
            cr_assert(apart, "step %d: spans %zu and %zu overlap", step, i, j);
        }
    }
    for (size_t i = 0; i < N; i++) {
        assert_ok(addr[i] != 0 ? kind->give(addr[i], size[i]) : DUCTILE_OK);
    }
}

static ductile_status reserve(uint64_t size, ductile_addr *out) {
    return dvmm_address_reserve(r.d, size, out);
}

static ductile_status unreserve(ductile_addr addr, uint64_t size) {
    return dvmm_address_free(r.d, addr, size);
}

static uint64_t granules(rng *random) {
    return r.granule * (1 + rng_below(random, 1 << 18));
}

static const span_kind reservations = {reserve, unreserve, granules};

Test(virtual_memory, reservations_never_overlap) {
    churn(&reservations, 1);
}

Test(virtual_memory, reservations_placed_by_a_seed_never_overlap) {
    close_device();
    device_open_scheduled(&r, DUCTILE_SCHEDULE_EAGER, 0, 99);
    churn(&reservations, 2);
}

static ductile_status allocate(uint64_t size, ductile_addr *out) {
    return bench_mem_alloc(r.d, size, out);
}

static ductile_status free_allocation(ductile_addr addr, uint64_t size) {
    (void)size;
    return bench_mem_free(r.d, addr);
}

static uint64_t small_or_large(rng *random) {
    uint64_t bound = rng_below(random, 2) == 0 ? 100000 : 20 * r.granule;
    return 1 + rng_below(random, bound);
}

Test(virtual_memory, allocations_never_overlap) {
    static const span_kind allocations = {allocate, free_allocation, small_or_large};
    churn(&allocations, 7);
}

/* ---- Maps ---------------------------------------------------------------------------------- */

Test(virtual_memory, a_mapping_ends_within_the_address_space) {
    dvmm_phys two = device_create(&r, 2);
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
    assert_ok(bench_mem_alloc(r.d, r.granule + 1, &large));
    assert_u64(device_state(&r).used_bytes, 2 * r.granule);
    assert_u64(device_state(&r).allocations, 1);
    assert_ok(bench_mem_free(r.d, large));
}

Test(virtual_memory, small_allocations_share_granules) {
    ductile_addr addr[1000];
    for (size_t i = 0; i < 1000; i++) {
        assert_ok(bench_mem_alloc(r.d, 1 + 5 * i, &addr[i]));
        assert_u64(addr[i] % 512, 0);
    }
    cr_assert_leq(device_state(&r).used_bytes, 2 * r.granule);
    for (size_t i = 0; i < 1000; i++) {
        assert_ok(bench_mem_free(r.d, addr[(i * 7) % 1000]));
    }
}
