/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbered objects that never move. Item i stays where it is until it is given back. Its number is
 * then the next one handed out (as drivers do with stream and event handles), and its generation
 * tells a stale number from a live one.
 *
 * Every item type starts with a dvmm_slot. Numbers count from 1; 0 is none.
 */
#ifndef DUCTILE_VMM_VIRTUAL_STATE_SLOTS_H
#define DUCTILE_VMM_VIRTUAL_STATE_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dvmm_slot {
    uint32_t number;
    uint32_t generation; /* odd while the item is live */
    uint32_t next_free;  /* valid while it is not      */
} dvmm_slot;

/* Guarded by its owner's lock. */
typedef struct dvmm_slots {
    char **chunks;
    uint32_t n_chunks;
    uint32_t item_size; /* constant */
    uint32_t n_used;    /* numbers 1..n_used have been handed out once */
    uint32_t first_free;
    uint32_t n_live;
} dvmm_slots;

void dvmm_slots_init(dvmm_slots *slots, size_t item_size);
void dvmm_slots_fini(dvmm_slots *slots);

/* A zeroed item (but for its slot); NULL when the host has no memory. */
void *dvmm_slots_take(dvmm_slots *slots);
void dvmm_slots_give(dvmm_slots *slots, void *item);

/* The live item of that number, or NULL. */
void *dvmm_slots_find(const dvmm_slots *slots, uint64_t number);

/* Converts a number to a value that looks like a pointer but leads nowhere, and back: NULL for a
 * number of no live item. No handle is one of the small values that stand for default streams. */
void *dvmm_slots_handle(const void *item);
void *dvmm_slots_find_handle(const dvmm_slots *slots, const void *handle);

/* For loops over all: the first live item whose number is at least `number`, or NULL. */
void *dvmm_slots_next(const dvmm_slots *slots, uint32_t number);

#endif
