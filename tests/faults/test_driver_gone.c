/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver works, and from some call on none of its calls does: in the middle of each deed, with
 * an error that may pass and with one that ends the context. Every call comes back with a status,
 * the heap is whole, nothing goes under work, and where the driver works again so does the deed.
 */
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/numbered.h"
#include "vmm/driver/driver.h"
#include "vmm/driver/open_virtual.h"

#include <ductile_pools.h>
#include <string.h>

#define G FIXTURE_GRANULE

enum { MOST_CALLS = 400, N_STREAMS = 4 };

static const ductile_pool_id WEIGHTS = {6, 1};
static const ductile_pool_id OTHER = {6, 2};

typedef struct scene {
    fixture f;
    ductile_addr weights;
    ductile_addr own[N_STREAMS];
} scene;

/* ---- The scene ----------------------------------------------------------------------------- */

/* A block of two granules or more: its stream works on the first, the next stream on the second. */
static const char *use(scene *s, size_t stream, uint64_t size, ductile_addr *out) {
    NEED_OK(ductile_alloc(s->f.allocator, size, s->f.streams[stream], out));
    NEED_OK(ductile_virtual_fill(s->f.gpu, *out, 1, G, s->f.streams[stream]));
    ductile_stream next = s->f.streams[(stream + 1) % N_STREAMS];
    NEED_OK(ductile_record_stream(s->f.allocator, *out, next));
    NEED_OK(ductile_virtual_fill(s->f.gpu, *out + G, 2, G, next));
    return NULL;
}

