/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns in device memory, written and checked. */
#include "tests/support/pattern.h"

#include "bench/driver/bench_calls.h"
#include "tests/support/complain.h"
#include "tests/support/memory_look.h"

#include <string.h>

enum { OVERWRITTEN = 0xEE, WINDOW = 64, N_WINDOWS = 8 };

/* ---- CUDA: kernels ------------------------------------------------------------------------- */

static const char *start_kernel(const pattern_tester *p, gpu_kernel kernel, const pattern_block *b,
                                ductile_stream stream) {
    gpu_launch launch = {.kernel = kernel,
                         .stream = stream,
                         .arguments = {b->address, b->size / 4, b->id, p->counter}};
    /* A block of a few kilobytes needs no grid that fills the device. */
    launch.blocks = b->size < 1 << 20 ? 4 : 0;
    int code = gpu_start(p->gpu, &launch);
    NEED(code == 0, "a kernel could not be launched (%d)", code);
    return NULL;
}

/* ---- The virtual GPU: a byte throughout, and stamps ---------------------------------------- */

typedef struct stamp {
    uint64_t id;
    ductile_addr address;
} stamp;

/* One after the other gets different bytes, and none is that of overwritten memory. */
static uint8_t byte_of(const pattern_block *b) {
    return (uint8_t)(b->id % 199);
}

/* Both ends and the middle: where a handle that came or went would show. */
static void stamp_places(const pattern_block *b, ductile_addr places[3]) {
    places[0] = b->address;
    places[1] = b->address + b->size / 2 / 16 * 16;
    places[2] = b->address + b->size - sizeof(stamp);
}

static const char *write_stamps(pattern_tester *p, const pattern_block *b, ductile_stream stream) {
    const stamp own = {b->id, b->address};
    ductile_addr places[3];
    stamp_places(b, places);
    NEED_OK(dvmm_fill(p->driver, b->address, byte_of(b), b->size, stream));
    for (int i = 0; i < 3; i++) {
        NEED_OK(dvmm_upload(p->driver, places[i], &own, sizeof(own), stream));
    }
    return NULL;
}

static const char *check_stamps(pattern_tester *p, const pattern_block *b, ductile_stream stream) {
    const stamp own = {b->id, b->address};
    ductile_addr places[3];
    stamp_places(b, places);
    for (int i = 0; i < 3; i++) {
        stamp seen = {0, 0};
        NEED_OK(bench_read_back(p->driver, &seen, places[i], sizeof(seen), stream));
        p->mismatches += memcmp(&seen, &own, sizeof(own)) != 0;
    }
    return NULL;
}

/* Windows spread over the block, clear of the stamps at its ends and in its middle. */
static const char *check_windows(pattern_tester *p, const pattern_block *b, ductile_stream stream) {
    uint8_t expected[WINDOW];
    uint8_t seen[WINDOW];
    uint64_t middle = b->size / 2 / 16 * 16;
    memset(expected, byte_of(b), sizeof(expected));
    for (uint64_t i = 0; i < N_WINDOWS; i++) {
        uint64_t at = sizeof(stamp) + i * (b->size / N_WINDOWS / 16 * 16);
        bool hits_stamp = at + WINDOW > middle && at < middle + sizeof(stamp);
        if (hits_stamp || at + WINDOW > b->size - sizeof(stamp)) {
            continue;
        }
        NEED_OK(bench_read_back(p->driver, seen, b->address + at, sizeof(seen), stream));
        p->mismatches += memcmp(seen, expected, sizeof(expected)) != 0;
    }
    return NULL;
}

/* ---- Checking on the host ------------------------------------------------------------------ */

typedef struct host_check {
    const pattern_tester *p;
    const pattern_block *b;
    ductile_stream stream;
} host_check;

static const char *read_part(const void *user, void *to, ductile_addr from, uint64_t size) {
    const host_check *l = user;
    NEED_OK(bench_read_back(l->p->driver, to, from, size, l->stream));
    return NULL;
}

static const char *wait_for_all(const void *user) {
    NEED_OK(dvmm_context_sync(((const host_check *)user)->p->driver));
    return NULL;
}

/* What the kernels make of id and index (gpu_kernels_ptx.c). */
static uint8_t byte_of_word(const pattern_block *b, uint64_t offset) {
    uint32_t hash = (uint32_t)(offset / 4) * 0x9E3779B1u + (uint32_t)b->id;
    hash = (hash ^ hash >> 16) * 0x85EBCA6Bu;
    hash ^= hash >> 13;
    return (uint8_t)(hash >> offset % 4 * 8);
}

