/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCTILE_BENCH_BASE_ARRAY_H
#define DUCTILE_BENCH_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * Makes room for one more element of so many bytes in an array of n. `array` is the address of the
 * pointer to the first, *capacity the number that it has room for. False when the host has no
 * memory: then nothing has changed.
 */
static inline bool array_has_room(void *array, size_t bytes, size_t *capacity, size_t n) {
    void *elements = NULL;
    if (n < *capacity) {
        return true;
    }
    size_t wanted = *capacity == 0 ? 256 : 2 * *capacity;
    memcpy(&elements, array, sizeof elements);
    elements = reallocarray(elements, wanted, bytes);
    if (elements == NULL) {
        return false;
    }
    memcpy(array, &elements, sizeof elements);
    *capacity = wanted;
    return true;
}

/* The same, and puts the element there. */
static inline bool array_add(void *array, size_t bytes, size_t *capacity, size_t *n,
                             const void *element) {
    char *elements;
    if (!array_has_room(array, bytes, capacity, *n)) {
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
