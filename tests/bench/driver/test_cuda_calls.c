/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bench's table of the CUDA driver on a stand-in for libcuda: each entry ends with the function
 * it is for, in the right context, and hands on the code. Its functions are found once for a
 * process, so where they are missing a child looks.
 */
#include "bench/driver/bench_calls.h"
#include "tests/fake_cuda/entries.h"
#include "tests/support/in_child.h"

#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const dvmm_bench_ops *bench;

static void open_bench(const char *path) {
    load_library(path);
    open_driver();
    bench = bench_raw_ops(driver, &ctx);
}

/* ---- The table ----------------------------------------------------------------------------- */

/* Which driver function an entry ends with, and whether it needs our context. */
#define ENTRIES(X)                                                                                 \
    X("cuMemGetAccess", false, bench->get_access_for(ctx, addr, 1, &access))                       \
    X("cuMemAlloc", true, bench->mem_alloc(ctx, 1, &addr))                                         \
    X("cuMemFree", true, bench->mem_free(ctx, addr))                                               \
    X("cuMemAllocAsync", true, bench->mem_alloc_async(ctx, 1, NULL, &addr))                        \
    X("cuMemFreeAsync", true, bench->mem_free_async(ctx, addr, NULL))                              \
    X("cuMemPoolGetAttribute", false, bench->async_pool_info(ctx, &a, &b))                         \
    X("cuMemPoolSetAttribute", false, bench->async_pool_trim(ctx, 0))                              \
    X("cuStreamQuery", true, bench->stream_query(ctx, stream))                                     \
    X("cuStreamWaitValue64", true, bench->stream_wait_value(ctx, stream, &a, 1))                   \
    X("cuStreamBeginCapture", true, bench->capture_begin(ctx, stream, DVMM_CAPTURE_GLOBAL))        \
    X("cuGraphDestroy", true, bench->capture_end(ctx, stream))                                     \
    X("cuMemHostAlloc", true, bench->host_alloc(ctx, 64, &host))                                   \
    X("cuMemcpyDtoDAsync", true, bench->copy(ctx, addr, addr, 1, stream))                          \
    X("cuStreamSynchronize", true, bench->read_back(ctx, &a, addr, 1, stream))                     \
    X("cuMemFreeHost", true, bench->host_free(ctx, host))

/* What ENTRIES names; the fake does not look at most of it. */
#define DECLARE_OPERANDS                                                                           \
    uint64_t a = 0;                                                                                \
    uint64_t b = 0;                                                                                \
    ductile_addr addr = 0;                                                                         \
    ductile_stream stream = NULL;                                                                  \
    dvmm_access access = DVMM_ACCESS_NONE;                                                         \
    void *host = NULL

/* Makes every call of the table once; none may forget to exist. */
static void make_all_calls(cu_context callers) {
    DECLARE_OPERANDS;
    int n = 0;
    ENTRIES(MAKE_ENTRY)
    cr_expect_eq(n, DVMM_N_ALL_CALLS - DVMM_N_CALLS);
    cr_expect_eq(access, DVMM_ACCESS_RW);
    cr_expect_eq(fake->wrong_finds, 0, "searched with another version or flag");
}

static void call_all(const char *path) {
    open_bench(path);
    make_all_calls(NULL);
    cr_expect(bench_has_async_pool(driver) && bench_has_wait_value(driver));
    close_fake();
}

Test(bench_cuda, entries_bring_our_context_where_there_is_none) {
    call_all(FAKE_LIBCUDA_12000);
}

Test(bench_cuda, functions_are_found_by_the_search_of_cuda_11_3) {
    call_all(FAKE_LIBCUDA_11030);
}

Test(bench_cuda, functions_are_found_by_exported_names_alone) {
    call_all(FAKE_LIBCUDA_0);
}

Test(bench_cuda, entries_restore_the_callers_context) {
    open_bench(FAKE_LIBCUDA_12000);
    cu_context callers = (cu_context)0x9000;
    fake->current = callers;
    make_all_calls(callers);
    close_fake();
}

Test(bench_cuda, entries_push_nothing_when_our_context_is_current) {
    open_bench(FAKE_LIBCUDA_12000);
    fake->current = fake->primary;
    int pushes = fake->pushes;
    make_all_calls(fake->primary);
    cr_expect_eq(fake->pushes, pushes);
    close_fake();
}

static void fail_all_calls(const char *instead) {
    DECLARE_OPERANDS;
    fake->fail_code = DVMM_ILLEGAL_STATE;
    ENTRIES(FAIL_ENTRY)
    fake->failing = NULL;
}

