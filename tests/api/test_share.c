/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: a block passed to another process is the same memory there, stays where it is here, and
 * outlives the process that goes first; nothing is left over of it in the end. */
#include "tests/support/one_pair.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define GRANULE FIXTURE_GRANULE

static void open_ends(void) {
    const fixture_setup setup = {.capacity_bytes = 1 * GIB, .n_streams = 2};
    assert_fine(two_ends_open(&t, &setup, SOCK_STREAM));
}

TestSuite(share, .init = open_ends, .fini = close_ends);

static ductile_addr pass(ductile_addr addr) {
    passed p = two_ends_pass(&t, addr);
    assert_ok(p.exported);
    assert_ok(p.imported);
    return p.addr;
}

static void fill(ductile_addr addr, uint8_t value, uint64_t size) {
    assert_ok(ductile_virtual_fill(t.f.gpu, addr, value, size, t.f.streams[0]));
}

Test(share, both_sides_see_the_same_bytes) {
    ductile_addr first = take(4096);
    ductile_addr here = take(5 * GRANULE + 512);
    (void)first;
    fill(here, 0x11, 5 * GRANULE + 512);
    passed p = two_ends_pass(&t, here);
    assert_ok(p.exported);
    assert_ok(p.imported);
    assert_u64(p.size, 5 * GRANULE + 512);
    cr_assert_eq(p.addr % GRANULE, here % GRANULE, "the place in the granule is kept");
    cr_assert_eq(byte_at(p.addr), 0x11);
    cr_assert_eq(byte_at(p.addr + p.size - 1), 0x11);
    fill(p.addr + 3 * GRANULE, 0x22, 1);
    cr_assert_eq(byte_at(here + 3 * GRANULE), 0x22);
    check_both();
    assert_ok(ductile_import_close(t.importer, p.addr));
    assert_ok(ductile_unexport(t.f.allocator, here));
    check_both();
}

Test(share, the_import_reserves_no_more_than_it_maps) {
    ductile_virtual_state before = fixture_state(&t.f);
    ductile_addr here = take(3 * GRANULE);
    uint64_t addresses = fixture_state(&t.f).reserved_address_bytes;
    (void)before;
    ductile_addr there = pass(here);
    assert_u64(fixture_state(&t.f).reserved_address_bytes - addresses, 3 * GRANULE);
    assert_u64(fixture_stats(t.importer).imported_bytes, 3 * GRANULE);
    assert_u64(fixture_stats(t.importer).reserved_bytes, 0);
    assert_ok(ductile_import_close(t.importer, there));
    assert_u64(fixture_stats(t.importer).imported_bytes, 0);
    assert_u64(fixture_state(&t.f).reserved_address_bytes, addresses);
}

/* More handles than one batch, and than one message may carry descriptors. */
Test(share, a_large_block_goes_in_batches_and_leaves_no_descriptor) {
    const uint64_t granules = 300;
    ductile_addr here = take(granules * GRANULE);
    fill(here + 299 * GRANULE, 0x77, GRANULE);
    size_t open = count_descriptors();
    ductile_addr there = pass(here);
    assert_u64(fixture_state(&t.f).handles, granules);
    cr_assert_eq(count_descriptors(), open);
    cr_assert_eq(byte_at(there + 300 * GRANULE - 1), 0x77);
    assert_ok(ductile_free(t.importer, there));
    assert_ok(ductile_trim(t.importer, NULL, 0, NULL));
    assert_u64(fixture_stats(t.importer).imported_bytes, 0);
}

Test(share, handles_of_several_granules_pass_whole) {
    assert_fine(two_ends_close(&t));
    const fixture_setup setup = {.capacity_bytes = 1 * GIB, .conf = "shareable:fd,sizes:16M"};
    assert_fine(two_ends_open(&t, &setup, SOCK_SEQPACKET));
    ductile_addr here = take(21 * GRANULE);
    fill(here, 0x42, 21 * GRANULE);
    ductile_addr there = pass(here);
    cr_assert_eq(byte_at(there + 20 * GRANULE), 0x42);
    check_both();
}

