/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins: memory that must stay where it is, because a device has registered its address, or another
 * process holds its handles. Each pinned address has one record, and every handle counts the
 * records that cover it. FREE memory with pins is reused in place; it never moves and is never
 * given back (P9, U10).
 *
 * A record belongs to an address, not to a block, and outlives the free of the block. When a larger
 * block at the address is pinned, the record grows. It never shrinks, and is removed with its last
 * pin and export.
 */
#ifndef DUCTILE_POOL_SHARING_PIN_H
#define DUCTILE_POOL_SHARING_PIN_H

#include "segments/segment.h"
#include "vmm/base/fault.h"

typedef struct dpool_pin {
    ductile_addr addr;
    dseg_segment *seg; /* exists as long as it maps memory */
    uint32_t first;    /* granules that its handles cover  */
    uint32_t n_granules;
    uint32_t n_pins;
    uint32_t n_exports;
} dpool_pin;

typedef enum dpool_pin_kind { DPOOL_PIN_PLACE, DPOOL_PIN_EXPORT } dpool_pin_kind;

/* A block at the moment when it was pinned, and the granules of the handles that it overlaps. */
typedef struct dpool_pinned {
    ductile_addr addr;
    uint64_t size;
    dseg_segment *seg;
    uint32_t first;
    uint32_t end;
} dpool_pinned;

/* The blocks of a tag that one call has exported: one export of each address is its own. */
typedef struct dpool_tag_export {
    struct dpool_tag_export *next;
    uint64_t id;
    uint64_t n;
    ductile_addr addrs[];
} dpool_tag_export;

struct ductile_allocator;
struct dpool_block;

/* Pins the live block that starts at addr. Grow lock held, index lock not. ERR_OUT_OF_HOST_MEMORY;
 * the errors of dpool_explain_miss_locked when no live block starts there; ERR_ASLEEP when it
 * is asleep. */
ductile_status dpool_pin_add(struct ductile_allocator *a, ductile_addr addr, dpool_pin_kind kind,
                             dpool_pinned *out);

/* Drops one pin of the address. Grow lock held, index lock not. The errors of a pointer that has no
 * such pin. */
ductile_status dpool_pin_drop(struct ductile_allocator *a, ductile_addr addr, dpool_pin_kind kind);

/* The public call that drops a pin or an export: checks the allocator, locks, and calls
 * dpool_pin_drop. No lock held. */
ductile_status dpool_pin_end(struct ductile_allocator *a, ductile_addr address,
                             dpool_pin_kind kind);

/* The ductile_block_flags of the handles behind a block. Index lock held. */
uint32_t dpool_pin_flags_locked(const struct ductile_allocator *a, const struct dpool_block *b);

/* Frees the records. Destroying only. */
void dpool_pins_fini(struct ductile_allocator *a);

/* Recounts the records, and what they add to handles (P9), and records the first invariant that
 * does not hold in *fault. Follows pointers: call it only while the fault is empty. For a moment it
 * changes the handles' counts, which the grow lock guards. Both locks held. */
void dpool_pins_check_locked(const struct ductile_allocator *a, dti_fault *fault);

#endif
