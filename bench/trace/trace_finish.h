/* SPDX-License-Identifier: Apache-2.0 */
/* From what a builder has gathered to the array that a replay walks. */
#ifndef DUCTILE_BENCH_TRACE_TRACE_FINISH_H
#define DUCTILE_BENCH_TRACE_TRACE_FINISH_H

#include "bench/trace/trace_build.h"

/* Fills all of *out that comes from events. The builder is empty afterwards, on failure too.
 * Returns NULL, or a reason. */
const char *trace_finish(trace_builder *b, trace *out);

/* A trace that is called as the last part of its path, without known endings. The builder is empty
 * afterwards. NULL on failure: *reason then says why. Release with trace_free. */
trace *trace_make(trace_builder *b, const char *path, const char **reason);

#endif
