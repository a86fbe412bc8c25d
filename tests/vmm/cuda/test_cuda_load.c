/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: the CUDA backend opens "libcuda.so.1", and whichever library of that name is loaded
 * first is the one it gets. So each test loads a stand-in, plans what goes wrong, and looks at the
 * status, the sentence, and what the stand-in still holds. Each test is its own process, so
 * nothing remains for the next.
 */
#include "tests/fake_cuda/entries.h"
#include "tests/support/in_child.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static char reason[512];

/* Opening fails, says something like that, and holds nothing. */
static ductile_status refuse(int ordinal, const char *says) {
    driver = (dvmm_driver *)&reason;
    ductile_status status = dvmm_open_cuda(ordinal, &driver, reason, sizeof(reason));
    cr_expect_null(driver);
    cr_expect_not_null(strstr(reason, says), "\"%s\" does not say \"%s\"", reason, says);
    cr_expect_eq(fake->contexts, 0, "the context was not released: %s", reason);
    cr_expect_eq(fake->current, NULL, "the caller's context changed: %s", reason);
    return status;
}

/* ---- Opening ------------------------------------------------------------------------------- */

static void open_and_close(const char *path) {
    load_library(path);
    open_driver();
    const dvmm_caps *caps = dvmm_get_caps(driver);
    cr_expect_str_eq(caps->name, "Fake GPU");
    cr_expect_eq(caps->granule_bytes, 2u << 20);
    cr_expect(!caps->is_virtual);
    cr_expect(caps->has_context_events && caps->has_batches);
    cr_expect_eq(strncmp(caps->driver_version, "13.0", 4), 0);
    cr_expect_eq(fake->contexts, 1);
    cr_expect_eq(fake->wrong_finds, 0, "searched with another version or flag");
    cr_expect_eq(fake->bench_finds, 0, "searched for what it never calls");
    close_fake();
}

/* ---- The version of the kernel driver -------------------------------------------------------- */

static const char *kernel_file; /* what the module's file holds; NULL: as on this machine */

/* The linker sends calls of X to __wrap_X and those of __real_X to X. */
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);

FILE *__wrap_fopen(const char *path, const char *mode) {
    if (kernel_file == NULL || strcmp(path, "/sys/module/nvidia/version") != 0) {
        return __real_fopen(path, mode);
    }
    FILE *file = tmpfile();
    cr_assert_not_null(file);
    (void)fputs(kernel_file, file);
    rewind(file);
    return file;
}

static size_t open_files(void) {
    size_t n = 0;
    DIR *folder = opendir("/proc/self/fd");
    cr_assert_not_null(folder);
    while (readdir(folder) != NULL) {
        n++;
    }
    (void)closedir(folder);
    return n;
}

static void expect_version(const char *in_the_file, const char *told) {
    size_t before = open_files();
    kernel_file = in_the_file;
    open_driver();
    kernel_file = NULL;
    cr_expect_str_eq(dvmm_get_caps(driver)->driver_version, told);
    dvmm_close(driver);
    cr_expect_eq(open_files(), before, "the file is still open");
}

Test(driver_cuda_load, tells_the_version_of_the_kernel_driver_and_closes_its_file) {
    load_fake();
    expect_version("570.86.15\n", "13.0 (570.86.15)");
    expect_version("", "13.0");
    expect_nothing_held();
}

Test(driver_cuda_load, opens_with_the_search_of_cuda_12) {
    open_and_close(FAKE_LIBCUDA_12000);
}

Test(driver_cuda_load, opens_with_the_search_of_cuda_11_3) {
    open_and_close(FAKE_LIBCUDA_11030);
}

Test(driver_cuda_load, opens_by_exported_names_alone) {
    open_and_close(FAKE_LIBCUDA_0);
}

Test(driver_cuda_load, opens_twice_and_each_holds_the_context) {
    load_fake();
    open_driver();
    dvmm_driver *first = driver;
    open_driver();
    cr_expect_eq(fake->contexts, 2);
    dvmm_close(first);
    cr_expect_eq(fake->contexts, 1);
    close_fake();
}

