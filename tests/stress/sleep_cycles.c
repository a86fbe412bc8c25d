/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cycles of sleep without residue. Three tags hold blocks: weights are kept, a cache is dropped, a
 * captured graph is zeroed; the default pool is kept. In each cycle all of them grow and shrink,
 * streams come and end, another thread allocates, calls of the driver fail while the set falls
 * asleep or wakes, blocks are freed while they sleep, requests meanwhile are served by a bypass,
 * tags wake one by one, contents are looked at, and the graph is launched again. What the cycle
 * added goes at its end. From the third round of cycles on, a round leaves exactly what the one
 * before left: physical memory, handles, mappings, addresses and streams of the device, ranges and
 * arenas of the allocator; its host memory, its events and the arena for contents stay within what
 * one cycle can need. Asleep, nothing is left on the device.
 *
 *     sleep_cycles [--cycles N] [--seed N]
 */
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/rng.h"
#include "vmm/driver/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    N_TAGS = 3,
    N_KEPT = 6,
    N_EXTRA = 24,
    CYCLES_PER_ROUND = 50,
    N_STREAMS = 3,
    MOST_EVENTS = 24
};

static const ductile_pool_id BYPASS = {50, 0};
static const ductile_pool_id POOLS[N_TAGS] = {{1, 0}, {2, 0}, {3, 0}};
static const char *const TAGS[N_TAGS] = {"weights", "kv_cache", "graph"};
static const ductile_contents POLICIES[N_TAGS] = {DUCTILE_CONTENTS_KEEP, DUCTILE_CONTENTS_DROP,
                                                  DUCTILE_CONTENTS_ZERO};

typedef struct block {
    ductile_addr address;
    uint64_t size;
    uint8_t value;
    int tag; /* -1: the default pool */
} block;

typedef struct program {
    fixture f;
    ductile_allocator *a;
    rng r;
    block kept[N_KEPT]; /* as long as the program: the default pool and the weights */
    block extra[N_EXTRA];
    size_t n_extra;
    ductile_addr graph_block;
    ductile_virtual_graph *graph;
    uint64_t n_faults, n_failed, n_bypassed;
} program;

static program p;

/* ---- Blocks -------------------------------------------------------------------------------- */

static const char *enter(int tag) {
    NEED(tag < 0 || ductile_pool_begin(p.a, POOLS[tag], NULL, NULL) == DUCTILE_OK, "no pool");
    return NULL;
}

static const char *leave(int tag) {
    if (tag >= 0) {
        NEED_OK(ductile_pool_end(p.a, POOLS[tag]));
        NEED_OK(ductile_pool_release(p.a, POOLS[tag]));
    }
    return NULL;
}

static const char *make(block *b, int tag, uint64_t size, ductile_stream stream) {
    *b = (block){.size = size, .value = (uint8_t)rng_below(&p.r, 256), .tag = tag};
    TRY(enter(tag));
    NEED_OK(ductile_alloc(p.a, size, stream, &b->address));
    TRY(leave(tag));
    NEED_OK(ductile_virtual_fill(p.f.gpu, b->address, b->value, size, stream));
    return NULL;
}

/* Its first and last bytes. What was dropped holds anything. */
static const char *look(const block *b) {
    uint8_t ends[2] = {0};
    if (b->tag > 0) {
        return NULL;
    }
    NEED_OK(ductile_virtual_read_back(p.f.gpu, &ends[0], b->address, 1, p.f.streams[0]));
    NEED_OK(
        ductile_virtual_read_back(p.f.gpu, &ends[1], b->address + b->size - 1, 1, p.f.streams[0]));
    NEED(ends[0] == b->value && ends[1] == b->value, "%llx holds %02x and %02x, not %02x",
         b->address, ends[0], ends[1], b->value);
    return NULL;
}

static const char *drop_extra(size_t i) {
    NEED_OK(ductile_free(p.a, p.extra[i].address));
    p.extra[i] = p.extra[--p.n_extra];
    return NULL;
}

/* ---- What happens in a cycle --------------------------------------------------------------- */

static const char *grow(void) {
    uint64_t n = 4 + rng_below(&p.r, N_EXTRA - 4);
    while (p.n_extra < n) {
        int tag = (int)rng_below(&p.r, 3) - 1;
        uint64_t size = 1 + rng_below(&p.r, 3 * FIXTURE_GRANULE);
        ductile_stream stream = p.f.streams[rng_below(&p.r, N_STREAMS)];
        TRY(make(&p.extra[p.n_extra], tag, size, stream));
        p.n_extra++;
    }
    for (uint64_t i = rng_below(&p.r, n / 2); i > 0; i--) {
        TRY(drop_extra(rng_below(&p.r, p.n_extra)));
    }
    return NULL;
}

