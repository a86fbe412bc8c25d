/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/virtual/state/clock.h"

#include "vmm/base/align.h"
#include "vmm/base/array.h"

#include <stdlib.h>
#include <string.h>

/* ---- Lanes --------------------------------------------------------------------------------- */

void dvmm_vgpu_lanes_fini(vgpu_lanes *lanes) {
    free(lanes->all);
    *lanes = (vgpu_lanes){0};
}

/* A lane goes on counting where its last owner stopped: what clocks still hold of it is known. */
static bool find_idle(const vgpu_lanes *lanes, uint32_t *out) {
    for (uint32_t i = 0; i < lanes->n; i++) {
        if (!lanes->all[i].is_taken && lanes->all[i].issued == lanes->all[i].known) {
            *out = i;
            return true;
        }
    }
    return false;
}

static bool add_lane(vgpu_lanes *lanes, uint32_t *out) {
    if (!dti_have_room(&lanes->all, sizeof *lanes->all, &lanes->room, lanes->n + 1)) {
        return false;
    }
    *out = lanes->n;
    lanes->all[lanes->n++] = (vgpu_lane){0};
    return true;
}

bool dvmm_vgpu_lane_take(vgpu_lanes *lanes, bool is_foreign, uint32_t *out) {
    bool has_one = find_idle(lanes, out) || add_lane(lanes, out);
    if (has_one) {
        lanes->all[*out].is_foreign = is_foreign;
        lanes->all[*out].is_taken = true;
    }
    return has_one;
}

void dvmm_vgpu_lane_give(vgpu_lanes *lanes, uint32_t lane) {
    lanes->all[lane].is_taken = false;
}

vgpu_tick dvmm_vgpu_lane_step(vgpu_lanes *lanes, uint32_t lane) {
    return (vgpu_tick){lane, ++lanes->all[lane].issued};
}

/* ---- What the host knows ------------------------------------------------------------------- */

void dvmm_vgpu_learn_tick(vgpu_lanes *lanes, vgpu_tick tick) {
    vgpu_lane *lane = &lanes->all[tick.lane];
    lane->known = dti_max(lane->known, tick.n);
}

void dvmm_vgpu_learn(vgpu_lanes *lanes, const vgpu_clock *clock) {
    for (uint32_t i = 0; i < clock->n_ticks; i++) {
        dvmm_vgpu_learn_tick(lanes, clock->ticks[i]);
    }
}

void dvmm_vgpu_learn_context(vgpu_lanes *lanes) {
    for (uint32_t i = 0; i < lanes->n; i++) {
        if (!lanes->all[i].is_foreign) {
            lanes->all[i].known = lanes->all[i].issued;
        }
    }
}

/* ---- Clocks -------------------------------------------------------------------------------- */

void dvmm_vgpu_clock_fini(vgpu_clock *clock) {
    free(clock->ticks);
    *clock = (vgpu_clock){0};
}

/* The place of the lane among the ticks, or where it belongs. */
static uint32_t place_of(const vgpu_clock *clock, uint32_t lane) {
    uint32_t at = 0;
    DTI_FIRST(at, clock->n_ticks, clock->ticks[at].lane >= lane);
    return at;
}

bool dvmm_vgpu_is_before(const vgpu_lanes *lanes, vgpu_tick tick, const vgpu_clock *clock) {
    if (dvmm_vgpu_is_known(lanes, tick)) {
        return true;
    }
    uint32_t i = place_of(clock, tick.lane);
    return i < clock->n_ticks && clock->ticks[i].lane == tick.lane && tick.n <= clock->ticks[i].n;
}

static void forget_known(const vgpu_lanes *lanes, vgpu_clock *clock) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < clock->n_ticks; i++) {
        if (!dvmm_vgpu_is_known(lanes, clock->ticks[i])) {
            clock->ticks[n++] = clock->ticks[i];
        }
    }
    clock->n_ticks = n;
}

static bool have_room(vgpu_clock *clock, uint32_t n_more) {
    return dti_have_room(&clock->ticks, sizeof *clock->ticks, &clock->room,
                         clock->n_ticks + n_more);
}

/* Pre: room for one more. */
static void lift(vgpu_clock *clock, vgpu_tick tick) {
    uint32_t i = place_of(clock, tick.lane);
    if (i < clock->n_ticks && clock->ticks[i].lane == tick.lane) {
        clock->ticks[i].n = dti_max(clock->ticks[i].n, tick.n);
        return;
    }
    dti_insert(clock->ticks, sizeof tick, &clock->n_ticks, i, &tick);
}

bool dvmm_vgpu_clock_raise(const vgpu_lanes *lanes, vgpu_clock *clock, vgpu_tick tick) {
    if (dvmm_vgpu_is_known(lanes, tick)) {
        return true;
    }
    forget_known(lanes, clock);
    if (!have_room(clock, 1)) {
        return false;
    }
    lift(clock, tick);
    return true;
}

bool dvmm_vgpu_clock_raise_to_context(const vgpu_lanes *lanes, vgpu_clock *clock) {
    if (!have_room(clock, lanes->n)) {
        return false;
    }
    for (uint32_t i = 0; i < lanes->n; i++) {
        const vgpu_lane *lane = &lanes->all[i];
        if (!lane->is_foreign && lane->known < lane->issued) {
            lift(clock, (vgpu_tick){i, lane->issued});
        }
    }
    return true;
}

bool dvmm_vgpu_clock_join(const vgpu_lanes *lanes, vgpu_clock *clock, const vgpu_clock *from) {
    forget_known(lanes, clock);
    if (!have_room(clock, from->n_ticks)) {
        return false;
    }
    for (uint32_t i = 0; i < from->n_ticks; i++) {
        if (!dvmm_vgpu_is_known(lanes, from->ticks[i])) {
            lift(clock, from->ticks[i]);
        }
    }
    return true;
}
