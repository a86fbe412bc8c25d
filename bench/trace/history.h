/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The history of a PyTorch snapshot, device_traces: of each entry 40 bytes, taken while the pickle
 * is read, since a dict of it would take some hundred. They lie in a file (spill.h).
 */
#ifndef DUCTILE_BENCH_TRACE_HISTORY_H
#define DUCTILE_BENCH_TRACE_HISTORY_H

#include "bench/base/hash_map.h"
#include "bench/base/spill.h"
#include "bench/trace/pickle.h"
#include "bench/trace/pools.h"

typedef enum history_action {
    HISTORY_OTHER,
    HISTORY_ALLOC,
    HISTORY_FREE,
    HISTORY_COMPLETE,
    HISTORY_REFUSAL,
    HISTORY_SEGMENT_ALLOC,
    HISTORY_SEGMENT_MAP,
    HISTORY_SEGMENT_FREE,
    HISTORY_SEGMENT_UNMAP
} history_action;

typedef struct history_entry {
    uint64_t address; /* of a refusal: the memory that was free on the device */
    uint64_t size;
    uint64_t time_us;
    pickle_node *frames; /* NULL: none */
    uint32_t stream;     /* index into the history's streams */
    uint16_t pool;       /* one of the history's, 0 (none), or UNKNOWN: it is not said */
    uint8_t action;      /* a history_action */
    bool has_block : 1;  /* address, size and stream are plain numbers, as are all of PyTorch's */
    bool has_size : 1;
    bool has_time : 1;
} history_entry;

enum { HISTORY_MAX_GPUS = 1024, HISTORY_POOL_UNKNOWN = UINT16_MAX };

/* Of all GPUs, in the order of the file. All zero is empty; spill says where it may lie. */
typedef struct history {
    history_entry *entries;
    size_t n, capacity;
    spill file;
    uint64_t *streams; /* different ones, as the file has them */
    size_t n_streams;
    uint32_t streams_capacity;
    hash_map stream_numbers; /* to the index + 1 */
    trace_pools pools;
} history;

/* Reads a snapshot and takes the entries of its history. As pickle_open. */
pickle_document *history_open(history *h, input *in, pickle_error *error);
void history_drop(history *h);

/* The entry at a place of a GPU's trace; NULL: there stands what is none. Valid until the next
 * rest. */
history_entry *history_at(const history *h, const pickle_value *entries, size_t index);

/* The pool that two numbers name, which may be new: (0, 0) is 0. UNKNOWN: it is not two numbers. */
uint16_t history_pool(history *h, const pickle_value *id);

static inline uint64_t history_stream(const history *h, const history_entry *e) {
    return h->streams[e->stream];
}

/* As a value, for those who read frames. */
static inline pickle_value history_frames(const history_entry *e) {
    return (pickle_value){.kind = e->frames != NULL ? PICKLE_LIST : PICKLE_NONE,
                          .as.node = e->frames};
}

#endif
