/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host arena: one stretch of page-locked host memory, from which spans are taken and to which
 * they return. Addresses are reserved once, as many as the machine has memory; memory is put behind
 * them from the low end on, an extent at a time: mapped with huge pages where the kernel has them,
 * touched by several threads, which end before the call does, and registered with the driver by one
 * call. That costs a tenth of what memory of the driver's own does, and one extent of the size that
 * is needed costs less than many.
 *
 *     [extent][extent    ][extent ][ reserved, no memory ................... ]
 *      span   span  . . . span . .
 *
 * A copy must not cross from one extent into the next: the driver knows them one by one. So a span
 * lies in one extent, and a program that has its address may copy all of it at once.
 * Threads: safe. Two locks: one while memory is made or given back, which may take long and may
 * only be acquired by a thread that holds none, and a short one of rank LEAF.
 */
#ifndef DUCTILE_VMM_HOST_ARENA_H
#define DUCTILE_VMM_HOST_ARENA_H

#include "vmm/base/lock.h"
#include "vmm/driver/driver.h"

/* Part of the arena: [at, at + size) from its start. */
typedef struct dvmm_host_span {
    uint64_t at;
    uint64_t size; /* 0: none */
} dvmm_host_span;

typedef struct dvmm_host_arena {
    dvmm_driver *driver;      /* constant */
    _Atomic bool has_batches; /* dvmm_copy_batch works; until the device says otherwise */
    dti_lock making;          /* rank HOST */
    dti_lock lock;            /* rank LEAF */
    /* set once, under both locks */
    uint8_t *base;
    uint64_t most_bytes; /* addresses reserved */
    /* changed under both locks */
    uint64_t *ends; /* of the extents, ascending */
    uint32_t n_extents;
    uint32_t extents_room;
    uint64_t bytes; /* end of the last extent */
    /* changed under `lock` */
    dvmm_host_span *taken; /* ascending */
    uint32_t n_taken;
    uint32_t taken_room;
} dvmm_host_arena;

void dvmm_host_arena_init(dvmm_host_arena *arena, dvmm_driver *driver);

/* Gives all memory back, whatever is taken, and returns the first error of the driver. Once that
 * may not be called, the memory is left to the end of the process, and that is no error. */
ductile_status dvmm_host_arena_fini(dvmm_host_arena *arena);

/* Makes memory until there are so many bytes in all. ERR_OUT_OF_HOST_MEMORY (more than the machine
 * or the process's control group has left), ERR_DRIVER, ...: then there is as much as before. No
 * lock held. */
ductile_status dvmm_host_arena_reserve(dvmm_host_arena *arena, uint64_t bytes);

/* Gives back extents above the highest span that is taken, down to keep_bytes. Adds what went to
 * *released, also when the driver refuses to go on. No lock held. */
ductile_status dvmm_host_arena_release(dvmm_host_arena *arena, uint64_t keep_bytes,
                                       uint64_t *released);

/* Takes a span of `size` in one extent, or one of at least `least` where so much is free nowhere.
 * Makes memory if there is no room for that either; free extents at the top become part of it. No
 * lock held. On error nothing is taken, and there is as much memory as before, unless the driver
 * refuses to lock again what it had locked. */
ductile_status dvmm_host_arena_take(dvmm_host_arena *arena, uint64_t size, uint64_t least,
                                    dvmm_host_span *out);

/* The span ends after `size` bytes, and the rest is free. Pre: 0 < size <= span->size. */
void dvmm_host_arena_cut(dvmm_host_arena *arena, dvmm_host_span *span, uint64_t size);

/* Pre: no copy into or out of it is under way. */
void dvmm_host_arena_give(dvmm_host_arena *arena, dvmm_host_span span);

uint64_t dvmm_host_arena_bytes(dvmm_host_arena *arena);

/* The bytes from `at` to the end of its extent: the most that one copy may take. Pre: `at` lies in
 * a span that the caller has taken. */
uint64_t dvmm_host_arena_rest(dvmm_host_arena *arena, uint64_t at);

/* May a forked child touch the arena? */
static inline bool dvmm_host_arena_at_rest(dvmm_host_arena *arena) {
    return dti_lock_is_free(&arena->making) && dti_lock_is_free(&arena->lock);
}

#endif