Test(share, a_block_of_one_handle_passes_as_one) {
    ductile_addr here = 0;
    assert_ok(ductile_alloc_dedicated(t.f.allocator, 9 * MIB, t.f.streams[0], &here));
    uint64_t exports = ductile_virtual_count(t.f.gpu, "phys_export");
    ductile_addr there = pass(here);
    assert_u64(ductile_virtual_count(t.f.gpu, "phys_export") - exports, 1);
    assert_u64(fixture_stats(t.importer).imported_bytes, 10 * MIB);
    assert_ok(ductile_import_close(t.importer, there));
}

Test(share, exported_memory_stays_where_it_is) {
    ductile_addr here = take(2 * GRANULE);
    ductile_addr there = pass(here);
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(t.f.allocator, here, &info));
    cr_assert_eq(info.flags, DUCTILE_BLOCK_PINNED | DUCTILE_BLOCK_EXPORTED);
    assert_ok(ductile_free(t.f.allocator, here));
    assert_ok(ductile_trim(t.f.allocator, NULL, 0, NULL));
    assert_u64(fixture_stats(t.f.allocator).exported_bytes, 2 * GRANULE);
    cr_assert_eq(ductile_virtual_access(t.f.gpu, here, 0), 3);
    cr_assert_eq(take(2 * GRANULE), here, "reused in place");
    assert_ok(ductile_free(t.f.allocator, here));
    assert_ok(ductile_unexport(t.f.allocator, here));
    assert_ok(ductile_trim(t.f.allocator, NULL, 0, NULL));
    cr_assert_eq(ductile_virtual_access(t.f.gpu, here, 0), -1);
    fill(there, 0x10, 1);
    cr_assert_eq(byte_at(there), 0x10, "the importer's mapping keeps the memory");
}

Test(share, the_importer_outlives_the_exporter) {
    ductile_addr here = take(2 * GRANULE);
    fill(here, 0x31, 2 * GRANULE);
    ductile_addr there = pass(here);
    assert_ok(ductile_destroy(t.f.allocator));
    t.f.allocator = NULL;
    cr_assert_eq(byte_at(there + GRANULE), 0x31);
    assert_ok(ductile_import_close(t.importer, there));
    assert_u64(fixture_state(&t.f).handles, 0);
}

Test(share, the_exporter_outlives_the_importer) {
    ductile_addr here = take(2 * GRANULE);
    (void)pass(here);
    assert_ok(ductile_destroy(t.importer));
    t.importer = NULL;
    fill(here, 0x31, GRANULE);
    cr_assert_eq(byte_at(here), 0x31);
}

Test(share, a_block_can_go_to_many_and_come_back) {
    ductile_addr here = take(GRANULE);
    ductile_addr first = pass(here);
    ductile_addr second = pass(here);
    cr_assert_neq(first, second);
    fill(second, 0x66, 1);
    cr_assert_eq(byte_at(first), 0x66);
    assert_ok(ductile_unexport(t.f.allocator, here));
    assert_u64(fixture_stats(t.f.allocator).exported_bytes, GRANULE);
    assert_ok(ductile_unexport(t.f.allocator, here));
    assert_u64(fixture_stats(t.f.allocator).exported_bytes, 0);
    assert_status(ductile_unexport(t.f.allocator, here), DUCTILE_ERR_INVALID_ARGUMENT);
}

/* ---- Closing an import --------------------------------------------------------------------- */