Test(bench_cuda, entries_hand_on_the_drivers_code) {
    open_bench(FAKE_LIBCUDA_12000);
    fail_all_calls(NULL);
    dvmm_close(driver);
}

Test(bench_cuda, entries_that_cannot_bring_our_context_make_no_call) {
    static const char *const steps[] = {"cuCtxGetCurrent", "cuCtxPushCurrent"};
    open_bench(FAKE_LIBCUDA_12000);
    ductile_addr addr = 0;
    cr_assert_eq(bench->mem_alloc_async(ctx, 1, NULL, &addr), DVMM_SUCCESS); /* asks the pool */
    for (size_t i = 0; i < LENGTH(steps); i++) {
        int calls = fake->n_calls;
        fail_all_calls(steps[i]);
        cr_expect_eq(fake->n_calls, calls, "%s failed, and the entry went on", steps[i]);
    }
    close_fake();
}

/* What an entry does before the function that it ends with. */
Test(bench_cuda, entries_hand_on_the_code_of_each_step) {
    static const char *const steps[] = {"cuMemPoolSetAttribute", "cuStreamEndCapture",
                                        "cuMemcpyDtoHAsync"};
    open_bench(FAKE_LIBCUDA_12000);
    uint64_t value = 0;
    ductile_addr addr = 0;
    for (size_t i = 0; i < LENGTH(steps); i++) {
        plan_failure(steps[i], DVMM_ILLEGAL_STATE);
        int code = i == 0   ? bench->mem_alloc_async(ctx, 1, NULL, &addr)
                   : i == 1 ? bench->capture_end(ctx, NULL)
                            : bench->read_back(ctx, &value, 1, 1, NULL);
        cr_expect_eq(code, DVMM_ILLEGAL_STATE, "%s", steps[i]);
        cr_expect_str_eq(fake->last_call, steps[i]);
    }
    fake->failing = NULL;
    close_fake();
}

/* ---- What a driver or device may lack ------------------------------------------------------ */

static const char *hidden; /* a function that the driver does not have */
static int n_unsupported;  /* entries that said so                     */
static bool has_pool, has_wait;

static int count_unsupported(void) {
    DECLARE_OPERANDS;
    int n = 0;
    fake->hidden = hidden;
    open_driver();
    bench = bench_raw_ops(driver, &ctx);
#define COUNT(function, in_context, call) n += (call) == DVMM_NOT_SUPPORTED;
    ENTRIES(COUNT)
#undef COUNT
    bool is_as_said =
        bench_has_async_pool(driver) == has_pool && bench_has_wait_value(driver) == has_wait;
    return is_as_said && n == n_unsupported ? 0 : 1 + n;
}

static void expect_unsupported(const char *without, int n, bool pool, bool wait) {
    hidden = without;
    n_unsupported = n;
    has_pool = pool;
    has_wait = wait;
    cr_expect_eq(in_child(count_unsupported), 0, "without %s", without);
}

/* The four entries of the pool need all of its functions. */
Test(bench_cuda, entries_without_their_function_are_not_supported) {
    static const struct {
        const char *name;
        int n;
        bool pool, wait;
    } all[] = {{"nothing", 0, true, true},
               {"cuMemAlloc", 1, true, true},
               {"cuMemFree", 1, true, true},
               {"cuStreamQuery", 1, true, true},
               {"cuStreamBeginCapture", 1, true, true},
               {"cuStreamEndCapture", 1, true, true},
               {"cuGraphDestroy", 1, true, true},
               {"cuMemcpyDtoDAsync", 1, true, true},
               {"cuMemAllocAsync", 4, false, true},
               {"cuMemFreeAsync", 4, false, true},
               {"cuDeviceGetDefaultMemPool", 4, false, true},
               {"cuMemPoolSetAttribute", 4, false, true},
               {"cuMemPoolGetAttribute", 4, false, true},
               {"cuMemPoolTrimTo", 4, false, true},
               {"cuStreamWaitValue64", 1, true, false},
               {"cuMemFreeHost", 1, true, true}};
    load_fake();
    for (size_t i = 0; i < LENGTH(all); i++) {
        expect_unsupported(all[i].name, all[i].n, all[i].pool, all[i].wait);
    }
}

Test(bench_cuda, entries_are_not_supported_where_the_device_lacks_what_they_need) {
    load_fake();
    fake->has_pools = 0;
    expect_unsupported(NULL, 4, false, true);
    fake->has_pools = 1;
    fake->has_wait_value = 0;
    expect_unsupported(NULL, 1, true, false);
}

