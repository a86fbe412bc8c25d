/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vector clocks. A *lane* counts the work of one stream; a *tick* is one piece of work, the n-th of
 * its lane; a *clock* says, for each lane, up to which tick something comes after.
 *
 * The host has one clock, `known` of each lane: what it knows to be complete, by a wait or by a
 * query that said so. All work is issued by the host, so everything known comes before everything
 * issued later, and no clock has to keep it: clocks hold only what the host does not know yet, and
 * stay as short as there are streams that really wait for each other.
 *
 * The threads of the host share that clock. What one of them saw complete is complete for all:
 * memory does not know which thread asked.
 */
#ifndef DUCTILE_VMM_VIRTUAL_RACE_CLOCK_H
#define DUCTILE_VMM_VIRTUAL_RACE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct vgpu_tick {
    uint32_t lane;
    uint64_t n; /* counted from 1; 0: no work */
} vgpu_tick;

typedef struct vgpu_clock {
    vgpu_tick *ticks; /* ascending by lane */
    uint32_t n_ticks;
    uint32_t room;
} vgpu_clock;

typedef struct vgpu_lane {
    uint64_t issued;
    uint64_t known;
    int device; /* whose stream */
    bool is_taken;
} vgpu_lane;

typedef struct vgpu_lanes {
    vgpu_lane *all;
    uint32_t n;
    uint32_t room;
} vgpu_lanes;

void dvmm_vgpu_lanes_fini(vgpu_lanes *lanes);
/* A lane all of whose work is known, or a new one. False: the host has no memory. */
bool dvmm_vgpu_lane_take(vgpu_lanes *lanes, int device, uint32_t *out);
void dvmm_vgpu_lane_give(vgpu_lanes *lanes, uint32_t lane);
/* One more piece of work. */
vgpu_tick dvmm_vgpu_lane_step(vgpu_lanes *lanes, uint32_t lane);

static inline bool dvmm_vgpu_is_known(const vgpu_lanes *lanes, vgpu_tick tick) {
    return tick.n <= lanes->all[tick.lane].known;
}

/* The host knows all work of the lane up to the tick complete; all that the clock holds; all of a
 * device. */
void dvmm_vgpu_learn_tick(vgpu_lanes *lanes, vgpu_tick tick);
void dvmm_vgpu_learn(vgpu_lanes *lanes, const vgpu_clock *clock);
void dvmm_vgpu_learn_device(vgpu_lanes *lanes, int device);

void dvmm_vgpu_clock_fini(vgpu_clock *clock);
/* Whether the tick comes before the work that has this clock. */
bool dvmm_vgpu_is_before(const vgpu_lanes *lanes, vgpu_tick tick, const vgpu_clock *clock);
/* From now on the clock comes after the tick; after all that `from` does. False: the host has no
 * memory, and the clock is as before. */
bool dvmm_vgpu_clock_raise(const vgpu_lanes *lanes, vgpu_clock *clock, vgpu_tick tick);
bool dvmm_vgpu_clock_join(const vgpu_lanes *lanes, vgpu_clock *clock, const vgpu_clock *from);

#endif
