/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: preloaded linked|dlsym|search [CHECK]
 *
 * A plain CUDA program, as far as memory goes, in a process with libductile_preload.so and the fake
 * driver. It takes the driver's functions in one of the three ways there are, then checks each
 * promise of README.md; with CHECK only that one. Exit status: 0, or 1 and a line.
 */
#include "../abi.h"
#include "fake_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                  \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

#define fake_driver (*fake_driver_counts())

enum { MIB = 1 << 20 };

/* ---- The three ways ------------------------------------------------------------------------- */

/* X(field, symbol, name, version, variant) */
#define USED(X)                                                                                    \
    X(mem_alloc, cuMemAlloc_v2, "cuMemAlloc", 3020, 1)                                             \
    X(mem_free, cuMemFree_v2, "cuMemFree", 3020, 1)                                                \
    X(alloc_pitch, cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 1)                                 \
    X(alloc_async, cuMemAllocAsync, "cuMemAllocAsync", 11020, 1)                                   \
    X(alloc_async_ptsz, cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 2)                         \
    X(alloc_from_pool, cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 1)               \
    X(free_async, cuMemFreeAsync, "cuMemFreeAsync", 11020, 1)                                      \
    X(free_async_ptsz, cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 2)                            \
    X(alloc_managed, cuMemAllocManaged, "cuMemAllocManaged", 6000, 1)                              \
    X(create, cuMemCreate, "cuMemCreate", 10020, 1)                                                \
    X(get_info, cuMemGetInfo_v2, "cuMemGetInfo", 3020, 1)                                          \
    X(get_range, cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020, 1)                         \
    X(get_attribute, cuPointerGetAttribute, "cuPointerGetAttribute", 4000, 1)                      \
    X(get_attributes, cuPointerGetAttributes, "cuPointerGetAttributes", 7000, 1)                   \
    X(ipc_handle, cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, 1)                                 \
    X(trim_pool, cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, 1)                                     \
    X(pool_access, cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020, 1)                             \
    X(enable_peer, cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, 1)                        \
    X(disable_peer, cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000, 1)                     \
    X(reset, cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 1)                      \
    X(stream_destroy, cuStreamDestroy_v2, "cuStreamDestroy", 4000, 1)                              \
    X(begin_capture, cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, 1)                    \
    X(end_capture, cuStreamEndCapture, "cuStreamEndCapture", 10000, 1)                             \
    X(stream_create, cuStreamCreate, "cuStreamCreate", 2000, 1)                                    \
    X(push_context, cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000, 1)                              \
    X(pop_context, cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000, 1)

extern cu_result cuStreamCreate(ductile_stream *out, unsigned int flags);
extern cu_result cuCtxPushCurrent_v2(cu_context context);
extern cu_result cuCtxPopCurrent_v2(cu_context *out);

static struct calls {
#define FIELD(field, symbol, name, version, variant) __typeof__(&(symbol)) field;
    USED(FIELD)
} cu;

static void take_linked(void) {
#define LINKED(field, symbol, name, version, variant) cu.field = symbol;
    USED(LINKED)
}

static void *driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library != NULL);
    return library;
}

