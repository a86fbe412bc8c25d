/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCTILE_BENCH_BASE_ARRAY_H
#define DUCTILE_BENCH_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
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

#endif
