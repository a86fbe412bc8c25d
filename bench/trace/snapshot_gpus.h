/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of a PyTorch snapshot: what each recorded and held, and which of them to read. */
#ifndef DUCTILE_BENCH_TRACE_SNAPSHOT_GPUS_H
#define DUCTILE_BENCH_TRACE_SNAPSHOT_GPUS_H

#include "bench/trace/history.h"
#include "bench/trace/recorded.h"
#include "bench/trace/trace.h"

typedef struct snapshot_gpus_wish {
    int gpu;         /* as in trace_load */
    bool takes_held; /* one without history will do, if anything was held on it */
} snapshot_gpus_wish;

/* Looks at all GPUs, notes them in *to, and chooses: the one wished for; else one that refused
 * memory, else the one that held or had most. Lists may be the same list many times over: the file
 * has file_size bytes, and no more entries. False: *error says why. */
bool snapshot_gpus_choose(const history *h, const pickle_value *root, snapshot_gpus_wish wish,
                          uint64_t file_size, recorded_memory *to, uint64_t *gpu,
                          trace_error *error);

#endif