Test(driver_cuda_load, says_that_no_library_is_there) {
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != NULL) {
        cr_skip_test("this machine has a driver");
    }
    cr_expect_eq(dvmm_open_cuda(0, &driver, reason, sizeof(reason)), DUCTILE_ERR_NO_LIBRARY);
    cr_expect_not_null(strstr(reason, "libcuda.so.1"), "%s", reason);
    cr_expect_null(driver);
    cr_expect_eq(dvmm_open_cuda(0, &driver, NULL, 0), DUCTILE_ERR_NO_LIBRARY);
}

Test(driver_cuda_load, cuts_a_sentence_to_fit) {
    load_fake();
    char small[8];
    plan_failure("cuInit", DVMM_NO_DEVICE);
    cr_expect_eq(dvmm_open_cuda(0, &driver, small, sizeof(small)), DUCTILE_ERR_NO_DEVICE);
    cr_expect_eq(strlen(small), sizeof(small) - 1);
}

/* ---- Missing functions --------------------------------------------------------------------- */

/* Also covers a search that reports success and finds nothing. */
Test(driver_cuda_load, names_each_required_function_that_is_missing) {
    static const struct {
        const char *name, *exported;
    } required[] = {
#define NAMES(name, exported, version, parameters) {#name, exported},
        CU_REQUIRED_FUNCTIONS(NAMES)
#undef NAMES
    };
    load_fake();
    for (size_t i = 0; i < LENGTH(required); i++) {
        fake->hidden = required[i].name;
        cr_expect_eq(refuse(0, required[i].exported), DUCTILE_ERR_DRIVER_TOO_OLD);
    }
    fake->hidden = NULL;
    open_driver();
    close_fake();
}

Test(driver_cuda_load, opens_without_what_it_never_calls) {
    load_fake();
    fake->hidden = "cuMemAlloc";
    open_driver();
    cr_expect_eq(fake->bench_finds, 0);
    close_fake();
}

/* ---- Features that a driver or device may lack --------------------------------------------- */

/* The name of the device and what it has. */
static const char *features(void) {
    static char text[128];
    const dvmm_caps *caps = dvmm_get_caps(driver);
    (void)snprintf(text, sizeof text, "%s:%s%s%s", caps->name,
                   caps->has_context_events ? " events" : "", caps->has_batches ? " batches" : "",
                   (caps->share_types & DVMM_SHARE_FABRIC) != 0 ? " fabric" : "");
    return text;
}

/* It opens, is told as that, and is closed again. */
static void expect_opens(const char *as) {
    open_driver();
    cr_expect_str_eq(features(), as);
    fake->failing = NULL;
    close_fake();
}

static void expect_refused(ductile_status status, const char *says) {
    fake->reservations = fake->handles = fake->mappings = 0;
    assert_status(refuse(0, says), status);
}

Test(driver_cuda_load, with_all_there_is_all_is_there) {
    load_fake();
    expect_opens("Fake GPU: events batches");
}

Test(driver_cuda_load, lives_without_context_events) {
    load_fake();
    fake->hidden = "cuCtxRecordEvent";
    expect_opens("Fake GPU: batches");
}

Test(driver_cuda_load, lives_without_batches_of_copies) {
    load_fake();
    fake->hidden = "cuMemcpyBatchAsync";
    expect_opens("Fake GPU: events");
}

Test(driver_cuda_load, lives_without_a_name) {
    load_fake();
    plan_failure("cuDeviceGetName", DVMM_UNKNOWN);
    expect_opens(": events batches");
}

Test(driver_cuda_load, asks_the_device_for_fabric_handles) {
    load_fake();
    fake->has_fabric = 1;
    expect_opens("Fake GPU: events batches fabric");
}

Test(driver_cuda_load, believes_a_search_that_says_that_it_found_nothing) {
    load_fake();
    fake->hidden = "cuMemCreate";
    fake->hidden_answer = 1;
    expect_refused(DUCTILE_ERR_DRIVER_TOO_OLD, "cuMemCreate");
}

Test(driver_cuda_load, refuses_a_driver_before_11_2) {
    load_fake();
    fake->version = 11010;
    expect_refused(DUCTILE_ERR_DRIVER_TOO_OLD, "CUDA 11.1");
    fake->version = 11020;
    expect_opens("Fake GPU: events batches");
}

