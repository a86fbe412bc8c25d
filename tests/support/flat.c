/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/flat.h"

#include "tests/support/complain.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { QUARTER = FLAT_PARTS / 4 };

/* Resident bytes; 0 where /proc does not say. */
static uint64_t resident_bytes(void) {
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file != NULL) {
        (void)!fscanf(file, "%*s %llu", &pages);
        (void)fclose(file);
    }
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A sanitizer's own memory comes and goes as it likes. */
static uint64_t own_resident_bytes(void) {
    return IS_SANITIZED ? 0 : resident_bytes();
}

flat_sample flat_measure(const ductile_stats *s, double seconds, uint64_t n, uint64_t mappings) {
    return (flat_sample){
        .ns = seconds * 1e9 / (double)n,
        .resident = own_resident_bytes(),
        .host = s->host_bytes,
        .handles = s->handles,
        .mappings = mappings,
        .addresses = s->address_bytes,
        .live = s->allocated_bytes,
    };
}

void flat_print(const flat_sample *m, uint64_t n) {
    (void)printf("%llu operations: %.0f ns each, %llu KiB resident, %llu KiB bookkeeping, %llu "
                 "handles, %llu mappings, %llu MiB addresses, %llu MiB live\n",
                 (unsigned long long)n, m->ns, (unsigned long long)(m->resident >> 10),
                 (unsigned long long)(m->host >> 10), (unsigned long long)m->handles,
                 (unsigned long long)m->mappings, (unsigned long long)(m->addresses >> 20),
                 (unsigned long long)(m->live >> 20));
    (void)fflush(stdout);
}

/* Within a fifth and the slack. */
static const char *is_flat(const flat_sample *all, size_t offset, const char *name,
                           uint64_t slack) {
    uint64_t early = 0;
    uint64_t late = 0;
    for (size_t i = QUARTER; i < FLAT_PARTS; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&all[i] + offset, sizeof value);
        early = i < (size_t)2 * QUARTER && value > early ? value : early;
        late = i >= (size_t)3 * QUARTER && value > late ? value : late;
    }
    NEED(late <= early + early / 5 + slack, "%s grow from %llu to %llu", name,
         (unsigned long long)early, (unsigned long long)late);
    return NULL;
}

const char *flat_judge(const flat_sample all[FLAT_PARTS]) {
    double early = 0;
    double late = 0;
    for (size_t i = 0; i < QUARTER; i++) {
        early += all[QUARTER + i].ns;
        late += all[3 * QUARTER + i].ns;
    }
    NEED(late < 2 * early, "an operation takes %.0f ns, %.0f before", late / QUARTER,
         early / QUARTER);
    TRY(is_flat(all, offsetof(flat_sample, resident), "resident bytes", 8 << 20));
    TRY(is_flat(all, offsetof(flat_sample, host), "bytes of bookkeeping", 1 << 16));
    TRY(is_flat(all, offsetof(flat_sample, handles), "handles", 8));
    TRY(is_flat(all, offsetof(flat_sample, mappings), "mappings", 8));
    return is_flat(all, offsetof(flat_sample, addresses), "addresses", 0);
}
