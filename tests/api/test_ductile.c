/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of ductile.h, sentence by sentence, through the public header alone: what each call
 * answers to right and wrong arguments, and that a call which fails has changed nothing.
 */
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"

#include <ductile_share.h>
#include <stdio.h>
#include <string.h>

static fixture f;

static void open_default(void) {
    assert_fine(fixture_open(&f, NULL));
}

static void close_fixture(void) {
    assert_fine(fixture_close(&f));
}

static ductile_addr must_alloc(ductile_allocator *a, size_t size, ductile_stream stream) {
    ductile_addr address = 0;
    assert_ok(ductile_alloc(a, size, stream, &address));
    cr_assert(address != 0 && address % DUCTILE_ALIGNMENT == 0, "address %llx", address);
    return address;
}

static void stats_unchanged(const ductile_stats *before) {
    ductile_stats after = fixture_stats(f.allocator);
    cr_assert(memcmp(before, &after, sizeof after) == 0, "a refused call changed the statistics");
}

/* ---- Status -------------------------------------------------------------------------------- */

Test(status, each_has_a_name_and_a_sentence_of_its_own) {
    static const ductile_status all[] = {
#define STATUS_VALUE(name, value, sentence) DUCTILE_##name,
        DUCTILE_STATUS_MAP(STATUS_VALUE)
#undef STATUS_VALUE
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        cr_assert_eq(strncmp(ductile_status_name(all[i]), "DUCTILE_", 8), 0);
        cr_assert_gt(strlen(ductile_status_string(all[i])), 5);
        for (size_t j = 0; j < i; j++) {
            cr_assert_neq(all[i], all[j]);
            cr_assert_str_neq(ductile_status_name(all[i]), ductile_status_name(all[j]));
            cr_assert_str_neq(ductile_status_string(all[i]), ductile_status_string(all[j]));
        }
    }
}

Test(status, a_value_that_is_none_is_named_unknown) {
    cr_assert_str_eq(ductile_status_name((ductile_status)9999), "DUCTILE_ERR_UNKNOWN");
    cr_assert_not_null(ductile_status_string((ductile_status)9999));
}

Test(status, the_version_is_the_headers) {
    char expected[32];
    (void)snprintf(expected, sizeof expected, "%d.%d.%d", DUCTILE_VERSION_MAJOR,
                   DUCTILE_VERSION_MINOR, DUCTILE_VERSION_PATCH);
    cr_assert_str_eq(ductile_version(), expected);
}

/* ---- Life cycle ---------------------------------------------------------------------------- */

Test(life, destroy_of_null_does_nothing) {
    assert_ok(ductile_destroy(NULL));
}

