/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns in device memory, painted and looked at. */
#include "tests/support/painter.h"

#include "tests/support/complain.h"
#include "tests/support/memory_look.h"

#include <string.h>

enum { SCRIBBLE = 0xEE, WINDOW = 64, N_WINDOWS = 8 };

/* ---- CUDA: kernels ------------------------------------------------------------------------- */

static const char *start_kernel(const painter *p, gpu_kernel kernel, const canvas *c,
                                ductile_stream stream) {
    gpu_launch launch = {.kernel = kernel,
                         .stream = stream,
                         .arguments = {c->address, c->size / 4, c->id, p->counter}};
    /* A block of a few kilobytes needs no grid that fills the device. */
    launch.blocks = c->size < 1 << 20 ? 4 : 0;
    int code = gpu_start(p->gpu, &launch);
    NEED(code == 0, "a kernel could not be launched (%d)", code);
    return NULL;
}

/* ---- The virtual GPU: a byte throughout, and stamps ---------------------------------------- */

typedef struct stamp {
    uint64_t id;
    ductile_addr address;
} stamp;

/* Neighbours in time get different bytes, and none is the scribble. */
static uint8_t byte_of(const canvas *c) {
    return (uint8_t)(c->id % 199);
}

/* Both ends and the middle: where a handle that came or went would show. */
static void stamp_places(const canvas *c, ductile_addr places[3]) {
    places[0] = c->address;
    places[1] = c->address + c->size / 2 / 16 * 16;
    places[2] = c->address + c->size - sizeof(stamp);
}

static const char *paint_stamps(painter *p, const canvas *c, ductile_stream stream) {
    const stamp own = {c->id, c->address};
    ductile_addr places[3];
    stamp_places(c, places);
    NEED_OK(dvmm_fill(p->driver, c->address, byte_of(c), c->size, stream));
    for (int i = 0; i < 3; i++) {
        NEED_OK(dvmm_upload(p->driver, places[i], &own, sizeof(own), stream));
    }
    return NULL;
}

static const char *look_at_stamps(painter *p, const canvas *c, ductile_stream stream) {
    const stamp own = {c->id, c->address};
    ductile_addr places[3];
    stamp_places(c, places);
    for (int i = 0; i < 3; i++) {
        stamp seen = {0, 0};
        NEED_OK(dvmm_read_back(p->driver, &seen, places[i], sizeof(seen), stream));
        p->mismatches += memcmp(&seen, &own, sizeof(own)) != 0;
    }
    return NULL;
}

/* Windows spread over the block, clear of the stamps at its ends and in its middle. */
static const char *look_through_windows(painter *p, const canvas *c, ductile_stream stream) {
    uint8_t expected[WINDOW];
    uint8_t seen[WINDOW];
    uint64_t middle = c->size / 2 / 16 * 16;
    memset(expected, byte_of(c), sizeof(expected));
    for (uint64_t i = 0; i < N_WINDOWS; i++) {
        uint64_t at = sizeof(stamp) + i * (c->size / N_WINDOWS / 16 * 16);
        bool hits_stamp = at + WINDOW > middle && at < middle + sizeof(stamp);
        if (hits_stamp || at + WINDOW > c->size - sizeof(stamp)) {
            continue;
        }
        NEED_OK(dvmm_read_back(p->driver, seen, c->address + at, sizeof(seen), stream));
        p->mismatches += memcmp(seen, expected, sizeof(expected)) != 0;
    }
    return NULL;
}

/* ---- Looking closely ----------------------------------------------------------------------- */

typedef struct close_look {
    const painter *p;
    const canvas *c;
    ductile_stream stream;
} close_look;

static const char *read_part(const void *user, void *to, ductile_addr from, uint64_t size) {
    const close_look *l = user;
    NEED_OK(dvmm_read_back(l->p->driver, to, from, size, l->stream));
    return NULL;
}

static const char *wait_for_all(const void *user) {
    NEED_OK(dvmm_context_sync(((const close_look *)user)->p->driver));
    return NULL;
}

/* What the kernels make of id and index (gpu_kernels_ptx.c). */
static uint8_t byte_of_word(const canvas *c, uint64_t offset) {
    uint32_t hash = (uint32_t)(offset / 4) * 0x9E3779B1u + (uint32_t)c->id;
    hash = (hash ^ hash >> 16) * 0x85EBCA6Bu;
    hash ^= hash >> 13;
    return (uint8_t)(hash >> offset % 4 * 8);
}