Test(bench_cuda, a_device_may_have_no_default_pool) {
    load_fake();
    plan_failure("cuDeviceGetDefaultMemPool", DVMM_NOT_SUPPORTED);
    expect_unsupported(NULL, 4, false, true);
}

/* ---- The pool ------------------------------------------------------------------------------ */

Test(bench_cuda, keeps_the_pools_memory_from_first_use_on) {
    open_bench(FAKE_LIBCUDA_12000);
    ductile_addr addr = 0;
    cr_expect(bench_has_async_pool(driver));
    cr_expect_eq(fake->pool_threshold, 0, "the pool was changed without need");
    cr_expect_eq(bench->mem_alloc_async(ctx, 1, NULL, &addr), DVMM_SUCCESS);
    cr_expect_eq(fake->pool_threshold, UINT64_MAX);
    close_fake();
}

Test(bench_cuda, tells_current_and_peak_of_the_pool) {
    open_bench(FAKE_LIBCUDA_12000);
    uint64_t current = 0;
    uint64_t peak = 0;
    cr_expect_eq(bench->async_pool_info(ctx, &current, &peak), DVMM_SUCCESS);
    cr_expect_eq(current, CU_POOL_RESERVED_CURRENT);
    cr_expect_eq(peak, CU_POOL_RESERVED_HIGH);
    current = peak = 0;
    cr_expect_eq(bench_async_pool_info(driver, &current, &peak), DUCTILE_OK);
    cr_expect(current == CU_POOL_RESERVED_CURRENT && peak == CU_POOL_RESERVED_HIGH);
    close_fake();
}

Test(bench_cuda, a_trim_starts_new_peaks) {
    open_bench(FAKE_LIBCUDA_12000);
    cr_expect_eq(bench->async_pool_trim(ctx, 0), DVMM_SUCCESS);
    cr_expect_eq(fake->pool_trims, 1);
    cr_expect_eq(fake->reserved_peak_resets, 1);
    cr_expect_eq(fake->used_peak_resets, 1);
    cr_expect_eq(fake->pool_threshold, 0, "a peak was taken for the threshold");
    close_fake();
}

Test(bench_cuda, a_failed_trim_says_so_and_keeps_the_peaks) {
    open_bench(FAKE_LIBCUDA_12000);
    plan_failure("cuMemPoolTrimTo", DVMM_INVALID_VALUE);
    cr_expect_eq(bench->async_pool_trim(ctx, 0), DVMM_INVALID_VALUE);
    cr_expect_eq(fake->reserved_peak_resets, 0);
    close_fake();
}

/* ---- The wrappers -------------------------------------------------------------------------- */

static uint64_t n_traced;

static void count_trace(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    (void)user, (void)code, (void)address, (void)size;
    n_traced += call == DVMM_OTHER_CALL;
}

Test(bench_cuda, calls_are_counted_together_and_timed_and_traced_as_the_librarys) {
    open_bench(FAKE_LIBCUDA_12000);
    dvmm_counters counters;
    ductile_addr addr = 7;
    dvmm_time_calls(driver);
    dvmm_set_trace(driver, count_trace, NULL, false);
    cr_expect_eq(bench_mem_free(driver, 64), DUCTILE_OK);
    plan_failure("cuMemAlloc", DVMM_OUT_OF_MEMORY);
    cr_expect_eq(bench_mem_alloc(driver, 64, &addr), DUCTILE_ERR_OUT_OF_MEMORY);
    cr_expect_eq(addr, 0);
    plan_failure("cuStreamQuery", DVMM_NOT_READY);
    cr_expect_eq(bench_stream_query(driver, NULL), DUCTILE_ERR_NOT_READY);
    dvmm_get_counters(driver, &counters);
    cr_expect_eq(counters.calls[DVMM_OTHER_CALL], 3);
    cr_expect_eq(counters.failures[DVMM_OTHER_CALL], 1, "NOT_READY answers a query");
    cr_expect_eq(n_traced, 1);
    cr_expect_gt(counters.driver_time_ns, 0);
    close_fake();
}

Test(bench_cuda, calls_are_refused_after_a_sticky_error) {
    open_bench(FAKE_LIBCUDA_12000);
    plan_failure("cuStreamQuery", DVMM_ILLEGAL_ADDRESS);
    cr_expect_eq(bench_stream_query(driver, NULL), DUCTILE_ERR_DEVICE_LOST);
    int calls = fake->n_calls;
    cr_expect_eq(bench_mem_free(driver, 64), DUCTILE_ERR_DEVICE_LOST);
    cr_expect_eq(fake->n_calls, calls);
    fake->failing = NULL;
    close_fake();
}
