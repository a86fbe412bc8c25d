/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a trim takes with thousands of pieces, and what it does about handles with two
 * addresses. Which memory goes back is in tests/scenarios/pressure.txt.
 */
#include "pool/blocks/arena.h"
#include "tests/support/cpu_time.h"
#include "tests/support/one_fixture.h"
#include "vmm/driver/driver.h"

#define MAX_BLOCKS 16000

static ductile_addr blocks[MAX_BLOCKS];

/* n blocks of one granule, of which every second is free. */
static void make_comb(size_t n) {
    for (size_t i = 0; i < n; i++) {
        blocks[i] = take(FIXTURE_GRANULE, 0);
    }
    for (size_t i = 0; i < n; i += 2) {
        assert_ok(ductile_free(f.allocator, blocks[i]));
    }
}

static double seconds_to_trim(size_t n) {
    assert_fine(fixture_open(&f, &(fixture_setup){.capacity_bytes = 64 * GIB, .conf = "sizes:2M"}));
    make_comb(n);
    double start = cpu_seconds();
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    double seconds = cpu_seconds() - start;
    assert_u64(fixture_state(&f).used_bytes, n / 2 * FIXTURE_GRANULE);
    assert_fine(fixture_close(&f));
    return seconds;
}

/* Not one walk over all for each piece. */
Test(trim, of_thousands_of_pieces_is_one_walk) {
    double few = seconds_to_trim(MAX_BLOCKS / 4);
    double many = seconds_to_trim(MAX_BLOCKS);
    cr_assert(many < linear_cost(few), "%f s for four times as much as took %f s", many, few);
}

/* ---- Handles with a second address --------------------------------------------------------- */

/* A request whose maps fail from the nth driver call on, where undoing them fails too: handles of
 * the free block stay mapped at a quarantined address besides. */
static void leave_aliases(uint64_t nth) {
    ductile_addr refused = 0;
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .nth = nth, .code = DVMM_UNKNOWN, .persistent = 1};
    blocks[0] = take(6 * FIXTURE_GRANULE, 0);
    blocks[1] = take(FIXTURE_GRANULE, 0);
    assert_ok(ductile_free(f.allocator, blocks[0]));
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    if (ductile_alloc(f.allocator, 10 * FIXTURE_GRANULE, f.streams[0], &refused) == DUCTILE_OK) {
        assert_ok(ductile_free(f.allocator, refused));
    }
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
}

static void count_handles(const dpool_region *region, size_t *alone, size_t *aliased) {
    for (uint32_t g = 0; g < region->seg->n_granules; g++) {
        if (region->seg->slots[g].state == DSEG_MAPPED) {
            *(region->seg->slots[g].handle->n_mappings == 1 ? alone : aliased) += 1;
        }
    }
}

/* How many handles are left that no trim can give back. */
static size_t trim_with_aliases(uint64_t nth) {
    assert_fine(fixture_open(&f, &(fixture_setup){.capacity_bytes = 16 * FIXTURE_GRANULE}));
    leave_aliases(nth);
    ductile_status status = ductile_trim(f.allocator, NULL, 0, NULL);
    size_t alone = 0;
    size_t aliased = 0;
    for (const dpool_region *r = f.allocator->arenas->blocks.regions; r != NULL; r = r->next) {
        count_handles(r, &alone, &aliased);
    }
    assert_ok(status);
    cr_assert(alone == 1, "call %llu fails: %zu handles beside the live one stay, %zu are aliased",
              (unsigned long long)nth, alone - 1, aliased);
    assert_ok(ductile_check(f.allocator, NULL, 0));
    (void)ductile_destroy(f.allocator);
    fixture_abandon(&f);
    return aliased;
}

Test(trim, passes_over_handles_with_a_second_address) {
    size_t times = 0;
    for (uint64_t nth = 1; nth < 30; nth++) {
        size_t aliased = trim_with_aliases(nth);
        times += aliased > 0 && aliased < 6;
    }
    cr_assert(times >= 3, "only %zu times some handles of a block were aliased and some not",
              times);
}