/* Live, free and pending memory of every stream, in three pools, with work on all of it. */
static const char *set(scene *s, const char *conf, uint64_t weights) {
    const fixture_setup setup = {.capacity_bytes = 256 * MIB,
                                 .schedule = DUCTILE_SCHEDULE_LAZY,
                                 .n_streams = N_STREAMS,
                                 .conf = conf};
    memset(s, 0, sizeof *s);
    TRY(fixture_open(&s->f, &setup));
    ductile_allocator *a = s->f.allocator;
    NEED_OK(ductile_pool_retain(a, WEIGHTS));
    NEED_OK(ductile_pool_set_kind(a, WEIGHTS, DUCTILE_POOL_PLAIN));
    NEED_OK(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    TRY(use(s, 1, weights, &s->weights));
    NEED_OK(ductile_pool_end(a, WEIGHTS));
    ductile_addr freed = 0;
    NEED_OK(ductile_pool_begin(a, OTHER, NULL, NULL));
    TRY(use(s, 1, 3 * G, &freed));
    NEED_OK(ductile_free(a, freed));
    NEED_OK(ductile_pool_end(a, OTHER));
    for (size_t i = 0; i < N_STREAMS; i++) {
        TRY(use(s, i, 2 * G, &s->own[i]));
        for (size_t k = 0; k < 3; k++) {
            TRY(use(s, i, 3 * G, &freed));
            NEED_OK(ductile_free(a, freed));
        }
    }
    return NULL;
}

/* ---- Deeds --------------------------------------------------------------------------------- */

static ductile_status trim(scene *s) {
    return ductile_trim(s->f.allocator, 0, NULL);
}

static ductile_status end_stream(scene *s) {
    return ductile_stream_done(s->f.allocator, s->f.streams[1]);
}

/* Tried twice: the second attempt meets what the first one left. */
static ductile_status pause_and_resume(scene *s) {
    ductile_status status = ductile_pause(s->f.allocator, WEIGHTS, DUCTILE_CONTENTS_KEEP);
    if (status != DUCTILE_OK) {
        status = ductile_pause(s->f.allocator, WEIGHTS, DUCTILE_CONTENTS_KEEP);
    }
    if (status == DUCTILE_OK) {
        status = ductile_resume(s->f.allocator, WEIGHTS);
        status = status == DUCTILE_OK ? status : ductile_resume(s->f.allocator, WEIGHTS);
    }
    return status;
}

/* More than is there beside what lives. */
static ductile_status take_all(scene *s) {
    ductile_addr all = 0;
    ductile_status status = ductile_alloc(s->f.allocator, 150 * MIB, s->f.streams[3], &all);
    ductile_status freed = ductile_free(s->f.allocator, all);
    return status == DUCTILE_OK ? freed : status;
}

static ductile_status take_behind_waits(scene *s) {
    ductile_addr behind = 0;
    ductile_status status = ductile_alloc(s->f.allocator, 9 * G, s->f.streams[0], &behind);
    ductile_status freed = ductile_free(s->f.allocator, behind);
    return status == DUCTILE_OK ? freed : status;
}

typedef struct deed {
    const char *name;
    const char *conf;
    ductile_status (*what)(scene *s);
} deed;

static const deed deeds[] = {
    {"a trim", NULL, trim},
    {"a trim of waits", "record_stream:wait", trim},
    {"a trim beside captures", "captures:unannounced", trim},
    {"the end of a stream", NULL, end_stream},
    {"a pause", NULL, pause_and_resume},
    {"a pause beside captures", "captures:unannounced", pause_and_resume},
    {"a pause of waits", "record_stream:wait", pause_and_resume},
    {"all memory", NULL, take_all},
    {"all memory up to a limit", "limit_bytes:160M", take_all},
    {"all memory beside captures", "captures:unannounced", take_all},
    {"memory behind waits", "record_stream:wait,limit_bytes:160M", take_behind_waits},
};
#define N_DEEDS (sizeof deeds / sizeof deeds[0])

/* ---- The sweep ----------------------------------------------------------------------------- */

static bool is_documented(ductile_status status, int code) {
    return status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY ||
           status == DUCTILE_ERR_OUT_OF_ADDRESSES || status == DUCTILE_ERR_CAPTURING ||
           status == DUCTILE_ERR_BUSY || status == DUCTILE_ERR_ASLEEP ||
           status == DUCTILE_ERR_AWAKE ||
           status == (code == DVMM_UNKNOWN ? DUCTILE_ERR_DRIVER : DUCTILE_ERR_DEVICE_LOST);
}

static const char *is_whole(const scene *s, const char *when) {
    char report[256] = "";
    NEED(ductile_check(s->f.allocator, report, sizeof report) == DUCTILE_OK, "%s: %s", when,
         report);
    ductile_virtual_last_violation(s->f.gpu, report, sizeof report);
    NEED(fixture_state(&s->f).violations == 0, "%s: %s", when, report);
    return NULL;
}

/* A pool that stayed paused comes back, unless an address of it was lost; memory of live blocks can
 * be freed; the heap stays whole. */
static const char *goes_on(scene *s) {
    ductile_pool_info info = {.struct_size = sizeof info};
    NEED_OK(ductile_pool_query(s->f.allocator, WEIGHTS, &info));
    if (info.paused != 0) {
        bool has_lost = fixture_stats(s->f.allocator).quarantined_bytes > 0;
        ductile_status status = ductile_resume(s->f.allocator, WEIGHTS);
        NEED(status == DUCTILE_OK || (has_lost && status == DUCTILE_ERR_DRIVER), "resume: %s",
             ductile_status_name(status));
    }
    for (size_t i = 0; i < N_STREAMS; i++) {
        NEED_OK(ductile_free(s->f.allocator, s->own[i]));
    }
    NEED_OK(ductile_free(s->f.allocator, s->weights));
    ductile_status trimmed = trim(s);
    NEED(trimmed == DUCTILE_OK || trimmed == DUCTILE_ERR_DRIVER, "a trim at the end: %s",
         ductile_status_name(trimmed));
    return is_whole(s, "at the end");
}

/* What the thread may do while others capture; sets it to what it is by default. */
static const char *take_mode(const scene *s, dvmm_capture_mode *mode) {
    dvmm_driver *d = NULL;
    *mode = DVMM_CAPTURE_GLOBAL;
    NEED_OK(dvmm_open_virtual(s->f.gpu, &d, NULL, 0));
    ductile_status status = dvmm_capture_exchange_mode(d, mode);
    dvmm_close(d);
    NEED_OK(status);
    return NULL;
}

static const char *gone_from(const deed *d, uint64_t nth, int code, bool *fired) {
    scene s;
    dvmm_capture_mode mode;
    TRY(set(&s, d->conf, 4 * G));
    TRY(take_mode(&s, &mode));
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .nth = nth, .code = code, .persistent = 1};
    NEED_OK(ductile_virtual_inject(s.f.gpu, &fault));
    ductile_status status = d->what(&s);
    *fired = ductile_virtual_faults_fired(s.f.gpu) > 0;
    NEED(is_documented(status, code), "it returned %s", ductile_status_name(status));
    TRY(is_whole(&s, "after it"));
    NEED_OK(ductile_virtual_inject(s.f.gpu, NULL));
    TRY(take_mode(&s, &mode));
    NEED(*fired || mode == DVMM_CAPTURE_GLOBAL, "the thread's capture mode stays %d", mode);
    if (code == DVMM_UNKNOWN) {
        TRY(goes_on(&s));
    }
    (void)ductile_destroy(s.f.allocator);
    NEED(fixture_state(&s.f).violations == 0, "memory went under work at the end");
    fixture_abandon(&s.f);
    return NULL;
}

