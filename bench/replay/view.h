/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a report draws of a replay: its memory over time, split by state, a map of it, and where and
 * why it stops on smaller devices.
 */
#ifndef DUCTILE_BENCH_REPLAY_VIEW_H
#define DUCTILE_BENCH_REPLAY_VIEW_H

#include "bench/replay/memory_map.h"
#include "bench/replay/openings.h"

/* held = live + pending + free + cached. Live blocks count as rounded by the contender. */
typedef struct view_memory {
    uint64_t held, live, pending, free, cached;
    uint64_t free_in_pools; /* of free: what serves a private pool alone                       */
    uint64_t holes;        /* spans of free memory in the pool that is asked, else outside of all */
    uint64_t largest_hole; /* of them, bytes */
} view_memory;

typedef struct view_point {
    uint64_t event;
    uint64_t asked; /* live, as the program asked for it */
    view_memory memory;
    uint64_t creates, releases, maps, waits; /* since the beginning */
} view_point;

/* A replay with less memory. */
typedef struct view_stop {
    uint64_t capacity_bytes;
    bool completed;
    uint64_t event;         /* the refused allocation */
    uint64_t request_bytes; /* its size */
    view_memory memory;     /* at that moment */
} view_stop;

enum { VIEW_MAX_STOPS = 64 };

typedef struct view {
    view_point *points;
    size_t n_points;
    size_t next_sample;
    memory_map map;
    view_stop stops[VIEW_MAX_STOPS];
    size_t n_stops;
    openings at_moment; /* just before the refusal that needed most, else at the live peak */
    openings at_stop;   /* the largest of the stops that failed */
    uint64_t at_stop_capacity;
} view;

/* Replays and fills *out, without stops. spec->watch is ignored. False: no host memory, or the
 * contender has no walk; *result is then undefined. Release with view_fini in every case. */
bool view_replay(const replay_spec *spec, view *out, replay_result *result);
/* Replays with that much memory and adds a stop. at_stop is looked at again. */
void view_try(const replay_spec *spec, uint64_t capacity_bytes, view *v);
void view_fini(view *v);

#endif
