/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An expandable segment: one virtual range and what backs each granule of it.
 *
 *     [mapped][mapped][empty ][mapped][retiring][empty .................. reserved]
 *
 *     EMPTY        no memory; may be mapped
 *     MAPPED       backed by a handle whose current place this is
 *     RETIRING     still maps a handle that already serves at another address; never handed out;
 *                  unmapped once the host knows the work that used it complete
 *     QUARANTINED  the driver failed to unmap it, or will not say whether it is mapped: never used,
 *                  mapped or released again
 *
 * A handle covers whole runs of granules: its granules always change state together.
 * Guarded by the allocator's grow lock. Nothing here knows of requests.
 */
#ifndef DUCTILE_SEGMENTS_SEGMENT_H
#define DUCTILE_SEGMENTS_SEGMENT_H

#include "vmm/handle.h"
#include "vmm/range.h"

typedef enum dseg_state {
    DSEG_EMPTY = 0,
    DSEG_MAPPED = 1,
    DSEG_RETIRING = 2,
    DSEG_QUARANTINED = 3
} dseg_state;

typedef struct dseg_slot {
    dvmm_handle *handle; /* NULL when EMPTY; QUARANTINED: may dangle, never followed */
    uint32_t offset;     /* which granule of the handle this is                      */
    uint16_t state;      /* dseg_state                                               */
    uint16_t stays;      /* first of a handle: dseg_unmap_for_sleep leaves it where it is     */
} dseg_slot;

typedef struct dseg_segment {
    /* constant after creation */
    dvmm_handle_store *store;
    dvmm_range range;
    uint32_t n_granules;
    uint32_t granule_log2;  /* of the store's granule_bytes; 0 when it is no power of two */
    uint32_t unit_granules; /* a handle lies inside one unit of so many; 0: wherever it fits */
    void *owner;            /* the upper layer's view of this segment */
    /* guarded by the grow lock */
    dseg_slot *slots;
    uint32_t n_mapped; /* granules by state */
    uint32_t n_retiring;
    uint32_t n_quarantined;
    uint32_t low, high; /* all mapped, retiring and quarantined granules lie in [low, high) */
} dseg_segment;

/* Reserves a range of at least need_bytes, and guard_bytes behind it, which no granule covers.
 * ERR_OUT_OF_ADDRESSES, ERR_OUT_OF_HOST_MEMORY, ... */
ductile_status dseg_create(dvmm_handle_store *store, uint64_t need_bytes, uint64_t wish_bytes,
                           uint64_t guard_bytes, uint64_t budget_bytes, dseg_segment **out);

/*
 * Gives the range back and frees the segment. Pre: nothing mapped or retiring. With quarantined
 * granules the range cannot be given back and is left to the process; the status says so.
 */
ductile_status dseg_destroy(dseg_segment *seg);

/* Leaves all that is mapped to the end of the process: it counts as QUARANTINED. Destroying only,
 * when nothing may be unmapped. */
void dseg_forget(dseg_segment *seg);

static inline ductile_addr dseg_addr(const dseg_segment *seg, uint32_t granule) {
    return seg->range.addr + granule * seg->store->granule_bytes;
}

/* A free that merges memory of two ages asks twice, and a division takes as long as a lock. */
static inline uint32_t dseg_granule(const dseg_segment *seg, ductile_addr addr) {
    uint64_t offset = addr - seg->range.addr;
    return (uint32_t)(seg->granule_log2 != 0 ? offset >> seg->granule_log2
                                             : offset / seg->store->granule_bytes);
}

static inline bool dseg_contains(const dseg_segment *seg, ductile_addr addr) {
    return addr - seg->range.addr < seg->range.size;
}

static inline bool dseg_is_untouched(const dseg_segment *seg) {
    return seg->n_mapped == 0 && seg->n_retiring == 0 && seg->n_quarantined == 0;
}

/* Of at most `most` granules from that one on, those in its unit. */
static inline uint32_t dseg_within_unit(const dseg_segment *seg, uint32_t granule, uint32_t most) {
    if (seg->unit_granules == 0) {
        return most;
    }
    uint32_t left = seg->unit_granules - granule % seg->unit_granules;
    return left < most ? left : most;
}

/* Bytes from the lowest to the highest granule that maps something. */
uint64_t dseg_span_bytes(const dseg_segment *seg);

/* The handle behind a granule. */
static inline dvmm_handle *dseg_handle_at(const dseg_segment *seg, uint32_t granule) {
    return seg->slots[granule].handle;
}

/* Fills mapped memory with zeros, in stream order. */
ductile_status dseg_zero(dvmm_handle_store *store, ductile_addr addr, uint64_t size,
                         ductile_stream stream);

/*
 * Gives a device access to all that is mapped in the segment, or takes it. All or nothing, if the
 * driver undoes it: on failure the device has the access it had, provided that before the call all
 * of the segment had the opposite.
 */
ductile_status dseg_set_device(dseg_segment *seg, int device, bool may_access);

#endif