Test(driver_cuda_load, refuses_a_device_without_virtual_memory_management) {
    load_fake();
    fake->has_vmm = 0;
    expect_refused(DUCTILE_ERR_NO_VMM, "does not support virtual memory management");
}

Test(driver_cuda_load, answers_unsupported_without_batches_of_copies) {
    dvmm_batch batch = {.n = 1};
    load_fake();
    fake->hidden = "cuMemcpyBatchAsync";
    open_driver();
    cr_expect_eq(ops->copy_batch(ctx, &batch, (ductile_stream)&batch), DVMM_NOT_SUPPORTED);
    close_fake();
}

Test(driver_cuda_load, a_batch_goes_from_the_device_or_to_it) {
    open_fake();
    dvmm_batch batch = {.n = 2, .device = {1, 2}, .host = {3, 4}, .sizes = {5, 6}};
    cr_expect_eq(ops->copy_batch(ctx, &batch, (ductile_stream)&batch), DVMM_SUCCESS);
    cr_expect(fake->copied_to == 2 && fake->copied_from == 4 && fake->copied_bytes == 6);
    batch.is_out = true;
    cr_expect_eq(ops->copy_batch(ctx, &batch, (ductile_stream)&batch), DVMM_SUCCESS);
    cr_expect(fake->copied_to == 4 && fake->copied_from == 2 && fake->copied_bytes == 6);
    dvmm_close(driver);
}

Test(driver_cuda_load, answers_unsupported_without_context_events) {
    load_fake();
    fake->hidden = "cuCtxRecordEvent";
    open_driver();
    cr_expect_eq(ops->context_record(ctx, (dvmm_event)&reason), DVMM_NOT_SUPPORTED);
    dvmm_close(driver);
}

/* ---- No device ----------------------------------------------------------------------------- */

typedef struct failing_start {
    const char *call;
    int code;
    ductile_status status;
    const char *says;
} failing_start;

static void expect_each_refused(const failing_start *all, size_t n) {
    load_fake();
    for (size_t i = 0; i < n; i++) {
        plan_failure(all[i].call, all[i].code);
        expect_refused(all[i].status, all[i].says);
    }
}

Test(driver_cuda_load, says_why_there_is_no_device) {
    static const failing_start reasons[] = {
        {"cuInit", DVMM_NOT_INITIALIZED, DUCTILE_ERR_FORKED, "forked"},
        {"cuInit", DVMM_STUB_LIBRARY, DUCTILE_ERR_NO_LIBRARY, "stub"},
        {"cuInit", 36, DUCTILE_ERR_DRIVER_TOO_OLD, "newer kernel driver"},
        {"cuInit", 46, DUCTILE_ERR_NO_DEVICE, "exclusively"},
        {"cuInit", DVMM_NO_DEVICE, DUCTILE_ERR_NO_DEVICE, "no device"},
        {"cuInit", 802, DUCTILE_ERR_NO_DEVICE, "not ready"},
        {"cuInit", 803, DUCTILE_ERR_NO_DEVICE, "different versions"},
        {"cuInit", 804, DUCTILE_ERR_NO_DEVICE, "forward-compatibility"},
        {"cuInit", 805, DUCTILE_ERR_NO_DEVICE, "MPS"},
        {"cuInit", DVMM_UNKNOWN, DUCTILE_ERR_DRIVER, "CUDA_ERROR_UNKNOWN (999)"}};
    expect_each_refused(reasons, LENGTH(reasons));
}

Test(driver_cuda_load, says_which_call_of_the_start_failed) {
    static const failing_start calls[] = {
        {"cuDriverGetVersion", DVMM_STUB_LIBRARY, DUCTILE_ERR_NO_LIBRARY, "stub"},
        {"cuDeviceGet", DVMM_UNKNOWN, DUCTILE_ERR_DRIVER, "cuDeviceGet"},
        {"cuDeviceGetAttribute", DVMM_INVALID_VALUE, DUCTILE_ERR_NO_VMM,
         "virtual memory management"},
        {"cuDevicePrimaryCtxRetain", DVMM_OUT_OF_MEMORY, DUCTILE_ERR_DRIVER,
         "cuDevicePrimaryCtxRetain"},
        {"cuDevicePrimaryCtxRetain", 46, DUCTILE_ERR_NO_DEVICE, "exclusively"},
        {"cuMemGetAllocationGranularity", DVMM_INVALID_VALUE, DUCTILE_ERR_DRIVER, "Granularity"},
        {"cuDeviceTotalMem", DVMM_INVALID_VALUE, DUCTILE_ERR_DRIVER, "cuDeviceTotalMem"}};
    expect_each_refused(calls, LENGTH(calls));
}