static uint8_t byte_of_stamps(const pattern_block *b, uint64_t offset) {
    const stamp own = {b->id, b->address};
    ductile_addr places[3];
    uint8_t bytes[sizeof own];
    memcpy(bytes, &own, sizeof own);
    stamp_places(b, places);
    for (int i = 2; i >= 0; i--) { /* the last that was written is above the others */
        uint64_t begin = places[i] - b->address;
        if (offset >= begin && offset - begin < sizeof own) {
            return bytes[offset - begin];
        }
    }
    return byte_of(b);
}

static uint8_t expected_byte(const void *user, uint64_t offset) {
    const host_check *l = user;
    return l->p->gpu != NULL ? byte_of_word(l->b, offset) : byte_of_stamps(l->b, offset);
}

static const char *check_on_host(const pattern_tester *p, const pattern_block *b,
                                 ductile_stream stream) {
    const host_check user = {p, b, stream};
    const memory_look at = {.address = b->address,
                            .size = b->size,
                            .read = read_part,
                            .wait = wait_for_all,
                            .expected = expected_byte,
                            .user = &user};
    return expect_memory(&at);
}

/* ---- Both ---------------------------------------------------------------------------------- */

const char *pattern_open(pattern_tester *p, dvmm_driver *driver, int ordinal) {
    *p = (pattern_tester){.driver = driver};
    if (dvmm_get_caps(driver)->is_virtual) {
        return NULL;
    }
    TRY(gpu_open(ordinal, &p->gpu));
    NEED_OK(bench_mem_alloc(driver, sizeof(uint64_t), &p->counter));
    NEED_OK(dvmm_fill(driver, p->counter, 0, sizeof(uint64_t), NULL));
    NEED_OK(dvmm_context_sync(driver));
    return NULL;
}

void pattern_close(pattern_tester *p) {
    if (p->counter != 0) {
        (void)bench_mem_free(p->driver, p->counter);
    }
    gpu_close(p->gpu);
    p->counter = 0; /* a second call does nothing */
    p->gpu = NULL;
}

const char *pattern_write(pattern_tester *p, const pattern_block *b, ductile_stream stream) {
    return p->gpu != NULL ? start_kernel(p, GPU_FILL_WORDS, b, stream) : write_stamps(p, b, stream);
}

const char *pattern_check(pattern_tester *p, const pattern_block *b, ductile_stream stream) {
    if (p->gpu != NULL) {
        return start_kernel(p, GPU_CHECK_WORDS, b, stream);
    }
    TRY(check_stamps(p, b, stream));
    return check_windows(p, b, stream);
}

const char *pattern_overwrite(pattern_tester *p, const pattern_block *b, ductile_stream stream) {
    NEED_OK(dvmm_fill(p->driver, b->address, OVERWRITTEN, b->size, stream));
    return NULL;
}

const char *pattern_keep_busy(pattern_tester *p, ductile_stream stream, uint64_t ns) {
    if (p->gpu == NULL) {
        return NULL;
    }
    gpu_launch launch = {
        .kernel = GPU_SPIN, .stream = stream, .blocks = 1, .threads = 1, .arguments = {ns}};
    int code = gpu_start(p->gpu, &launch);
    NEED(code == 0, "a kernel could not be launched (%d)", code);
    return NULL;
}

static const char *count(pattern_tester *p, ductile_stream stream) {
    p->counted = p->mismatches;
    if (p->gpu != NULL) {
        NEED_OK(bench_read_back(p->driver, &p->counted, p->counter, sizeof p->counted, stream));
    }
    return NULL;
}

const char *pattern_mismatches(pattern_tester *p, uint64_t *out) {
    NEED_OK(dvmm_context_sync(p->driver));
    TRY(count(p, NULL));
    *out = p->counted;
    return NULL;
}

const char *pattern_all_hold(pattern_tester *p) {
    uint64_t mismatches = 0;
    TRY(pattern_mismatches(p, &mismatches));
    NEED(mismatches == 0, "%llu words or windows did not keep their pattern",
         (unsigned long long)mismatches);
    return NULL;
}

const char *pattern_expect(pattern_tester *p, const pattern_block *b, ductile_stream stream) {
    uint64_t before = p->counted;
    TRY(pattern_check(p, b, stream));
    TRY(count(p, stream));
    if (p->counted == before) {
        return NULL;
    }
    const char *differs = check_on_host(p, b, stream);
    return complain("block %#llx, pattern %llu: %llu words or windows differed; %s",
                    (unsigned long long)b->address, (unsigned long long)b->id,
                    (unsigned long long)(p->counted - before),
                    differs != NULL ? differs : "then the host finds all of it right");
}
