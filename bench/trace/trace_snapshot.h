/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch snapshots: what torch.cuda.memory._dump_snapshot wrote. */
#ifndef DUCTILE_BENCH_TRACE_TRACE_SNAPSHOT_H
#define DUCTILE_BENCH_TRACE_TRACE_SNAPSHOT_H

#include "bench/trace/input.h"
#include "bench/trace/trace_build.h"

/* Takes the whole content of a file. gpu as in trace_load. */
bool trace_read_snapshot(input *in, int gpu, trace_builder *b, trace_error *error);

#endif
