/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the virtual GPU keeps to detect misuse of memory, whatever the schedule.
 *
 *   driver_virtual_clock.c   clocks
 *   driver_virtual_order.c   which work comes before which, and what the host knows complete
 *   driver_virtual_race.c    who touched which bytes, and whether that has an order
 *   driver_virtual_blocks.c  live blocks
 *
 * Bytes are those of a physical handle, so that addresses that share a handle share its history. A
 * handle keeps the touches that some later work may still conflict with: bytes that are written
 * again forget the touches before, for who comes after the write comes after them; what the host
 * knows complete comes before everything; a stream's read replaces reads that come before it. So a
 * handle keeps one touch for each piece of its bytes and each stream at work that the host has not
 * seen complete.
 *
 * Unmapping is asked of the mapping, not of the handle: its memory may well be in use at another
 * address. A mapping keeps the last work of each stream that went through it.
 *
 * Every function is called with gpu->lock held. Without host memory to go on, detection ends.
 */
#ifndef DUCTILE_VMM_VIRTUAL_RACE_RACE_H
#define DUCTILE_VMM_VIRTUAL_RACE_RACE_H

#include "vmm/virtual/race/clock.h"

#include <ductile_virtual.h>

typedef struct ductile_virtual_gpu vgpu;
struct vgpu_queue;
struct vgpu_marker;
struct vgpu_mapping;
struct vgpu_phys;
struct vgpu_op;

/* One use of memory by one piece of work. */
typedef struct vgpu_access {
    vgpu_tick tick;
    ductile_virtual_side side;
} vgpu_access;

/* Bytes [start, end) of a handle, and who used them. */
typedef struct vgpu_touch {
    uint64_t start, end;
    vgpu_access by;
} vgpu_touch;

/* The part of a live block that lies in one handle, at the address that the block was given. */
typedef struct vgpu_live {
    uint64_t start, end;
    ductile_addr mapping; /* where the handle is mapped */
    uint64_t block;
} vgpu_live;

/* Of one handle. */
typedef struct vgpu_shadow {
    vgpu_touch *touches;
    uint32_t n_touches, touches_room;
    vgpu_live *lives; /* ascending and disjoint */
    uint32_t n_lives, lives_room;
    uint32_t n_graphs; /* uses of it by captures and graphs */
} vgpu_shadow;

/* Of one mapping: the last work of each lane. */
typedef struct vgpu_users {
    vgpu_access *last;
    uint32_t n, room;
    uint32_t n_graphs;
} vgpu_users;

typedef struct vgpu_race {
    int level;          /* the option `detect`; 0 also when the host had no memory to go on  */
    bool is_program;    /* the call under way is the program's, not the driver's             */
    bool is_unanswered; /* the call under way will fail: the host learns nothing from it     */
    uint32_t reported;  /* kinds reported in the call under way: a large block is one mistake */
    vgpu_lanes lanes;
    vgpu_clock device_after; /* work of other devices that streams of this one come after */
    uint64_t n_blocks;
} vgpu_race;

/* ---- driver_virtual_order.c ---------------------------------------------------------------- */

/* Detection ends: the host has no memory. */
void dvmm_vgpu_stop_detecting(vgpu *gpu);
/* False when nothing is detected, or no more. */
bool dvmm_vgpu_detects(const vgpu *gpu);
/* The next piece of work of the queue. False: detection has ended. */
bool dvmm_vgpu_next_tick(vgpu *gpu, struct vgpu_queue *queue, vgpu_tick *out);
bool dvmm_vgpu_comes_after(const vgpu *gpu, const struct vgpu_queue *queue, vgpu_tick tick);
/* Later work of `queue` comes after the work of `on` so far; after what the marker stands for. */
void dvmm_vgpu_order_after_queue(vgpu *gpu, struct vgpu_queue *queue, struct vgpu_queue *on);
void dvmm_vgpu_order_after_marker(vgpu *gpu, struct vgpu_queue *queue, struct vgpu_marker *marker);
/* The marker stands for the work of the queue so far. */
void dvmm_vgpu_order_marker(vgpu *gpu, struct vgpu_queue *queue, struct vgpu_marker *marker);
/* The host knows that work complete. */
void dvmm_vgpu_learn_marker(vgpu *gpu, const struct vgpu_marker *marker);
void dvmm_vgpu_learn_queue(vgpu *gpu, const struct vgpu_queue *queue);
/* All work of this device, and what that waited for. */
void dvmm_vgpu_learn_device_work(vgpu *gpu);
void dvmm_vgpu_order_fini_queue(vgpu *gpu, struct vgpu_queue *queue);

/* ---- driver_virtual_race.c ----------------------------------------------------------------- */

/* Before the operation joins the queue. */
void dvmm_vgpu_race_issue(vgpu *gpu, struct vgpu_queue *queue, const struct vgpu_op *op);
/* The host reads the bytes now. */
void dvmm_vgpu_race_read(vgpu *gpu, ductile_addr from, uint64_t size);
/* The mapping is about to go, or to allow less. */
void dvmm_vgpu_race_unmap(vgpu *gpu, const struct vgpu_mapping *mapping);
void dvmm_vgpu_race_close(vgpu *gpu, const struct vgpu_mapping *mapping);
/* The handle is about to get an address. */
void dvmm_vgpu_race_map(vgpu *gpu, const struct vgpu_phys *phys, ductile_addr addr);
void dvmm_vgpu_shadow_fini(vgpu_shadow *shadow);
void dvmm_vgpu_users_fini(vgpu_users *users);

/* ---- driver_virtual_blocks.c --------------------------------------------------------------- */

void dvmm_vgpu_block_begin(vgpu *gpu, ductile_addr address, uint64_t size);
void dvmm_vgpu_block_end(vgpu *gpu, ductile_addr address);
/* The live block that holds all of the span, which lies in one mapping; 0: none does. */
uint64_t dvmm_vgpu_block_at(const struct vgpu_mapping *mapping, ductile_addr address,
                            uint64_t size);
/* A live block that lies behind the mapping; 0: none. */
uint64_t dvmm_vgpu_block_behind(const struct vgpu_mapping *mapping);
/* Whether blocks are announced where the address lies. */
bool dvmm_vgpu_is_announced(const vgpu *gpu, ductile_addr address);

#endif
