/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/fsdp_run.h"

#include "bench/driver/bench_calls.h"
#include "bench/replay/testbed.h"
#include "bench/workloads/fsdp_work.h"
#include "vmm/base/status.h"

#include <stdio.h>
#include <stdlib.h>

/* A tag is a number, repeated. It stands at both ends of a block. */
enum { TAG_WORDS = 8, TAG_BYTES = 64, N_ENDS = 2 };

/* What the host's part of an operation costs a framework, for the virtual GPU. */
enum { HOST_CALL_NS = 1000, HOST_WORK_NS = 20000 };

typedef struct run {
    const fsdp_run_spec *spec;
    fsdp_result *result;
    testbed bed;
    fsdp_work *work;
    uint64_t random;
    ductile_addr *addresses;        /* by block; 0 while it is not live */
    uint64_t *tags;                 /* by block; 0: none was written    */
    dvmm_event *events;             /* by number */
    uint32_t n_events;              /* made so far */
    uint64_t (*sources)[TAG_WORDS]; /* page-locked: what gathers write, one after the other */
    uint32_t n_sources;
    ductile_addr journal; /* every tag that was read, TAG_BYTES each */
    uint64_t *expected;   /* of each of them */
    size_t n_readings;
    uint64_t live_bytes;
    uint64_t steady_since_ns;
    uint64_t gap_ns, n_gaps; /* before gathers */
} run;

static size_t max_readings(const fsdp_program *p) {
    return (size_t)p->n_works * 2 * N_ENDS;
}

static dvmm_driver *driver_of(const run *r) {
    return r->bed.driver;
}

/* ---- Tags ---------------------------------------------------------------------------------- */

static ductile_addr end_of(const run *r, uint32_t block, int end) {
    uint64_t bytes = r->spec->program->bytes[block];
    return r->addresses[block] + (end == 0 ? 0 : bytes - TAG_BYTES);
}

static bool has_room_for_tags(const run *r, uint32_t block) {
    return r->spec->program->bytes[block] >= (uint64_t)N_ENDS * TAG_BYTES;
}

static ductile_status write_tag(run *r, const fsdp_op *op) {
    ductile_status status = DUCTILE_OK;
    if (!has_room_for_tags(r, op->block)) {
        return DUCTILE_OK;
    }
    uint64_t *source = r->sources[r->n_sources++];
    uint64_t tag = 0xF5D0000000000000u + r->n_sources;
    for (int i = 0; i < TAG_WORDS; i++) {
        source[i] = tag;
    }
    for (int end = 0; status == DUCTILE_OK && end < N_ENDS; end++) {
        status = dvmm_upload(driver_of(r), end_of(r, op->block, end), source, TAG_BYTES,
                             r->bed.streams[op->stream]);
    }
    r->tags[op->block] = tag;
    return status;
}

static ductile_status read_tag(run *r, const fsdp_op *op) {
    ductile_status status = DUCTILE_OK;
    if (op->block == FSDP_NO_BLOCK || r->tags[op->block] == 0) {
        return DUCTILE_OK;
    }
    for (int end = 0; status == DUCTILE_OK && end < N_ENDS; end++) {
        ductile_addr to = r->journal + r->n_readings * TAG_BYTES;
        r->expected[r->n_readings++] = r->tags[op->block];
        status = bench_copy(driver_of(r), to, end_of(r, op->block, end), TAG_BYTES,
                            r->bed.streams[op->stream]);
    }
    return status;
}

static ductile_status pass_tag_on(run *r, const fsdp_op *op) {
    ductile_status status = DUCTILE_OK;
    if (op->to == FSDP_NO_BLOCK || r->tags[op->block] == 0 || !has_room_for_tags(r, op->to)) {
        return DUCTILE_OK;
    }
    for (int end = 0; status == DUCTILE_OK && end < N_ENDS; end++) {
        status = bench_copy(driver_of(r), end_of(r, op->to, end), end_of(r, op->block, end),
                            TAG_BYTES, r->bed.streams[op->stream]);
    }
    r->tags[op->to] = r->tags[op->block];
    return status;
}

static void count_wrong_tags(run *r, const uint64_t *words) {
    for (size_t i = 0; i < r->n_readings; i++) {
        bool is_right = true;
        for (size_t k = 0; k < TAG_WORDS; k++) {
            is_right = is_right && words[i * TAG_WORDS + k] == r->expected[i];
        }
        r->result->wrong_tags += !is_right;
    }
    r->result->n_tags = r->n_readings;
}

