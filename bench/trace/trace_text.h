/* SPDX-License-Identifier: Apache-2.0 */
/* The text format of bench/traces/README.md, versions 1 to 4. */
#ifndef DUCTILE_BENCH_TRACE_TRACE_TEXT_H
#define DUCTILE_BENCH_TRACE_TRACE_TEXT_H

#include "bench/trace/input.h"
#include "bench/trace/trace_build.h"

/* Takes the whole content of a file. */
bool trace_read_text(input *in, trace_builder *b, trace_error *error);

#endif
