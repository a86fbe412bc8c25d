/* SPDX-License-Identifier: Apache-2.0 */
/* Which work touched which bytes, and whether two touches have an order. */
#include "vmm/virtual/race/race.h"

#include "vmm/base/align.h"
#include "vmm/base/array.h"
#include "vmm/virtual/addresses/addresses.h"
#include "vmm/virtual/race/blocks.h"
#include "vmm/virtual/race/order.h"
#include "vmm/virtual/state/clock.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/state/watch.h"

#include <stdlib.h>

/* ---- Reports ------------------------------------------------------------------------------- */

static uint64_t number_of(const vgpu_phys *phys) {
    return phys != NULL ? phys->slot.number : 0;
}

/* The driver call under way. */
static ductile_virtual_side host_at(const vgpu *gpu, ductile_addr address, uint64_t size,
                                    const vgpu_phys *phys) {
    return (ductile_virtual_side){.is_host = 1,
                                  .operation = gpu->watch.n_calls + 1,
                                  .address = address,
                                  .size = size,
                                  .writes = 1,
                                  .handle = number_of(phys)};
}

static void report(vgpu *gpu, ductile_violation kind, const ductile_virtual_side *first,
                   const ductile_virtual_side *second) {
    uint32_t bit = (uint32_t)1 << kind;
    if ((gpu->race.reported & bit) == 0) {
        gpu->race.reported |= bit;
        dvmm_vgpu_report(gpu, kind, first, second);
    }
}

/* ---- Touches ------------------------------------------------------------------------------- */

static bool add_touch(vgpu *gpu, vgpu_shadow *shadow, vgpu_touch touch) {
    if (!dti_have_room(&shadow->touches, sizeof touch, &shadow->touches_room,
                       shadow->n_touches + 1)) {
        dvmm_vgpu_stop_detecting(gpu);
        return false;
    }
    shadow->touches[shadow->n_touches++] = touch;
    return true;
}

/* Takes [start, end) away from the i-th touch. True when another one stands there now. */
static bool take_away(vgpu *gpu, vgpu_shadow *shadow, uint32_t i, uint64_t start, uint64_t end) {
    vgpu_touch *touch = &shadow->touches[i];
    vgpu_touch above = *touch;
    above.start = end;
    bool has_above = touch->end > end;
    if (touch->start < start) {
        touch->end = start;
        if (has_above) {
            (void)add_touch(gpu, shadow, above);
        }
        return false;
    }
    if (has_above) {
        *touch = above;
        return false;
    }
    *touch = shadow->touches[--shadow->n_touches];
    return true;
}

/* Two owners: the allocator gave memory away too early. One owner: the program's own affair. */
static ductile_violation kind_of(const ductile_virtual_side *first,
                                 const ductile_virtual_side *second) {
    return first->block == second->block ? DUCTILE_VIOLATION_RACE : DUCTILE_VIOLATION_REUSE;
}

static void report_conflict(vgpu *gpu, const ductile_virtual_side *first,
                            const ductile_virtual_side *second) {
    ductile_violation kind = kind_of(first, second);
    if (kind == DUCTILE_VIOLATION_REUSE || first->block == 0 || gpu->race.level > 1) {
        report(gpu, kind, first, second);
    }
}

static bool overlaps(const vgpu_touch *touch, uint64_t start, uint64_t end) {
    return touch->start < end && start < touch->end;
}

static void forget(vgpu_shadow *shadow, uint32_t i) {
    shadow->touches[i] = shadow->touches[--shadow->n_touches];
}

/* Checks the touch against all earlier ones of the bytes, forgets those that it replaces, and adds
 * it. */
static void touch_bytes(vgpu *gpu, vgpu_queue *queue, vgpu_shadow *shadow, vgpu_touch now) {
    for (uint32_t i = 0; i < shadow->n_touches;) {
        const vgpu_touch *before = &shadow->touches[i];
        if (dvmm_vgpu_is_known(&gpu->race.lanes, before->by.tick)) {
            forget(shadow, i);
            continue;
        }
        bool is_replaced = false;
        if (overlaps(before, now.start, now.end)) {
            bool is_ordered = dvmm_vgpu_comes_after(gpu, queue, before->by.tick);
            bool is_written = before->by.side.writes || now.by.side.writes;
            if (is_written && !is_ordered) {
                report_conflict(gpu, &before->by.side, &now.by.side);
            }
            if (now.by.side.writes || (is_ordered && !before->by.side.writes)) {
                is_replaced = take_away(gpu, shadow, i, now.start, now.end);
            }
        }
        i += !is_replaced;
    }
    (void)add_touch(gpu, shadow, now);
}

/* ---- Users of a mapping -------------------------------------------------------------------- */

