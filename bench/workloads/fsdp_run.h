/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the program of fsdp_model.h under one contender, from a fresh device, with work on real
 * streams. Every block that one stream writes and the other reads carries a tag, which is read
 * when the work on it starts and again when it ends: a wrong tag shows that the memory was handed
 * out too early. The virtual GPU also detects reuse without an order between streams, whatever the
 * timing.
 */
#ifndef DUCTILE_BENCH_WORKLOADS_FSDP_RUN_H
#define DUCTILE_BENCH_WORKLOADS_FSDP_RUN_H

#include "bench/replay/replay_engine.h"
#include "bench/workloads/fsdp_model.h"

typedef struct fsdp_run_spec {
    const fsdp_program *program;
    testbed_plan plan;            /* of device, contender, settings and capacity */
    uint64_t seed;                /* of the work's durations, each changed by up to 10 % */
    bool is_idle[FSDP_N_STREAMS]; /* its work takes no time, to measure the other alone */
    void (*sample)(void *user, uint64_t event, uint64_t live_bytes, const contender_stats *stats);
    void *user; /* of sample, which may be NULL */
} fsdp_run_spec;

typedef struct fsdp_result {
    run_outcome outcome;
    char message[256]; /* of ABSENT and FAILED */
    contender_stats stats;
    uint64_t elapsed_ns;
    uint64_t steady_ns; /* of elapsed_ns: after the first step, in which allocators grow */
    uint64_t gap_mean_ns, gap_most_ns; /* what allocating the parameters keeps the host from each
                                          gather, after the first step */
    uint64_t n_tags;                   /* read */
    uint64_t wrong_tags;               /* of n_tags: not what was written */
    uint64_t violations;               /* virtual GPU: mistakes that hardware lets pass */
    char last_violation[240];
} fsdp_result;

void fsdp_run(const fsdp_run_spec *spec, fsdp_result *result);

#endif
