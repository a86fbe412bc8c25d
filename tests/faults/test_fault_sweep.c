/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every driver call may fail, and then nothing has changed. Each scenario below leads through one
 * of the allocator's deeds; the sweep fails each of its driver calls in turn, once or from then
 * on, with each code, before or after the deed was done. The last tests are for codes and causes
 * that are a story of their own: a poisoned device, another process's memory.
 */
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fault_sweep.h"
#include "tests/support/limits.h"
#include "tests/support/numbered.h"
#include "tests/support/rng.h"

#include <string.h>

#define CAPACITY (32 * MIB) /* 16 granules: pressure is never far */

/* ---- Scenarios ----------------------------------------------------------------------------- */

/* Frees every block at an odd place of the model, or at an even one. */
static const char *free_alternate(world *w, size_t parity) {
    for (size_t i = w->m.n; i-- > 0;) {
        if (i % 2 == parity) {
            TRY(world_free(w, i));
        }
    }
    return NULL;
}

static const char *alloc_some(world *w, size_t n, uint64_t size, size_t stream) {
    for (size_t i = 0; i < n; i++) {
        TRY(world_alloc(w, size, stream));
    }
    return NULL;
}

static const char *grow(world *w) {
    for (uint64_t i = 1; i <= 4; i++) {
        TRY(world_alloc(w, i * FIXTURE_GRANULE - 4096 * i, 0));
        TRY(world_alloc(w, 700 * i, 0));
    }
    return world_audit(w);
}

/* Holes of two granules between blocks of one; the request that follows fits no hole. */
static const char *make_holes(world *w) {
    for (size_t i = 0; i < 5; i++) {
        TRY(world_must_alloc(w, FIXTURE_GRANULE, 0));
        TRY(world_must_alloc(w, 2 * FIXTURE_GRANULE, 0));
    }
    return free_alternate(w, 1);
}

/* A handle with one live byte holds on to all of it. */
static const char *expect_large_handles(world *w) {
    w->may_refuse = true;
    w->handle_bytes = 4 * FIXTURE_GRANULE;
    return NULL;
}

/* Requests grow ahead, into handles of any size, until little room is left. */
static const char *expect_quick_handles(world *w) {
    w->may_refuse = true;
    w->handle_bytes = 64 * MIB;
    return NULL;
}

static const char *make_large_holes(world *w) {
    TRY(expect_large_handles(w));
    return make_holes(w);
}

static const char *recycle(world *w) {
    TRY(world_alloc(w, 5 * FIXTURE_GRANULE, 0));
    TRY(world_alloc(w, 3 * FIXTURE_GRANULE + 512, 0));
    TRY(world_alloc(w, 2 * FIXTURE_GRANULE, 0));
    TRY(free_alternate(w, 0));
    return world_alloc(w, 6 * FIXTURE_GRANULE, 0);
}

/* Peaks and dips; after a dip the gaps that recycling left are filled. */
static const char *peak_and_dip(world *w) {
    for (uint64_t round = 0; round < 4; round++) {
        TRY(alloc_some(w, 5, 2 * FIXTURE_GRANULE + round * 1024, 0));
        TRY(alloc_some(w, 6, 30000 + round * 4096, 0));
        TRY(free_alternate(w, 0));
        TRY(alloc_some(w, 2, (3 + round) * FIXTURE_GRANULE / 2 * 2, 0));
        while (w->m.n > 2) {
            size_t before = w->m.n;
            TRY(world_free(w, w->m.n - 1));
            if (w->m.n == before) {
                break; /* the free was refused: go on with the block alive */
            }
        }
        TRY(alloc_some(w, 3, 512, 0));
    }
    return NULL;
}

static const char *recycle_and_heal(world *w) {
    TRY(recycle(w));
    return peak_and_dip(w);
}

static const char *grow_and_heal(world *w) {
    TRY(grow(w));
    return recycle_and_heal(w);
}