static void sweep(const deed *d, int code) {
    bool fired = true;
    uint64_t nth = 1;
    for (; fired && nth < MOST_CALLS; nth++) {
        const char *why = gone_from(d, nth, code, &fired);
        cr_assert(why == NULL, "%s, from call %llu on %d: %s", d->name, (unsigned long long)nth,
                  code, why);
    }
    cr_assert_not(fired, "%s: no end", d->name);
    cr_assert_gt(nth, 3, "%s hardly calls the driver", d->name);
}

ParameterizedTestParameters(driver_gone, from_any_call_on_every_call_may_fail) {
    return numbered(0, N_DEEDS);
}

ParameterizedTest(uint64_t *index, driver_gone, from_any_call_on_every_call_may_fail) {
    sweep(&deeds[*index], DVMM_UNKNOWN);
}

ParameterizedTestParameters(driver_gone, from_any_call_on_the_device_may_be_lost) {
    return numbered(0, N_DEEDS);
}

ParameterizedTest(uint64_t *index, driver_gone, from_any_call_on_the_device_may_be_lost) {
    sweep(&deeds[*index], DVMM_ILLEGAL_ADDRESS);
}

/* ---- Copies in several parts --------------------------------------------------------------- */

static const char *fill_blocks(scene *s, const ductile_addr blocks[2]) {
    TRY(fixture_sync_all(&s->f));
    for (int i = 0; i < 2; i++) {
        NEED_OK(ductile_virtual_fill(s->f.gpu, blocks[i], 0x3C, 35 * MIB, s->f.streams[1]));
    }
    return NULL;
}

static const char *look_at_blocks(scene *s, const ductile_addr blocks[2]) {
    uint8_t byte = 0;
    for (uint64_t i = 0; i < 4; i++) {
        ductile_addr at = blocks[i / 2] + (i % 2) * 34 * MIB;
        NEED_OK(ductile_virtual_read_back(s->f.gpu, &byte, at, 1, s->f.streams[1]));
        NEED(byte == 0x3C, "block %d holds %02x", (int)i / 2, byte);
    }
    return NULL;
}

/* Two blocks whose host copies lie in two extents, so that they take two copies, of which any
 * fails, and once more at the next try. */
static const char *copy_fails(const char *call, uint64_t nth) {
    scene s;
    TRY(set(&s, NULL, 35 * MIB));
    ductile_allocator *a = s.f.allocator;
    ductile_addr blocks[2] = {s.weights, 0};
    NEED_OK(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    TRY(use(&s, 1, 35 * MIB, &blocks[1]));
    NEED_OK(ductile_pool_end(a, WEIGHTS));
    TRY(fill_blocks(&s, blocks));
    NEED_OK(ductile_sleep_reserve(a, 40 * MIB, NULL));
    const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                         .call = call,
                                         .nth = nth,
                                         .code = DVMM_UNKNOWN,
                                         .persistent = 1};
    NEED_OK(ductile_virtual_inject(s.f.gpu, &fault));
    ductile_status status = pause_and_resume(&s);
    NEED(status == DUCTILE_ERR_DRIVER, "it returned %s", ductile_status_name(status));
    NEED_OK(ductile_virtual_inject(s.f.gpu, NULL));
    ductile_pool_info info = {.struct_size = sizeof info};
    NEED_OK(ductile_pool_query(a, WEIGHTS, &info));
    if (info.paused == 0) {
        NEED_OK(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    }
    NEED_OK(ductile_resume(a, WEIGHTS));
    TRY(look_at_blocks(&s, blocks));
    TRY(is_whole(&s, "at the end"));
    (void)ductile_destroy(a);
    fixture_abandon(&s.f);
    return NULL;
}

Test(driver_gone, a_copy_in_several_parts_keeps_contents_whichever_part_fails) {
    static const char *const calls[] = {"download", "upload", "stream_sync", "stream_create"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        for (uint64_t nth = 1; nth <= 2; nth++) {
            const char *why = copy_fails(calls[i], nth);
            cr_assert(why == NULL, "%s, from the %lluth: %s", calls[i], (unsigned long long)nth,
                      why);
        }
    }
}
