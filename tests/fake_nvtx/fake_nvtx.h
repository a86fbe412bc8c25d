/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tool that listens to NVTX, as Nsight Systems does, and aborts with one line at the first
 * mistake: a range that ends without having begun, one that has not ended when the process does. A
 * test loads it by the same path as Ductile and looks at what it was told.
 */
#ifndef TESTS_FAKE_NVTX_FAKE_NVTX_H
#define TESTS_FAKE_NVTX_FAKE_NVTX_H

#include <stdbool.h>
#include <stdint.h>

enum { FAKE_NVTX_MAX_NAME = 50 };

/* Found by its name, "fake_nvtx". */
typedef struct fake_nvtx_control {
    bool is_attached;
    uint64_t n_calls; /* of any function */
    uint64_t n_pushed, n_popped;
    /* Ranges of that name that have begun, and the sum of what they say is moved. */
    uint64_t (*count)(const char *name, uint64_t *bytes);
    /* Leaves the slots of ranges, or takes them again. */
    void (*listen)(bool listens);
} fake_nvtx_control;

#endif