static const char *trim(world *w) {
    TRY(alloc_some(w, 6, 2 * FIXTURE_GRANULE, 0));
    TRY(free_alternate(w, 1));
    TRY(world_trim(w, 8 * FIXTURE_GRANULE));
    TRY(alloc_some(w, 2, FIXTURE_GRANULE, 0));
    TRY(free_alternate(w, 0));
    TRY(world_trim(w, 0));
    return alloc_some(w, 1, 5 * FIXTURE_GRANULE, 0);
}

/* Blocks used on other streams and freed while the work there is still under way; then a stream
 * needs more than the device has left. */
static const char *cross_streams(world *w) {
    TRY(alloc_some(w, 4, 2 * FIXTURE_GRANULE, 0));
    TRY(alloc_some(w, 3, FIXTURE_GRANULE + 512, 1));
    for (size_t i = 0; i < w->m.n; i += 2) {
        TRY(world_use_on(w, i, 1 - w->m.blocks[i].stream));
    }
    TRY(free_alternate(w, 0));
    TRY(alloc_some(w, 2, 3 * FIXTURE_GRANULE, 1));
    ductile_virtual_advance(w->f.gpu, 3);
    TRY(alloc_some(w, 2, 3 * FIXTURE_GRANULE, 2));
    TRY(free_alternate(w, 1));
    return alloc_some(w, 2, 6 * FIXTURE_GRANULE, 0);
}

/* Under a limit a stream takes what others have freed and may still work on; it lies behind a
 * marker of theirs, which regular allocations record. */
static const char *take_of_streams_at_work(world *w) {
    for (size_t round = 0; round < 2; round++) {
        TRY(alloc_some(w, 3, 3 * FIXTURE_GRANULE, 1));
        TRY(world_free_all(w));
        TRY(alloc_some(w, 70, 512, 1));
        TRY(alloc_some(w, 1, 8 * FIXTURE_GRANULE, 0));
        TRY(world_free_all(w));
    }
    return alloc_some(w, 2, 4 * FIXTURE_GRANULE, 2);
}

/* ---- Pools ---- */

static const ductile_pool_id PLAIN = {0, 1};
static const ductile_pool_id GRAPH = {1, 0};

static const char *is_clean(ductile_status status, const char *call) {
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY ||
             status == DUCTILE_ERR_OUT_OF_HOST_MEMORY || status == DUCTILE_ERR_DRIVER ||
             status == DUCTILE_ERR_OUT_OF_ADDRESSES ||
             status == DUCTILE_ERR_CAPTURING, /* a stream that cannot tell may be captured */
         "%s under a driver fault: %s", call, ductile_status_name(status));
    return NULL;
}

/* Some of it stays live, some is free, some pending. */
static const char *fill_pool(world *w, ductile_pool_id id) {
    NEED_OK(ductile_pool_begin(w->f.allocator, id, NULL, NULL));
    TRY(alloc_some(w, 3, FIXTURE_GRANULE + 512, 0));
    TRY(alloc_some(w, 2, 3000, 1));
    if (w->m.n > 1) {
        TRY(world_use_on(w, w->m.n - 1, 1 - w->m.blocks[w->m.n - 1].stream));
    }
    TRY(free_alternate(w, 0));
    TRY(alloc_some(w, 1, 2 * FIXTURE_GRANULE, 0));
    NEED_OK(ductile_pool_end(w->f.allocator, id));
    return NULL;
}

