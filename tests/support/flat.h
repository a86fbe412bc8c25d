/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What has to stay flat in a long run: a sample at the end of each of its equal parts. The first
 * quarter is not judged, because tables grow to their size then.
 */
#ifndef TESTS_SUPPORT_FLAT_H
#define TESTS_SUPPORT_FLAT_H

#include <ductile.h>

enum { FLAT_PARTS = 20 };

typedef struct flat_sample {
    double ns; /* an operation */
    /* bytes of this process (0 under sanitizers) and of the allocator's tables; physical memory,
     * granules mapped, bytes of ranges, live bytes */
    uint64_t resident, host, handles, mappings, addresses, live;
} flat_sample;

/* Of `n` operations that took so long; `mappings` is the caller's. */
flat_sample flat_measure(const ductile_stats *s, double seconds, uint64_t n, uint64_t mappings);

/* One line, after so many operations in all. */
void flat_print(const flat_sample *sample, uint64_t n);

/* NULL, or a complaint about what is not: the greatest of the last quarter is to be near the
 * greatest of the second one, and an operation may not take twice as long. */
const char *flat_judge(const flat_sample all[FLAT_PARTS]);

#endif