static uint8_t byte_of_stamps(const canvas *c, uint64_t offset) {
    const stamp own = {c->id, c->address};
    ductile_addr places[3];
    uint8_t bytes[sizeof own];
    memcpy(bytes, &own, sizeof own);
    stamp_places(c, places);
    for (int i = 2; i >= 0; i--) { /* the last that was painted is above the others */
        uint64_t begin = places[i] - c->address;
        if (offset >= begin && offset - begin < sizeof own) {
            return bytes[offset - begin];
        }
    }
    return byte_of(c);
}

static uint8_t painted_byte(const void *user, uint64_t offset) {
    const close_look *l = user;
    return l->p->gpu != NULL ? byte_of_word(l->c, offset) : byte_of_stamps(l->c, offset);
}

static const char *look_closely(const painter *p, const canvas *c, ductile_stream stream) {
    const close_look user = {p, c, stream};
    const memory_look at = {.address = c->address,
                            .size = c->size,
                            .read = read_part,
                            .wait = wait_for_all,
                            .expected = painted_byte,
                            .user = &user};
    return expect_memory(&at);
}

/* ---- Both ---------------------------------------------------------------------------------- */

const char *painter_open(painter *p, dvmm_driver *driver, int ordinal) {
    *p = (painter){.driver = driver};
    if (dvmm_get_caps(driver)->is_virtual) {
        return NULL;
    }
    TRY(gpu_open(ordinal, &p->gpu));
    NEED_OK(dvmm_mem_alloc(driver, sizeof(uint64_t), &p->counter));
    NEED_OK(dvmm_fill(driver, p->counter, 0, sizeof(uint64_t), NULL));
    NEED_OK(dvmm_context_sync(driver));
    return NULL;
}

void painter_close(painter *p) {
    if (p->counter != 0) {
        (void)dvmm_mem_free(p->driver, p->counter);
    }
    gpu_close(p->gpu);
    p->counter = 0; /* a second call does nothing */
    p->gpu = NULL;
}

const char *paint(painter *p, const canvas *c, ductile_stream stream) {
    return p->gpu != NULL ? start_kernel(p, GPU_FILL_WORDS, c, stream) : paint_stamps(p, c, stream);
}

const char *look(painter *p, const canvas *c, ductile_stream stream) {
    if (p->gpu != NULL) {
        return start_kernel(p, GPU_CHECK_WORDS, c, stream);
    }
    TRY(look_at_stamps(p, c, stream));
    return look_through_windows(p, c, stream);
}

const char *scribble(painter *p, const canvas *c, ductile_stream stream) {
    NEED_OK(dvmm_fill(p->driver, c->address, SCRIBBLE, c->size, stream));
    return NULL;
}

const char *dawdle(painter *p, ductile_stream stream, uint64_t ns) {
    if (p->gpu == NULL) {
        return NULL;
    }
    gpu_launch launch = {
        .kernel = GPU_SPIN, .stream = stream, .blocks = 1, .threads = 1, .arguments = {ns}};
    int code = gpu_start(p->gpu, &launch);
    NEED(code == 0, "a kernel could not be launched (%d)", code);
    return NULL;
}

static const char *count(painter *p, ductile_stream stream) {
    p->counted = p->mismatches;
    if (p->gpu != NULL) {
        NEED_OK(dvmm_read_back(p->driver, &p->counted, p->counter, sizeof p->counted, stream));
    }
    return NULL;
}

const char *painter_mismatches(painter *p, uint64_t *out) {
    NEED_OK(dvmm_context_sync(p->driver));
    TRY(count(p, NULL));
    *out = p->counted;
    return NULL;
}

const char *expect_painted(painter *p, const canvas *c, ductile_stream stream) {
    uint64_t before = p->counted;
    TRY(look(p, c, stream));
    TRY(count(p, stream));
    if (p->counted == before) {
        return NULL;
    }
    const char *differs = look_closely(p, c, stream);
    return complain("block %#llx, pattern %llu: %llu words or windows differed; %s",
                    (unsigned long long)c->address, (unsigned long long)c->id,
                    (unsigned long long)(p->counted - before),
                    differs != NULL ? differs : "then the host finds all of it right");
}