static const char *pools(world *w) {
    ductile_allocator *a = w->f.allocator;
    NEED_OK(ductile_pool_retain(a, PLAIN));
    NEED_OK(ductile_pool_set_kind(a, PLAIN, DUCTILE_POOL_PLAIN));
    TRY(fill_pool(w, PLAIN));
    TRY(fill_pool(w, GRAPH));
    TRY(alloc_some(w, 2, 3 * FIXTURE_GRANULE, 0));
    TRY(is_clean(ductile_pool_trim(a, PLAIN, NULL), "pool_trim"));
    NEED_OK(ductile_pool_release(a, GRAPH));
    ductile_status status = ductile_pool_trim(a, GRAPH, NULL);
    bool is_gone = status == DUCTILE_ERR_INVALID_ARGUMENT; /* it never got memory */
    TRY(is_clean(is_gone ? DUCTILE_OK : status, "pool_trim"));
    TRY(free_alternate(w, 1));
    TRY(alloc_some(w, 2, 5 * FIXTURE_GRANULE, 1));
    NEED_OK(ductile_pool_release(a, PLAIN));
    NEED_OK(ductile_pool_release(a, PLAIN));
    return NULL;
}

/* Memory of paused blocks may be unmapped: to the device they are not live. */
static void announce_all(const world *w, bool live) {
    for (size_t i = 0; i < w->m.n; i++) {
        if (live) {
            ductile_virtual_block_begin(w->f.gpu, w->m.blocks[i].address, w->m.blocks[i].size);
        } else {
            ductile_virtual_block_end(w->f.gpu, w->m.blocks[i].address);
        }
    }
}

/* What a block of the model holds can be seen while its pool runs only. */
static const char *resume_if_paused(world *w) {
    ductile_pool_info info = {.struct_size = sizeof info};
    NEED_OK(ductile_pool_query(w->f.allocator, PLAIN, &info));
    if (info.paused) {
        NEED_OK(ductile_resume(w->f.allocator, PLAIN));
        announce_all(w, true);
    }
    return NULL;
}

/* The last stream is another GPU's. */
static const char *enable_peer(world *w) {
    NEED_OK(ductile_virtual_stream_destroy(w->f.gpu, w->f.streams[2]));
    NEED_OK(ductile_virtual_stream_create_on(w->f.gpu, 1, &w->f.streams[2]));
    NEED_OK(ductile_enable_peer(w->f.allocator, 1));
    return NULL;
}

static const char *prepare_pause(world *w) {
    w->mend = resume_if_paused;
    TRY(enable_peer(w));
    NEED_OK(ductile_pool_retain(w->f.allocator, PLAIN));
    NEED_OK(ductile_pool_set_kind(w->f.allocator, PLAIN, DUCTILE_POOL_PLAIN));
    TRY(fill_pool(w, PLAIN));
    return alloc_some(w, 1, FIXTURE_GRANULE, 0);
}

static const char *prepare_quick_pause(world *w) {
    TRY(expect_quick_handles(w));
    return prepare_pause(w);
}

/* The other GPU has yet to write to some blocks. */
static const char *pause_and_resume(world *w) {
    for (size_t i = 0; i < w->m.n; i += 2) {
        TRY(world_use_on(w, i, 2));
    }
    for (int i = 0; i < 2; i++) {
        announce_all(w, false);
        ductile_status status = ductile_pause(w->f.allocator, PLAIN, DUCTILE_PAUSE_KEEP_CONTENTS);
        bool is_paused = status == DUCTILE_OK;
        TRY(is_clean(status, "pause"));
        if (status == DUCTILE_OK) {
            status = ductile_resume(w->f.allocator, PLAIN);
            TRY(is_clean(status, "resume"));
            is_paused = status != DUCTILE_OK;
        }
        if (!is_paused) {
            announce_all(w, true);
        }
        if (status != DUCTILE_OK) {
            return NULL;
        }
    }
    return alloc_some(w, 1, 6 * FIXTURE_GRANULE, 0);
}

/* Live, free and pending blocks on several streams, one of another GPU, for the destroy that
 * follows. */
static const char *leave_a_mess(world *w) {
    TRY(alloc_some(w, 3, FIXTURE_GRANULE + 512, 0));
    TRY(alloc_some(w, 3, 3000, 1));
    if (w->m.n > 0) {
        TRY(world_use_on(w, 0, 1));
    }
    for (size_t i = 0; i < w->m.n; i += 3) {
        TRY(world_use_on(w, i, 2));
    }
    return free_alternate(w, 0);
}

