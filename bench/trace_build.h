/* SPDX-License-Identifier: Apache-2.0 */
/* How a reader makes a trace: one call per event, in order, then trace_build_finish. */
#ifndef DUCTILE_BENCH_TRACE_BUILD_H
#define DUCTILE_BENCH_TRACE_BUILD_H

#include "bench/trace.h"

typedef enum build_state {
    BUILD_LIVE,
    BUILD_FREED,
    BUILD_PENDING,   /* freed, and another stream uses it for longer than the trace */
    BUILD_COMPLETED, /* freed, and its other use ended later           */
    BUILD_OPENED     /* while finishing: COMPLETED, and that has been seen */
} build_state;

/* One allocation of the trace. */
typedef struct build_block {
    uint64_t size;
    uint32_t slot;      /* while finishing                                   */
    uint32_t next_gate; /* while finishing: the block of the stream's next gate */
    uint16_t stream;    /* in order of appearance                            */
    uint16_t state;     /* a build_state                                     */
} build_block;

/* All zero is an empty builder. Owned by one reader, dropped by it in every case. */
typedef struct trace_builder {
    trace_event *events; /* slot holds the block's number until finished */
    size_t n_events, events_capacity;
    build_block *blocks;
    size_t n_blocks, blocks_capacity;
    trace_stream streams[TRACE_MAX_STREAMS]; /* in order of appearance */
    size_t n_streams;
    uint64_t n_steps;
} trace_builder;

/* Each returns NULL, or a reason. *block is a number to call the others with. */
const char *trace_build_alloc(trace_builder *b, uint64_t size, uint64_t stream, uint32_t *block);
const char *trace_build_free(trace_builder *b, uint32_t block);
/* Freed while another stream still uses it; until trace_build_complete, if that ever comes. */
const char *trace_build_free_in_use(trace_builder *b, uint32_t block);
const char *trace_build_complete(trace_builder *b, uint32_t block);

/* Fills all of *out that comes from events. The builder is empty afterwards, on failure too. */
const char *trace_build_finish(trace_builder *b, trace *out);
void trace_build_drop(trace_builder *b);

/* The two readers. They take the whole content of a file. */
bool trace_read_text(const char *text, size_t size, trace_builder *b, trace_error *error);
bool trace_read_snapshot(const void *data, size_t size, int gpu, trace_builder *b, int *gpu_read,
                         trace_error *error);

__attribute__((format(printf, 3, 4))) bool trace_refuse(trace_error *error, uint64_t line,
                                                        const char *format, ...);

#endif