Test(share, an_import_in_use_is_unmapped_when_its_work_is_done) {
    ductile_addr there = pass(take(GRANULE));
    ductile_virtual_set_schedule(t.f.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    fill(there, 0x01, GRANULE);
    assert_ok(ductile_import_close(t.importer, there));
    cr_assert_eq(ductile_virtual_access(t.f.gpu, there, 0), 3);
    check_both();
    assert_status(ductile_import_close(t.importer, there), DUCTILE_ERR_FOREIGN_POINTER);
    assert_ok(ductile_virtual_stream_sync(t.f.gpu, t.f.streams[0]));
    assert_ok(ductile_trim(t.importer, NULL, 0, NULL));
    cr_assert_eq(ductile_virtual_access(t.f.gpu, there, 0), -1);
}

Test(share, an_import_outlives_its_stream) {
    ductile_addr there = pass(take(GRANULE));
    ductile_virtual_set_schedule(t.f.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    fill(there, 0x01, GRANULE);
    assert_ok(ductile_stream_done(t.importer, t.f.streams[0]));
    assert_ok(ductile_import_close(t.importer, there));
    cr_assert_eq(ductile_virtual_access(t.f.gpu, there, 0), 3);
    assert_ok(ductile_virtual_stream_sync(t.f.gpu, t.f.streams[0]));
    assert_ok(ductile_trim(t.importer, NULL, 0, NULL));
    cr_assert_eq(ductile_virtual_access(t.f.gpu, there, 0), -1);
}

/* Nothing marks the end of its work then but a wait for the whole device, which breaks captures. */
Test(share, closing_an_import_breaks_no_capture) {
    const ductile_pool_id graph = {0, 3};
    ductile_addr there = pass(take(GRANULE));
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "event_record", .nth = 1, .code = 2, .persistent = 1};
    assert_ok(ductile_virtual_inject(t.f.gpu, &fault));
    cr_assert_neq(ductile_stream_done(t.importer, t.f.streams[0]), DUCTILE_OK);
    assert_ok(ductile_virtual_inject(t.f.gpu, NULL));
    assert_ok(ductile_pool_begin(t.importer, graph, NULL, NULL));
    assert_ok(ductile_virtual_capture_begin(t.f.gpu, t.f.streams[1], DUCTILE_CAPTURE_RELAXED));
    assert_status(ductile_import_close(t.importer, there), DUCTILE_ERR_CAPTURING);
    assert_status(ductile_free(t.importer, there), DUCTILE_ERR_CAPTURING);
    assert_ok(ductile_virtual_capture_end(t.f.gpu, t.f.streams[1], NULL));
    assert_ok(ductile_pool_end(t.importer, graph));
    assert_ok(ductile_pool_release(t.importer, graph));
    assert_ok(ductile_import_close(t.importer, there));
    check_both();
}

Test(share, an_import_is_told_apart_from_memory_of_ours) {
    ductile_addr there = pass(take(GRANULE));
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(t.importer, there, &info));
    cr_assert_eq(info.state, DUCTILE_BLOCK_IMPORTED);
    assert_u64(info.size, GRANULE);
    cr_assert_eq(info.stream, t.f.streams[0]);
    assert_status(ductile_pin(t.importer, there), DUCTILE_ERR_FOREIGN_POINTER);
    assert_status(ductile_export(t.importer, there, t.out), DUCTILE_ERR_FOREIGN_POINTER);
    assert_status(ductile_import_close(t.importer, there + 512), DUCTILE_ERR_FOREIGN_POINTER);
    assert_status(ductile_import_close(t.f.allocator, there), DUCTILE_ERR_FOREIGN_POINTER);
}

/* ---- What is refused ----------------------------------------------------------------------- */

Test(share, what_was_not_made_to_be_shared_is_refused) {
    ductile_allocator *plain = NULL;
    const fixture_setup setup = {.conf = NULL};
    assert_fine(fixture_add_allocator(&t.f, &setup, &plain));
    ductile_addr addr = 0;
    assert_ok(ductile_alloc(plain, GRANULE, NULL, &addr));
    assert_status(ductile_export(plain, addr, t.out), DUCTILE_ERR_UNSUPPORTED);
    assert_ok(ductile_destroy(plain));
}