/* Frees the oldest block of the model, and takes a small one instead. */
static uint64_t free_oldest(void *user, ductile_allocator *a, uint64_t missing,
                            ductile_stream stream) {
    world *w = user;
    (void)missing;
    ductile_addr address = 0;
    uint64_t bytes = w->m.n > 0 ? w->m.blocks[0].size : 0;
    if (bytes == 0 || world_free(w, 0) != NULL || w->status != DUCTILE_OK) {
        return 0;
    }
    if (ductile_alloc(a, 512, stream, &address) == DUCTILE_OK) {
        (void)ductile_free(a, address); /* stays ours when that fails: nobody uses it */
    }
    return bytes;
}

/* Up the whole ladder: a soft limit, pending memory, a callback, silent streams, a refusal. */
static const char *under_pressure(world *w) {
    uint64_t id = 0;
    NEED_OK(ductile_add_oom_callback(w->f.allocator, free_oldest, w, 0, &id));
    NEED_OK(set_soft_limit(w->f.allocator, 6 * FIXTURE_GRANULE));
    TRY(alloc_some(w, 3, 2 * FIXTURE_GRANULE, 0));
    TRY(alloc_some(w, 2, FIXTURE_GRANULE + 512, 1));
    for (size_t i = 0; i < w->m.n; i += 2) {
        TRY(world_use_on(w, i, 1 - w->m.blocks[i].stream));
    }
    TRY(free_alternate(w, 0));
    TRY(alloc_some(w, 2, 3 * FIXTURE_GRANULE, 1));
    TRY(alloc_some(w, 2, 5 * FIXTURE_GRANULE, 0));
    TRY(alloc_some(w, 1, 15 * FIXTURE_GRANULE, 1));
    NEED_OK(ductile_remove_oom_callback(w->f.allocator, id));
    return alloc_some(w, 1, 14 * FIXTURE_GRANULE, 0);
}

/* Under pressure: what was freed goes to the cache, and comes back from it, or goes to others. */
static const char *take_dedicated(world *w) {
    for (size_t round = 0; round < 3; round++) {
        TRY(world_alloc_dedicated(w, 5 * FIXTURE_GRANULE, 0));
        TRY(world_alloc_dedicated(w, 3 * FIXTURE_GRANULE, 0));
        TRY(world_alloc(w, 4 * FIXTURE_GRANULE, 0));
        TRY(free_alternate(w, round % 2));
    }
    TRY(world_free_all(w));
    return world_alloc(w, 12 * FIXTURE_GRANULE, 0);
}

static const char *expect_dedicated_handles(world *w) {
    w->handle_bytes = 5 * FIXTURE_GRANULE;
    return NULL;
}

/* Every block is one handle, and the largest is of six granules. */
static const char *expect_guards(world *w) {
    w->may_refuse = true;
    w->handle_bytes = 6 * FIXTURE_GRANULE;
    return NULL;
}

