/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: a table of bits is compared with a table of bytes, which is too simple to be wrong,
 * over random spans, among them those that begin and end at words. */
#include "pool/services/fill/fill_map.h"

#include "pool/base/allocator.h"
#include "pool/services/fill/fill.h"
#include "tests/support/one_fixture.h"
#include "tests/support/rng.h"

#include <string.h>

enum { UNITS = 1000, UNIT = 512, STEPS = 4000 };

#define BASE ((ductile_addr)1 << 40)

static dpool_fill_map *map;
static uint8_t bytes[UNITS];

static ductile_addr at(uint64_t unit) {
    return BASE + unit * UNIT;
}

static uint64_t first_in_model(uint64_t from, uint64_t to, uint8_t value) {
    while (from < to && bytes[from] != value) {
        from++;
    }
    return from;
}

/* The first run in the span is the model's, and no longer than `most`. */
static void compare_take(uint64_t from, uint64_t to, uint64_t most) {
    ductile_addr addr = at(from);
    ductile_addr end = at(to);
    uint64_t first = first_in_model(from, to, 1);
    bool is_any = dpool_fill_take(map, &addr, &end, most * UNIT);
    cr_assert_eq(is_any, first < to);
    if (is_any) {
        uint64_t last = first_in_model(first, to < first + most ? to : first + most, 0);
        assert_u64(addr, at(first));
        assert_u64(end, at(last));
        memset(bytes + first, 0, last - first);
    }
}

static void step(rng *r) {
    bool at_words = rng_percent(r, 30);
    uint64_t from = rng_below(r, UNITS) / (at_words ? 64 : 1) * (at_words ? 64 : 1);
    uint64_t to = from + rng_below(r, UNITS - from + 1);
    to = at_words ? from + (to - from) / 64 * 64 : to;
    switch (rng_below(r, 4)) {
    case 0:
        dpool_fill_set(map, at(from), at(to));
        memset(bytes + from, 1, to - from);
        break;
    case 1:
        dpool_fill_forget(map, at(from), at(to));
        memset(bytes + from, 0, to - from);
        break;
    case 2:
        compare_take(from, to, 1 + rng_below(r, 200));
        break;
    default:
        cr_assert_eq(dpool_fill_is_any(map, at(from), at(to)), first_in_model(from, to, 1) < to);
    }
}

Test(fill_map, any_sequence_leaves_what_a_table_of_bytes_holds) {
    map = dpool_fill_map_new(BASE, (uint64_t)UNITS * UNIT);
    rng r = rng_seeded(7);
    for (int i = 0; i < STEPS; i++) {
        step(&r);
    }
    dpool_fill_map_free(map);
}

/* ---- The check of the allocator ------------------------------------------------------------- */

Test(fill_map, a_gap_that_is_said_to_hold_the_pattern_is_found) {
    char report[256] = "";
    open_fixture(&(fixture_setup){.conf = "find:stale_writes,sizes:tight"});
    ductile_addr gone = take(4 * MIB, 0);
    ductile_addr kept = take(2 * MIB, 0);
    const dpool_fill_map *filled = ((dpool_fill *)f.allocator->services)->maps;
    give(gone);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    dpool_fill_set(filled, gone + MIB, gone + MIB + 512);
    assert_status(ductile_check(f.allocator, report, sizeof report), DUCTILE_ERR_CORRUPT);
    cr_assert_eq(strncmp(report, "B8: ", 4), 0, "%s", report);
    dpool_fill_forget(filled, gone, kept);
    assert_sound();
    close_audited();
}