/* A stream that lives for one cycle, with a block that outlives it. */
static const char *end_a_stream(void) {
    ductile_stream stream = NULL;
    NEED_OK(ductile_virtual_stream_create(p.f.gpu, &stream));
    if (p.n_extra < N_EXTRA) {
        TRY(make(&p.extra[p.n_extra], -1, 100000, stream));
        p.n_extra++;
    }
    NEED_OK(ductile_stream_done(p.a, stream));
    NEED_OK(ductile_virtual_stream_destroy(p.f.gpu, stream));
    return NULL;
}

/* Another thread's requests come at any time: they are served, or refused because all sleeps, or
 * get the fault that was meant for the pause. */
static void *allocate_beside(void *result) {
    const char **why = result;
    for (int i = 0; i < 50 && *why == NULL; i++) {
        ductile_addr address = 0;
        ductile_status status = ductile_alloc(p.a, 4096, p.f.streams[2], &address);
        bool is_fine = status == DUCTILE_OK || status == DUCTILE_ERR_ASLEEP ||
                       status == DUCTILE_ERR_OUT_OF_MEMORY || status == DUCTILE_ERR_DRIVER;
        *why = is_fine ? NULL : ductile_status_name(status);
        if (status == DUCTILE_OK && ductile_free(p.a, address) != DUCTILE_OK) {
            *why = "a free beside the pause failed";
        }
    }
    return NULL;
}

static const char *const faulty_calls[] = {
    "phys_create", "map",           "set_access",    "unmap",        "download",
    "upload",      "stream_sync",   "stream_create", "event_create", "event_record",
    "event_sync",  "host_register", "context_sync",  "fill"};

static const char *plan_fault(void) {
    size_t n = sizeof faulty_calls / sizeof faulty_calls[0];
    const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                         .call = faulty_calls[rng_below(&p.r, n)],
                                         .nth = 1 + rng_below(&p.r, 4),
                                         .code = rng_below(&p.r, 2) != 0 ? DVMM_OUT_OF_MEMORY
                                                                         : DVMM_UNKNOWN};
    NEED_OK(ductile_virtual_inject(p.f.gpu, &fault));
    return NULL;
}

static const char *end_fault(ductile_status status) {
    p.n_faults += ductile_virtual_faults_fired(p.f.gpu);
    p.n_failed += status != DUCTILE_OK;
    NEED_OK(ductile_virtual_inject(p.f.gpu, NULL));
    return NULL;
}

typedef ductile_status (*set_fn)(ductile_allocator *a, const ductile_sleep_request *request,
                                 ductile_sleep_report *report);

/* A call that a fault may fail, and that succeeds without one. */
static const char *call_with_faults(set_fn call, const ductile_sleep_request *r,
                                    ductile_sleep_report *report) {
    *report = (ductile_sleep_report){.struct_size = sizeof *report};
    if (rng_below(&p.r, 3) == 0) {
        TRY(plan_fault());
        ductile_status status = call(p.a, r, report);
        TRY(end_fault(status));
        if (status == DUCTILE_OK) {
            return NULL;
        }
    }
    ductile_status status = call(p.a, r, report);
    NEED(status == DUCTILE_OK, "%s: %s", ductile_status_name(status), report->message);
    return NULL;
}

static const char *fall_asleep(void) {
    const ductile_sleep_request all = {.struct_size = sizeof all, .all = 1, .bypass = BYPASS};
    ductile_sleep_report report;
    const char *why = NULL;
    pthread_t beside;
    NEED(pthread_create(&beside, NULL, allocate_beside, (void *)&why) == 0, "no thread");
    ductile_virtual_graph_rest(p.graph, 1);
    const char *failed = call_with_faults(ductile_pause_set, &all, &report);
    (void)pthread_join(beside, NULL);
    TRY(failed);
    return why;
}

/* Nothing but what the bypass holds, unless a fault kept the driver from unmapping. */
static const char *is_empty_asleep(uint64_t faults_before) {
    NEED_OK(ductile_pool_trim(p.a, BYPASS, NULL));
    NEED_OK(ductile_trim(p.a, 0, NULL));
    uint64_t used = fixture_state(&p.f).used_bytes;
    NEED(used == 0 || p.n_faults > faults_before, "asleep, %llu bytes are left",
         (unsigned long long)used);
    return NULL;
}

static const char *use_the_bypass(void) {
    ductile_addr address = 0;
    NEED_OK(ductile_alloc(p.a, 1 + rng_below(&p.r, 4 * MIB), p.f.streams[0], &address));
    p.n_bypassed++;
    NEED_OK(ductile_virtual_fill(p.f.gpu, address, 1, 1, p.f.streams[0]));
    NEED_OK(ductile_free(p.a, address));
    return fixture_sync_all(&p.f);
}