static const fault_scenario scenarios[] = {
    {"dedicated", {.capacity_bytes = CAPACITY}, expect_dedicated_handles, take_dedicated},
    {"dedicated lazily",
     {.capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAZY},
     expect_dedicated_handles,
     take_dedicated},
    {"grow", {.capacity_bytes = CAPACITY}, NULL, grow},
    {"recycle", {.capacity_bytes = CAPACITY}, make_holes, recycle},
    {"recycle lazily",
     {.capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAZY},
     make_holes,
     recycle},
    {"large handles",
     {.capacity_bytes = CAPACITY, .conf = "sizes:8M"},
     make_large_holes,
     recycle_and_heal},
    {"streams with large handles",
     {.capacity_bytes = CAPACITY,
      .schedule = DUCTILE_SCHEDULE_LAGGING,
      .lag = 2,
      .n_streams = 3,
      .conf = "sizes:8M"},
     expect_large_handles,
     cross_streams},
    {"grow ahead",
     {.capacity_bytes = 4 * CAPACITY, .conf = "sizes:quick"},
     expect_quick_handles,
     grow_and_heal},
    {"streams that grow ahead",
     {.capacity_bytes = 4 * CAPACITY,
      .schedule = DUCTILE_SCHEDULE_LAGGING,
      .lag = 2,
      .n_streams = 3,
      .conf = "sizes:quick"},
     expect_quick_handles,
     cross_streams},
    {"heal", {.capacity_bytes = CAPACITY}, NULL, peak_and_dip},
    {"heal with lag",
     {.capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAGGING, .lag = 3},
     NULL,
     peak_and_dip},
    {"trim", {.capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAZY}, NULL, trim},
    {"streams",
     {.capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3},
     NULL,
     cross_streams},
    {"streams with lag",
     {.capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAGGING, .lag = 2, .n_streams = 3},
     NULL,
     cross_streams},
    {"streams that wait",
     {.capacity_bytes = CAPACITY,
      .schedule = DUCTILE_SCHEDULE_LAZY,
      .n_streams = 3,
      .conf = "record_stream:wait"},
     NULL,
     cross_streams},
    {"streams that take behind a wait",
     {.capacity_bytes = CAPACITY,
      .schedule = DUCTILE_SCHEDULE_LAZY,
      .n_streams = 3,
      .conf = "reuse:wait,limit_bytes:28M"},
     NULL,
     take_of_streams_at_work},
    {"destroy",
     {.capacity_bytes = CAPACITY,
      .schedule = DUCTILE_SCHEDULE_LAZY,
      .n_streams = 3,
      .n_devices = 2},
     enable_peer,
     leave_a_mess},
    {"pools",
     {.capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2},
     NULL,
     pools},
    {"pressure",
     {.capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2},
     NULL,
     under_pressure},
    {"pressure where memory may not move",
     {.capacity_bytes = CAPACITY,
      .schedule = DUCTILE_SCHEDULE_LAGGING,
      .lag = 3,
      .n_streams = 2,
      .conf = "reuse:never"},
     NULL,
     under_pressure},
    {"guards",
     {.capacity_bytes = 4 * CAPACITY,
      .schedule = DUCTILE_SCHEDULE_LAZY,
      .n_streams = 3,
      .conf = "find:overruns"},
     expect_guards,
     cross_streams},
    {"fills",
     {.capacity_bytes = CAPACITY,
      .schedule = DUCTILE_SCHEDULE_LAZY,
      .n_streams = 3,
      .conf = "find:stale_writes"},
     NULL,
     cross_streams},
    {"pause where requests grow ahead",
     {.capacity_bytes = 4 * CAPACITY,
      .schedule = DUCTILE_SCHEDULE_LAZY,
      .n_streams = 3,
      .n_devices = 2,
      .conf = "sizes:quick"},
     prepare_quick_pause,
     pause_and_resume},
    {"pause",
     {.capacity_bytes = CAPACITY,
      .schedule = DUCTILE_SCHEDULE_LAZY,
      .n_streams = 3,
      .n_devices = 2},
     prepare_pause,
     pause_and_resume},
};
#define N_SCENARIOS (sizeof scenarios / sizeof scenarios[0])
enum { N_LONG_SCENARIOS = 4 }; /* the last ones */

/* ---- Every call of every kind -------------------------------------------------------------- */

/* Whether "done, then the error" can happen: not where the caller would never learn the name of
 * what was made, and not for a map, which the driver documents to do all or nothing. */
static bool can_be_done_and_fail(const char *call) {
    static const char *const calls[] = {"unmap",        "set_access",   "phys_release",
                                        "address_free", "event_record", "event_destroy",
                                        "event_sync",   "stream_sync",  "context_sync"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (strcmp(call, calls[i]) == 0) {
            return true;
        }
    }
    return false;
}

static uint64_t count_effects(const char *call) {
    bool has_parts = strcmp(call, "unmap") == 0 || strcmp(call, "set_access") == 0;
    return has_parts ? 3 : can_be_done_and_fail(call) ? 2 : 1;
}

