/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCTILE_BENCH_BASE_ARRAY_H
#define DUCTILE_BENCH_BASE_ARRAY_H

#include "vmm/base/array.h"

#include <string.h>

/* Adds an element to an array that grows (dti_have_room). False when the host has no memory: then
 * nothing has changed. */
static inline bool array_add(void *array, size_t bytes, uint32_t *capacity, size_t *n,
                             const void *element) {
    char *elements;
    if (!dti_have_room(array, bytes, capacity, *n + 1)) {
        return false;
    }
    memcpy(&elements, array, sizeof elements);
    memcpy(elements + (*n)++ * bytes, element, bytes);
    return true;
}

/* For qsort and bsearch: by the 64-bit number that an element begins with. */
static inline int array_by_number(const void *a, const void *b) {
    uint64_t x;
    uint64_t y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

#endif