/* Tag by tag, in any order, then the rest. */
static const char *wake(void) {
    const ductile_sleep_tag tag = {TAGS[rng_below(&p.r, 2)], DUCTILE_CONTENTS_POLICY};
    const ductile_sleep_request one = {.struct_size = sizeof one, .tags = &tag, .n_tags = 1};
    const ductile_sleep_request all = {.struct_size = sizeof all, .all = 1};
    ductile_sleep_report report;
    TRY(call_with_faults(ductile_resume_set, &one, &report));
    TRY(call_with_faults(ductile_resume_set, &all, &report));
    ductile_virtual_graph_rest(p.graph, 0);
    return NULL;
}

static const char *look_at_all(void) {
    for (size_t i = 0; i < N_KEPT; i++) {
        TRY(look(&p.kept[i]));
    }
    for (size_t i = 0; i < p.n_extra; i++) {
        TRY(look(&p.extra[i]));
    }
    uint8_t byte = 1;
    NEED_OK(ductile_virtual_read_back(p.f.gpu, &byte, p.graph_block, 1, p.f.streams[0]));
    NEED(byte == 0, "the graph's memory woke with %02x, not with zeros", byte);
    NEED_OK(ductile_virtual_graph_launch(p.graph, p.f.streams[0]));
    NEED_OK(ductile_virtual_read_back(p.f.gpu, &byte, p.graph_block, 1, p.f.streams[0]));
    NEED(byte == 0x42, "the graph wrote %02x", byte);
    return NULL;
}

static const char *cycle(void) {
    uint64_t faults_before = p.n_faults;
    TRY(grow());
    if (rng_below(&p.r, 4) == 0) {
        TRY(end_a_stream());
    }
    TRY(fall_asleep());
    TRY(use_the_bypass());
    TRY(is_empty_asleep(faults_before));
    if (p.n_extra > 1) {
        TRY(drop_extra(rng_below(&p.r, p.n_extra)));
    }
    TRY(wake());
    TRY(look_at_all());
    while (p.n_extra > 0) {
        TRY(drop_extra(p.n_extra - 1));
    }
    return fixture_sync_all(&p.f);
}

/* ---- What is left -------------------------------------------------------------------------- */

typedef struct residue {
    uint64_t used, handles, mappings, reservations, addresses, streams, events; /* of the device */
    uint64_t reserved, host, segments, arenas, live, arena_bytes; /* of the allocator */
} residue;

static const char *read_residue(residue *out) {
    char report[256] = "";
    TRY(fixture_finish_work(&p.f));
    NEED_OK(ductile_trim(p.a, 0, NULL));
    NEED(ductile_check(p.a, report, sizeof report) == DUCTILE_OK, "%s", report);
    ductile_virtual_state d = fixture_state(&p.f);
    ductile_stats s = fixture_stats(p.a);
    *out = (residue){.used = d.used_bytes,
                     .handles = d.handles,
                     .mappings = d.mappings,
                     .reservations = d.reservations,
                     .addresses = d.reserved_address_bytes,
                     .streams = d.streams,
                     .reserved = s.reserved_bytes,
                     .segments = s.segments,
                     .arenas = s.arenas,
                     .live = s.live_blocks};
    out->events = d.events;
    out->host = s.host_bytes;
    NEED_OK(ductile_sleep_reserve(p.a, 0, &out->arena_bytes));
    NEED(d.violations == 0, "the device saw %llu mistakes", (unsigned long long)d.violations);
    return NULL;
}

#define NO_MORE(field, now, most)                                                                  \
    NEED((now)->field <= (most), #field ": %llu, which may be %llu at most",                       \
         (unsigned long long)(now)->field, (unsigned long long)(most))

/* The most that contents can take, twice: a span may lie above one that is still taken. */
static const uint64_t most_arena_bytes = 2 * (N_KEPT * 4 + (uint64_t)N_EXTRA * 6) * MIB;

/* Memory and what the device knows are the same to the byte. Host memory and events are kept for
 * reuse, as many as one cycle ever needed at once, which is a matter of chance. */
