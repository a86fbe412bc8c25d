/* SPDX-License-Identifier: Apache-2.0 */
/* Which work comes before which, and what the host knows complete. */
#include "vmm/virtual/race/order.h"

#include "vmm/virtual/state/clock.h"
#include "vmm/virtual/state/state.h"

void dvmm_vgpu_stop_detecting(vgpu *gpu) {
    gpu->race.level = 0;
}

/* A poisoned device runs nothing any more, so nothing can be in use. */
bool dvmm_vgpu_detects(const vgpu *gpu) {
    return gpu->race.level != 0 && gpu->poison == 0;
}

static void need(vgpu *gpu, bool has_memory) {
    if (!has_memory) {
        dvmm_vgpu_stop_detecting(gpu);
    }
}

/* ---- Work ---------------------------------------------------------------------------------- */

bool dvmm_vgpu_next_tick(vgpu *gpu, vgpu_queue *queue, vgpu_tick *out) {
    vgpu_lanes *lanes = &gpu->race.lanes;
    if (!queue->has_lane) {
        queue->has_lane = dvmm_vgpu_lane_take(lanes, queue->is_foreign, &queue->lane);
        need(gpu, queue->has_lane);
    }
    if (queue->has_lane) {
        *out = dvmm_vgpu_lane_step(lanes, queue->lane);
        queue->n_work++;
    }
    return queue->has_lane;
}

static vgpu_tick newest_of(const vgpu *gpu, const vgpu_queue *queue) {
    return (vgpu_tick){queue->lane, gpu->race.lanes.all[queue->lane].issued};
}

bool dvmm_vgpu_comes_after(const vgpu *gpu, const vgpu_queue *queue, vgpu_tick tick) {
    return (queue->has_lane && queue->lane == tick.lane) ||
           dvmm_vgpu_is_before(&gpu->race.lanes, tick, &queue->after);
}

static bool raise_to_queue(const vgpu *gpu, vgpu_clock *clock, const vgpu_queue *queue) {
    const vgpu_lanes *lanes = &gpu->race.lanes;
    return dvmm_vgpu_clock_join(lanes, clock, &queue->after) &&
           (!queue->has_lane || dvmm_vgpu_clock_raise(lanes, clock, newest_of(gpu, queue)));
}

/* A wait for the context also waits for the work of other contexts that its streams come after.
 * Needed once work runs elsewhere. */
static bool order_context(vgpu *gpu, const vgpu_queue *queue) {
    return gpu->work.n_foreign == 0 || queue->is_foreign ||
           dvmm_vgpu_clock_join(&gpu->race.lanes, &gpu->race.context_after, &queue->after);
}

void dvmm_vgpu_order_after_queue(vgpu *gpu, vgpu_queue *queue, vgpu_queue *on) {
    if (dvmm_vgpu_detects(gpu)) {
        need(gpu, raise_to_queue(gpu, &queue->after, on) && order_context(gpu, queue));
    }
}

void dvmm_vgpu_order_after_marker(vgpu *gpu, vgpu_queue *queue, vgpu_marker *marker) {
    if (dvmm_vgpu_detects(gpu)) {
        need(gpu, dvmm_vgpu_clock_join(&gpu->race.lanes, &queue->after, &marker->after) &&
                      order_context(gpu, queue));
    }
}

/* Also behind the work of other contexts that streams of this one wait for. */
static bool raise_to_context(const vgpu *gpu, vgpu_clock *clock) {
    const vgpu_lanes *lanes = &gpu->race.lanes;
    return dvmm_vgpu_clock_raise_to_context(lanes, clock) &&
           dvmm_vgpu_clock_join(lanes, clock, &gpu->race.context_after);
}

void dvmm_vgpu_order_marker(vgpu *gpu, vgpu_queue *queue, vgpu_marker *marker) {
    if (dvmm_vgpu_detects(gpu)) {
        need(gpu, queue == gpu->work.context ? raise_to_context(gpu, &marker->after)
                                             : raise_to_queue(gpu, &marker->after, queue));
    }
}

/* ---- The host ------------------------------------------------------------------------------ */

static bool can_learn(const vgpu *gpu) {
    return dvmm_vgpu_detects(gpu) && !gpu->race.is_unanswered;
}

void dvmm_vgpu_learn_marker(vgpu *gpu, const vgpu_marker *marker) {
    if (can_learn(gpu)) {
        dvmm_vgpu_learn(&gpu->race.lanes, &marker->after);
    }
}

void dvmm_vgpu_learn_queue(vgpu *gpu, const vgpu_queue *queue) {
    if (can_learn(gpu)) {
        dvmm_vgpu_learn(&gpu->race.lanes, &queue->after);
        if (queue->has_lane) {
            dvmm_vgpu_learn_tick(&gpu->race.lanes, newest_of(gpu, queue));
        }
    }
}

void dvmm_vgpu_learn_context_work(vgpu *gpu) {
    if (can_learn(gpu)) {
        dvmm_vgpu_learn_context(&gpu->race.lanes);
        dvmm_vgpu_learn(&gpu->race.lanes, &gpu->race.context_after);
    }
}

void dvmm_vgpu_order_fini_queue(vgpu *gpu, vgpu_queue *queue) {
    dvmm_vgpu_clock_fini(&queue->after);
    if (queue->has_lane) {
        dvmm_vgpu_lane_give(&gpu->race.lanes, queue->lane);
    }
}
