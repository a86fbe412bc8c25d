/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocations of a transformer's training loop, as a PyTorch-like framework makes them, with a
 * batch and a sequence length drawn again for every step.
 *
 *   vary_options.c  what it can be told, and the bounds
 *   vary_model.c    weights, gradients, optimizer, the schedule of steps
 *   vary_layers.c   forward and backward of one layer and of the loss
 *   event_sink.c     where the events go
 */
#ifndef DUCTILE_BENCH_WORKLOADS_VARY_MODEL_H
#define DUCTILE_BENCH_WORKLOADS_VARY_MODEL_H

#include "bench/trace/trace_build.h"
#include "bench/workloads/vary_options.h"

/* The loop's events. Returns NULL, or a reason: then *out is empty. Release with trace_build_drop.
 * Pre: vary_check has nothing against the options. */
const char *vary_generate(const vary_options *options, trace_builder *out);

#endif
