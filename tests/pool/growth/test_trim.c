/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which memory goes back: that at the top, no more than asked for, all of it when all is asked for;
 * how long it takes with thousands of pieces; and that captures of others survive it.
 */
#include "pool/blocks/arena.h"
#include "tests/support/cpu_time.h"
#include "tests/support/one_fixture.h"
#include "vmm/driver/driver.h"
#include "vmm/driver/open_virtual.h"

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

static bool is_mapped(dvmm_driver *d, ductile_addr addr) {
    dvmm_access access = DVMM_ACCESS_NONE;
    return dvmm_get_access(d, addr, &access) == DUCTILE_OK;
}

static size_t count_mapped(size_t first, size_t end) {
    dvmm_driver *d = NULL;
    size_t n = 0;
    assert_ok(dvmm_open_virtual(f.gpu, &d, NULL, 0));
    for (size_t i = first; i < end; i++) {
        n += is_mapped(d, blocks[i]);
    }
    dvmm_close(d);
    return n;
}

/* ---- What goes ----------------------------------------------------------------------------- */

Test(trim, takes_the_top_and_no_more_than_needed) {
    assert_fine(fixture_open(&f, &(fixture_setup){.capacity_bytes = GIB}));
    make_comb(400);
    assert_ok(ductile_trim(f.allocator, 300 * FIXTURE_GRANULE, NULL));
    assert_u64(fixture_state(&f).used_bytes, 300 * FIXTURE_GRANULE);
    assert_u64(count_mapped(0, 200), 200);
    assert_u64(count_mapped(200, 400), 100);
    assert_ok(ductile_trim(f.allocator, 0, NULL));
    assert_u64(fixture_state(&f).used_bytes, 200 * FIXTURE_GRANULE);
    assert_fine(audit_fixture(&f, NULL));
    assert_fine(fixture_close(&f));
}

Test(trim, takes_the_upper_part_of_a_large_block) {
    assert_fine(fixture_open(&f, &(fixture_setup){.capacity_bytes = 4 * GIB}));
    blocks[0] = take(3 * GIB + 512, 0);
    blocks[1] = blocks[0] + GIB - FIXTURE_GRANULE;
    blocks[2] = blocks[0] + GIB;
    assert_ok(ductile_free(f.allocator, blocks[0]));
    assert_ok(ductile_trim(f.allocator, GIB, NULL));
    assert_u64(fixture_state(&f).used_bytes, GIB);
    assert_u64(count_mapped(0, 2), 2);
    assert_u64(count_mapped(2, 3), 0);
    assert_fine(audit_fixture(&f, NULL));
    assert_fine(fixture_close(&f));
}

static double seconds_to_trim(size_t n) {
    assert_fine(
        fixture_open(&f, &(fixture_setup){.capacity_bytes = 64 * GIB, .conf = "sizes:tight"}));
    make_comb(n);
    double start = cpu_seconds();
    assert_ok(ductile_trim(f.allocator, 0, NULL));
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
    ductile_status status = ductile_trim(f.allocator, 0, NULL);
    size_t alone = 0;
    size_t aliased = 0;
    for (const dpool_region *r = f.allocator->arenas->regions; r != NULL; r = r->next) {
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

/* ---- Garbage collection -------------------------------------------------------------------- */

Test(trim, the_threshold_is_a_share_of_the_device_when_there_is_no_limit) {
    fixture_setup setup = {.conf = "reuse:never,soft_limit_bytes:50%", .n_streams = 2};
    assert_fine(fixture_open(&f, &setup));
    (void)take(512, 1); /* with several streams, markers are recorded in passing */
    for (size_t i = 0; i < 10; i++) {
        blocks[i] = take(10 * MIB, 0);
        blocks[10 + i] = take(FIXTURE_GRANULE, 0);
    }
    for (size_t i = 0; i < 10; i++) {
        assert_ok(ductile_free(f.allocator, blocks[i]));
    }
    for (size_t i = 0; i < 128; i++) {
        assert_ok(ductile_free(f.allocator, take(512, 0)));
    }
    (void)take(40 * MIB, 0);
    cr_assert_leq(fixture_state(&f).used_bytes, 128 * MIB);
    assert_fine(fixture_close(&f));
}

/* ---- Captures of others -------------------------------------------------------------------- */

/* Beside a capture the streams are waited for one by one: what they were joined for goes back. */
static void assert_capture_survives_trim(uint64_t held_beside_it) {
    dvmm_driver *d = NULL;
    dvmm_capture_status status = DVMM_CAPTURE_BROKEN;
    assert_ok(ductile_free(f.allocator, take(512, 2))); /* known, so that it is asked */
    assert_ok(dvmm_open_virtual(f.gpu, &d, NULL, 0));
    assert_ok(dvmm_capture_begin(d, f.streams[2], DVMM_CAPTURE_GLOBAL));
    assert_ok(ductile_trim(f.allocator, 0, NULL));
    assert_ok(dvmm_capture_status_of(d, f.streams[2], &status));
    assert_u64(status, DVMM_CAPTURE_ACTIVE);
    assert_u64(fixture_state(&f).used_bytes, held_beside_it);
    assert_ok(dvmm_capture_end(d, f.streams[2]));
    dvmm_close(d);
    assert_ok(ductile_free(f.allocator, blocks[1]));
    assert_ok(ductile_free(f.allocator, blocks[3]));
    assert_ok(ductile_trim(f.allocator, 0, NULL));
    assert_u64(fixture_state(&f).used_bytes, 0);
    assert_fine(fixture_close(&f));
}

static void free_unfinished(size_t user) {
    fixture_setup setup = {
        .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3, .conf = "captures:unannounced"};
    assert_fine(fixture_open(&f, &setup));
    blocks[0] = take(4 * FIXTURE_GRANULE, 0);
    assert_ok(ductile_virtual_fill(f.gpu, blocks[0], 1, 512, f.streams[user]));
    assert_ok(ductile_record_stream(f.allocator, blocks[0], f.streams[user]));
    assert_ok(ductile_free(f.allocator, blocks[0]));
}

/* An allocation that no free block serves: by then the stream is joined. */
static void allocate_since(void) {
    blocks[1] = take(8 * FIXTURE_GRANULE, 0);
}

Test(trim, waits_for_a_stream_that_was_joined_beside_a_capture) {
    free_unfinished(0);
    allocate_since();
    assert_capture_survives_trim(9 * FIXTURE_GRANULE);
}

/* The mark of the first allocation is under way, and the second one records none. */
Test(trim, knows_of_each_allocation_that_joined_the_stream_beside_a_capture) {
    free_unfinished(0);
    allocate_since();
    blocks[2] = take(3 * FIXTURE_GRANULE, 0);
    assert_ok(ductile_free(f.allocator, blocks[2]));
    blocks[3] = take(20 * FIXTURE_GRANULE, 0);
    assert_ok(ductile_free(f.allocator, take(30 * FIXTURE_GRANULE, 0)));
    assert_ok(ductile_free(f.allocator, take(40 * FIXTURE_GRANULE, 0)));
    assert_capture_survives_trim((8 + 20 + 40 + 1) * FIXTURE_GRANULE);
}

Test(trim, keeps_what_others_may_be_joined_for_beside_a_capture) {
    free_unfinished(0);
    assert_capture_survives_trim(5 * FIXTURE_GRANULE);
}

Test(trim, waits_for_a_pending_block_beside_a_capture) {
    free_unfinished(1);
    assert_capture_survives_trim(5 * FIXTURE_GRANULE);
}
