/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vector clocks. A *lane* counts the work of one stream. A *tick* is one piece of work, the n-th of
 * its lane. A *clock* holds, for each lane, the last tick that comes before its owner.
 *
 * The host has one clock, `known` of each lane: the work that a wait or a query has shown to be
 * complete. The host issues all work, so all known work comes before all work issued later, and no
 * clock has to store it. Clocks hold only work that the host does not know to be complete, and stay
 * as short as the number of streams that wait for each other.
 *
 * The threads of the host share that clock: work that one thread saw complete is complete for all.
 */
#ifndef DUCTILE_VMM_VIRTUAL_STATE_CLOCK_H
#define DUCTILE_VMM_VIRTUAL_STATE_CLOCK_H

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
    bool is_foreign; /* of a stream of another context */
    bool is_taken;
} vgpu_lane;

typedef struct vgpu_lanes {
    vgpu_lane *all;
    uint32_t n;
    uint32_t room;
} vgpu_lanes;

void dvmm_vgpu_lanes_fini(vgpu_lanes *lanes);
/* Returns a lane whose work is all known, or a new lane. False: the host has no memory. */
bool dvmm_vgpu_lane_take(vgpu_lanes *lanes, bool is_foreign, uint32_t *out);
void dvmm_vgpu_lane_give(vgpu_lanes *lanes, uint32_t lane);
/* Counts one more piece of work in the lane. */
vgpu_tick dvmm_vgpu_lane_step(vgpu_lanes *lanes, uint32_t lane);

static inline bool dvmm_vgpu_is_known(const vgpu_lanes *lanes, vgpu_tick tick) {
    return tick.n <= lanes->all[tick.lane].known;
}

/* Record that the host knows to be complete: the work of the lane up to the tick; all work that the
 * clock holds; all work of the context. */
void dvmm_vgpu_learn_tick(vgpu_lanes *lanes, vgpu_tick tick);
void dvmm_vgpu_learn(vgpu_lanes *lanes, const vgpu_clock *clock);
void dvmm_vgpu_learn_context(vgpu_lanes *lanes);

void dvmm_vgpu_clock_fini(vgpu_clock *clock);
/* Does the tick come before the work that has this clock? */
bool dvmm_vgpu_is_before(const vgpu_lanes *lanes, vgpu_tick tick, const vgpu_clock *clock);
/* Order the clock after the tick, after all work of the context, or after all that `from` holds.
 * False: the host has no memory, and the clock has not changed. */
bool dvmm_vgpu_clock_raise(const vgpu_lanes *lanes, vgpu_clock *clock, vgpu_tick tick);
bool dvmm_vgpu_clock_raise_to_context(const vgpu_lanes *lanes, vgpu_clock *clock);
bool dvmm_vgpu_clock_join(const vgpu_lanes *lanes, vgpu_clock *clock, const vgpu_clock *from);

#endif
