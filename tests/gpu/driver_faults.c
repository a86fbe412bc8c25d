/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a failing call of the real driver? A wrapper around it (support/faulty_driver.h)
 * fails the k-th call that the allocator makes in a short program over the public interface, for
 * every k: once or from then on, before the call has done anything or after, with each of three
 * codes. After each fault: no status but documented ones came; the allocator's check and the
 * identity of its statistics hold; every live block has its contents; a request succeeds again.
 * After destroy nothing is left on the device but what the failed calls were about, and once that
 * is given back the device has the free memory that it had.
 *
 *     driver_faults [--virtual | --device N] [--options TEXT] [--from K] [--to K] [--step N]
 * [--ways N]
 *
 * --options: of the allocator, as in DUCTILE_CONF. --from, --to, --step: which calls fail. --ways:
 * in how many of the twelve ways each; with fewer, calls beside each other fail in different ones.
 *
 * Prints one figure a line. Ends with 1 when anything is wrong, and says which call and way; 77
 * without a device; 3 when it hangs.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/faulty_driver.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/limits.h"
#include "tests/support/program_blocks.h"
#include "vmm/base/align.h"
#include "vmm/cuda/open.h"
#include "vmm/driver/open_virtual.h"

#include <ductile_pools.h>
#include <ductile_pressure.h>
#include <ductile_share.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_STREAMS = 3, MOST_BLOCKS = 64, N_WAYS = 12, LIMIT_GRANULES = 40 };

#define NOISE_BYTES (32 * DTI_MIB) /* what the driver may take for itself meanwhile */

typedef struct request {
    const char *options;
    uint64_t from, to, step, ways;
} request;

typedef struct block {
    pattern_block block;
    uint32_t stream;
    bool is_asleep;
} block;

typedef struct program {
    request request;
    program_device on; /* no call of its driver fails */
    uint64_t granule;
    ductile_allocator *allocator;
    block blocks[MOST_BLOCKS];
    size_t n_blocks;
    uint64_t next_id;
    uint64_t free_before; /* of the device, before the first fault */
    uint64_t least_free;
    uint64_t runs, left, quarantined_runs, refused_creates;
} program;

/* ---- The allocator's driver ----------------------------------------------------------------- */

static faulty_driver faulty;
static bool wraps_next;

ductile_status __real_dvmm_open_cuda(int ordinal, dvmm_driver **out, char *reason, size_t size);
ductile_status __wrap_dvmm_open_cuda(int ordinal, dvmm_driver **out, char *reason, size_t size);
ductile_status __real_dvmm_open_virtual(ductile_virtual_gpu *gpu, dvmm_driver **out, char *reason,
                                        size_t size);
ductile_status __wrap_dvmm_open_virtual(ductile_virtual_gpu *gpu, dvmm_driver **out, char *reason,
                                        size_t size);

static ductile_status wrap(ductile_status status, dvmm_driver **out) {
    if (status == DUCTILE_OK && wraps_next) {
        faulty_plan plan = faulty.plan;
        faulty_install(&faulty, *out);
        faulty_plan_fault(&faulty, &plan);
    }
    return status;
}

ductile_status __wrap_dvmm_open_cuda(int ordinal, dvmm_driver **out, char *reason, size_t size) {
    return wrap(__real_dvmm_open_cuda(ordinal, out, reason, size), out);
}

ductile_status __wrap_dvmm_open_virtual(ductile_virtual_gpu *gpu, dvmm_driver **out, char *reason,
                                        size_t size) {
    return wrap(__real_dvmm_open_virtual(gpu, out, reason, size), out);
}

/* ---- Calls that may fail -------------------------------------------------------------------- */