Test(share, a_machine_without_the_means_is_named) {
    static const struct {
        const char *conf;
        int no_descriptors;
        ductile_virtual_rdma rdma;
    } cases[] = {{"shareable:fd", 1, DUCTILE_VIRTUAL_RDMA_WORKS},
                 {"shareable:fabric", 0, DUCTILE_VIRTUAL_RDMA_WORKS},
                 {"rdma:on", 0, DUCTILE_VIRTUAL_RDMA_NONE},
                 {"rdma:on", 0, DUCTILE_VIRTUAL_RDMA_TRAP},
                 {"rdma:on,shareable:fd", 0, DUCTILE_VIRTUAL_RDMA_TRAP}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ductile_virtual_options device;
        ductile_virtual_options_init(&device);
        device.no_descriptors = cases[i].no_descriptors;
        device.rdma = cases[i].rdma;
        ductile_virtual_gpu *gpu = NULL;
        assert_ok(ductile_virtual_create(&gpu, &device));
        ductile_options options;
        ductile_options_init(&options);
        assert_ok(ductile_options_parse(&options, cases[i].conf, NULL, 0));
        options.driver = DUCTILE_DRIVER_VIRTUAL;
        options.virtual_gpu = gpu;
        ductile_allocator *a = NULL;
        assert_status(ductile_create(&a, &options), DUCTILE_ERR_UNSUPPORTED);
        cr_assert_null(a);
        ductile_virtual_state s = {.struct_size = sizeof s};
        assert_ok(ductile_virtual_get_state(gpu, &s));
        cr_assert(s.handles == 0 && s.mappings == 0 && s.reservations == 0, "%s", cases[i].conf);
        ductile_virtual_destroy(gpu);
    }
}

Test(share, too_few_descriptors_are_noticed_before_any_is_opened) {
    ductile_addr here = take(100 * GRANULE);
    struct rlimit before;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit low = {.rlim_cur = count_descriptors() + 60, .rlim_max = before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    size_t open = count_descriptors();
    assert_status(ductile_export(t.f.allocator, here, t.out), DUCTILE_ERR_NO_DESCRIPTORS);
    cr_assert_eq(count_descriptors(), open);
    assert_u64(fixture_stats(t.f.allocator).exported_bytes, 0);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* ---- The fabric ---------------------------------------------------------------------------- */

Test(share, fabric_handles_pass_without_descriptors) {
    ductile_virtual_options device;
    ductile_virtual_options_init(&device);
    device.has_fabric = 1;
    ductile_virtual_gpu *gpu = NULL;
    assert_ok(ductile_virtual_create(&gpu, &device));
    ductile_options options;
    ductile_options_init(&options);
    assert_ok(ductile_options_parse(&options, "shareable:fabric,rdma:on", NULL, 0));
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.virtual_gpu = gpu;
    ductile_allocator *a = NULL;
    assert_ok(ductile_create(&a, &options));
    ductile_addr here = 0;
    assert_ok(ductile_alloc(a, 2 * GRANULE, NULL, &here));
    assert_ok(ductile_virtual_fill(gpu, here, 0x0F, 2 * GRANULE, NULL));
    two_ends loop = {.f = {.allocator = a}, .importer = a, .out = t.out, .in = t.in};
    size_t open = count_descriptors();
    passed p = two_ends_pass(&loop, here);
    assert_ok(p.exported);
    assert_ok(p.imported);
    cr_assert_eq(count_descriptors(), open);
    uint8_t byte = 0;
    assert_ok(ductile_virtual_read_back(gpu, &byte, p.addr + GRANULE, 1, NULL));
    cr_assert_eq(byte, 0x0F);
    assert_ok(ductile_destroy(a));
    ductile_virtual_destroy(gpu);
}

/* ---- What is seen of it -------------------------------------------------------------------- */

static int collect_text(void *user, const char *text, size_t length) {
    char *all = user;
    (void)strncat(all, text, length);
    return 0;
}

Test(share, snapshots_show_pins_exports_and_imports) {
    static char text[1 << 16];
    (void)pass(take(GRANULE));
    text[0] = '\0';
    assert_ok(ductile_snapshot_json(t.f.allocator, collect_text, text));
    cr_assert_not_null(strstr(text, "\"pinned\":true,\"exported\":true"));
    cr_assert_not_null(strstr(text, "\"exported_bytes\":2097152"));
    text[0] = '\0';
    assert_ok(ductile_snapshot_json(t.importer, collect_text, text));
    cr_assert_not_null(strstr(text, "\"state\":\"imported\""));
    cr_assert_not_null(strstr(text, "\"imported_bytes\":2097152"));
}
