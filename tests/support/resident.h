/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory of this process. */
#ifndef TESTS_SUPPORT_RESIDENT_H
#define TESTS_SUPPORT_RESIDENT_H

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

/* Resident bytes; 0 where /proc does not say. */
static inline uint64_t resident_bytes(void) {
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL) {
        (void)!fscanf(file, "%*s %llu", &pages);
        (void)fclose(file);
    }
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

#endif