/* A status that a failing driver may cause; the caller goes on. */
static const char *clean(const char *call, ductile_status status) {
    NEED(status == DUCTILE_OK || faulty.n_failures > 0, "%s without a fault: %s", call,
         ductile_status_name(status));
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY ||
             status == DUCTILE_ERR_OUT_OF_HOST_MEMORY || status == DUCTILE_ERR_OUT_OF_ADDRESSES ||
             status == DUCTILE_ERR_DRIVER || status == DUCTILE_ERR_CAPTURING ||
             status == DUCTILE_ERR_BUSY || status == DUCTILE_ERR_UNSUPPORTED,
         "%s: %s", call, ductile_status_name(status));
    return NULL;
}

#define CLEAN(call) TRY(clean(#call, call))

/* ---- Blocks --------------------------------------------------------------------------------- */

static const char *admit(program *p, ductile_addr address, uint64_t size, uint32_t stream) {
    NEED(p->n_blocks < MOST_BLOCKS, "the program has too many blocks");
    block *b = &p->blocks[p->n_blocks++];
    *b = (block){.block = {address, size, p->next_id++}, .stream = stream};
    return pattern_write(&p->on.tester, &b->block, p->on.streams[stream]);
}

static const char *take_some(program *p, size_t n, uint64_t size, uint32_t stream) {
    for (size_t i = 0; i < n; i++) {
        ductile_addr address = 0;
        CLEAN(ductile_alloc(p->allocator, size, p->on.streams[stream], &address));
        if (address != 0) {
            TRY(admit(p, address, size, stream));
        }
    }
    return NULL;
}

static const char *take_dedicated(program *p, uint64_t size, uint32_t stream) {
    ductile_addr address = 0;
    CLEAN(ductile_alloc_dedicated(p->allocator, size, p->on.streams[stream], &address));
    return address != 0 ? admit(p, address, size, stream) : NULL;
}

static const char *give(program *p, size_t i) {
    block b = p->blocks[i];
    ductile_status status = ductile_free(p->allocator, b.block.address);
    TRY(clean("ductile_free", status));
    if (status == DUCTILE_OK) {
        p->blocks[i] = p->blocks[--p->n_blocks];
    }
    return NULL;
}

/* Every second block. */
static const char *give_alternate(program *p) {
    for (size_t i = p->n_blocks; i-- > 0;) {
        if (i % 2 == 0) {
            TRY(give(p, i));
        }
    }
    return NULL;
}

static const char *give_all(program *p) {
    for (size_t i = p->n_blocks; i-- > 0;) {
        TRY(give(p, i));
    }
    return NULL;
}

static const char *sync_all(const program *p) {
    for (size_t i = 0; i < N_STREAMS; i++) {
        NEED_OK(dvmm_stream_sync(p->on.driver, p->on.streams[i]));
    }
    return NULL;
}

/* Looks at the block on another stream, in order, and records that, or joins where it cannot. */
static const char *use_elsewhere(program *p, size_t i, uint32_t other) {
    const block *b = &p->blocks[i];
    NEED_OK(dvmm_stream_sync(p->on.driver, p->on.streams[b->stream]));
    TRY(pattern_check(&p->on.tester, &b->block, p->on.streams[other]));
    ductile_status status =
        ductile_record_stream(p->allocator, b->block.address, p->on.streams[other]);
    TRY(clean("ductile_record_stream", status));
    if (status != DUCTILE_OK) {
        NEED_OK(dvmm_stream_sync(p->on.driver, p->on.streams[other]));
    }
    return NULL;
}

static const char *check_all(program *p) {
    TRY(sync_all(p));
    for (size_t i = 0; i < p->n_blocks; i++) {
        if (!p->blocks[i].is_asleep) {
            ductile_stream stream = p->on.streams[p->blocks[i].stream];
            TRY(pattern_expect(&p->on.tester, &p->blocks[i].block, stream));
        }
    }
    return NULL;
}

/* ---- The scenario --------------------------------------------------------------------------- */