Test(driver_cuda_load, says_how_many_devices_there_are) {
    load_fake();
    assert_status(refuse(2, "no device 2: the driver sees 2"), DUCTILE_ERR_NO_DEVICE);
    assert_status(refuse(-1, "no device -1"), DUCTILE_ERR_NO_DEVICE);
    plan_failure("cuDeviceGetCount", DVMM_UNKNOWN);
    assert_status(refuse(2, "there is no device 2"), DUCTILE_ERR_NO_DEVICE);
}

/* ---- The probe at the start: what it holds stays only where its fate is unknown -------------- */

static void expect_held(int reservations, int handles, int mappings) {
    cr_expect_eq(fake->reservations, reservations);
    cr_expect_eq(fake->handles, handles);
    cr_expect_eq(fake->mappings, mappings);
}

static void fail_each_call_of_the_probe(int code, ductile_status status) {
    static const struct {
        const char *call;
        int reservations, handles, mappings; /* that are left */
    } calls[] = {
        {"cuMemAddressReserve", 0, 0, 0}, {"cuMemCreate", 0, 0, 0},     {"cuMemMap", 0, 0, 0},
        {"cuMemSetAccess", 0, 0, 0},      {"cuMemGetAccess", 0, 0, 0},  {"cuMemUnmap", 1, 1, 1},
        {"cuMemRelease", 0, 1, 0},        {"cuMemAddressFree", 1, 0, 0}};
    load_fake();
    for (size_t i = 0; i < LENGTH(calls); i++) {
        plan_failure(calls[i].call, code);
        expect_refused(status, calls[i].call);
        expect_held(calls[i].reservations, calls[i].handles, calls[i].mappings);
    }
}

Test(driver_cuda_load, undoes_the_probe_wherever_it_fails) {
    fail_each_call_of_the_probe(DVMM_UNKNOWN, DUCTILE_ERR_DRIVER);
}

Test(driver_cuda_load, says_that_virtual_memory_is_not_supported_where_a_call_of_the_probe_is_not) {
    fail_each_call_of_the_probe(DVMM_NOT_SUPPORTED, DUCTILE_ERR_NO_VMM);
}

Test(driver_cuda_load, refuses_a_mapping_that_forgets_its_access) {
    load_fake();
    fake->granted = DVMM_ACCESS_READ;
    expect_refused(DUCTILE_ERR_DRIVER, "cuMemGetAccess");
    expect_held(0, 0, 0);
}

/* ---- The ends of a process ----------------------------------------------------------------- */

static int open_another(void) {
    int calls = fake->n_calls;
    dvmm_driver *again = NULL;
    ductile_status status = dvmm_open_cuda(0, &again, reason, sizeof(reason));
    return status == DUCTILE_ERR_FORKED && fake->n_calls == calls ? 0 : 1;
}

Test(driver_cuda_load, refuses_in_a_forked_child_without_a_call) {
    open_fake();
    cr_expect_eq(in_child(open_another), 0);
    close_fake();
}

/* 0 when every call on the open driver is refused as `expected`, and none reaches the library. */
static int is_left_alone(ductile_status expected) {
    int calls = fake->n_calls;
    uint64_t free_bytes = 1;
    uint64_t total_bytes = 1;
    dvmm_phys phys = 0;
    const dvmm_phys_props props = {0};
    ductile_status asked = dvmm_mem_info(driver, &free_bytes, &total_bytes);
    ductile_status created = dvmm_phys_create(driver, 2 << 20, &props, &phys);
    dvmm_close(driver);
    return asked == expected && created == expected && fake->n_calls == calls ? 0 : 1;
}