static void take_by_dlsym(void) {
    void *found;
#define BY_DLSYM(field, symbol, name, version, variant)                                            \
    found = dlsym(driver(), #symbol);                                                              \
    memcpy(&cu.field, &found, sizeof(found));
    USED(BY_DLSYM)
}

typedef cu_result (*search_function)(const char *, void **, int, uint64_t, int *);

/* The runtime asks the search for the search. */
static search_function find_search(void) {
    search_function first, second;
    int answer = 0;
    void *found = dlsym(driver(), "cuGetProcAddress_v2");
    memcpy(&first, &found, sizeof(found));
    CHECK(first("cuGetProcAddress", &found, 12000, 1, &answer) == 0 && answer == 0);
    memcpy(&second, &found, sizeof(found));
    return second;
}

static void take_by_search(void) {
    search_function search = find_search();
    int answer = 0;
    void *found;
#define BY_SEARCH(field, symbol, name, version, variant)                                           \
    CHECK(search(name, &found, version, variant, &answer) == 0 && answer == 0);                    \
    memcpy(&cu.field, &found, sizeof(found));
    USED(BY_SEARCH)
}

/* ---- Helpers -------------------------------------------------------------------------------- */

static ductile_stream new_stream(void) {
    ductile_stream stream;
    CHECK(cu.stream_create(&stream, 1) == 0);
    return stream;
}

static ductile_addr plain(size_t size) {
    ductile_addr at = 0;
    CHECK(cu.mem_alloc(&at, size) == 0 && at != 0);
    return at;
}

static ductile_addr ordered(size_t size, ductile_stream stream) {
    ductile_addr at = 0;
    CHECK(cu.alloc_async(&at, size, stream) == 0 && at != 0);
    return at;
}

static bool is_served(ductile_addr at) {
    return at >= 0x700000000000;
}

typedef struct named_check {
    const char *name;
    void (*run)(void);
    const char *mode; /* DUCTILE_PRELOAD */
} named_check;

static named_check checks[64];
static size_t n_checks;

/* The head of a check, which adds itself to the table. */
#define PROMISE(name, mode)                                                                        \
    static void check_##name(void);                                                                \
    __attribute__((constructor)) static void add_##name(void) {                                    \
        checks[n_checks++] = (named_check){#name, check_##name, mode};                             \
    }                                                                                              \
    static void check_##name(void)

/* ---- The promises --------------------------------------------------------------------------- */

PROMISE(malloc_is_served, "") {
    ductile_addr at = plain(3 * MIB);
    CHECK(is_served(at) && fake_driver.mallocs == 0);
    CHECK(fake_driver.creates > 0 && fake_driver.maps > 0);
    CHECK(cu.mem_free(at) == 0 && fake_driver.frees == 0);
    CHECK(plain(3 * MIB) == at); /* served again from what was freed */
}

PROMISE(free_waits_and_ordered_free_does_not, "") {
    ductile_stream stream = new_stream();
    ductile_addr a = plain(MIB), b = ordered(MIB, stream), c = ordered(MIB, stream);
    int before = fake_driver.waits;
    CHECK(cu.free_async(b, stream) == 0 && fake_driver.waits == before);
    CHECK(cu.mem_free(a) == 0 && fake_driver.waits == before + 1);
    CHECK(cu.mem_free(c) == 0 && fake_driver.waits == before + 2);
}

PROMISE(free_keeps_memory_that_could_not_be_waited_for, "") {
    ductile_addr at = plain(MIB);
    fake_driver.fails_wait = true;
    CHECK(cu.mem_free(at) == 900);
    fake_driver.fails_wait = false;
    CHECK(cu.mem_free(at) == 0);
    CHECK(cu.mem_free(at) == CU_INVALID_VALUE);
}

PROMISE(ordered_calls_are_served, "") {
    ductile_stream stream = new_stream();
    ductile_addr a = ordered(MIB, stream), b = 0, c = 0;
    CHECK(is_served(a) && fake_driver.async_mallocs == 0);
    CHECK(cu.alloc_from_pool(&b, MIB, FAKE_DEFAULT_POOL(0), stream) == 0 && is_served(b));
    CHECK(cu.alloc_async_ptsz(&c, MIB, NULL) == 0 && is_served(c));
    CHECK(cu.free_async(a, stream) == 0 && cu.free_async_ptsz(c, NULL) == 0);
    CHECK(ordered(MIB, stream) == a);
    CHECK(cu.free_async(b, NULL) == 0 && fake_driver.async_frees == 0);
}

PROMISE(malloc_can_be_freed_in_order_of_a_stream, "") {
    ductile_addr at = plain(MIB);
    CHECK(cu.free_async(at, new_stream()) == 0);
    CHECK(cu.free_async(at, new_stream()) == CU_INVALID_VALUE);
}

/* Stream NULL is the current context's: here another GPU's, whose work uses the memory. */
PROMISE(free_on_another_gpus_default_stream_waits, "") {
    cu_context popped;
    ductile_addr a = ordered(MIB, NULL), b = ordered(MIB, NULL), c = ordered(MIB, NULL);
    int before = fake_driver.waits;
    CHECK(cu.push_context((cu_context)0x1100) == 0);
    CHECK(cu.free_async(a, NULL) == 0 && fake_driver.other_waits == 1);
    CHECK(cu.free_async_ptsz(b, NULL) == 0 && fake_driver.other_waits == 2);
    fake_driver.fails_wait = true;
    CHECK(cu.free_async(c, NULL) == 900);
    fake_driver.fails_wait = false;
    CHECK(cu.pop_context(&popped) == 0 && fake_driver.waits > before);
    CHECK(cu.free_async(c, NULL) == 0 && cu.free_async(a, NULL) == CU_INVALID_VALUE);
}

/* It may be used on every stream at once, and Ductile fills it on one. */
PROMISE(malloc_waits_where_memory_is_filled, "") {
    CHECK(setenv("DUCTILE_CONF", "zero:on", 1) == 0);
    int before = fake_driver.stream_waits;
    CHECK(is_served(plain(MIB)) && fake_driver.stream_waits == before + 1);
}

PROMISE(malloc_that_waits_leaves_captures_whole, "") {
    CHECK(setenv("DUCTILE_CONF", "zero:on", 1) == 0);
    ductile_stream captured = new_stream();
    void *graph = NULL;
    CHECK(is_served(plain(MIB)) && cu.begin_capture(captured, 0) == 0);
    int before = fake_driver.stream_waits;
    CHECK(is_served(plain(MIB)) && fake_driver.stream_waits == before + 1);
    CHECK(fake_driver.broken_captures == 0 && cu.end_capture(captured, &graph) == 0);
}

PROMISE(malloc_takes_nothing_of_a_stream, "") {
    ductile_addr at = ordered(MIB, NULL);
    CHECK(is_served(ordered(512, NULL)) && cu.free_async(at, NULL) == 0);
    ductile_addr other = plain(MIB);
    CHECK(other != at && ordered(MIB, NULL) == at);
}

PROMISE(other_pools_pass, "") {
    ductile_stream stream = new_stream();
    ductile_addr at = 0;
    CHECK(cu.alloc_from_pool(&at, MIB, FAKE_OWN_POOL, stream) == 0 && !is_served(at));
    CHECK(cu.alloc_from_pool(&at, MIB, FAKE_DEFAULT_POOL(1), stream) == 0 && !is_served(at));
    fake_driver.has_own_pool = true;
    at = ordered(MIB, stream);
    CHECK(!is_served(at) && fake_driver.async_mallocs == 3);
    fake_driver.has_own_pool = false;
    CHECK(cu.free_async(at, stream) == 0 && fake_driver.async_frees == 1);
}

PROMISE(captured_calls_pass, "") {
    ductile_stream captured = new_stream(), other = new_stream();
    ductile_addr before = ordered(MIB, captured);
    void *graph;
    CHECK(cu.begin_capture(captured, 0) == 0);
    ductile_addr inside = ordered(MIB, captured);
    CHECK(!is_served(inside) && fake_driver.async_mallocs == 1);
    CHECK(cu.free_async(inside, captured) == 0 && fake_driver.async_frees == 1);
    CHECK(cu.free_async(before, captured) == CU_INVALID_VALUE); /* as the driver says */
    CHECK(is_served(ordered(MIB, other)));
    CHECK(cu.end_capture(captured, &graph) == 0);
    CHECK(cu.free_async(before, captured) == 0);
}

/* A wait would break the capture. */
PROMISE(free_beside_a_capture_happens_when_it_has_ended, "") {
    ductile_stream captured = new_stream();
    ductile_addr at = plain(MIB), base = 0;
    void *graph;
    CHECK(cu.begin_capture(captured, 2) == 0);
    int before = fake_driver.waits;
    CHECK(cu.mem_free(at) == 0 && fake_driver.waits == before);
    CHECK(plain(MIB) != at && fake_driver.broken_captures == 0);
    CHECK(cu.get_range(&base, NULL, at) == 0 && base == at);
    CHECK(cu.end_capture(captured, &graph) == 0 && fake_driver.waits == before + 1);
    CHECK(fake_driver.broken_captures == 0 && plain(MIB) == at);
}

/* The driver's answer to a second free, though the first one has only been noted. */
PROMISE(a_free_beside_a_capture_is_the_only_one, "") {
    ductile_stream captured = new_stream();
    ductile_addr at = plain(MIB);
    void *graph;
    CHECK(cu.begin_capture(captured, 2) == 0);
    CHECK(cu.mem_free(at) == 0 && cu.mem_free(at) == CU_INVALID_VALUE);
    CHECK(cu.free_async(at, NULL) == CU_INVALID_VALUE);
    CHECK(cu.end_capture(captured, &graph) == 0);
    CHECK(cu.mem_free(at) == CU_INVALID_VALUE && plain(MIB) == at);
}

/* The next allocator may have the address again. */
PROMISE(a_free_beside_a_capture_ends_with_its_device, "") {
    ductile_stream captured = new_stream();
    ductile_addr at = plain(MIB);
    void *graph;
    CHECK(cu.begin_capture(captured, 2) == 0);
    CHECK(cu.mem_free(at) == 0 && cu.reset(0) == 0);
    fake_driver.reuses_addresses = true;
    captured = new_stream();
    CHECK(plain(MIB) == at && cu.begin_capture(captured, 2) == 0);
    CHECK(cu.end_capture(captured, &graph) == 0 && cu.mem_free(at) == 0);
}

/* Its stream is gone: nothing else will tell of its end. */
PROMISE(a_capture_ends_with_its_device, "") {
    ductile_stream captured = new_stream();
    void *graph;
    CHECK(cu.begin_capture(captured, 2) == 0 && cu.reset(1) == 0);
    ductile_addr at = plain(MIB);
    CHECK(cu.mem_free(at) == 0 && plain(MIB) != at); /* another GPU's reset does not concern it */
    CHECK(cu.reset(0) == 0 && cu.end_capture(captured, &graph) != 0);
    at = plain(MIB);
    CHECK(cu.mem_free(at) == 0 && plain(MIB) == at);
}

/* Memory moves between two streams that free and grow in turn: markers are recorded. */
static void move_memory(int times) {
    ductile_stream a = new_stream(), b = new_stream();
    for (int i = 0; i < times; i++) {
        ductile_addr at = ordered((size_t)(16 + i % 7) * MIB, i % 2 == 0 ? a : b);
        CHECK(cu.free_async(at, i % 2 == 0 ? a : b) == 0);
    }
    CHECK(cu.stream_destroy(a) == 0 && cu.stream_destroy(b) == 0);
}

PROMISE(captures_are_announced, "") {
    ductile_stream captured = new_stream();
    void *graph;
    CHECK(cu.begin_capture(captured, 0) == 0);
    CHECK(cu.begin_capture(captured, 0) != 0);
    fake_driver.is_wrong_thread = true;
    CHECK(cu.end_capture(captured, &graph) != 0);
    fake_driver.is_wrong_thread = false;
    move_memory(200);
    CHECK(cu.end_capture(captured, &graph) == 0);
    CHECK(cu.end_capture(captured, &graph) != 0);
    CHECK(cu.begin_capture(captured, 0) == 0);
    move_memory(200);
    CHECK(cu.stream_destroy(captured) == 0); /* takes its capture with it */
    CHECK(fake_driver.broken_captures == 0);
    int before = fake_driver.markers;
    move_memory(200);
    CHECK(fake_driver.markers > before); /* all have ended */
}

PROMISE(what_is_not_ours_passes, "") {
    ductile_addr at = 0;
    CHECK(cu.alloc_managed(&at, MIB, 1) == 0 && !is_served(at) && fake_driver.managed == 1);
    CHECK(cu.mem_free(at) == 0 && fake_driver.frees == 1);
    CHECK(cu.mem_free(at) == CU_INVALID_VALUE);
    CHECK(cu.mem_free(0) == 0);
    CHECK(cu.mem_alloc(&at, 0) == CU_INVALID_VALUE);
}

PROMISE(other_contexts_pass, "") {
    cu_context popped;
    CHECK(cu.push_context(FAKE_OTHER_CONTEXT) == 0);
    ductile_addr at = plain(MIB);
    CHECK(!is_served(at) && fake_driver.mallocs == 1);
    CHECK(cu.mem_free(at) == 0 && fake_driver.frees == 1);
    ductile_stream stream = new_stream();
    CHECK(cu.pop_context(&popped) == 0);
    CHECK(!is_served(ordered(MIB, stream)));
}

PROMISE(devices_have_allocators_of_their_own, "") {
    cu_context popped;
    CHECK(cu.push_context((cu_context)0x1100) == 0);
    ductile_addr there = plain(MIB);
    cu_context context = NULL;
    CHECK(is_served(there) && cu.get_attribute(&context, CU_POINTER_CONTEXT, there) == 0);
    CHECK(context == (cu_context)0x1100);
    CHECK(cu.pop_context(&popped) == 0);
    CHECK(cu.mem_free(there) == 0);
}

PROMISE(pitched_memory_is_served, "") {
    ductile_addr at = 0;
    size_t pitch = 0, size = 0;
    CHECK(cu.alloc_pitch(&at, &pitch, 1000, 3, 4) == 0 && is_served(at));
    CHECK(pitch == 1024 && fake_driver.pitched == 0);
    CHECK(cu.get_range(NULL, &size, at) == 0 && size == 3 * 1024);
    CHECK(cu.mem_free(at) == 0);
    CHECK(cu.alloc_pitch(&at, &pitch, 1000, 3, 16) == 0 && is_served(at) && cu.mem_free(at) == 0);
}

/* The driver says what it thinks of one. */
PROMISE(pitched_memory_of_an_unknown_element_passes, "") {
    ductile_addr at = 0;
    size_t pitch = 0;
    CHECK(cu.alloc_pitch(&at, &pitch, 1000, 3, 3) == 0 && fake_driver.pitched == 1);
}

PROMISE(addresses_are_described, "") {
    ductile_addr at = plain(3 * MIB + 5), base = 0;
    size_t size = 0;
    CHECK(cu.get_range(&base, &size, at + MIB) == 0 && base == at && size == 3 * MIB + 5);
    cu_context context = NULL;
    int ordinal = 0, attributes[] = {CU_POINTER_RANGE_START, 9, CU_POINTER_RANGE_SIZE};
    void *data[] = {&base, &ordinal, &size};
    base = size = 0;
    CHECK(cu.get_attributes(3, attributes, data, at + 1) == 0);
    CHECK(base == at && size == 3 * MIB + 5 && ordinal == 0x07070707);
    CHECK(cu.get_attribute(&context, CU_POINTER_CONTEXT, at) == 0 && context == (cu_context)0x1000);
    CHECK(cu.get_attribute(&ordinal, 9, at) == 0 && ordinal == 0x07070707); /* the driver's */
    CHECK(cu.get_range(&base, &size, 12345) == 0 && base == 7);
}

PROMISE(free_memory_counts_what_is_held, "") {
    size_t before = 0, after = 0, total = 0;
    ductile_addr at = plain(512 * (size_t)MIB);
    CHECK(cu.get_info(&before, &total) == 0);
    CHECK(cu.mem_free(at) == 0 && cu.get_info(&after, &total) == 0);
    CHECK(after >= before + 512 * (size_t)MIB && total == (size_t)64 << 30);
}

PROMISE(free_memory_ends_at_the_limit, "") {
    size_t left = 0, total = 0;
    CHECK(setenv("DUCTILE_CONF", "limit_bytes:64M", 1) == 0);
    ductile_addr at = plain(16 * (size_t)MIB);
    CHECK(cu.get_info(&left, &total) == 0 && left == 48 * (size_t)MIB);
    CHECK(cu.mem_alloc(&at, 56 * (size_t)MIB) == CU_OUT_OF_MEMORY);
}

/* What lies in the host is no memory of the device, neither in use nor free. */
PROMISE(what_is_missing_spills, "") {
    size_t left = 0, total = 0;
    CHECK(setenv("DUCTILE_CONF", "limit_bytes:256M,spill_bytes:1G", 1) == 0);
    ductile_addr kept = plain(200 * (size_t)MIB);
    ductile_addr spilled = plain(100 * (size_t)MIB);
    CHECK(is_served(spilled));
    CHECK(cu.get_info(&left, &total) == 0 && left == 32 * (size_t)MIB);
    CHECK(cu.mem_free(spilled) == 0);
    CHECK(cu.get_info(&left, &total) == 0 && left == 56 * (size_t)MIB);
    CHECK(cu.mem_free(kept) == 0);
    CHECK(cu.get_info(&left, &total) == 0 && left == 256 * (size_t)MIB);
}

/* The device is full of what Ductile holds free. */
static void fill_device(void) {
    CHECK(cu.mem_free(plain(512 * (size_t)MIB)) == 0);
    fake_driver.is_full = true;
}

PROMISE(what_passes_gets_what_is_held_free, "") {
    const cu_phys_head here = {1, 0, CU_LOCATION_OF_DEVICE, 0};
    const cu_phys_head there = {1, 0, CU_LOCATION_OF_DEVICE, 1};
    unsigned long long handle = 0;
    ductile_addr at = 0;
    fill_device();
    CHECK(cu.create(&handle, 256 * (size_t)MIB, &there, 0) == CU_OUT_OF_MEMORY);
    CHECK(cu.create(&handle, 256 * (size_t)MIB, NULL, 0) == CU_OUT_OF_MEMORY);
    CHECK(cu.create(&handle, 256 * (size_t)MIB, &here, 0) == 0);
    fill_device();
    CHECK(cu.alloc_managed(&at, MIB, 1) == 0);
    fill_device();
    CHECK(cu.alloc_from_pool(&at, MIB, FAKE_OWN_POOL, new_stream()) == 0 && !is_served(at));
    fake_driver.is_full = true; /* nothing is held any more */
    CHECK(cu.alloc_managed(&at, MIB, 1) == CU_OUT_OF_MEMORY);
}

PROMISE(ipc_is_refused, "") {
    char handle[64];
    ductile_addr managed = 0, at = plain(MIB);
    CHECK(cu.ipc_handle(handle, at) == CU_NOT_SUPPORTED && fake_driver.ipc == 0);
    CHECK(cu.alloc_managed(&managed, MIB, 1) == 0);
    CHECK(cu.ipc_handle(handle, managed) == 0 && fake_driver.ipc == 1);
}

PROMISE(trim_of_the_default_pool_gives_back, "") {
    size_t before = 0, after = 0, total = 0;
    ductile_stream stream = new_stream();
    CHECK(cu.free_async(ordered(256 * (size_t)MIB, stream), stream) == 0);
    CHECK(cu.get_info(&before, &total) == 0);
    CHECK(cu.trim_pool(FAKE_DEFAULT_POOL(0), 0) == 0 && fake_driver.trims == 1);
    CHECK(cu.get_info(&after, &total) == 0 && after + 256 * (size_t)MIB <= before);
}

PROMISE(lack_of_memory_is_told, "") {
    ductile_addr at = 0;
    CHECK(cu.mem_free(plain(MIB)) == 0);
    fake_driver.is_out_of_memory = true;
    CHECK(cu.mem_alloc(&at, 4096 * (size_t)MIB) == CU_OUT_OF_MEMORY && at == 0);
    CHECK(cu.alloc_async(&at, 4096 * (size_t)MIB, new_stream()) == CU_OUT_OF_MEMORY);
    CHECK(fake_driver.mallocs == 0 && fake_driver.async_mallocs == 0);
    fake_driver.is_out_of_memory = false;
}

PROMISE(peers_get_access, "") {
    cu_context popped;
    ductile_addr at = plain(MIB);
    CHECK(cu.push_context((cu_context)0x1100) == 0);
    CHECK(cu.enable_peer((cu_context)0x1000, 0) == 0 && fake_driver.peers == 1);
    CHECK(cu.pop_context(&popped) == 0);
    int before = fake_driver.waits;
    CHECK(cu.mem_free(at) == 0 && fake_driver.waits == before + 2); /* both may use it */
}

/* Before there is any memory, as programs set their pools up. */
PROMISE(pools_give_access, "") {
    const cu_access there[] = {{CU_LOCATION_OF_DEVICE, 1, 3}};
    CHECK(cu.pool_access(FAKE_DEFAULT_POOL(0), there, 1) == 0);
    ductile_addr at = plain(MIB);
    int before = fake_driver.waits;
    CHECK(cu.mem_free(at) == 0 && fake_driver.waits == before + 2);
}

/* Access that the program has given in two ways ends with the last of them. */
PROMISE(access_given_twice_is_taken_twice, "") {
    const cu_access on = {CU_LOCATION_OF_DEVICE, 1, 3}, off = {CU_LOCATION_OF_DEVICE, 1, 0};
    cu_context popped;
    CHECK(cu.push_context((cu_context)0x1100) == 0);
    CHECK(cu.enable_peer((cu_context)0x1000, 0) == 0);
    CHECK(cu.pool_access(FAKE_DEFAULT_POOL(0), &on, 1) == 0);
    CHECK(cu.pool_access(FAKE_DEFAULT_POOL(0), &off, 1) == 0);
    CHECK(cu.pop_context(&popped) == 0);
    ductile_addr a = plain(MIB), b = plain(MIB);
    int before = fake_driver.waits;
    CHECK(cu.mem_free(a) == 0 && fake_driver.waits == before + 2);
    CHECK(cu.push_context((cu_context)0x1100) == 0);
    CHECK(cu.disable_peer((cu_context)0x1000) == 0);
    CHECK(cu.pop_context(&popped) == 0);
    before = fake_driver.waits;
    CHECK(cu.mem_free(b) == 0 && fake_driver.waits == before + 1);
}

PROMISE(reset_takes_the_memory, "") {
    ductile_addr at = plain(MIB);
    CHECK(cu.reset(0) == 0 && fake_driver.resets == 1);
    CHECK(cu.mem_free(at) == CU_INVALID_VALUE);
    CHECK(is_served(plain(MIB)));
}

PROMISE(destroyed_streams_are_forgotten, "") {
    for (int i = 0; i < 100; i++) {
        ductile_stream stream = new_stream();
        ductile_addr at = ordered(MIB, stream);
        CHECK(cu.stream_destroy(stream) == 0);
        CHECK(cu.free_async(at, NULL) == 0);
    }
    ductile_stream first = new_stream();
    ductile_addr at = ordered(MIB, first);
    CHECK(cu.free_async(at, first) == 0 && ordered(MIB, first) == at);
    CHECK(cu.free_async(at, first) == 0 && cu.stream_destroy(first) == 0);
    ductile_stream second = new_stream();
    CHECK(second == first && ordered(MIB, second) != at);
}

/* ---- Threads, forks, the end ---------------------------------------------------------------- */

static void *alloc_and_free(void *seed) {
    ductile_stream stream = new_stream();
    uintptr_t at_random = (uintptr_t)seed;
    for (int i = 0; i < 400; i++) {
        at_random = at_random * 6364136223846793005u + 1442695040888963407u;
        size_t size = (at_random >> 40) % (2 * MIB) + 1;
        ductile_addr a = plain(size), b = ordered(size, stream), base = 0;
        CHECK(cu.get_range(&base, NULL, a + size - 1) == 0 && base == a);
        CHECK(cu.free_async(b, stream) == 0);
        CHECK(i % 2 == 0 ? cu.mem_free(a) == 0 : cu.free_async(a, stream) == 0);
    }
    CHECK(cu.stream_destroy(stream) == 0);
    return NULL;
}

PROMISE(threads, "") {
    pthread_t threads[6];
    for (uintptr_t i = 0; i < 6; i++) {
        CHECK(pthread_create(&threads[i], NULL, alloc_and_free, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < 6; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(fake_driver.mallocs == 0 && fake_driver.async_mallocs == 0);
}

/* The driver does not work in a child either: what it says is what the program gets. */
PROMISE(forked_children_get_the_drivers_answers, "") {
    ductile_addr at = plain(MIB);
    pid_t child = fork();
    if (child == 0) {
        ductile_addr inside = plain(MIB);
        CHECK(!is_served(inside) && cu.mem_free(inside) == 0);
        _exit(0);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(cu.mem_free(at) == 0);
}

static void *free_it(void *addr) {
    (void)cu.mem_free(*(ductile_addr *)addr);
    return NULL;
}

static void *begin_it(void *stream) {
    CHECK(cu.begin_capture(stream, 2) == 0);
    return NULL;
}

PROMISE(a_capture_that_begins_beside_a_free_is_not_broken, "") {
    ductile_stream captured = new_stream();
    ductile_addr at = plain(MIB);
    pthread_t freeing, capturing;
    void *graph;
    int before = fake_driver.waits;
    fake_driver.is_held_up = true;
    CHECK(pthread_create(&freeing, NULL, free_it, &at) == 0);
    while (fake_driver.waits == before) {
        (void)sched_yield();
    }
    CHECK(pthread_create(&capturing, NULL, begin_it, captured) == 0);
    (void)usleep(20000); /* enough to begin */
    fake_driver.is_held_up = false;
    CHECK(pthread_join(freeing, NULL) == 0 && pthread_join(capturing, NULL) == 0);
    CHECK(cu.end_capture(captured, &graph) == 0 && fake_driver.broken_captures == 0);
}

/* A thread that the child does not have was in the middle of a call. */
PROMISE(a_forked_child_waits_for_no_thread_of_its_parent, "") {
    ductile_addr at = plain(MIB);
    pthread_t thread;
    int before = fake_driver.waits;
    fake_driver.is_held_up = true;
    CHECK(pthread_create(&thread, NULL, free_it, &at) == 0);
    while (fake_driver.waits == before) {
        (void)sched_yield();
    }
    pid_t child = fork();
    if (child == 0) {
        (void)alarm(20);
        (void)cu.reset(0);
        _exit(0);
    }
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    fake_driver.is_held_up = false;
    CHECK(pthread_join(thread, NULL) == 0 && plain(MIB) == at);
}

static ductile_addr until_exit;

static void free_late(void) {
    CHECK(cu.mem_free(until_exit) == 0);
}

/* Registered before the first use, so that it runs after Ductile has left. */
PROMISE(frees_after_exit_has_begun, "") {
    CHECK(atexit(free_late) == 0);
    until_exit = plain(MIB);
    exit(0);
}

PROMISE(functions_of_other_libraries_stay, "") {
    void *late = dlsym(driver(), "cuMemCreate");
    CHECK(late != NULL && dlsym(RTLD_NEXT, "cuMemAlloc_v2") != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == dlsym(driver(), "cuMemAlloc_v2"));
    CHECK(dlsym(driver(), "cuNoSuchFunction") == NULL && dlsym(RTLD_DEFAULT, "getpid") != NULL);
}

/* A program asks dlerror whether a lookup failed. The first one finds all that is interposed, of
 * which this driver lacks some. */
PROMISE(a_lookup_that_succeeds_leaves_no_error, "") {
    (void)dlerror();
    CHECK(dlsym(driver(), "cuMemAlloc_v2") != NULL && dlerror() == NULL);
    CHECK(dlsym(driver(), "cuNoSuchFunction") == NULL && dlerror() != NULL);
}

/* Programs ask so for what the driver can do. */
PROMISE(functions_that_the_driver_lacks_are_not_found, "") {
    const char *lacking = "cuStreamBeginCaptureToGraph";
    CHECK(dlsym(driver(), lacking) == NULL && dlerror() != NULL);
    CHECK(dlsym(RTLD_DEFAULT, lacking) == NULL && dlerror() != NULL);
    CHECK(dlsym(dlopen(NULL, RTLD_NOW), lacking) == NULL && dlerror() != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL && dlerror() == NULL);
}

/* ---- What is set in the environment ---------------------------------------------------------- */

PROMISE(async_keeps_malloc_native, "async") {
    ductile_addr at = plain(MIB);
    CHECK(!is_served(at) && fake_driver.mallocs == 1 && cu.mem_free(at) == 0);
    CHECK(fake_driver.frees == 1 && is_served(ordered(MIB, new_stream())));
}

/* A file that would be too large ends a process with a signal; one on a full disk when it is
 * written to. Then nothing is counted. */
PROMISE(counts_that_cannot_be_kept_end_nothing, "") {
    char folder[] = "preloaded-XXXXXX"; /* of the build */
    const struct rlimit little = {4096, 4096};
    CHECK(mkdtemp(folder) != NULL && setenv("DUCTILE_PRELOAD_COUNTS", folder, 1) == 0);
    CHECK(setrlimit(RLIMIT_FSIZE, &little) == 0);
    CHECK(is_served(plain(MIB)));
    CHECK(rmdir(folder) == 0);
}

PROMISE(off_serves_nothing, "off") {
    CHECK(!is_served(plain(MIB)) && !is_served(ordered(MIB, new_stream())));
    CHECK(fake_driver.creates == 0);
}

PROMISE(nonsense_serves_nothing, "nonsense") {
    check_off_serves_nothing();
}

/* ---- One process for each ------------------------------------------------------------------- */

static void take(const char *way) {
    if (strcmp(way, "linked") == 0) {
        take_linked();
    } else if (strcmp(way, "dlsym") == 0) {
        take_by_dlsym();
    } else {
        CHECK(strcmp(way, "search") == 0);
        take_by_search();
    }
}

static int run_one(const char *way, const named_check *check) {
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        CHECK(setenv("DUCTILE_PRELOAD", check->mode, 1) == 0);
        take(way);
        check->run();
        exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        (void)fprintf(stderr, "%s, %s: status %#x\n", check->name, way, (unsigned)status);
        return 1;
    }
    return 0;
}

int main(int n, char **words) {
    int n_failed = 0, n_run = 0;
    CHECK(n >= 2);
    for (size_t i = 0; i < n_checks; i++) {
        if (n == 2 || strcmp(words[2], checks[i].name) == 0) {
            n_failed += run_one(words[1], &checks[i]);
            n_run++;
        }
    }
    CHECK(n_run > 0);
    return n_failed != 0;
}
