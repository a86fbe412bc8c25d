/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/table.h"

#include <stdint.h>
#include <sys/mman.h>

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
