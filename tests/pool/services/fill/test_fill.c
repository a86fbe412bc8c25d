/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: under find:stale_writes a byte that is written after the free is found when the memory
 * is handed out again, wherever it lies and whichever stream wrote it. That what is legal is never
 * reported is in tests/scenarios/fill.txt. */
#include "pool/services/fill/fill.h"

#include "pool/base/allocator.h"
#include "tests/support/one_fixture.h"

#include <ductile_pools.h>
#include <ductile_share.h>

#include <stdio.h>
#include <string.h>

/* ---- What the allocator says ---------------------------------------------------------------- */

static char said[512];
static uint64_t n_said;

static void listen(void *user, ductile_log_level level, const char *text) {
    (void)user;
    if (level != DUCTILE_LOG_INFO) {
        n_said++;
        (void)snprintf(said, sizeof said, "%s", text);
    }
}

static void open_with(const char *conf, ductile_schedule schedule) {
    n_said = 0;
    said[0] = '\0';
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB,
                                  .n_streams = 3,
                                  .schedule = schedule,
                                  .conf = conf,
                                  .log = listen});
}

static void open_filling(const char *more) {
    char conf[128];
    (void)snprintf(conf, sizeof conf, "find:stale_writes%s%s", more[0] != '\0' ? "," : "", more);
    open_with(conf, DUCTILE_SCHEDULE_EAGER);
}

static uint64_t mismatches(void) {
    return fixture_stats(f.allocator).fill_mismatches;
}

static uint64_t filled(void) {
    return fixture_stats(f.allocator).fill_total_bytes;
}

static uint64_t checked(void) {
    return fixture_stats(f.allocator).fill_checked_total_bytes;
}

/* A write that the program must not make. */
static void spoil(ductile_addr addr) {
    fill(addr, 0x11, 1, 0);
}

/* ---- What is found -------------------------------------------------------------------------- */

Test(fill, a_write_after_the_free_is_told_with_its_place_and_bytes) {
    open_filling("");
    ductile_addr addr = take(1 * MIB, 0);
    (void)take(512, 0); /* so that the neighbour is no part of it */
    give(addr);
    fill(addr + 5000, 0xAB, 3, 0);
    ductile_addr again = take(1 * MIB, 0);
    assert_u64(again, addr);
    assert_u64(mismatches(), 1);
    assert_u64(n_said, 1);
    char place[64];
    (void)snprintf(place, sizeof place, "3 bytes, the first at 0x%llx", addr + 5000);
    cr_assert_not_null(strstr(said, place), "%s", said);
    cr_assert_not_null(strstr(said, "is byte 5000 of the block of 1048576 bytes"), "%s", said);
    cr_assert_not_null(strstr(said, "from there: ab ab ab df df"), "%s", said);
    close_audited();
}

/* The negative controls. */
Test(fill, without_the_option_it_is_not_noticed_and_nothing_is_filled) {
    open_with("", DUCTILE_SCHEDULE_EAGER);
    ductile_addr addr = take(1 * MIB, 0);
    give(addr);
    spoil(addr);
    (void)take(1 * MIB, 0);
    assert_u64(n_said + mismatches() + filled() + count("fill"), 0);
    close_audited();
}

Test(fill, the_first_and_the_last_byte_are_checked_and_their_neighbours_are_not) {
    for (uint64_t i = 0; i < 4; i++) {
        open_filling("");
        ductile_addr low = take(1 * MIB, 0);
        ductile_addr addr = take(3 * MIB + 512, 0);
        ductile_addr high = take(1 * MIB, 0);
        assert_u64(addr, low + 1 * MIB);
        assert_u64(high, addr + 3 * MIB + 512);
        give(addr);
        spoil(i == 0   ? addr - 1
              : i == 1 ? addr
              : i == 2 ? addr + 3 * MIB + 511
                       : addr + 3 * MIB + 512);
        assert_u64(take(3 * MIB + 512, 0), addr);
        assert_u64(mismatches(), i == 1 || i == 2);
        close_audited();
    }
}

Test(fill, a_block_of_many_buffers_is_checked_to_its_end) {
    open_filling("");
    ductile_addr addr = take(40 * MIB, 0);
    give(addr);
    spoil(addr + 40 * MIB - 1);
    assert_u64(take(40 * MIB, 0), addr);
    assert_u64(mismatches(), 1);
    assert_u64(checked(), 40 * MIB);
    close_audited();
}

/* Two blocks were freed and are one now; the request takes the end of one and the start of the
 * other. */
Test(fill, what_was_freed_apart_is_checked_together) {
    open_filling("");
    ductile_addr a = take(1 * MIB, 0);
    ductile_addr b = take(1 * MIB, 0);
    ductile_addr end = take(2 * MIB, 0);
    assert_u64(b, a + 1 * MIB);
    give(b);
    give(a);
    ductile_addr first = take(512 * 1024, 0);
    assert_u64(first, a);
    spoil(b + 100);
    (void)take(3 * MIB / 2, 0);
    assert_u64(mismatches(), 1);
    assert_u64(checked(), 2 * MIB);
    (void)end;
    close_audited();
}

/* Memory that is free and not asked for keeps its pattern, and is checked once. */
Test(fill, each_allocation_is_told_of_its_own_memory_alone) {
    open_filling("");
    ductile_addr addr = take(2 * MIB, 0);
    give(addr);
    spoil(addr + 1 * MIB);
    assert_u64(take(1 * MIB, 0), addr);
    assert_u64(mismatches(), 0);
    assert_u64(take(1 * MIB, 0), addr + 1 * MIB);
    assert_u64(mismatches(), 1);
    close_audited();
}

Test(fill, a_request_that_grows_beside_free_memory_checks_that_part) {
    open_filling("sizes:tight");
    ductile_addr addr = take(2 * MIB, 0);
    give(addr);
    spoil(addr);
    ductile_addr large = take(6 * MIB, 0);
    assert_u64(large, addr);
    assert_u64(mismatches(), 1);
    assert_u64(checked(), 2 * MIB);
    close_audited();
}

/* ---- The check of the allocator ------------------------------------------------------------- */

static void assert_finds(const char *id) {
    char report[256] = "";
    assert_status(ductile_check(f.allocator, report, sizeof report), DUCTILE_ERR_CORRUPT);
    cr_assert(strncmp(report, id, 2) == 0, "\"%s\" is not about %s", report, id);
}

Test(fill, a_gap_that_is_said_to_hold_the_pattern_is_found) {
    open_filling("sizes:tight");
    ductile_addr gone = take(4 * MIB, 0);
    ductile_addr kept = take(2 * MIB, 0);
    const dpool_fill_map *map = ((dpool_fill *)f.allocator->services)->maps;
    give(gone);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_sound();
    dpool_fill_set(map, gone + 1 * MIB, gone + 1 * MIB + 512);
    assert_finds("B8");
    dpool_fill_forget(map, gone, kept);
    assert_sound();
    close_audited();
}
