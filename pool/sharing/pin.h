/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins: memory that stays where it is, because somebody else knows its address (a registration) or
 * its handles (another process). One record for each address pinned; every handle behind it counts
 * the records that cover it. FREE memory with pins is reused in place, and is neither donor nor
 * given back (P9, U10).
 *
 * Records belong to an address, not to a block: they outlive the block's free. Pinned again with a
 * larger block, a record grows; it shrinks never, and goes with its last pin and export.
 */
#ifndef DUCTILE_POOL_SHARING_PIN_H
#define DUCTILE_POOL_SHARING_PIN_H

#include "segments/segment.h"

typedef struct dpool_pin {
    ductile_addr addr;
    dseg_segment *seg; /* stays, as long as it maps memory */
    uint32_t first;    /* granules that its handles cover  */
    uint32_t n_granules;
    uint32_t n_pins;
    uint32_t n_exports;
} dpool_pin;

typedef enum dpool_pin_kind { DPOOL_PIN_PLACE, DPOOL_PIN_EXPORT } dpool_pin_kind;

/* A block as it was when it was pinned, and the granules of the handles it lies in. */
typedef struct dpool_pinned {
    ductile_addr addr;
    uint64_t size;
    dseg_segment *seg;
    uint32_t first;
    uint32_t end;
} dpool_pinned;

struct ductile_allocator;
struct dpool_block;

/* Pins the live block that starts at addr. Grow lock held, index lock not. The errors of a pointer
 * that is none; ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_pin_add(struct ductile_allocator *a, ductile_addr addr, dpool_pin_kind kind,
                             dpool_pinned *out);

/* Takes one pin back. As above. The errors of a pointer that has no such pin. */
ductile_status dpool_pin_drop(struct ductile_allocator *a, ductile_addr addr, dpool_pin_kind kind);

/* The whole of a public call that takes one back. No lock held. */
ductile_status dpool_pin_end(struct ductile_allocator *a, ductile_addr address,
                             dpool_pin_kind kind);

/* ductile_block_flags of what is behind a block. Index lock held. */
uint32_t dpool_pin_flags_locked(const struct ductile_allocator *a, const struct dpool_block *b);

/* Frees the records. Destroying only. */
void dpool_pins_fini(struct ductile_allocator *a);

#endif
