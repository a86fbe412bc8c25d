/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/torch_segment.h"
#include "vmm/base/status.h"

#include "vmm/base/align.h"

#include <stdlib.h>

/* ---- Life cycle ---------------------------------------------------------------------------- */

static torch_segment *make_segment(dvmm_driver *driver, ductile_stream stream,
                                   uint64_t handle_bytes) {
    const dvmm_caps *caps = dvmm_get_caps(driver);
    torch_segment *segment = calloc(1, sizeof(*segment));
    if (segment == NULL) {
        return NULL;
    }
    segment->driver = driver;
    segment->stream = stream;
    segment->handle_bytes = dti_round_up(handle_bytes, caps->granule_bytes);
    segment->bytes = dti_round_up(caps->total_bytes + caps->total_bytes / 8, segment->handle_bytes);
    segment->n_slots = (size_t)(segment->bytes / segment->handle_bytes);
    segment->first_slot = segment->n_slots;
    segment->handles = calloc(segment->n_slots, sizeof(*segment->handles));
    return segment;
}

static void free_segment(torch_segment *segment) {
    free(segment->handles);
    free(segment);
}

ductile_status torch_segment_create(dvmm_driver *driver, ductile_stream stream,
                                    uint64_t handle_bytes, torch_segment **out) {
    *out = NULL;
    torch_segment *segment = make_segment(driver, stream, handle_bytes);
    if (segment == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = segment->handles == NULL
                                ? DUCTILE_ERR_OUT_OF_HOST_MEMORY
                                : dvmm_address_reserve(driver, segment->bytes, &segment->base);
    if (status != DUCTILE_OK) {
        free_segment(segment);
        return status;
    }
    *out = segment;
    return DUCTILE_OK;
}

void torch_segment_destroy(torch_segment *segment) {
    (void)dvmm_address_free(segment->driver, segment->base, segment->bytes);
    free_segment(segment);
}

/* ---- Slots --------------------------------------------------------------------------------- */

static ductile_addr slot_address(const torch_segment *segment, size_t slot) {
    return segment->base + (uint64_t)slot * segment->handle_bytes;
}

static void note_mapped(torch_segment *segment, size_t begin, size_t end) {
    segment->first_slot = begin < segment->first_slot ? begin : segment->first_slot;
    segment->end_slot = end > segment->end_slot ? end : segment->end_slot;
}

static void note_unmapped(torch_segment *segment) {
    while (segment->end_slot > 0 && segment->handles[segment->end_slot - 1] == 0) {
        segment->end_slot--;
    }
    while (segment->first_slot < segment->end_slot && segment->handles[segment->first_slot] == 0) {
        segment->first_slot++;
    }
    if (segment->end_slot == 0) {
        segment->first_slot = segment->n_slots;
    }
}

uint64_t torch_segment_span(const torch_segment *segment) {
    return segment->end_slot == 0
               ? 0
               : (uint64_t)(segment->end_slot - segment->first_slot) * segment->handle_bytes;
}

/* ---- Map ----------------------------------------------------------------------------------- */

static void release_slots(torch_segment *segment, size_t begin, size_t end) {
    for (size_t slot = end; slot-- > begin;) {
        (void)dvmm_phys_release(segment->driver, segment->handles[slot]);
        segment->handles[slot] = 0;
    }
}

static ductile_status create_slots(torch_segment *segment, size_t begin, size_t end) {
    const dvmm_phys_props props = {0};
    for (size_t slot = begin; slot < end; slot++) {
        ductile_status status = dvmm_phys_create(segment->driver, segment->handle_bytes, &props,
                                                 &segment->handles[slot]);
        if (status != DUCTILE_OK) {
            release_slots(segment, begin, slot);
            return status;
        }
    }
    return DUCTILE_OK;
}

static void unmap_slots(torch_segment *segment, size_t begin, size_t end) {
    for (size_t slot = end; slot-- > begin;) {
        (void)dvmm_unmap(segment->driver, slot_address(segment, slot), segment->handle_bytes);
    }
}

static ductile_status map_slots(torch_segment *segment, size_t begin, size_t end) {
    for (size_t slot = begin; slot < end; slot++) {
        ductile_status status = dvmm_map(segment->driver, slot_address(segment, slot),
                                         segment->handle_bytes, segment->handles[slot]);
        if (status != DUCTILE_OK) {
            unmap_slots(segment, begin, slot);
            return status;
        }
    }
    return DUCTILE_OK;
}

ductile_status torch_segment_map(torch_segment *segment, ductile_addr address, uint64_t size) {
    size_t begin = (size_t)((address - segment->base) / segment->handle_bytes);
    size_t end = begin + (size_t)(size / segment->handle_bytes);
    DTI_TRY(create_slots(segment, begin, end));
    ductile_status status = map_slots(segment, begin, end);
    if (status != DUCTILE_OK) {
        goto release;
    }
    status = dvmm_set_access(segment->driver, address, size, DVMM_ACCESS_RW);
    if (status != DUCTILE_OK) {
        goto unmap;
    }
    note_mapped(segment, begin, end);
    return DUCTILE_OK;

unmap:
    unmap_slots(segment, begin, end);
release:
    release_slots(segment, begin, end);
    return status;
}

/* ---- Unmap --------------------------------------------------------------------------------- */

static ductile_status unmap_slot(torch_segment *segment, size_t slot) {
    dvmm_phys handle = segment->handles[slot];
    DTI_TRY(dvmm_unmap(segment->driver, slot_address(segment, slot), segment->handle_bytes));
    segment->handles[slot] = 0;
    return dvmm_phys_release(segment->driver, handle);
}

ductile_status torch_segment_unmap(torch_segment *segment, ductile_addr address, uint64_t span,
                                   ductile_addr *start, uint64_t *size) {
    uint64_t from = dti_round_up(address - segment->base, segment->handle_bytes);
    uint64_t to = dti_round_down(address - segment->base + span, segment->handle_bytes);
    *start = segment->base + from;
    *size = 0;
    if (from >= to) {
        return DUCTILE_OK;
    }
    ductile_status status = dvmm_stream_sync(segment->driver, segment->stream);
    while (status == DUCTILE_OK && from + *size < to) {
        status = unmap_slot(segment, (size_t)((from + *size) / segment->handle_bytes));
        if (status == DUCTILE_OK) {
            *size += segment->handle_bytes;
        }
    }
    note_unmapped(segment);
    return status;
}