static ductile_status check_tags(run *r) {
    uint64_t *words = calloc(r->n_readings + 1, TAG_BYTES);
    ductile_status status = DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    if (words != NULL) {
        status = r->n_readings == 0
                     ? DUCTILE_OK
                     : bench_read_back(driver_of(r), words, r->journal, r->n_readings * TAG_BYTES,
                                       r->bed.streams[FSDP_COMPUTE]);
    }
    if (status == DUCTILE_OK) {
        count_wrong_tags(r, words);
    }
    free(words);
    return status;
}

/* ---- Operations ---------------------------------------------------------------------------- */

/* Within 10 %: no two kernels of real life take equally long. */
static uint64_t vary(run *r, uint64_t ns) {
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    uint64_t percent = 90 + (r->random >> 33) % 21;
    return ns / 100 * percent;
}

static ductile_status be_busy(run *r, const fsdp_op *op) {
    bool has_block = op->block != FSDP_NO_BLOCK;
    uint64_t ns = vary(r, r->spec->is_idle[op->stream] ? 0 : op->ns);
    return r->work->ops->busy(r->work, op->stream, ns, has_block ? r->addresses[op->block] : 0,
                              has_block ? r->spec->program->bytes[op->block] : 0);
}

static ductile_status gather(run *r, const fsdp_op *op) {
    DTI_TRY(write_tag(r, op));
    return be_busy(r, op);
}

static ductile_status do_work(run *r, const fsdp_op *op) {
    DTI_TRY(read_tag(r, op));
    DTI_TRY(pass_tag_on(r, op));
    DTI_TRY(be_busy(r, op));
    return read_tag(r, op);
}

static ductile_status alloc_block(run *r, const fsdp_op *op) {
    ductile_status status = r->bed.ops->alloc(r->bed.contender, op->bytes,
                                              r->bed.streams[op->stream], &r->addresses[op->block]);
    if (status != DUCTILE_OK) {
        r->addresses[op->block] = 0;
        return status;
    }
    r->live_bytes += op->bytes;
    if (r->bed.gpu != NULL) {
        ductile_virtual_block_begin(r->bed.gpu, r->addresses[op->block], op->bytes);
    }
    return DUCTILE_OK;
}

static ductile_status free_block(run *r, uint32_t block) {
    ductile_addr address = r->addresses[block];
    r->addresses[block] = 0;
    if (r->bed.gpu != NULL) {
        ductile_virtual_block_end(r->bed.gpu, address);
    }
    r->live_bytes -= r->spec->program->bytes[block];
    return r->bed.ops->free(r->bed.contender, address);
}

static ductile_status end_step(run *r) {
    ductile_status status = r->work->ops->sync(r->work);
    if (r->steady_since_ns == 0) {
        r->steady_since_ns = r->work->ops->now_ns(r->work);
    }
    return status;
}

static ductile_status perform(run *r, const fsdp_op *op) {
    const testbed *bed = &r->bed;
    switch ((fsdp_op_kind)op->kind) {
    case FSDP_ALLOC:
        return alloc_block(r, op);
    case FSDP_USE:
        return bed->ops->record_stream(bed->contender, r->addresses[op->block],
                                       bed->streams[op->stream]);
    case FSDP_FREE:
        return free_block(r, op->block);
    case FSDP_GATHER:
        return gather(r, op);
    case FSDP_WORK:
        return do_work(r, op);
    case FSDP_RECORD:
        return dvmm_event_record(bed->driver, r->events[op->event], bed->streams[op->stream]);
    case FSDP_WAIT:
        return dvmm_stream_wait_event(bed->driver, bed->streams[op->stream], r->events[op->event]);
    case FSDP_LIMIT:
        return dvmm_event_sync(bed->driver, r->events[op->event]);
    case FSDP_STEP:
        return end_step(r);
    }
    return DUCTILE_ERR_INVALID_ARGUMENT;
}

static void take_sample(run *r, size_t index) {
    contender_stats stats = {0};
    if (r->spec->sample != NULL) {
        r->bed.ops->stats(r->bed.contender, &stats);
        r->spec->sample(r->spec->user, index, r->live_bytes, &stats);
    }
}

static void note_gap(run *r, const fsdp_op *op, uint64_t ns) {
    bool is_for_gather = op->kind == FSDP_ALLOC && op->stream == FSDP_COMMUNICATION;
    if (is_for_gather && r->steady_since_ns > 0) {
        r->gap_ns += ns;
        r->n_gaps++;
        r->result->gap_most_ns = ns > r->result->gap_most_ns ? ns : r->result->gap_most_ns;
    }
}

static bool is_sampled(const fsdp_op *op) {
    return op->kind == FSDP_ALLOC || op->kind == FSDP_FREE;
}