static const char *streams_and_recycling(program *p) {
    TRY(take_some(p, 4, 3 * p->granule - 4096, 0));
    TRY(take_some(p, 4, 70000, 0));
    TRY(take_some(p, 3, 2 * p->granule, 1));
    for (size_t i = 0; i < p->n_blocks; i += 3) {
        TRY(use_elsewhere(p, i, 1 - p->blocks[i].stream));
    }
    TRY(give_alternate(p));
    TRY(take_some(p, 1, 7 * p->granule, 0));
    TRY(take_some(p, 2, 5 * p->granule, 1));
    return give_alternate(p);
}

static const char *pins_and_dedicated(program *p) {
    TRY(take_dedicated(p, 3 * p->granule, 0));
    TRY(take_dedicated(p, 1000, 1));
    ductile_addr pinned = p->n_blocks > 0 ? p->blocks[0].block.address : 0;
    if (pinned != 0) {
        ductile_status status = ductile_pin(p->allocator, pinned);
        TRY(clean("ductile_pin", status));
        TRY(take_some(p, 2, 4 * p->granule, 0));
        if (status == DUCTILE_OK) {
            CLEAN(ductile_unpin(p->allocator, pinned));
        }
    }
    return give_alternate(p);
}

static const char *limits_and_trims(program *p) {
    CLEAN(ductile_trim(p->allocator, NULL, 12 * p->granule, NULL));
    CLEAN(set_soft_limit(p->allocator, 20 * p->granule));
    TRY(take_some(p, 3, 6 * p->granule, 2));
    CLEAN(set_soft_limit(p->allocator, 0));
    TRY(give_alternate(p));
    ductile_addr none = 0;
    ductile_status status =
        ductile_alloc(p->allocator, 2 * LIMIT_GRANULES * p->granule, p->on.streams[0], &none);
    NEED(status != DUCTILE_OK, "more than the limit was handed out");
    CLEAN(ductile_trim(p->allocator, NULL, 0, NULL));
    return NULL;
}

static const ductile_pool_id PLAIN = {0, 11};
static const ductile_pool_id GRAPH = {11, 0};

static const char *sleep_and_wake(program *p) {
    size_t first = p->n_blocks;
    CLEAN(ductile_pool_begin(p->allocator, PLAIN, NULL, NULL));
    TRY(take_some(p, 2, 2 * p->granule + 512, 0));
    TRY(take_some(p, 3, 5000, 1));
    CLEAN(ductile_pool_end(p->allocator, PLAIN));
    TRY(sync_all(p));
    ductile_status status = ductile_sleep(p->allocator, PLAIN, DUCTILE_CONTENTS_KEEP);
    TRY(clean("ductile_sleep", status));
    for (size_t i = first; i < p->n_blocks && status == DUCTILE_OK; i++) {
        p->blocks[i].is_asleep = true;
    }
    TRY(take_some(p, 1, 4 * p->granule, 0));
    return status == DUCTILE_OK ? clean("ductile_wake", ductile_wake(p->allocator, PLAIN)) : NULL;
}

/* Which blocks have their memory. */
static const char *note_asleep(program *p) {
    for (size_t i = 0; i < p->n_blocks; i++) {
        ductile_block_info info = {.struct_size = sizeof info};
        NEED_OK(ductile_query_block(p->allocator, p->blocks[i].block.address, &info));
        p->blocks[i].is_asleep = info.state == DUCTILE_BLOCK_ASLEEP;
    }
    return NULL;
}

