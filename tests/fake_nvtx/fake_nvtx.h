/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tool that listens to NVTX, as compute-sanitizer does, and aborts with one line at the first
 * mistake: a range that ends without having begun, a heap over another, a region outside of its
 * heap or over another, the end of what is not registered, a name that is none. A test loads it by
 * the same path as Ductile and looks at what it holds.
 */
#ifndef TESTS_FAKE_NVTX_FAKE_NVTX_H
#define TESTS_FAKE_NVTX_FAKE_NVTX_H

#include <stdbool.h>
#include <stdint.h>

enum { FAKE_NVTX_MAX_NAME = 50 };

typedef struct fake_nvtx_region {
    uint64_t addr;
    uint64_t size;
    char name[FAKE_NVTX_MAX_NAME];
} fake_nvtx_region;

/* Found by its name, "fake_nvtx". */
typedef struct fake_nvtx_control {
    bool refuses_heaps; /* set by the test */
    bool is_attached;
    uint64_t n_calls; /* of any function */
    uint64_t n_pushed, n_popped;
    uint64_t n_heaps, n_heaps_ever;
    uint64_t n_regions, n_regions_ever;
    /* Region i in the order of addresses; NULL behind the last. Valid until the next call. */
    const fake_nvtx_region *(*region)(uint64_t i);
    /* Ranges of that name that have begun, and the sum of what they say is moved. */
    uint64_t (*count)(const char *name, uint64_t *bytes);
    /* Leaves the slots of ranges, or takes them again. */
    void (*listen)(bool listens);
    /* Bytes of all heaps. */
    uint64_t (*heap_bytes)(void);
} fake_nvtx_control;

#endif