static ductile_status perform_all(run *r) {
    const fsdp_program *p = r->spec->program;
    ductile_status status = DUCTILE_OK;
    for (size_t i = 0; status == DUCTILE_OK && i < p->n_ops; i++) {
        const fsdp_op *op = &p->ops[i];
        bool is_work = op->kind == FSDP_GATHER || op->kind == FSDP_WORK;
        uint64_t begin = r->work->ops->now_ns(r->work);
        status = perform(r, op);
        if (status == DUCTILE_OK) {
            status = r->work->ops->host(r->work, vary(r, is_work ? HOST_WORK_NS : HOST_CALL_NS));
        }
        note_gap(r, op, r->work->ops->now_ns(r->work) - begin);
        if (is_sampled(op)) {
            take_sample(r, i);
        }
    }
    return status;
}

/* ---- A run --------------------------------------------------------------------------------- */

static ductile_status make_events(run *r) {
    while (r->n_events < r->spec->program->n_events) {
        DTI_TRY(dvmm_event_create(driver_of(r), &r->events[r->n_events]));
        r->n_events++;
    }
    return DUCTILE_OK;
}

static ductile_status prepare(run *r) {
    const fsdp_program *p = r->spec->program;
    r->addresses = calloc(p->n_blocks, sizeof *r->addresses);
    r->tags = calloc(p->n_blocks, sizeof *r->tags);
    r->events = calloc((size_t)p->n_events + 1, sizeof(dvmm_event));
    r->expected = calloc(max_readings(p), sizeof *r->expected);
    if (r->addresses == NULL || r->tags == NULL || r->events == NULL || r->expected == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    void *sources = NULL;
    DTI_TRY(bench_host_alloc(driver_of(r), (uint64_t)p->n_works * TAG_BYTES, &sources));
    r->sources = sources;
    DTI_TRY(bench_mem_alloc(driver_of(r), max_readings(p) * TAG_BYTES, &r->journal));
    DTI_TRY(make_events(r));
    return r->bed.gpu != NULL ? fsdp_work_open_virtual(&r->bed, &r->work)
                              : fsdp_work_open_cuda(&r->bed, &r->work);
}

static void clean_up(run *r) {
    if (r->work != NULL) {
        r->work->ops->close(r->work);
    }
    for (uint32_t i = 0; r->addresses != NULL && i < r->spec->program->n_blocks; i++) {
        if (r->addresses[i] != 0) {
            (void)free_block(r, i);
        }
    }
    while (r->n_events > 0) {
        (void)dvmm_event_destroy(driver_of(r), r->events[--r->n_events]);
    }
    if (r->journal != 0) {
        (void)bench_mem_free(driver_of(r), r->journal);
    }
    if (r->sources != NULL) {
        (void)bench_host_free(driver_of(r), r->sources);
    }
    free(r->addresses);
    free(r->tags);
    free(r->events);
    free(r->expected);
}

static ductile_status measure(run *r) {
    uint64_t start = r->work->ops->now_ns(r->work);
    ductile_status status = perform_all(r);
    ductile_status synced = r->work->ops->sync(r->work);
    uint64_t end = r->work->ops->now_ns(r->work);
    r->result->elapsed_ns = end - start;
    r->result->gap_mean_ns = r->n_gaps > 0 ? r->gap_ns / r->n_gaps : 0;
    r->result->steady_ns = r->steady_since_ns > 0 ? end - r->steady_since_ns : 0;
    r->bed.ops->stats(r->bed.contender, &r->result->stats);
    status = status == DUCTILE_OK ? synced : status;
    return status == DUCTILE_OK ? check_tags(r) : status;
}

static void note_outcome(fsdp_result *result, ductile_status status) {
    result->outcome = run_outcome_of(status);
    if (result->outcome == RUN_FAILED) {
        (void)snprintf(result->message, sizeof result->message, "%s",
                       ductile_status_string(status));
    }
}

static void run_on_testbed(run *r) {
    ductile_status status = prepare(r);
    if (status == DUCTILE_OK) {
        status = measure(r);
    }
    note_outcome(r->result, status);
    clean_up(r);
    testbed_end_contender(&r->bed);
}

void fsdp_run(const fsdp_run_spec *spec, fsdp_result *result) {
    run r = {.spec = spec, .result = result, .random = spec->seed * 0x9E3779B97F4A7C15u + 1};
    testbed_plan plan = spec->plan;
    plan.detects = true;
    plan.n_streams = FSDP_N_STREAMS;
    *result = (fsdp_result){0};
    ductile_status status = testbed_open(&r.bed, &plan, result->message, sizeof result->message);
    if (status != DUCTILE_OK) {
        result->outcome = run_outcome_unopened(status);
        return;
    }
    run_on_testbed(&r);
    result->violations =
        testbed_violations(&r.bed, result->last_violation, sizeof result->last_violation);
    testbed_close(&r.bed);
}
