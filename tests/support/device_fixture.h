/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtual GPU opened as a driver, for tests of the seam and of the device itself: the checked
 * wrappers through `d`, and the raw table through RAW for what the wrappers would not let pass.
 */
#ifndef TESTS_SUPPORT_DEVICE_FIXTURE_H
#define TESTS_SUPPORT_DEVICE_FIXTURE_H

#include "bench/driver/bench_calls.h"
#include "tests/support/expect.h"
#include "tests/support/leak_gate.h"
#include "vmm/driver/driver.h"
#include "vmm/driver/open_virtual.h"

#include <ductile_virtual.h>

/* Owner: one test. */
typedef struct device_fixture {
    ductile_virtual_gpu *gpu;
    dvmm_driver *d;
    const dvmm_driver_ops *ops;
    const dvmm_bench_ops *bench;
    void *ctx; /* of both tables */
    uint64_t granule;
} device_fixture;

/* One call of a raw table, the library's or the bench's; the driver's code. */
#define RAW(r, name, ...) ((r)->ops->name((r)->ctx, __VA_ARGS__))
#define BENCH_RAW(r, name, ...) ((r)->bench->name((r)->ctx, __VA_ARGS__))

/* A raw call gives exactly this code. */
#define assert_code(call, expected)                                                                \
    do {                                                                                           \
        int code_got = (call);                                                                     \
        cr_assert(code_got == (expected), "%s gave %s, not %s", #call, dvmm_code_name(code_got),   \
                  dvmm_code_name(expected));                                                       \
    } while (0)

/* With the level of detection that the options say. */
static inline void device_open_detecting(device_fixture *r,
                                         const ductile_virtual_options *options) {
    assert_ok(ductile_virtual_create(&r->gpu, options));
    assert_ok(dvmm_open_virtual(r->gpu, &r->d, NULL, 0));
    r->ops = dvmm_raw_ops(r->d, &r->ctx);
    r->bench = bench_raw_ops(r->d, &r->ctx);
    r->granule = dvmm_get_caps(r->d)->granule_bytes;
}

static inline void device_open(device_fixture *r, const ductile_virtual_options *given) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    if (given != NULL) {
        options = *given;
    }
    options.detect = 2;
    device_open_detecting(r, &options);
}

/* A machine of n devices. */
static inline void device_open_devices(device_fixture *r, uint32_t n) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.n_devices = n;
    device_open(r, &options);
}

/* A device whose work completes by `schedule`. */
static inline void device_open_scheduled(device_fixture *r, ductile_schedule schedule, uint64_t lag,
                                         uint64_t seed) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.schedule = schedule;
    options.lag = lag;
    options.seed = seed;
    device_open(r, &options);
}

/* The nth call of that name from now on fails with the driver's code; NULL: of any name. */
static inline void device_fail(const device_fixture *r, const char *call, uint64_t nth, int code) {
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = call, .nth = nth, .code = code};
    assert_ok(ductile_virtual_inject(r->gpu, &fault));
}

/* The nth call of that name from now on fails, and so do all behind it. */
static inline void device_fail_from(const device_fixture *r, const char *call, uint64_t nth,
                                    int code) {
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = call, .nth = nth, .code = code, .persistent = true};
    assert_ok(ductile_virtual_inject(r->gpu, &fault));
}

/* No call fails from now on. */
static inline void device_recover(const device_fixture *r) {
    assert_ok(ductile_virtual_inject(r->gpu, NULL));
}

/* For tests that leave something behind on purpose. */
static inline void device_abandon(device_fixture *r) {
    dvmm_close(r->d);
    ductile_virtual_destroy(r->gpu);
}

static inline void device_close(device_fixture *r) {
    assert_fine(leak_gate(r->gpu));
    device_abandon(r);
}

static inline ductile_virtual_state device_state(const device_fixture *r) {
    ductile_virtual_state s = {.struct_size = sizeof(s)};
    assert_ok(ductile_virtual_get_state(r->gpu, &s));
    return s;
}

/* The calls of that name so far. */
static inline void assert_called(const device_fixture *r, const char *call, uint64_t times) {
    uint64_t called = ductile_virtual_count(r->gpu, call);
    cr_assert(called == times, "%s was called %llu times, not %llu", call,
              (unsigned long long)called, (unsigned long long)times);
}

static inline ductile_addr device_reserve(const device_fixture *r, uint64_t n_granules) {
    ductile_addr addr = 0;
    assert_ok(dvmm_address_reserve(r->d, n_granules * r->granule, &addr));
    return addr;
}

static inline dvmm_phys device_create(const device_fixture *r, uint64_t n_granules) {
    dvmm_phys_props props = {0};
    dvmm_phys phys = 0;
    assert_ok(dvmm_phys_create(r->d, n_granules * r->granule, &props, &phys));
    return phys;
}

/* A new handle, mapped there, open for reading and writing, kept by its mapping alone. */
static inline void device_back(const device_fixture *r, ductile_addr addr, uint64_t n_granules) {
    dvmm_phys phys = device_create(r, n_granules);
    assert_ok(dvmm_map(r->d, addr, n_granules * r->granule, phys));
    assert_ok(dvmm_set_access(r->d, addr, n_granules * r->granule, DVMM_ACCESS_RW));
    assert_ok(dvmm_phys_release(r->d, phys));
}

/* A reservation of handles of one granule each. */
static inline ductile_addr device_row(const device_fixture *r, uint64_t n_granules) {
    ductile_addr addr = device_reserve(r, n_granules);
    for (uint64_t i = 0; i < n_granules; i++) {
        device_back(r, addr + i * r->granule, 1);
    }
    return addr;
}

static inline void device_unrow(const device_fixture *r, ductile_addr addr, uint64_t n_granules) {
    assert_ok(dvmm_unmap(r->d, addr, n_granules * r->granule));
    assert_ok(dvmm_address_free(r->d, addr, n_granules * r->granule));
}

static inline ductile_stream device_stream(const device_fixture *r) {
    ductile_stream stream = NULL;
    assert_ok(dvmm_stream_create(r->d, &stream));
    return stream;
}

static inline dvmm_event device_event(const device_fixture *r) {
    dvmm_event event = NULL;
    assert_ok(dvmm_event_create(r->d, &event));
    return event;
}

#endif