/* The graph is not kept. A fault may break its capture. */
static const char *capture(program *p) {
    ductile_stream stream = p->on.streams[1];
    ductile_status status = ductile_pool_begin(p->allocator, GRAPH, NULL, NULL);
    TRY(clean("ductile_pool_begin", status));
    if (status != DUCTILE_OK) {
        return NULL;
    }
    NEED_OK(bench_capture_begin(p->on.driver, stream, DVMM_CAPTURE_GLOBAL));
    ductile_addr a = 0;
    ductile_addr b = 0;
    ductile_status first = ductile_alloc(p->allocator, 3 * p->granule, stream, &a);
    ductile_status freed = a != 0 ? ductile_free(p->allocator, a) : DUCTILE_OK;
    ductile_status second = ductile_alloc(p->allocator, 9000, stream, &b);
    TRY(clean("the end of a capture", bench_capture_end(p->on.driver, stream)));
    TRY(clean("ductile_alloc", first));
    TRY(clean("ductile_free", freed));
    TRY(clean("ductile_alloc", second));
    TRY(b != 0 ? clean("ductile_free", ductile_free(p->allocator, b)) : NULL);
    CLEAN(ductile_pool_end(p->allocator, GRAPH));
    CLEAN(ductile_pool_release(p->allocator, GRAPH));
    return NULL;
}

static int count_text(void *user, const char *text, size_t length) {
    (void)text;
    *(uint64_t *)user += length;
    return 0;
}

static const char *reports(program *p) {
    uint64_t length = 0;
    ductile_oom_report report = {.struct_size = sizeof report};
    NEED_OK(ductile_snapshot_json(p->allocator, count_text, &length));
    NEED_OK(ductile_get_oom_report(p->allocator, &report));
    NEED(length > 100, "a snapshot of %llu bytes", (unsigned long long)length);
    return NULL;
}

/* The last stream ends. */
static const char *end_of_a_stream(program *p) {
    for (size_t i = p->n_blocks; i-- > 0;) {
        if (p->blocks[i].stream == 2) {
            TRY(give(p, i));
        }
    }
    CLEAN(ductile_stream_done(p->allocator, p->on.streams[2]));
    TRY(take_some(p, 2, 3 * p->granule, 1));
    CLEAN(ductile_trim(p->allocator, NULL, 0, NULL));
    return NULL;
}

static const char *run_calls(program *p) {
    NEED_OK(ductile_pool_retain(p->allocator, PLAIN));
    NEED_OK(ductile_pool_set_kind(p->allocator, PLAIN, DUCTILE_POOL_PLAIN));
    TRY(streams_and_recycling(p));
    TRY(pins_and_dedicated(p));
    TRY(limits_and_trims(p));
    TRY(sleep_and_wake(p));
    TRY(capture(p));
    TRY(reports(p));
    return end_of_a_stream(p);
}

/* ---- After the fault ------------------------------------------------------------------------ */

static const char *statistics_agree(program *p) {
    TRY(program_is_sound(p->allocator));
    ductile_stats s = fixture_stats(p->allocator);
    NEED(s.reserved_bytes == s.allocated_bytes + s.free_bytes + s.pending_bytes + s.cached_bytes +
                                 s.quarantined_bytes,
         "the statistics do not add up");
    NEED(s.requested_bytes <= s.allocated_bytes, "more is requested than allocated");
    NEED(s.live_blocks + s.asleep_blocks == p->n_blocks, "%llu blocks are live, not %zu",
         (unsigned long long)(s.live_blocks + s.asleep_blocks), p->n_blocks);
    return NULL;
}

/* The driver works again: a pool that stayed asleep comes back, and all is as it was. */
static const char *recover(program *p) {
    ductile_pool_info info = {.struct_size = sizeof info};
    NEED_OK(ductile_list_pools(p->allocator, &PLAIN, &info, 1, NULL));
    if (info.asleep) {
        ductile_status status = ductile_wake(p->allocator, PLAIN);
        NEED(status == DUCTILE_OK || faulty.n_failures > 0, "wake: %s",
             ductile_status_name(status));
    }
    TRY(note_asleep(p));
    TRY(statistics_agree(p));
    return check_all(p);
}

/* Handles that were created though their creation "failed" are the device's loss,
 * not the limit's. */