static int use_parents_driver(void) {
    return is_left_alone(DUCTILE_ERR_FORKED);
}

Test(driver_cuda_load, makes_no_call_in_a_forked_child) {
    open_fake();
    cr_assert_eq(in_child(use_parents_driver), 0);
    cr_assert_eq(dvmm_context_sync(driver), DUCTILE_OK);
    close_fake();
}

/* Registered before the library saw the process, so it runs when the library has seen its end. */
static void use_driver_at_exit(void) {
    _exit(is_left_alone(DUCTILE_ERR_EXITING) == 0 ? 42 : 1);
}

static int exit_with_open_driver(void) {
    load_fake();
    if (atexit(use_driver_at_exit) != 0) {
        return 10;
    }
    open_driver();
    exit(11);
}

Test(driver_cuda_load, makes_no_call_once_the_process_exits) {
    cr_assert_eq(in_child(exit_with_open_driver), 42);
}

/* ---- The table ----------------------------------------------------------------------------- */

/* Which driver function an entry ends with, and whether it needs our context. */
#define ENTRIES(X)                                                                                 \
    X("cuMemGetInfo", true, ops->mem_info(ctx, &a, &b))                                            \
    X("cuMemAddressReserve", false, ops->address_reserve(ctx, 1, 0, 0, &addr))                     \
    X("cuMemAddressFree", false, ops->address_free(ctx, addr, 1))                                  \
    X("cuMemCreate", false, ops->phys_create(ctx, 1, &props, &phys))                               \
    X("cuMemMap", false, ops->map(ctx, addr, 1, 0, phys))                                          \
    X("cuMemSetAccess", false, ops->set_access(ctx, addr, 1, DVMM_ACCESS_RW))                      \
    X("cuMemGetAccess", false, ops->get_access(ctx, addr, &access))                                \
    X("cuDeviceCanAccessPeer", false, ops->can_access_peer(ctx, 1, &can))                          \
    X("cuMemSetAccess", false, ops->set_access_for(ctx, addr, 1, DVMM_ACCESS_RW, devices, 2))      \
    X("cuMemExportToShareableHandle", false, ops->phys_export(ctx, phys, DVMM_SHARE_FD, &shared))  \
    X("cuMemImportFromShareableHandle", false, ops->phys_import(ctx, &shared, &phys))              \
    X("cuMemUnmap", false, ops->unmap(ctx, addr, 1))                                               \
    X("cuMemRelease", false, ops->phys_release(ctx, phys))                                         \
    X("cuStreamCreate", true, ops->stream_create(ctx, &stream))                                    \
    X("cuStreamSynchronize", true, ops->stream_sync(ctx, stream))                                  \
    X("cuStreamGetCtx_v2", true, ops->stream_is_ours(ctx, stream, &can))                           \
    X("cuStreamWaitEvent", true, ops->stream_wait_event(ctx, stream, event))                       \
    X("cuStreamIsCapturing", true, ops->capture_status(ctx, stream, &status))                      \
    X("cuThreadExchangeStreamCaptureMode", false, ops->capture_exchange_mode(ctx, &mode))          \
    X("cuCtxSynchronize", true, ops->context_sync(ctx))                                            \
    X("cuEventCreate", true, ops->event_create(ctx, &event))                                       \
    X("cuEventRecord", true, ops->event_record(ctx, event, stream))                                \
    X("cuCtxRecordEvent", true, ops->context_record(ctx, event))                                   \
    X("cuEventQuery", true, ops->event_query(ctx, event))                                          \
    X("cuEventSynchronize", true, ops->event_sync(ctx, event))                                     \
    X("cuEventDestroy", true, ops->event_destroy(ctx, event))                                      \
    X("cuMemHostRegister", true, ops->host_register(ctx, &a, 64))                                  \
    X("cuMemcpyDtoHAsync", true, ops->download(ctx, &a, addr, 1, stream))                          \
    X("cuMemHostUnregister", true, ops->host_unregister(ctx, &a))                                  \
    X("cuMemsetD8Async", true, ops->fill(ctx, addr, 1, 1, stream))                                 \
    X("cuMemcpyHtoDAsync", true, ops->upload(ctx, addr, &a, 1, stream))                            \
    X("cuMemcpyBatchAsync", true, ops->copy_batch(ctx, &batch, stream))                            \
    X("cuStreamDestroy", true, ops->stream_destroy(ctx, stream))

