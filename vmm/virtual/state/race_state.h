/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the virtual GPU keeps to detect misuse of memory, whatever the schedule.
 *
 *   order.c   which work comes before which, and what the host knows complete
 *   race.c    who touched which bytes, and whether that has an order
 *   blocks.c  live blocks
 *
 * History belongs to the bytes of a physical handle, so addresses that share a handle share it. A
 * handle keeps the touches that later work may still conflict with. A write drops the touches
 * before it, since all work that comes after the write comes after them too. Work that the host
 * knows to be complete comes before everything. A read of a stream replaces reads that come before
 * it. So a handle keeps one touch for each piece of its bytes and each stream with incomplete work.
 *
 * An unmap is checked against the mapping, not the handle, whose memory may be in use at another
 * address. A mapping keeps the last work of each stream that used it.
 *
 * When the host has no memory left, detection ends.
 */
#ifndef DUCTILE_VMM_VIRTUAL_STATE_RACE_STATE_H
#define DUCTILE_VMM_VIRTUAL_STATE_RACE_STATE_H

#include "vmm/virtual/state/clock.h"

#include <ductile_virtual.h>

/* One use of memory by one piece of work. */
typedef struct vgpu_access {
    vgpu_tick tick;
    int device; /* whose work it is */
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
    vgpu_clock context_after; /* work of other contexts that streams of this one come after */
    uint64_t n_blocks;
} vgpu_race;

#endif