static const char *compare(const residue *now, const residue *early) {
    residue same = *now;
    same.host = early->host;
    same.events = early->events;
    same.arena_bytes = early->arena_bytes;
    NEED(memcmp(&same, early, sizeof same) == 0,
         "used %llu handles %llu mappings %llu reservations %llu addresses %llu streams %llu "
         "reserved %llu segments %llu arenas %llu live %llu: not as before",
         (unsigned long long)now->used, (unsigned long long)now->handles,
         (unsigned long long)now->mappings, (unsigned long long)now->reservations,
         (unsigned long long)now->addresses, (unsigned long long)now->streams,
         (unsigned long long)now->reserved, (unsigned long long)now->segments,
         (unsigned long long)now->arenas, (unsigned long long)now->live);
    NO_MORE(host, now, early->host + early->host / 4);
    NO_MORE(events, now, (uint64_t)MOST_EVENTS);
    NO_MORE(arena_bytes, now, most_arena_bytes);
    return NULL;
}

/* ---- The whole ----------------------------------------------------------------------------- */

static const char *capture_graph(void) {
    ductile_stream stream = p.f.streams[1];
    TRY(enter(2));
    NEED_OK(ductile_virtual_capture_begin(p.f.gpu, stream, DUCTILE_CAPTURE_GLOBAL));
    NEED_OK(ductile_alloc(p.a, 5 * MIB, stream, &p.graph_block));
    NEED_OK(ductile_virtual_fill(p.f.gpu, p.graph_block, 0x42, 5 * MIB, stream));
    NEED_OK(ductile_virtual_capture_end(p.f.gpu, stream, &p.graph));
    NEED_OK(ductile_pool_end(p.a, POOLS[2])); /* the reference stays: graphs own the memory */
    return NULL;
}

static const char *open_all(uint64_t seed) {
    const fixture_setup setup = {.capacity_bytes = 256 * MIB,
                                 .n_streams = N_STREAMS,
                                 .schedule = DUCTILE_SCHEDULE_RANDOM,
                                 .seed = seed};
    TRY(fixture_open(&p.f, &setup));
    p.a = p.f.allocator;
    p.r = rng_seeded(seed);
    for (int t = 0; t < N_TAGS; t++) {
        NEED_OK(ductile_pool_retain(p.a, POOLS[t]));
        NEED_OK(ductile_pool_set_tag(p.a, POOLS[t], TAGS[t], POLICIES[t]));
        NEED_OK(t == 2 ? DUCTILE_OK : ductile_pool_set_kind(p.a, POOLS[t], DUCTILE_POOL_PLAIN));
    }
    for (size_t i = 0; i < N_KEPT; i++) {
        TRY(make(&p.kept[i], i % 2 == 0 ? 0 : -1, 1 + i * 777777, p.f.streams[0]));
    }
    return capture_graph();
}

static const char *close_all(void) {
    ductile_virtual_graph_destroy(p.graph);
    NEED_OK(ductile_free(p.a, p.graph_block));
    NEED_OK(ductile_pool_release(p.a, POOLS[2])); /* the capture's */
    for (size_t i = 0; i < N_KEPT; i++) {
        NEED_OK(ductile_free(p.a, p.kept[i].address));
    }
    for (int t = 0; t < N_TAGS; t++) {
        NEED_OK(ductile_pool_release(p.a, POOLS[t]));
    }
    return fixture_close(&p.f);
}

/* Driver calls stand for time, which on the virtual GPU is not that of a device. */
static const char *run_rounds(uint64_t cycles) {
    residue early = {0};
    uint64_t calls_early = 0;
    for (uint64_t round = 0; round * CYCLES_PER_ROUND < cycles; round++) {
        residue now = {0};
        uint64_t calls = fixture_state(&p.f).calls;
        for (int i = 0; i < CYCLES_PER_ROUND; i++) {
            TRY(cycle());
        }
        calls = fixture_state(&p.f).calls - calls;
        TRY(read_residue(&now));
        if (round >= 3) {
            TRY(compare(&now, &early));
            NEED(calls < 2 * calls_early, "%llu driver calls in a round, and once %llu",
                 (unsigned long long)calls, (unsigned long long)calls_early);
        } else {
            early = now;
            calls_early = calls;
        }
    }
    return NULL;
}

static const char *run(uint64_t cycles, uint64_t seed) {
    TRY(open_all(seed));
    TRY(run_rounds(cycles));
    command_figure("cycles", cycles);
    command_figure("faults that fired", p.n_faults);
    command_figure("calls that failed", p.n_failed);
    command_figure("requests served by the bypass", p.n_bypassed);
    NEED(p.n_faults > 20 && p.n_failed > 10 && p.n_failed < p.n_faults,
         "hardly any fault came: nothing was tested");
    return close_all();
}

int main(int argc, char **argv) {
    uint64_t cycles = 200;
    uint64_t seed = 1;
    const command_option options[] = {{"--cycles", .number = &cycles}, {"--seed", .number = &seed}};
    command_read("sleep_cycles", options, 2, argc, argv);
    return command_end(run(cycles, seed));
}
