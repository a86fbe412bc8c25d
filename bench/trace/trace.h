/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recorded run, prepared for the replay: an array of 16-byte events that name blocks by dense,
 * reused slots and streams by dense indexes. All that can be computed before the clock runs is
 * computed here.
 *
 *   trace_read.c      reads a file, whatever it is
 *   trace_text.c      the text format of bench/traces/README.md, versions 1 to 5
 *   trace_snapshot.c  PyTorch snapshots
 *   snapshot_gpus.c   which GPUs one has, and which of them is read
 *   trace_build.c     what readers and generators call for each event; checks their order
 *   trace_finish.c    makes the array
 *   trace_steps.c     finds the steps of a run
 *   trace_stacks.c    where blocks were allocated
 *   trace_holders.c   who holds the memory at the moment of a report
 *   trace_variant.c   other runs of the same program
 *   trace_write.c     writes the events as version 2 or what they need
 *   pools.c           the private pools that a recording names
 *   snapshot_pools.c  which pool each entry of a snapshot belongs to
 *   recorded.c        what the recorded program's own allocator held and refused
 *   rewind.c          where each block lay at an earlier moment
 */
#ifndef DUCTILE_BENCH_TRACE_TRACE_H
#define DUCTILE_BENCH_TRACE_TRACE_H

#include "bench/base/spill.h"
#include "bench/trace/pools.h"
#include "bench/trace/recorded.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRACE_MAX_STREAMS = 256, TRACE_SAMPLES = 2000 };

/* No device has addresses for more. Keeps sums of sizes far from 64 bits, too. */
#define TRACE_MAX_SIZE ((uint64_t)1 << 48)

typedef enum trace_kind {
    /* Allocate `size` bytes on `stream` into `slot`. */
    TRACE_ALLOC,
    /* Free `slot`. `size` is what it was allocated with. */
    TRACE_FREE,
    /* `stream` uses `slot`, which has `size` bytes, from here on. */
    TRACE_USE,
    /* Free `slot` while other streams still use it: in each of them a gate stands before the use's
     * end. They are `stream` many of the trace's gates, from index `size` on. */
    TRACE_FREE_GATED,
    /* Gates open, found likewise: in each stream the first `number` of them. */
    TRACE_OPEN,
    /* A training step ends. Never in a finished trace. */
    TRACE_STEP,
    /* The program destroys `stream`; what follows there is a new one. `size` is 1 when it tells the
     * allocator. */
    TRACE_STREAM_END,
    /* The program drops `pool`: what is free in it serves all. */
    TRACE_POOL_END
} trace_kind;

typedef struct trace_event {
    uint64_t size;
    uint32_t slot;
    uint8_t stream; /* index into the trace's streams                       */
    uint8_t kind;   /* a trace_kind                                         */
    uint16_t pool;  /* of an allocation or an end: number of a pool; 0: none */
} trace_event;

/* One gate of a stream, counted from 1. */
typedef struct trace_gate {
    uint64_t number;
    uint16_t stream;
    bool says_use; /* nothing before has said that the stream uses the block: version 1 */
} trace_gate;

/* Live bytes just after an event. */
typedef struct trace_sample {
    size_t event;
    uint64_t live_bytes;
} trace_sample;

/* Memory that a pool held, free, when the recording began. */
typedef struct trace_kept {
    uint64_t size;
    uint16_t pool;
    uint8_t stream; /* index into the trace's streams */
} trace_kept;

typedef struct trace_stream {
    uint64_t number;           /* as the file has it                  */
    uint64_t n_gates;          /* uses that end after the owner's free */
    uint64_t max_closed_gates; /* at one time */
} trace_stream;

/* Never changes once loaded. */
typedef struct trace {
    char *path; /* as given                                                           */
    char *name; /* of the file, without folder and known endings                      */
    trace_event *events;
    size_t n_events;
    trace_gate *gates; /* in the order of the events that name them                          */
    size_t n_gates;
    spill events_file;
    spill gates_file;
    uint32_t n_slots; /* slots are 0 ... n_slots - 1                                 */
    trace_stream streams[TRACE_MAX_STREAMS]; /* by ascending number                 */
    size_t n_streams;
    trace_pools pools;
    trace_kept *kept;
    size_t n_kept;
    uint64_t n_poolless;    /* blocks that may be in a pool, which is not known: they are in none */
    uint64_t n_file_events; /* a, u, f, c and r lines; of a snapshot, what they would be      */
    uint64_t n_ops;         /* allocations and frees                                          */
    uint64_t n_steps;       /* training steps marked                                          */
    uint64_t live_peak_bytes;
    size_t peak_event;   /* the first allocation that makes live memory so large */
    uint64_t *step_ends; /* of each step marked: the index behind its last event */
    size_t n_step_ends;
    size_t n_from_before; /* the first events: blocks from before the recording began       */
    trace_refusal *refusals;
    size_t n_refusals;
    recorded_memory recorded;
    bool is_snapshot;
    int gpu; /* of a snapshot: the GPU whose history was read */
    /* Where live memory is least and most in equal parts of the trace: its envelope; its end; and
     * the refusal that needed most, before and behind it. */
    trace_sample samples[TRACE_SAMPLES + 3];
    size_t n_samples;
    /* Of a varied run (trace_variant.h): what the next pass plays; NULL: the same again. */
    struct trace *next_pass;
    bool is_varied;
    uint64_t vary_seed;
} trace;

/* The latest allocation of a slot. */
typedef struct trace_block {
    uint64_t born;   /* event */
    uint64_t size;   /* 0: the slot is empty */
    uint32_t number; /* which allocation of the trace it is, from 1 */
    uint16_t stream;
} trace_block;

/* A walk through the events that knows what lies in each slot. */
typedef struct trace_blocks {
    trace_block *at;      /* by slot; the caller frees them */
    uint64_t next_event;  /* events before it were walked through */
    uint32_t n_allocated; /* by them */
} trace_blocks;

typedef struct trace_error {
    uint64_t line; /* 0: the reason is not about one line */
    char reason[256];
} trace_error;

/* Of a snapshot a GPU that refused memory, else the one that held most. */
enum { TRACE_FULLEST_GPU = -1 };

/* Before the first event. False: the host has no memory left. */
bool trace_blocks_init(trace_blocks *b, const trace *t);
void trace_blocks_follow(trace_blocks *b, const trace *t, uint64_t end);

/* The refusal that needed most, of those that are replayed; NULL: there is none. */
const trace_refusal *trace_worst_refusal(const trace *t);

/* With all that it is chained to. */
void trace_free(trace *t);
/* Frees what a trace holds apart from itself and its names. */
void trace_drop_events(trace *t);

#endif
