/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/array.h"

#include "vmm/base/align.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- Arrays that grow ---------------------------------------------------------------------- */

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

/* ---- Large tables -------------------------------------------------------------------------- */

void *dti_table_new(size_t n, size_t element) {
    if (n == 0 || n > SIZE_MAX / element) {
        return NULL;
    }
    void *table = mmap(NULL, n * element, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return table != MAP_FAILED ? table : NULL;
}

void dti_table_free(void *table, size_t n, size_t element) {
    if (table != NULL) {
        (void)munmap(table, n * element);
    }
}