enum { N_WAYS_TO_FAIL = 12 }; /* of one effect */

static fault_kind kind_of(const char *call, uint64_t way) {
    static const int codes[] = {DVMM_INVALID_VALUE, DVMM_OUT_OF_MEMORY, DVMM_UNKNOWN};
    return (fault_kind){.call = call,
                        .code = codes[way % 3],
                        .persistent = way / 3 % 2 != 0,
                        .in_destroy = way / 6 % 2 != 0,
                        .effect = (int)(way / N_WAYS_TO_FAIL)};
}

/* A call from a new place fails in every way. Another fails with each code, and all after it, which
 * leads through every place that the whole sweep comes to; that one is for DUCTILE_TEST_ALL=1. In
 * a long scenario it does not fail at all. */
static bool is_tried(const fault_scenario *scenario, const fault_site *site,
                     const fault_kind *kind) {
    if (site->is_new || test_setting("DUCTILE_TEST_ALL", 0) != 0) {
        return true;
    }
    if (scenario >= scenarios + N_SCENARIOS - N_LONG_SCENARIOS) {
        return false;
    }
    rng r = rng_seeded(test_setting("DUCTILE_TEST_SEED", 1) * 1000003 + site->nth);
    return kind->persistent && kind->effect == 0 && kind->in_destroy == rng_percent(&r, 50);
}

static const char *fail_at(const fault_scenario *scenario, const fault_site *site, uint64_t *n) {
    const char *call = dvmm_call_name(site->call);
    for (uint64_t way = 0; way < count_effects(call) * N_WAYS_TO_FAIL; way++) {
        fault_kind kind = kind_of(call, way);
        if (is_tried(scenario, site, &kind) && (kind.in_destroy || !site->in_end)) {
            TRY(fault_run(scenario, &kind, site->nth));
            ++*n;
        }
    }
    return NULL;
}

static const char *sweep(const fault_scenario *scenario, uint64_t *n_faulted) {
    static fault_sites sites;
    TRY(fault_find_sites(scenario, &sites));
    for (size_t i = 0; i < sites.n; i++) {
        TRY(fail_at(scenario, &sites.list[i], n_faulted));
    }
    return NULL;
}

ParameterizedTestParameters(fault_sweep, each_call_may_fail) {
    return numbered(0, N_SCENARIOS);
}

ParameterizedTest(uint64_t *index, fault_sweep, each_call_may_fail) {
    uint64_t n_faulted = 0;
    assert_fine(sweep(&scenarios[*index], &n_faulted));
    cr_assert(n_faulted > 20, "%s met only %llu faults", scenarios[*index].name,
              (unsigned long long)n_faulted);
}

/* ---- A poisoned device --------------------------------------------------------------------- */

static const char *is_lost(world *w) {
    uint64_t calls = fixture_state(&w->f).calls;
    ductile_addr address = 1;
    ductile_status status = ductile_alloc(w->f.allocator, 512, w->f.streams[0], &address);
    NEED(status == DUCTILE_ERR_DEVICE_LOST && address == 0, "alloc on a poisoned device: %s",
         ductile_status_name(status));
    status = ductile_alloc(w->f.allocator, 9 * FIXTURE_GRANULE, w->f.streams[0], &address);
    NEED(status == DUCTILE_ERR_DEVICE_LOST, "a large alloc on a poisoned device: %s",
         ductile_status_name(status));
    status = ductile_trim(w->f.allocator, 0, NULL);
    NEED(status == DUCTILE_ERR_DEVICE_LOST, "trim on a poisoned device: %s",
         ductile_status_name(status));
    if (w->m.n > 0) {
        TRY(world_free(w, 0));
    }
    NEED(fixture_state(&w->f).calls == calls, "the driver was called after a sticky error");
    char report[256] = "";
    NEED(ductile_check(w->f.allocator, report, sizeof report) == DUCTILE_OK, "check: %s", report);
    return NULL;
}

