/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One of PyTorch's expandable segments: a range of addresses of 9/8 of the device, in which whole
 * handles of one size are mapped and unmapped.
 *
 *     [handle][handle]........[handle]......................reserved
 */
#ifndef DUCTILE_BENCH_CONTENDERS_TORCH_SEGMENT_H
#define DUCTILE_BENCH_CONTENDERS_TORCH_SEGMENT_H

#include "vmm/driver/driver.h"

typedef struct torch_segment torch_segment;

struct torch_segment {
    dvmm_driver *driver;
    ductile_stream stream; /* waited for before memory goes back */
    ductile_addr base;
    uint64_t bytes;
    uint64_t handle_bytes;
    size_t n_slots;
    size_t first_slot;  /* of those with a handle; n_slots when none has */
    size_t end_slot;    /* one past the last of those; 0 when none has   */
    dvmm_phys *handles; /* by slot; 0: nothing is mapped there           */
    torch_segment *next;
    torch_segment *prev;
};

/* Reserves the range. handle_bytes is rounded up to the driver's granule. */
ductile_status torch_segment_create(dvmm_driver *driver, ductile_stream stream,
                                    uint64_t handle_bytes, torch_segment **out);
/* Pre: nothing is mapped. */
void torch_segment_destroy(torch_segment *segment);

/* Maps fresh handles over [address, address + size). On error nothing has changed.
 * Pre: the span is made of whole slots, all empty. */
ductile_status torch_segment_map(torch_segment *segment, ductile_addr address, uint64_t size);
/* Waits for the stream, then unmaps and releases the handles wholly inside the span. They were
 * mapped over [*start, *start + *size); on error, what was given back until then. */
ductile_status torch_segment_unmap(torch_segment *segment, ductile_addr address, uint64_t span,
                                   ductile_addr *start, uint64_t *size);
/* From the lowest to the highest mapped address. */
uint64_t torch_segment_span(const torch_segment *segment);

#endif
