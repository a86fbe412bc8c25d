/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A picture of a replay's memory: time across, addresses down. Addresses that never have memory
 * behind them take no room; what lies in a row at a time is the state that most of its bytes have.
 *
 *   cell   meaning
 *   0      no memory there
 *   1      free
 *   2      pending
 *   3...   live: 3 + (stream << 6 | class of size << 3 | class of age), of the largest block
 */
#ifndef DUCTILE_BENCH_REPLAY_MEMORY_MAP_H
#define DUCTILE_BENCH_REPLAY_MEMORY_MAP_H

#include "bench/replay/replay_engine.h"

enum {
    MEMORY_MAP_COLUMNS = 256,
    MEMORY_MAP_ROWS = 192,
    MEMORY_MAP_FIRST_LIVE = 3,
    MEMORY_MAP_STREAMS = 64 /* streams behind the last one share its number */
};

typedef struct memory_run {
    ductile_addr address;
    uint64_t size;
    uint16_t cell;
    uint32_t block; /* of a live one: which allocation of the trace it is, from 1; 0: not known */
} memory_run;

typedef struct memory_column {
    uint64_t event;
    memory_run *runs; /* by ascending address */
    size_t n;
    uint32_t capacity;
} memory_column;

/* All zero and a trace is an empty map. Valid as long as the trace. */
typedef struct memory_map {
    const trace *trace;
    trace_blocks blocks;
    memory_column columns[MEMORY_MAP_COLUMNS];
    size_t n_columns;
    uint64_t row_bytes;     /* valid after memory_map_draw */
    uint32_t *cells;        /* column by column; valid after memory_map_draw */
    uint32_t *blocks_shown; /* likewise, the number of the block that each cell shows; 0: none */
    bool has_failed;        /* the host had no memory left */
} memory_map;

/* False: no host memory. */
bool memory_map_init(memory_map *map, const trace *t);
/* Adds a column for this moment; without effect when there are enough. */
void memory_map_add(memory_map *map, const contender_ops *ops, const replay_moment *now);
/* A map of one column: what the recorded program's own allocator held at an event. Classes of age
 * and stream are 0. False: nothing is known of that, or no host memory. */
bool memory_map_of_recorded(memory_map *map, const trace *t, const recorded_layout *l,
                            uint64_t event);
/* Fills row_bytes and cells. False: no host memory, now or before. */
bool memory_map_draw(memory_map *map);
void memory_map_fini(memory_map *map);

#endif
