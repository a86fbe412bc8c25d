/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the recorded program's own allocator did, as the recording says it: what it held, and which
 * requests it refused. A replay does not need it, a report sets it beside what the replays say.
 */
#ifndef DUCTILE_BENCH_TRACE_RECORDED_H
#define DUCTILE_BENCH_TRACE_RECORDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A request that was refused. In the trace it is a block that is freed at once. */
typedef struct trace_refusal {
    size_t n_blocks; /* of the trace, before it: it is block n_blocks itself, where it is one */
    size_t event;    /* of the finished trace */
    uint64_t size;
    uint64_t live_bytes; /* of the finished trace, without it */
    uint64_t held_bytes; /* by the allocator; 0: not known */
    uint64_t device_free_bytes;
    uint32_t stack;   /* as trace_stacks; 0: not known */
    bool is_replayed; /* else no device has addresses for so much */
} trace_refusal;

typedef enum recorded_state { RECORDED_LIVE, RECORDED_PENDING, RECORDED_FREE } recorded_state;

typedef struct recorded_span {
    uint64_t address, size;
    uint64_t stream; /* of its segment, as the file has it */
    uint32_t pool;   /* of its segment: what one holds free serves no other. 0: none */
    uint32_t block;  /* which block of the trace it is, from 1; 0: none, or not known */
    recorded_state state;
    bool begins; /* a segment: holes end there */
} recorded_span;

/* A GPU of the recording, whether it is the one that was read or not. */
typedef struct recorded_gpu {
    uint64_t n_events, n_refusals;
    uint64_t held_bytes, live_bytes; /* at the end */
    uint64_t held_peak, live_peak;   /* as far as the recording reaches back */
} recorded_gpu;

/* Held memory, from an event on. */
typedef struct recorded_change {
    size_t n_blocks; /* of the trace, before it */
    size_t event;    /* of the finished trace */
    uint64_t held_bytes;
} recorded_change;

/* What was held at one moment, block by block. All zero: it is not known. */
typedef struct recorded_layout {
    bool is_known;
    uint64_t held, live, pending, free; /* held = live + pending + free; blocks as rounded */
    uint64_t holes, largest_hole;
    recorded_span *spans;
    size_t n_spans;
    uint32_t capacity;
} recorded_layout;

/* All zero: the recording does not say. */
typedef struct recorded_memory {
    bool is_expandable;      /* the segments were expandable ones */
    recorded_layout end;     /* where the recording ends */
    recorded_layout refused; /* at the refusal number refusal */
    size_t refusal;          /* the one that needed most */
    uint64_t n_segments;     /* at the end */
    uint64_t held_peak;      /* as far as the recording reaches back */
    uint64_t refused_stream; /* of the refused request, as the file has it */
    uint32_t refused_pool;   /* of the refused request, as far as it is known; 0: none */
    recorded_gpu *gpus;
    size_t n_gpus;
    uint64_t device_bytes;      /* of the device as a whole; 0: not known */
    uint64_t device_free_bytes; /* with device_bytes */
    uint64_t spills;            /* requests that got memory of the host, from Ductile */
    uint64_t spilled_peak;      /* bytes of it at once */
    recorded_change *changes;
    size_t n_changes;
    uint32_t changes_capacity;
} recorded_memory;

/* Adds its size to the sums alone. */
void recorded_count_span(recorded_layout *l, const recorded_span *span);
/* Each returns false when the host has no memory. */
bool recorded_add_span(recorded_layout *l, recorded_span span);
/* Held memory changes before block number n_blocks is allocated. */
bool recorded_note_held(recorded_memory *m, size_t n_blocks, uint64_t held_bytes);
void recorded_forget(recorded_layout *l);
void recorded_drop(recorded_memory *m);

#endif