static bool is_there_room(const program *p, const ductile_stats *s) {
    uint64_t free_bytes = 0;
    bool is_known = program_free_bytes(p->on.driver, &free_bytes) == NULL;
    return is_known && free_bytes >= 2 * p->granule &&
           s->reserved_bytes + 2 * p->granule <= LIMIT_GRANULES * p->granule;
}

static const char *serves_again(program *p) {
    ductile_addr address = 0;
    NEED_OK(ductile_trim(p->allocator, NULL, 0, NULL));
    ductile_stats s = fixture_stats(p->allocator);
    p->quarantined_runs += s.quarantined_bytes > 0;
    bool has_room = is_there_room(p, &s);
    ductile_status status = ductile_alloc(p->allocator, 2 * p->granule, p->on.streams[0], &address);
    NEED(status == DUCTILE_OK || !has_room, "a request after the fault: %s",
         ductile_status_name(status));
    return address != 0 ? admit(p, address, 2 * p->granule, 0) : NULL;
}

static const char *ends_empty(program *p) {
    TRY(give_all(p));
    TRY(sync_all(p));
    NEED_OK(ductile_pool_release(p->allocator, PLAIN));
    (void)!ductile_pool_release(p->allocator, PLAIN); /* of its first opening, if that succeeded */
    NEED_OK(ductile_trim(p->allocator, NULL, 0, NULL));
    return statistics_agree(p);
}

/* Each failed call may leave one resource of a kind, which the allocator cannot know of or must not
 * touch; and where a handle is left mapped, its range stays. */
static const char *what_is_left(program *p, uint64_t n_failures) {
    for (int kind = NO_RESOURCE + 1; kind < N_RESOURCE_KINDS; kind++) {
        size_t n = resources_count(&faulty.left, (resource_kind)kind);
        p->left += n;
        NEED(n <= n_failures, "%zu of the kind %s are left after %llu failed calls", n,
             resource_name((resource_kind)kind), (unsigned long long)n_failures);
    }
    NEED(!faulty.left.has_overflowed, "the list of what exists is too short");
    return faulty_clean_up(&faulty, p->on.driver);
}

static const char *device_has_its_memory(program *p) {
    uint64_t free_bytes = 0;
    TRY(program_free_bytes(p->on.driver, &free_bytes));
    p->least_free = dti_min(p->least_free, free_bytes);
    NEED(p->free_before == 0 ||
             free_bytes + (p->on.gpu != NULL ? 0 : NOISE_BYTES) >= p->free_before,
         "%llu bytes of the device did not come back",
         (unsigned long long)(p->free_before - free_bytes));
    return NULL;
}

/* ---- One run -------------------------------------------------------------------------------- */

/* With the limit, and the options of the command line. */
static ductile_status make_allocator(program *p) {
    wraps_next = true;
    ductile_status status =
        program_create(&p->on, LIMIT_GRANULES * p->granule, p->request.options, &p->allocator);
    wraps_next = false;
    return status;
}

static const char *run_with_allocator(program *p) {
    TRY(run_calls(p));
    uint64_t n_calls = faulty.n_calls;
    uint64_t n_failures = faulty.n_failures;
    faulty_plan still = faulty.plan;
    faulty.plan.nth = 0;
    faulty.plan.for_good = false;
    TRY(recover(p));
    TRY(serves_again(p));
    TRY(ends_empty(p));
    faulty.plan = still; /* and through the end */
    faulty.n_calls = n_calls;
    faulty.n_failures = n_failures;
    return NULL;
}

/* The fault is planned before the allocator is made, and lasts through its end. */
static const char *run_once(program *p, const faulty_plan *plan, uint64_t *n_calls) {
    p->n_blocks = 0;
    p->runs++;
    memset(&faulty, 0, sizeof faulty);
    faulty.plan = *plan;
    TRY(program_add_streams(&p->on, N_STREAMS));
    ductile_status made = make_allocator(p);
    TRY(clean("ductile_create", made));
    p->refused_creates += made != DUCTILE_OK;
    if (made == DUCTILE_OK) {
        TRY(run_with_allocator(p));
        TRY(clean("ductile_destroy", ductile_destroy(p->allocator)));
    }
    *n_calls = faulty.n_calls;
    TRY(what_is_left(p, faulty.n_failures));
    TRY(program_end_streams(&p->on));
    return device_has_its_memory(p);
}