/* What ENTRIES names; the fake does not look at most of it. */
#define DECLARE_OPERANDS                                                                           \
    const dvmm_phys_props props = {0};                                                             \
    uint64_t a = 0;                                                                                \
    uint64_t b = 0;                                                                                \
    ductile_addr addr = 0;                                                                         \
    dvmm_phys phys = 0;                                                                            \
    dvmm_access access = DVMM_ACCESS_NONE;                                                         \
    ductile_stream stream = NULL;                                                                  \
    dvmm_event event = NULL;                                                                       \
    dvmm_capture_status status = DVMM_CAPTURE_NONE;                                                \
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;                                                 \
    int can = 0;                                                                                   \
    const int devices[] = {0, 1};                                                                  \
    dvmm_batch batch = {.n = 1};                                                                   \
    dvmm_shared shared = {.type = DVMM_SHARE_FD, .fd = -1}

/* Makes every call of the seam once; none may forget to exist. */
static void make_all_calls(cu_context callers) {
    DECLARE_OPERANDS;
    int n = 0;
    ENTRIES(MAKE_ENTRY)
    cr_expect_eq(n, DVMM_N_CALLS, "%d of %d entries were called", n, DVMM_N_CALLS);
    cr_expect(access == DVMM_ACCESS_RW && status == DVMM_CAPTURE_ACTIVE);
    cr_expect(can == 1, "device 1 reaches the memory of device 0");
    cr_expect_eq(mode, DVMM_CAPTURE_GLOBAL, "the mode before was not handed back");
}

Test(driver_cuda_load, entries_bring_our_context_where_there_is_none) {
    open_fake();
    make_all_calls(NULL);
    close_fake();
}

Test(driver_cuda_load, entries_restore_the_callers_context) {
    open_fake();
    cu_context callers = (cu_context)0x9000;
    fake->current = callers;
    make_all_calls(callers);
    close_fake();
}

Test(driver_cuda_load, entries_push_nothing_when_our_context_is_current) {
    open_fake();
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

Test(driver_cuda_load, entries_hand_on_the_drivers_code) {
    open_fake();
    fail_all_calls(NULL);
    dvmm_close(driver);
}

Test(driver_cuda_load, entries_that_cannot_bring_our_context_make_no_call) {
    static const char *const steps[] = {"cuCtxGetCurrent", "cuCtxPushCurrent"};
    open_fake();
    for (size_t i = 0; i < LENGTH(steps); i++) {
        int calls = fake->n_calls;
        fail_all_calls(steps[i]);
        cr_expect_eq(fake->n_calls, calls, "%s failed, and the entry went on", steps[i]);
    }
    close_fake();
}

/* What an entry does before the function that it ends with. */
Test(driver_cuda_load, asking_for_a_peer_hands_on_the_code_of_its_first_step) {
    open_fake();
    int can = 0;
    plan_failure("cuDeviceGet", DVMM_ILLEGAL_STATE);
    cr_expect_eq(ops->can_access_peer(ctx, 1, &can), DVMM_ILLEGAL_STATE);
    cr_expect_str_eq(fake->last_call, "cuDeviceGet");
    fake->failing = NULL;
    close_fake();
}

/* The driver has no clock of its own: a call takes as long for it as for the host. */
Test(driver_cuda_load, its_time_is_the_hosts) {
    open_fake();
    dvmm_counters counters;
    dvmm_time_calls(driver);
    uint64_t before = dvmm_clock_ns(driver);
    cr_expect_eq(dvmm_context_sync(driver), DUCTILE_OK);
    uint64_t after = dvmm_clock_ns(driver);
    dvmm_get_counters(driver, &counters);
    cr_expect(before != 0 && before <= after);
    cr_expect_eq(counters.driver_time_ns, counters.host_time_ns);
    cr_expect(counters.host_time_ns <= after - before);
    close_fake();
}