Test(life, create_refuses_null_and_leaves_null_on_failure) {
    assert_status(ductile_create(NULL, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    ductile_options options;
    ductile_options_init(&options);
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.limit_bytes = DUCTILE_SHARE(1.5);
    ductile_allocator *a = (ductile_allocator *)&options;
    assert_status(ductile_create(&a, &options), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_null(a);
}

static char said[256];

static void keep_line(void *user, ductile_log_level level, const char *text) {
    (void)user, (void)level;
    (void)strncpy(said, text, sizeof said - 1);
}

/* More than the machine has, and what the driver does not lock. */
Test(life, create_fails_with_a_line_when_its_host_memory_cannot_be_locked) {
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "host_register", .nth = 1, .code = 2};
    ductile_options options;
    ductile_options_init(&options);
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.log = keep_line;
    options.sleep_host_bytes = UINT64_MAX;
    ductile_allocator *a = NULL;
    assert_status(ductile_create(&a, &options), DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    cr_assert_not_null(strstr(said, "sleep_host_bytes: 18446744073709551615 bytes"), "%s", said);
    assert_ok(ductile_virtual_create(&options.virtual_gpu, NULL));
    assert_ok(ductile_virtual_inject(options.virtual_gpu, &fault));
    options.sleep_host_bytes = 4 * MIB;
    assert_status(ductile_create(&a, &options), DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    assert_ok(ductile_create(&a, &options));
    assert_ok(ductile_destroy(a));
    ductile_virtual_destroy(options.virtual_gpu);
}

Test(life, create_answers_its_own_status_without_a_device_of_that_number) {
    ductile_options options;
    ductile_options_init(&options);
    options.device = 4095; /* no machine has it, whether or not it has a driver */
    ductile_allocator *a = NULL;
    ductile_status status = ductile_create(&a, &options);
    cr_assert(status == DUCTILE_ERR_NO_LIBRARY || status == DUCTILE_ERR_NO_DEVICE, "%s",
              ductile_status_name(status));
    cr_assert_null(a);
}

Test(life, a_private_virtual_device_needs_nothing_else) {
    ductile_options options;
    ductile_options_init(&options);
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    ductile_allocator *a = NULL;
    assert_ok(ductile_create(&a, &options));
    assert_ok(ductile_free(a, must_alloc(a, 1 << 20, NULL)));
    assert_ok(ductile_destroy(a));
}

Test(life, an_idle_allocator_holds_nothing, .init = open_default, .fini = close_fixture) {
    ductile_virtual_state v = fixture_state(&f);
    assert_u64(v.used_bytes, 0);
    assert_u64(v.handles, 0);
    assert_u64(v.mappings, 0);
    assert_fine(audit_fixture(&f, NULL));
}

Test(life, create_and_destroy_leave_nothing_each_time, .init = open_default,
     .fini = close_fixture) {
    for (size_t i = 0; i < 50; i++) {
        ductile_allocator *a = NULL;
        assert_fine(fixture_add_allocator(&f, NULL, &a));
        (void)must_alloc(a, 5 * FIXTURE_GRANULE, f.streams[0]);
        assert_ok(ductile_destroy(a));
        assert_u64(fixture_state(&f).used_bytes, 0);
        assert_u64(fixture_state(&f).reservations, 0);
    }
}

/* ---- Allocate and free --------------------------------------------------------------------- */

TestSuite(blocks, .init = open_default, .fini = close_fixture);

Test(blocks, zero_bytes_succeed_with_no_address) {
    ductile_addr address = 1;
    assert_ok(ductile_alloc(f.allocator, 0, f.streams[0], &address));
    assert_u64(address, 0);
    address = 1;
    assert_ok(ductile_alloc_dedicated(f.allocator, 0, f.streams[0], &address));
    assert_u64(address, 0);
    assert_u64(fixture_stats(f.allocator).live_blocks, 0);
}

Test(blocks, free_of_no_address_does_nothing) {
    ductile_stats before = fixture_stats(f.allocator);
    assert_ok(ductile_free(f.allocator, 0));
    assert_ok(ductile_free_ex(f.allocator, 0, &f.streams[0], 1, NULL));
    stats_unchanged(&before);
}

Test(blocks, sizes_that_cannot_be_are_out_of_memory) {
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 511, SIZE_MAX / 2, (size_t)1 << 62,
                                   (size_t)257 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ductile_addr address = 1;
        assert_status(ductile_alloc(f.allocator, sizes[i], f.streams[0], &address),
                      DUCTILE_ERR_OUT_OF_MEMORY);
        assert_u64(address, 0);
    }
    assert_status(ductile_alloc_dedicated(f.allocator, SIZE_MAX, f.streams[0], &(ductile_addr){0}),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(fixture_stats(f.allocator).out_of_memory, 6);
    assert_ok(ductile_free(f.allocator, must_alloc(f.allocator, 256 * MIB, f.streams[0])));
}

Test(blocks, a_hit_makes_no_driver_call) {
    assert_ok(ductile_free(f.allocator, must_alloc(f.allocator, 10 * MIB, f.streams[0])));
    uint64_t calls = fixture_state(&f).calls;
    for (size_t i = 0; i < 100; i++) {
        ductile_addr address = must_alloc(f.allocator, 100 + i * 1000, f.streams[0]);
        assert_ok(ductile_free(f.allocator, address));
    }
    assert_u64(fixture_state(&f).calls, calls);
}

/* ---- Misuse -------------------------------------------------------------------------------- */

/* Every call that takes a block answers the same to a wrong address, and changes nothing; of all
 * kinds of wrong addresses that is so in tests/model/memory.c. */
static void is_refused_with(ductile_addr address, ductile_status expected) {
    ductile_stats before = fixture_stats(f.allocator);
    ductile_block_info info = {.struct_size = sizeof info};
    assert_status(ductile_free(f.allocator, address), expected);
    assert_status(ductile_free_ex(f.allocator, address, &f.streams[0], 1, NULL), expected);
    assert_status(ductile_record_stream(f.allocator, address, f.streams[0]), expected);
    assert_status(ductile_query_block(f.allocator, address, &info), expected);
    stats_unchanged(&before);
    assert_fine(audit_fixture(&f, NULL));
}

Test(blocks, a_double_free_is_told) {
    ductile_addr low = must_alloc(f.allocator, 1000, f.streams[0]);
    ductile_addr middle = must_alloc(f.allocator, 1000, f.streams[0]);
    ductile_addr high = must_alloc(f.allocator, 1000, f.streams[0]);
    assert_ok(ductile_free(f.allocator, middle));
    is_refused_with(middle, DUCTILE_ERR_NOT_LIVE);
    assert_ok(ductile_free(f.allocator, low)); /* merges: the start of middle is no block now */
    is_refused_with(middle, DUCTILE_ERR_NOT_LIVE);
    is_refused_with(low, DUCTILE_ERR_NOT_LIVE);
    is_refused_with(low + 512, DUCTILE_ERR_NOT_LIVE);
    assert_ok(ductile_free(f.allocator, high));
}

Test(blocks, a_block_of_another_allocator_is_foreign) {
    ductile_allocator *other = NULL;
    assert_fine(fixture_add_allocator(&f, NULL, &other));
    (void)must_alloc(f.allocator, 1000, f.streams[0]);
    ductile_addr theirs = must_alloc(other, 1000, f.streams[0]);
    assert_status(ductile_free(f.allocator, theirs), DUCTILE_ERR_FOREIGN_POINTER);
    assert_ok(ductile_free(other, theirs));
    assert_ok(ductile_destroy(other));
}

Test(blocks, a_free_names_all_streams_that_used_the_block) {
    const fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3};
    int is_pending = 0;
    assert_fine(fixture_close(&f));
    assert_fine(fixture_open(&f, &setup));
    ductile_addr address = must_alloc(f.allocator, 8192, f.streams[0]);
    assert_ok(ductile_virtual_launch(f.gpu, f.streams[1], NULL, 0));
    assert_ok(ductile_virtual_launch(f.gpu, f.streams[2], NULL, 0));
    assert_ok(ductile_free_ex(f.allocator, address, &f.streams[1], 2, &is_pending));
    cr_assert_eq(is_pending, 1);
    assert_u64(fixture_stats(f.allocator).event_records, 2);
}

Test(blocks, two_allocators_share_a_device_and_give_way) {
    ductile_allocator *other = NULL;
    ductile_addr none = 0;
    assert_fine(fixture_add_allocator(&f, NULL, &other));
    ductile_addr theirs = must_alloc(other, 160 * MIB, f.streams[0]);
    ductile_addr ours = must_alloc(f.allocator, 96 * MIB, f.streams[0]);
    assert_status(ductile_alloc(f.allocator, 2 * MIB, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_ok(ductile_free(other, theirs));
    assert_ok(ductile_trim(other, NULL, 0, NULL));
    assert_u64(fixture_state(&f).used_bytes, 96 * MIB);
    assert_fine(audit_allocator(other, NULL));
    assert_ok(ductile_destroy(other));
    assert_ok(ductile_free(f.allocator, must_alloc(f.allocator, 160 * MIB, f.streams[0])));
    assert_ok(ductile_free(f.allocator, ours));
}

/* ---- Options that change what a block is --------------------------------------------------- */

Test(options, zero_fills_also_what_is_used_again, .fini = close_fixture) {
    fixture_setup setup = {.conf = "zero:on", .schedule = DUCTILE_SCHEDULE_LAZY};
    assert_fine(fixture_open(&f, &setup));
    for (size_t i = 0; i < 3; i++) {
        uint8_t bytes[512];
        memset(bytes, 1, sizeof bytes);
        ductile_addr address = must_alloc(f.allocator, 5000, f.streams[0]);
        assert_ok(ductile_virtual_read_back(f.gpu, bytes, address + 4488, 512, f.streams[0]));
        for (size_t k = 0; k < sizeof bytes; k++) {
            cr_assert_eq(bytes[k], 0, "round %zu, byte %zu is %u", i, k, bytes[k]);
        }
        assert_ok(ductile_virtual_fill(f.gpu, address, 0xAB, 5000, f.streams[0]));
        assert_ok(ductile_free(f.allocator, address));
    }
}