/* ---- The sweep ------------------------------------------------------------------------------ */

static faulty_plan plan_of(uint64_t nth, uint64_t way) {
    static const int codes[] = {DVMM_INVALID_VALUE, DVMM_OUT_OF_MEMORY, DVMM_UNKNOWN};
    return (faulty_plan){.nth = nth,
                         .code = codes[way % 3],
                         .is_late = way / 3 % 2 != 0,
                         .for_good = way / 6 % 2 != 0};
}

static const char *fail_one(program *p, uint64_t nth, uint64_t way) {
    const faulty_plan plan = plan_of(nth, way);
    uint64_t n_calls = 0;
    const char *why = run_once(p, &plan, &n_calls);
    NEED(why == NULL, "call %llu (%s), code %d, %s, %s: %s", (unsigned long long)nth,
         faulty.n_failures > 0 ? dvmm_call_name(faulty.failing) : "not reached", plan.code,
         plan.is_late ? "late" : "early", plan.for_good ? "always" : "once", why);
    return NULL;
}

static const char *sweep(program *p) {
    const request *r = &p->request;
    const faulty_plan none = {.nth = 0};
    uint64_t n_calls = 0;
    TRY(run_once(p, &none, &n_calls)); /* the driver warms up */
    TRY(run_once(p, &none, &n_calls));
    NEED(p->left == 0, "something is left without a fault");
    TRY(program_free_bytes(p->on.driver, &p->free_before));
    command_figure("calls of the program", n_calls);
    uint64_t last = dti_min(r->to, n_calls);
    for (uint64_t nth = r->from; nth <= last; nth += r->step) {
        for (uint64_t way = 0; way < r->ways; way++) {
            TRY(fail_one(p, nth, r->ways == N_WAYS ? way : (nth / r->step * 5 + way) % N_WAYS));
        }
    }
    return NULL;
}

static void report(const program *p) {
    command_figure("runs", p->runs);
    command_figure("refused creates", p->refused_creates);
    command_figure("runs with quarantined memory", p->quarantined_runs);
    command_figure("resources left by failed calls", p->left);
    command_figure("free before", p->free_before);
    command_figure("least free after a run", p->least_free);
}

static const char *run(program *p) {
    ductile_virtual_options options =
        program_options(256 * DTI_MIB, DUCTILE_SCHEDULE_LAGGING, 5, 0);
    TRY(program_open(&p->on, &options, 0));
    p->granule = dvmm_get_caps(p->on.driver)->granule_bytes;
    p->least_free = UINT64_MAX;
    const char *why = sweep(p);
    report(p);
    TRY(why);
    return program_close(&p->on);
}

/* ---- The command line ----------------------------------------------------------------------- */

int main(int argc, char **argv) {
    static program p;
    request *r = &p.request;
    *r = (request){.options = "", .from = 1, .to = UINT64_MAX, .step = 1, .ways = N_WAYS};
    const command_option options[] = {
        PROGRAM_OPTIONS(&p.on),
        {"--options", .text = &r->options, .placeholder = "KEY:VALUE,..."},
        {"--from", .number = &r->from},
        {"--to", .number = &r->to},
        {"--step", .number = &r->step},
        {"--ways", .number = &r->ways},
    };
    command_read("driver_faults", options, sizeof options / sizeof *options, argc, argv);
    if (r->from == 0 || r->step == 0 || r->ways == 0 || r->ways > N_WAYS) {
        command_refuse("--from, --step and --ways count from 1, and there are 12 ways");
    }
    command_end_after(3600);
    return command_end(run(&p));
}
