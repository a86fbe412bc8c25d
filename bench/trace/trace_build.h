/* SPDX-License-Identifier: Apache-2.0 */
/* How a reader makes a trace: one call per event, in order, then trace_finish
 * of trace_finish.h. */
#ifndef DUCTILE_BENCH_TRACE_TRACE_BUILD_H
#define DUCTILE_BENCH_TRACE_TRACE_BUILD_H

#include "bench/base/spill.h"
#include "bench/trace/trace.h"
#include "bench/trace/trace_stacks.h"

typedef enum build_state {
    BUILD_LIVE,
    BUILD_FREED,
    BUILD_PENDING,  /* freed, and another stream uses it for longer than the trace */
    BUILD_COMPLETED /* freed, and its other use ended later                        */
} build_state;

/* One allocation of the trace. */
typedef struct build_block {
    uint64_t size;
    uint32_t slot;     /* while finishing                                        */
    uint32_t uses;     /* number of its latest use, from 1; 0: no use */
    size_t first_gate; /* while finishing: of its gates, which follow each other */
    uint16_t pool;
    uint8_t n_gates; /* fewer than there are streams: none for its own */
    uint8_t stream;  /* in order of appearance                         */
    uint8_t state;   /* a build_state                                  */
    bool is_refused; /* it was asked for and refused: freed at once */
} build_block;

/* Another stream than a block's own that uses it. */
typedef struct build_use {
    uint32_t next; /* of the same block, as build_block.uses */
    uint8_t stream;
} build_use;

/* All zero is an empty builder. Owned by one reader, dropped by it in every case. */
typedef struct trace_builder {
    /* Set before the first event: */
    bool spills;         /* long arrays may lie in files (spill.h) */
    bool takes_held;     /* of a snapshot without history: what was held when it was written */
    trace_event *events; /* slot holds the block's number until finished */
    size_t n_events, events_capacity;
    spill events_file;
    build_block *blocks;
    size_t n_blocks, blocks_capacity;
    spill blocks_file;
    build_use *uses;
    size_t n_uses;
    uint32_t uses_capacity;
    trace_stream streams[TRACE_MAX_STREAMS]; /* in order of appearance */
    size_t n_streams;
    trace_pools pools;
    trace_kept *kept; /* streams in order of appearance */
    size_t n_kept;
    uint32_t kept_capacity;
    uint64_t n_steps;
    uint64_t n_stream_ends;
    uint64_t n_pool_ends;
    size_t n_from_before; /* the first blocks: allocated before the recording began */
    trace_refusal *refusals;
    size_t n_refusals;
    uint32_t refusals_capacity;
    uint64_t n_refused; /* of these, the blocks */
    recorded_memory recorded;
    trace_stacks stacks; /* where blocks were allocated, as far as that was recorded */
    bool uses_pools;     /* a block was allocated in one */
    uint64_t n_poolless; /* blocks that may be in a pool, which is not known: they are in none */
    bool names_uses; /* trace_build_use is called wherever another stream uses a block (version 2);
                        else a completion stands for a use by the next stream                  */
    bool is_snapshot;
    int gpu; /* of a snapshot: the GPU whose history was read */
} trace_builder;

/* Each returns NULL, or a reason. *block is a number to call the others with. */
const char *trace_build_alloc(trace_builder *b, uint64_t size, uint64_t stream, uint32_t *block);
/* The block of the latest allocation, or refused request, is one of that pool. */
const char *trace_build_in_pool(trace_builder *b, uint32_t block, ductile_pool_id pool);
/* From here on `stream` uses it, too. */
const char *trace_build_use(trace_builder *b, uint32_t block, uint64_t stream);
const char *trace_build_free(trace_builder *b, uint32_t block);
/* Freed while another stream still uses it; until trace_build_complete, if that ever comes. */
const char *trace_build_free_in_use(trace_builder *b, uint32_t block);
const char *trace_build_complete(trace_builder *b, uint32_t block);
const char *trace_build_step(trace_builder *b);
/* A request that the recorded program was refused. *block is one where is_replayed says so. */
const char *trace_build_refusal(trace_builder *b, const trace_refusal *of, uint64_t stream,
                                uint32_t *block);
/* The program destroys the stream, after telling the allocator or not. */
const char *trace_build_end_stream(trace_builder *b, uint64_t stream, bool is_told);
/* Before the first event: so much the pool held, free, when the recording began. */
const char *trace_build_kept(trace_builder *b, uint64_t size, uint64_t stream,
                             ductile_pool_id pool);
/* The program drops a pool that was named before. Allocated in again, it begins again. */
const char *trace_build_end_pool(trace_builder *b, ductile_pool_id pool);

/* For walks over the events, behind event number i: what lies in files may leave memory. */
static inline void trace_build_pass(const trace_builder *b, size_t i) {
    if (spill_is_time(i)) {
        spill_rest(&b->events_file);
        spill_rest(&b->blocks_file);
    }
}

void trace_build_drop(trace_builder *b);

/* Puts the reason in *error; returns false. */
__attribute__((format(printf, 3, 4))) bool trace_refuse(trace_error *error, uint64_t line,
                                                        const char *format, ...);

#endif