static vgpu_access *user_of(vgpu *gpu, vgpu_users *users, uint32_t lane) {
    uint32_t i = 0;
    while (i < users->n && users->last[i].tick.lane != lane) {
        if (dvmm_vgpu_is_known(&gpu->race.lanes, users->last[i].tick)) {
            users->last[i] = users->last[--users->n];
        } else {
            i++;
        }
    }
    if (!dti_have_room(&users->last, sizeof *users->last, &users->room, i + 1)) {
        dvmm_vgpu_stop_detecting(gpu);
        return NULL;
    }
    users->n = (uint32_t)dti_max(users->n, i + 1);
    return &users->last[i];
}

static void use_mapping(vgpu *gpu, vgpu_mapping *mapping, const vgpu_access *access) {
    vgpu_access *last = user_of(gpu, &mapping->users, access->tick.lane);
    if (last != NULL) {
        *last = *access;
    }
}

enum { ANY_DEVICE = -1 };

/* The device's work that may still use the mapping, as far as the host knows; NULL when there is
 * none. */
static const vgpu_access *user_at_work(const vgpu *gpu, const vgpu_mapping *mapping, int device) {
    for (uint32_t i = 0; i < mapping->users.n; i++) {
        const vgpu_access *user = &mapping->users.last[i];
        if ((device == ANY_DEVICE || device == user->device) &&
            !dvmm_vgpu_is_known(&gpu->race.lanes, user->tick)) {
            return user;
        }
    }
    return NULL;
}

/* ---- Uses ---------------------------------------------------------------------------------- */

static bool allows(const vgpu_mapping *mapping, bool writes) {
    dvmm_access access = writes ? DVMM_ACCESS_RW : DVMM_ACCESS_READ;
    return mapping != NULL && (mapping->access & access) == access;
}

static void report_lone(vgpu *gpu, ductile_violation kind, const ductile_virtual_side *side) {
    report(gpu, kind, &(ductile_virtual_side){0}, side);
}

static void check_owner(vgpu *gpu, const ductile_virtual_side *side, uint64_t block_before) {
    bool is_one = side->block != 0 && (block_before == 0 || block_before == side->block);
    if (gpu->race.is_program && !is_one && dvmm_vgpu_is_announced(gpu, side->address)) {
        report_lone(gpu, DUCTILE_VIOLATION_USE_AFTER_FREE, side);
    }
}

/* The part of a use that goes through one mapping. Its length; 0: nothing is mapped there. */
static uint64_t use_part(vgpu *gpu, vgpu_queue *queue, vgpu_access *access, uint64_t size) {
    ductile_virtual_side *side = &access->side;
    vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, side->address);
    if (!allows(mapping, side->writes != 0)) {
        report_lone(gpu, DUCTILE_VIOLATION_UNMAPPED_USE, side);
        return 0;
    }
    vgpu_phys *phys = mapping->phys;
    uint64_t start = side->address - mapping->start;
    side->size = dti_min(size, phys->size - start);
    side->handle = number_of(phys);
    touch_bytes(gpu, queue, &phys->shadow, (vgpu_touch){start, start + side->size, *access});
    use_mapping(gpu, mapping, access);
    return side->size;
}

/* A captured use belongs to the block of its capture, whatever lives there when it is launched. */
static uint64_t owner_of(const vgpu *gpu, const vgpu_op *op, size_t i, ductile_addr at,
                         uint64_t size) {
    if (op->owners != NULL) {
        return op->owners[i];
    }
    const vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, at);
    return mapping != NULL ? dvmm_vgpu_block_at(mapping, at, size) : 0;
}

static void record_use(vgpu *gpu, vgpu_queue *queue, const vgpu_op *op, size_t i, vgpu_tick tick) {
    const ductile_virtual_use *use = &op->uses[i];
    uint64_t block_before = 0;
    for (uint64_t done = 0; done < use->size && dvmm_vgpu_detects(gpu);) {
        vgpu_access access = {.tick = tick,
                              .device = queue->device,
                              .side = {.stream = queue->handle,
                                       .stream_id = queue->id,
                                       .operation = queue->n_work,
                                       .address = use->address + done,
                                       .size = use->size - done,
                                       .writes = use->writes}};
        access.side.block = owner_of(gpu, op, i, access.side.address, access.side.size);
        if (op->owners == NULL) {
            check_owner(gpu, &access.side, block_before);
        }
        block_before = access.side.block;
        uint64_t part = use_part(gpu, queue, &access, use->size - done);
        if (part == 0) {
            return;
        }
        done += part;
    }
}

static void record_work(vgpu *gpu, vgpu_queue *queue, const vgpu_op *op) {
    vgpu_tick tick;
    if (!dvmm_vgpu_next_tick(gpu, queue, &tick)) {
        return;
    }
    gpu->race.reported = 0;
    for (size_t i = 0; i < op->n_uses; i++) {
        record_use(gpu, queue, op, i, tick);
    }
}

