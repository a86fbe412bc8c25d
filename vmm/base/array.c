/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/array.h"

#include "vmm/base/align.h"

#include <stdlib.h>
#include <string.h>

bool dti_have_room(void *array, size_t bytes, uint32_t *room, uint64_t n) {
    void *elements = NULL;
    if (n <= *room) {
        return true;
    }
    uint64_t larger = dti_max(n, 2 * (uint64_t)*room);
    memcpy(&elements, array, sizeof elements);
    elements = larger <= UINT32_MAX ? realloc(elements, larger * bytes) : NULL;
    if (elements == NULL) {
        return false;
    }
    memcpy(array, &elements, sizeof elements);
    *room = (uint32_t)larger;
    return true;
}

void dti_insert(void *array, size_t bytes, uint32_t *n, uint32_t at, const void *element) {
    char *place = (char *)array + at * bytes;
    memmove(place + bytes, place, (*n - at) * bytes);
    memcpy(place, element, bytes);
    ++*n;
}

void dti_remove(void *array, size_t bytes, uint32_t *n, uint32_t at) {
    char *place = (char *)array + at * bytes;
    --*n;
    memmove(place, place + bytes, (*n - at) * bytes);
}
