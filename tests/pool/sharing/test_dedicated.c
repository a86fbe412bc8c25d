/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: a block that was asked to be one handle is one, from its start, and what becomes of it
 * after its free breaks nothing for those who move granules one by one. */
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "tests/support/one_fixture.h"

#include <ductile_share.h>

static void open_small(void) {
    open_fixture(&(fixture_setup){.capacity_bytes = 32 * MIB, .n_streams = 2});
}

static void close_all(void) {
    assert_fine(fixture_close(&f));
}

TestSuite(one_handle, .init = open_small, .fini = close_all);

static ductile_addr take_one(uint64_t bytes) {
    ductile_addr addr = 0;
    assert_ok(ductile_alloc_one_handle(f.allocator, bytes, f.streams[0], &addr));
    return addr;
}

static void expect_one_handle(ductile_addr addr, uint32_t n_granules) {
    const dpool_block *b = dpool_map_find(&f.allocator->map, addr);
    const dseg_segment *seg = b->region->seg;
    const dseg_slot *slot = &seg->slots[dseg_granule(seg, addr)];
    cr_assert_eq(addr, dseg_addr(seg, dseg_granule(seg, addr)), "it begins inside a granule");
    cr_assert_eq(slot->offset, 0);
    cr_assert_eq(slot->handle->n_granules, n_granules);
    assert_u64(b->size, n_granules * FIXTURE_GRANULE);
}

Test(one_handle, it_is_one_whatever_the_size) {
    ductile_addr small = take_one(1000);
    ductile_addr large = take_one(9 * MIB);
    expect_one_handle(small, 1);
    expect_one_handle(large, 5);
    assert_sound();
}

Test(one_handle, it_shares_its_granules_with_nobody) {
    ductile_addr small = 0;
    assert_ok(ductile_alloc(f.allocator, 4096, f.streams[0], &small));
    ductile_addr own = take_one(4096);
    cr_assert_neq(own / FIXTURE_GRANULE, small / FIXTURE_GRANULE);
    ductile_addr next = 0;
    assert_ok(ductile_alloc(f.allocator, 4096, f.streams[0], &next));
    cr_assert_neq(own / FIXTURE_GRANULE, next / FIXTURE_GRANULE);
}

Test(one_handle, a_free_one_of_the_size_serves_again) {
    ductile_addr first = take_one(6 * MIB);
    assert_ok(ductile_free(f.allocator, first));
    cr_assert_eq(take_one(5 * MIB), first);
    expect_one_handle(first, 3);
    assert_u64(fixture_stats(f.allocator).creates, 1);
    assert_sound();
}

Test(one_handle, freed_it_serves_others_and_moves_whole) {
    ductile_addr first = take_one(8 * MIB);
    assert_ok(ductile_free(f.allocator, first));
    cr_assert_eq(take_granules(2, 0), first, "part of it serves a smaller request");
    ductile_addr rest = take_granules(12, 0);
    assert_sound();
    assert_ok(ductile_free(f.allocator, first));
    assert_ok(ductile_free(f.allocator, rest));
    ductile_addr large = take_granules(15, 1); /* the whole device, for the other stream */
    cr_assert_neq(large, 0);
    assert_sound();
}

/* The device is full of free memory in small handles: they go back, for one large one. */
Test(one_handle, free_memory_makes_room_for_it) {
    ductile_addr blocks[16];
    for (size_t i = 0; i < 16; i++) {
        blocks[i] = take_granules(1, i % 2);
    }
    for (size_t i = 0; i < 16; i++) {
        assert_ok(ductile_free(f.allocator, blocks[i]));
    }
    ductile_addr one = take_one(24 * MIB);
    expect_one_handle(one, 12);
    assert_sound();
    ductile_addr refused = 1;
    assert_status(ductile_alloc_one_handle(f.allocator, 12 * MIB, f.streams[1], &refused),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_eq(refused, 0);
    cr_assert_neq(take_granules(4, 1), 0, "a smaller request succeeds");
}

Test(one_handle, arguments_are_those_of_an_allocation) {
    ductile_addr addr = 1;
    assert_ok(ductile_alloc_one_handle(f.allocator, 0, f.streams[0], &addr));
    cr_assert_eq(addr, 0);
    assert_status(ductile_alloc_one_handle(NULL, 1, f.streams[0], &addr),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_alloc_one_handle(f.allocator, 1, f.streams[0], NULL),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_alloc_one_handle(f.allocator, SIZE_MAX, f.streams[0], &addr),
                  DUCTILE_ERR_OUT_OF_MEMORY);
}

/* With a fault at every driver call of it, once done and once not. */
Test(one_handle, each_driver_call_may_fail) {
    static const char *const calls[] = {"phys_create", "map", "set_access", "address_reserve"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        ductile_virtual_fault fault = {
            .struct_size = sizeof fault, .call = calls[i], .nth = 1, .code = 999};
        assert_ok(ductile_virtual_inject(f.gpu, &fault));
        ductile_addr addr = 1;
        ductile_status status = ductile_alloc_one_handle(f.allocator, 5 * MIB, f.streams[0], &addr);
        if (ductile_virtual_faults_fired(f.gpu) > 0) {
            assert_status(status, DUCTILE_ERR_DRIVER);
            cr_assert_eq(addr, 0);
        } else {
            assert_ok(ductile_free(f.allocator, addr));
        }
        assert_ok(ductile_virtual_inject(f.gpu, NULL));
        assert_sound();
        assert_ok(ductile_free(f.allocator, take_one(5 * MIB)));
        assert_ok(ductile_empty_cache(f.allocator));
    }
}