/* The scenario with the nth driver call answering 700, until none does. Contents are gone with
 * the device; what counts is that nothing crashes, hangs or calls the driver again. */
static const char *poison_nth(const fault_scenario *scenario, uint64_t nth, bool *fired) {
    world w;
    TRY(world_open(&w, &scenario->setup, false));
    if (scenario->prepare != NULL) {
        TRY(scenario->prepare(&w));
    }
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .nth = nth, .code = DVMM_ILLEGAL_ADDRESS};
    NEED_OK(ductile_virtual_inject(w.f.gpu, &fault));
    w.expects_faults = true;
    const char *why = NULL;
    for (size_t i = 0; i < 40 && why == NULL && ductile_virtual_faults_fired(w.f.gpu) == 0; i++) {
        why = world_alloc(&w, (i % 5) * FIXTURE_GRANULE / 2 + 512, i % w.f.n_streams);
        if (why == NULL && i % 3 == 2 && ductile_virtual_faults_fired(w.f.gpu) == 0) {
            why = free_alternate(&w, i % 2);
        }
    }
    *fired = ductile_virtual_faults_fired(w.f.gpu) > 0;
    if (why == NULL && *fired) {
        why = is_lost(&w);
    }
    ductile_status destroyed = ductile_destroy(w.f.allocator);
    *fired = ductile_virtual_faults_fired(w.f.gpu) > 0;
    model_fini(&w.m);
    fixture_abandon(&w.f);
    TRY(why);
    NEED(destroyed == (*fired ? DUCTILE_ERR_DEVICE_LOST : DUCTILE_OK), "destroy: %s",
         ductile_status_name(destroyed));
    return NULL;
}

ParameterizedTestParameters(fault_sweep, sticky_error_ends_all_driver_calls) {
    return numbered(0, N_SCENARIOS);
}

ParameterizedTest(uint64_t *index, fault_sweep, sticky_error_ends_all_driver_calls) {
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        const char *why = poison_nth(&scenarios[*index], nth, &fired);
        cr_assert(why == NULL, "%s, call %llu answers 700: %s", scenarios[*index].name,
                  (unsigned long long)nth, why);
    }
}

/* ---- Another process ----------------------------------------------------------------------- */

/* What another process holds is not there; what it gives back is. */
static const char *breathe(world *w, uint64_t external) {
    NEED_OK(ductile_virtual_set_external_bytes(w->f.gpu, external));
    w->limit_bytes = CAPACITY - external;
    w->reserved_bytes = UINT64_MAX; /* held before the other process came */
    TRY(world_alloc(w, CAPACITY, 0));
    NEED(w->status == (external == 0 ? DUCTILE_OK : DUCTILE_ERR_OUT_OF_MEMORY),
         "alloc of the device: %s", ductile_status_name(w->status));
    TRY(world_free_all(w));
    TRY(world_must_alloc(w, w->limit_bytes, 1));
    TRY(world_verify_all(w));
    TRY(world_free_all(w));
    NEED_OK(ductile_empty_cache(w->f.allocator));
    NEED_OK(fixture_sync_all(&w->f) == NULL ? DUCTILE_OK : DUCTILE_ERR_DRIVER);
    NEED_OK(ductile_empty_cache(w->f.allocator));
    NEED(fixture_state(&w->f).used_bytes == 0, "memory is held with nothing alive");
    return NULL;
}

Test(fault_sweep, memory_of_another_process_is_respected_and_returns) {
    fixture_setup setup = {
        .capacity_bytes = CAPACITY, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    world w;
    assert_fine(world_open(&w, &setup, true));
    for (uint64_t i = 0; i < 4; i++) {
        assert_fine(breathe(&w, i % 2 != 0 ? i * 4 * FIXTURE_GRANULE : 0));
    }
    assert_ok(ductile_virtual_set_external_bytes(w.f.gpu, 0));
    assert_fine(world_close(&w));
}
