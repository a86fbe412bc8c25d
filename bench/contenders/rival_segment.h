/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One of PyTorch's expandable segments: a range of addresses of 9/8 of the device, in which whole
 * handles of one size are mapped and unmapped.
 *
 *     [handle][handle]........[handle]......................reserved
 */
#ifndef DUCTILE_BENCH_CONTENDERS_RIVAL_SEGMENT_H
#define DUCTILE_BENCH_CONTENDERS_RIVAL_SEGMENT_H

#include "vmm/driver/driver.h"

typedef struct rival_segment rival_segment;

struct rival_segment {
    dvmm_driver *driver;
    ductile_stream stream; /* waited for before memory goes back */
    ductile_addr base;
    uint64_t bytes;
    uint64_t handle_bytes;
    size_t n_slots;
    size_t n_mapped;
    size_t first_slot;  /* of those with a handle; n_slots when none has */
    size_t end_slot;    /* one past the last of those; 0 when none has   */
    dvmm_phys *handles; /* by slot; 0: nothing is mapped there           */
    dvmm_phys *spare;   /* unmapped and kept: the next mapping takes them */
    size_t n_spare;
    rival_segment *next;
    rival_segment *prev;
};

/* Reserves the range. handle_bytes is rounded up to the driver's granule. */
ductile_status rival_segment_create(dvmm_driver *driver, ductile_stream stream,
                                    uint64_t handle_bytes, rival_segment **out);
/* Pre: nothing is mapped. */
void rival_segment_destroy(rival_segment *segment);

/* Maps spare handles, then fresh ones, over [address, address + size). On error nothing has
 * changed. Pre: the span is made of whole slots, all empty. */
ductile_status rival_segment_map(rival_segment *segment, ductile_addr address, uint64_t size);
/* What becomes of handles that are unmapped. */
typedef enum rival_unmapped { RIVAL_RELEASED, RIVAL_SPARE } rival_unmapped;

/* Waits for the stream, then unmaps the handles wholly inside the span. They were mapped over
 * [*start, *start + *size); on error, what was unmapped until then. */
ductile_status rival_segment_unmap(rival_segment *segment, ductile_addr address, uint64_t span,
                                   rival_unmapped what, ductile_addr *start, uint64_t *size);
/* Releases the spare handles. Returns their bytes. */
uint64_t rival_segment_drop_spare(rival_segment *segment);
/* From the lowest to the highest mapped address. */
uint64_t rival_segment_span(const rival_segment *segment);

#endif