void dvmm_vgpu_race_issue(vgpu *gpu, vgpu_queue *queue, const vgpu_op *op) {
    if (!dvmm_vgpu_detects(gpu)) {
        return;
    }
    switch (op->kind) {
    case VGPU_OP_USE:
    case VGPU_OP_FILL:
    case VGPU_OP_COPY:
    case VGPU_OP_UPLOAD:
    case VGPU_OP_DOWNLOAD:
        record_work(gpu, queue, op);
        break;
    case VGPU_OP_RECORD:
        dvmm_vgpu_order_marker(gpu, queue, op->marker);
        break;
    case VGPU_OP_WAIT:
        dvmm_vgpu_order_after_marker(gpu, queue, op->marker);
        break;
    case VGPU_OP_WAIT_VALUE:
        break;
    }
}

/* ---- The host ------------------------------------------------------------------------------ */

static void read_part(vgpu *gpu, const vgpu_mapping *mapping, const ductile_virtual_side *side) {
    const vgpu_shadow *shadow = &mapping->phys->shadow;
    uint64_t start = side->address - mapping->start;
    for (uint32_t i = 0; i < shadow->n_touches; i++) {
        const vgpu_access *before = &shadow->touches[i].by;
        if (before->side.writes && overlaps(&shadow->touches[i], start, start + side->size) &&
            !dvmm_vgpu_is_known(&gpu->race.lanes, before->tick)) {
            report_conflict(gpu, &before->side, side);
        }
    }
}

void dvmm_vgpu_race_read(vgpu *gpu, ductile_addr from, uint64_t size) {
    if (!dvmm_vgpu_detects(gpu)) {
        return;
    }
    uint64_t block_before = 0;
    gpu->race.reported = 0;
    for (uint64_t done = 0; done < size;) {
        const vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, from + done);
        uint64_t offset = from + done - mapping->start;
        ductile_virtual_side side = host_at(gpu, from + done, size - done, mapping->phys);
        side.writes = 0;
        side.block = dvmm_vgpu_block_at(mapping, side.address, side.size);
        side.size = dti_min(side.size, mapping->phys->size - offset);
        check_owner(gpu, &side, block_before);
        read_part(gpu, mapping, &side);
        block_before = side.block;
        done += side.size;
    }
}

static void check_idle(vgpu *gpu, const vgpu_mapping *mapping, int device,
                       const ductile_virtual_side *host) {
    const vgpu_access *user = user_at_work(gpu, mapping, device);
    if (user != NULL) {
        report(gpu, DUCTILE_VIOLATION_EARLY_UNMAP, &user->side, host);
    }
}

void dvmm_vgpu_race_unmap(vgpu *gpu, const vgpu_mapping *mapping) {
    if (!dvmm_vgpu_detects(gpu)) {
        return;
    }
    ductile_virtual_side host = host_at(gpu, mapping->start, mapping->phys->size, mapping->phys);
    gpu->race.reported = 0;
    check_idle(gpu, mapping, ANY_DEVICE, &host);
    if (mapping->users.n_graphs != 0) {
        report_lone(gpu, DUCTILE_VIOLATION_GRAPH_MEMORY, &host);
    }
    host.block = dvmm_vgpu_block_behind(mapping);
    if (host.block != 0) {
        report_lone(gpu, DUCTILE_VIOLATION_LIVE_UNMAP, &host);
    }
}

void dvmm_vgpu_race_close(vgpu *gpu, const vgpu_mapping *mapping, int device) {
    if (!dvmm_vgpu_detects(gpu)) {
        return;
    }
    ductile_virtual_side host = host_at(gpu, mapping->start, mapping->phys->size, mapping->phys);
    gpu->race.reported = 0;
    check_idle(gpu, mapping, device, &host);
}

void dvmm_vgpu_race_map(vgpu *gpu, const vgpu_phys *phys, ductile_addr addr) {
    if (dvmm_vgpu_detects(gpu) && phys->shadow.n_graphs != 0) {
        ductile_virtual_side host = host_at(gpu, addr, phys->size, phys);
        gpu->race.reported = 0;
        report_lone(gpu, DUCTILE_VIOLATION_GRAPH_MEMORY, &host);
    }
}

/* ---- The end ------------------------------------------------------------------------------- */

void dvmm_vgpu_shadow_fini(vgpu_shadow *shadow) {
    free(shadow->touches);
    free(shadow->lives);
    *shadow = (vgpu_shadow){0};
}

void dvmm_vgpu_users_fini(vgpu_users *users) {
    free(users->last);
    *users = (vgpu_users){0};
}
