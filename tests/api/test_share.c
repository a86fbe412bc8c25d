/* SPDX-License-Identifier: Apache-2.0 */
/* What a block that passes to another process needs, and what is seen of it. That it is the same
 * memory there, stays where it is here, and leaves nothing over is tests/scenarios/share.txt. */
#include "tests/support/json_check.h"
#include "tests/support/one_pair.h"

#include <stdlib.h>
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
    passing p = two_ends_pass(&t, addr);
    assert_ok(p.exported);
    assert_ok(p.imported);
    return p.addr;
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

/* ---- Machines ------------------------------------------------------------------------------ */

static ductile_status create_on(ductile_virtual_options device, const char *conf,
                                ductile_virtual_gpu **gpu, ductile_allocator **a) {
    ductile_options options;
    ductile_options_init(&options);
    assert_ok(ductile_options_parse(&options, conf, NULL, 0));
    assert_ok(ductile_virtual_create(gpu, &device));
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.virtual_gpu = *gpu;
    return ductile_create(a, &options);
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
        ductile_virtual_gpu *gpu = NULL;
        ductile_allocator *a = NULL;
        ductile_virtual_options device;
        ductile_virtual_options_init(&device);
        device.no_descriptors = cases[i].no_descriptors;
        device.rdma = cases[i].rdma;
        assert_status(create_on(device, cases[i].conf, &gpu, &a), DUCTILE_ERR_UNSUPPORTED);
        cr_assert_null(a);
        ductile_virtual_state s = {.struct_size = sizeof s};
        assert_ok(ductile_virtual_get_state(gpu, &s));
        cr_assert(s.handles == 0 && s.mappings == 0 && s.reservations == 0, "%s", cases[i].conf);
        ductile_virtual_destroy(gpu);
    }
}

/* Devices 1 and 2 reach this one, device 3 does not, device 4 does not exist. */
Test(share, a_device_that_cannot_reach_or_is_not_there_is_told) {
    ductile_virtual_gpu *gpu = NULL;
    ductile_allocator *a = NULL;
    ductile_virtual_options device;
    ductile_virtual_options_init(&device);
    device.n_devices = 4;
    device.unreachable_devices = 8;
    assert_ok(create_on(device, "", &gpu, &a));
    assert_status(ductile_enable_peer(a, 3), DUCTILE_ERR_UNSUPPORTED);
    assert_status(ductile_enable_peer(a, 4), DUCTILE_ERR_NO_DEVICE);
    assert_ok(ductile_enable_peer(a, 1));
    assert_ok(ductile_enable_peer(a, 1));
    assert_ok(ductile_destroy(a));
    ductile_virtual_destroy(gpu);
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

Test(share, fabric_handles_pass_without_descriptors) {
    ductile_virtual_gpu *gpu = NULL;
    ductile_allocator *a = NULL;
    ductile_virtual_options device;
    ductile_virtual_options_init(&device);
    device.has_fabric = 1;
    assert_ok(create_on(device, "shareable:fabric,rdma:on", &gpu, &a));
    ductile_addr here = 0;
    assert_ok(ductile_alloc(a, 2 * GRANULE, NULL, &here));
    assert_ok(ductile_virtual_fill(gpu, here, 0x0F, 2 * GRANULE, NULL));
    two_ends loop = {.f = {.allocator = a}, .importer = a, .out = t.out, .in = t.in};
    size_t open = count_descriptors();
    passing p = two_ends_pass(&loop, here);
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

static char *snapshot_of(ductile_allocator *a) {
    text_sink sink = {.text = NULL};
    assert_ok(ductile_snapshot_json(a, text_sink_write, &sink));
    return sink.text;
}

Test(share, snapshots_show_pins_exports_and_imports) {
    (void)pass(take(GRANULE));
    char *here = snapshot_of(t.f.allocator);
    char *there = snapshot_of(t.importer);
    cr_assert_not_null(strstr(here, "\"pinned\":true,\"exported\":true"));
    cr_assert_not_null(strstr(here, "\"exported_bytes\":2097152"));
    cr_assert_not_null(strstr(there, "\"state\":\"imported\""));
    cr_assert_not_null(strstr(there, "\"imported_bytes\":2097152"));
    free(here);
    free(there);
}
