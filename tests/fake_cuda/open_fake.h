/* SPDX-License-Identifier: Apache-2.0 */
/* For tests with a stand-in for libcuda.so.1, of which a process has one, and a driver on it. */
#ifndef TESTS_FAKE_CUDA_OPEN_FAKE_H
#define TESTS_FAKE_CUDA_OPEN_FAKE_H

#include "tests/fake_cuda/fake_libcuda.h"
#include "tests/support/expect.h"
#include "vmm/cuda/open.h"

#include <dlfcn.h>

static fake_state *fake;
static dvmm_driver *driver;
static const dvmm_driver_ops *ops;
static void *ctx;

static inline void load_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert(library != NULL, "%s", dlerror());
    fake = dlsym(library, "fake_control");
    cr_assert_not_null(fake);
}

static inline void load_fake(void) {
    load_library(FAKE_LIBCUDA_12000);
}

static inline void open_driver(void) {
    char reason[512];
    ductile_status status = dvmm_open_cuda(0, &driver, reason, sizeof reason);
    cr_assert_eq(status, DUCTILE_OK, "%s: %s", ductile_status_name(status), reason);
    cr_assert_str_empty(reason);
    ops = dvmm_raw_ops(driver, &ctx);
}

static inline void open_fake(void) {
    load_fake();
    open_driver();
}

/* Everything was given back, and the caller's context is what it was. */
static inline void expect_nothing_held(void) {
    cr_expect_eq(fake->contexts, 0);
    cr_expect_eq(fake->reservations, 0);
    cr_expect_eq(fake->handles, 0);
    cr_expect_eq(fake->mappings, 0);
    cr_expect_eq(fake->graphs, 0);
    cr_expect_eq(fake->events, 0);
    cr_expect_eq(fake->streams, 0);
    cr_expect_eq(fake->pushes, fake->pops);
}

static inline void close_fake(void) {
    dvmm_close(driver);
    expect_nothing_held();
}

/* From the nth call on, which is the first unless it is said. */
static inline void plan_failure(const char *call, int code) {
    fake->failing = call;
    fake->fail_code = code;
    fake->fail_from = 0;
}

#endif
