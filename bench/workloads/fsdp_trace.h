/* SPDX-License-Identifier: Apache-2.0 */
/* The allocations of the sharded training step as a trace. */
#ifndef DUCTILE_BENCH_WORKLOADS_FSDP_TRACE_H
#define DUCTILE_BENCH_WORKLOADS_FSDP_TRACE_H

#include "bench/trace/trace_build.h"
#include "bench/workloads/fsdp_model.h"

/* Returns NULL, or a reason: then *out is empty. Release with trace_build_drop. */
const char *fsdp_generate(const fsdp_program *program, trace_builder *out);

#endif
