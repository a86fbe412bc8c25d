/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: while memory is mapped, moved, trimmed, paused and resumed, every driver call fails in
 * turn, before or after its deed; after each step a table kept by map callbacks is what the
 * segments hold.
 */
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/numbered.h"
#include "tests/support/shadow.h"
#include "vmm/driver/driver.h"

#include <string.h>

#define GRANULE FIXTURE_GRANULE

enum { N_BLOCKS = 10, MOST_CALLS = 400 };

static const ductile_pool_id POOL = {8, 9};

typedef struct run {
    fixture f;
    shadow s;
    ductile_addr blocks[N_BLOCKS];
} run;

static const char *is_clean(ductile_status status, const char *call) {
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY ||
             status == DUCTILE_ERR_OUT_OF_ADDRESSES || status == DUCTILE_ERR_DRIVER ||
             status == DUCTILE_ERR_CAPTURING,
         "%s: %s", call, ductile_status_name(status));
    return NULL;
}

static const char *take(run *r, uint64_t granules, ductile_addr *out) {
    TRY(is_clean(ductile_alloc(r->f.allocator, granules * GRANULE, r->f.streams[0], out), "alloc"));
    if (*out != 0) {
        TRY(shadow_covers(&r->s, *out, granules * GRANULE));
    }
    return shadow_matches_segments(&r->s, r->f.allocator);
}

static const char *give(run *r, ductile_addr *addr) {
    if (*addr != 0) {
        NEED_OK(ductile_free(r->f.allocator, *addr));
        *addr = 0;
    }
    return NULL;
}

static const char *fill_and_move(run *r) {
    ductile_addr large = 0;
    for (int i = 0; i < N_BLOCKS; i++) {
        TRY(take(r, 1, &r->blocks[i]));
    }
    for (int i = 0; i < N_BLOCKS; i += 2) {
        TRY(give(r, &r->blocks[i]));
    }
    TRY(take(r, 5, &large));
    TRY(give(r, &large));
    TRY(is_clean(ductile_trim(r->f.allocator, 6 * GRANULE, NULL), "trim"));
    return shadow_matches_segments(&r->s, r->f.allocator);
}

/* What the driver would not unmap was said to leave, and is told again when it serves again. */
static const char *pause_and_resume(run *r) {
    ductile_addr block = 0;
    NEED_OK(ductile_pool_begin(r->f.allocator, POOL, NULL, NULL));
    const char *why = take(r, 3, &block);
    NEED_OK(ductile_pool_end(r->f.allocator, POOL));
    TRY(why);
    if (block == 0) {
        return NULL;
    }
    ductile_status paused = ductile_pause(r->f.allocator, POOL, DUCTILE_CONTENTS_DROP);
    TRY(is_clean(paused, "pause"));
    ductile_status resumed = DUCTILE_ERR_DRIVER;
    for (int i = 0; paused == DUCTILE_OK && resumed != DUCTILE_OK && i < 3; i++) {
        resumed = ductile_resume(r->f.allocator, POOL);
        TRY(is_clean(resumed, "resume"));
    }
    return paused != DUCTILE_OK || resumed == DUCTILE_OK
               ? shadow_matches_segments(&r->s, r->f.allocator)
               : NULL;
}

static const char *run_with_fault(const ductile_virtual_fault *fault, bool *fired) {
    static run r;
    memset(&r, 0, sizeof r);
    const fixture_setup setup = {.capacity_bytes = 32 * MIB};
    TRY(fixture_open(&r.f, &setup));
    TRY(shadow_open(&r.s, r.f.allocator, r.f.gpu));
    NEED_OK(ductile_virtual_inject(r.f.gpu, fault));
    TRY(fill_and_move(&r));
    TRY(pause_and_resume(&r));
    *fired = ductile_virtual_faults_fired(r.f.gpu) > 0;
    NEED_OK(ductile_virtual_inject(r.f.gpu, NULL));
    char report[256] = "";
    NEED(ductile_check(r.f.allocator, report, sizeof report) == DUCTILE_OK, "%s", report);
    for (int i = 0; i < N_BLOCKS; i++) {
        TRY(give(&r, &r.blocks[i]));
    }
    (void)ductile_destroy(r.f.allocator);
    TRY(shadow_complaint(&r.s));
    NEED(r.s.n == 0, "%zu mappings were never said to leave", r.s.n);
    r.f.allocator = NULL;
    fixture_abandon(&r.f);
    return NULL;
}

static const char *const calls[] = {"phys_create", "map",          "set_access",
                                    "unmap",       "phys_release", "context_record",
                                    "event_query", "get_access"};
#define N_CALLS (sizeof calls / sizeof calls[0])

ParameterizedTestParameters(announce_faults, what_was_told_is_what_happened) {
    return numbered(0, N_CALLS);
}

ParameterizedTest(uint64_t *index, announce_faults, what_was_told_is_what_happened) {
    const char *call = calls[*index];
    size_t n_fired = 0;
    for (int persistent = 0; persistent <= 1; persistent++) {
        for (int effect = 0; effect <= 1; effect++) {
            bool fired = true;
            for (uint64_t nth = 1; fired && nth < MOST_CALLS; nth++) {
                const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                                     .call = call,
                                                     .nth = nth,
                                                     .code = 999,
                                                     .persistent = persistent,
                                                     .effect = effect};
                const char *why = run_with_fault(&fault, &fired);
                cr_assert(why == NULL, "call %llu of %s, effect %d, persistent %d: %s",
                          (unsigned long long)nth, call, effect, persistent, why);
                n_fired += fired;
            }
            cr_assert_not(fired, "%s: no end", call);
        }
    }
    cr_assert(n_fired > 0 || strcmp(call, "get_access") == 0, "%s was never called", call);
}

/* ---- Destroying ---------------------------------------------------------------------------- */

static int n_announced;

static void count_announcements(void *user, ductile_allocator *a, const ductile_map_event *event) {
    (void)user;
    (void)a;
    (void)event;
    n_announced++;
}

/* Work may still be under way on what a destroy could not wait for: it stays mapped, so nobody is
 * told that it leaves. */
Test(announce_faults, a_destroy_that_cannot_wait_announces_nothing) {
    static const char *const waits[] = {"event_sync", "stream_sync", "context_sync", "event_record",
                                        "context_record"};
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        fixture f;
        ductile_addr block = 0;
        uint64_t id = 0;
        assert_fine(fixture_open(&f, &(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY}));
        assert_ok(ductile_alloc(f.allocator, 3 * GRANULE, f.streams[0], &block));
        assert_ok(ductile_virtual_fill(f.gpu, block, 1, GRANULE, f.streams[0]));
        assert_ok(ductile_add_map_callback(f.allocator, count_announcements, NULL, 0, &id));
        const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                             .call = waits[i],
                                             .nth = 1,
                                             .code = DVMM_UNKNOWN,
                                             .persistent = 1};
        n_announced = 0;
        assert_ok(ductile_virtual_inject(f.gpu, &fault));
        ductile_status status = ductile_destroy(f.allocator);
        uint64_t left = fixture_state(&f).mappings;
        cr_assert(status == DUCTILE_OK || status == DUCTILE_ERR_DRIVER);
        cr_assert_eq(n_announced == 0, left > 0, "%s: %d announced, %llu mappings left", waits[i],
                     n_announced, (unsigned long long)left);
        cr_assert_eq(left > 0, status == DUCTILE_ERR_DRIVER, "%s", waits[i]);
        assert_ok(ductile_virtual_inject(f.gpu, NULL));
        assert_u64(fixture_state(&f).violations, 0);
        fixture_abandon(&f);
    }
}
