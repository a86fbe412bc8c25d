/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/soak.h"

#include "tests/model/decoder.h"
#include "tests/model/subject.h"
#include "tests/support/command.h"
#include "tests/support/cpu_time.h"
#include "tests/support/resident.h"
#include "tests/support/rng.h"

#include <stdio.h>
#include <string.h>

enum { N_SAMPLES = 20, WARM = N_SAMPLES / 4, AUDIT_PERIOD = 5000 };

/* What has to stay flat, at the end of one part of the run. */
typedef struct sample {
    double ns; /* of CPU time, an operation */
    uint64_t resident, host, handles, mappings, addresses, live;
} sample;

static sample measure(const subject *s, double seconds, uint64_t n) {
    ductile_stats t = fixture_stats(s->f.allocator);
    ductile_virtual_state v = fixture_state(&s->f);
    return (sample){
        seconds * 1e9 / (double)n, resident_bytes(), t.host_bytes, v.handles, v.mappings,
        t.address_bytes,           t.allocated_bytes};
}

static void print(const sample *m, uint64_t n) {
    (void)printf("%llu operations: %.0f ns each, %llu KiB resident, %llu KiB bookkeeping, %llu "
                 "handles, %llu mappings, %llu MiB addresses, %llu MiB live\n",
                 (unsigned long long)n, m->ns, (unsigned long long)(m->resident >> 10),
                 (unsigned long long)(m->host >> 10), (unsigned long long)m->handles,
                 (unsigned long long)m->mappings, (unsigned long long)(m->addresses >> 20),
                 (unsigned long long)(m->live >> 20));
    (void)fflush(stdout);
}

/* The greatest of the last quarter is near the greatest of the second. */
static const char *is_flat(const sample *all, size_t offset, const char *name, uint64_t slack) {
    uint64_t early = 0;
    uint64_t late = 0;
    for (size_t i = WARM; i < N_SAMPLES; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&all[i] + offset, sizeof value);
        early = i < (size_t)2 * WARM && value > early ? value : early;
        late = i >= (size_t)3 * WARM && value > late ? value : late;
    }
    NEED(late <= early + early / 5 + slack, "%s grow from %llu to %llu", name,
         (unsigned long long)early, (unsigned long long)late);
    return NULL;
}

static const char *all_are_flat(const sample *all) {
    double early = 0;
    double late = 0;
    for (size_t i = 0; i < WARM; i++) {
        early += all[WARM + i].ns;
        late += all[3 * WARM + i].ns;
    }
    NEED(late < 2 * early, "an operation takes %.0f ns, %.0f before", late / WARM, early / WARM);
    TRY(is_flat(all, offsetof(sample, resident), "resident bytes", 8 << 20));
    TRY(is_flat(all, offsetof(sample, host), "bytes of bookkeeping", 1 << 16));
    TRY(is_flat(all, offsetof(sample, handles), "handles", 8));
    TRY(is_flat(all, offsetof(sample, mappings), "mappings", 8));
    return is_flat(all, offsetof(sample, addresses), "addresses", 0);
}

static record any_record(rng *r) {
    record it = {0};
    do {
        uint64_t word = rng_next(r);
        memcpy(&it, &word, sizeof it);
    } while (!subject_is_steady(it.op));
    return it;
}

static const char *play(subject *s, uint64_t n_operations) {
    static sample all[N_SAMPLES];
    rng r = rng_seeded(77);
    uint64_t n = n_operations / N_SAMPLES;
    for (size_t i = 0; i < N_SAMPLES; i++) {
        double begin = cpu_seconds();
        for (uint64_t k = 0; k < n; k++) {
            record it = any_record(&r);
            const char *why = subject_step(s, &it);
            NEED(why == NULL, "%s, in operation %llu (%s)", why, (unsigned long long)s->step,
                 s->text);
        }
        all[i] = measure(s, cpu_seconds() - begin, n);
        print(&all[i], (i + 1) * n);
    }
    return all_are_flat(all);
}

/* 512 MiB, four kinds of streams, pins, captures and their graphs; work lags behind. */
static const uint8_t head[DECODER_HEAD_BYTES] = {[0] = 7,
                                                 [2] = DUCTILE_SCHEDULE_LAGGING,
                                                 [3] = 4,
                                                 [4] = 1,
                                                 [5] = 1,
                                                 [6] = POOLS | CAPTURES | PINS,
                                                 [7] = 1,
                                                 [9] = 1,
                                                 [11] = DUCTILE_CAPTURES_POOLS,
                                                 [12] = 1,
                                                 [14] = 1,
                                                 [15] = 1,
                                                 [16] = 1,
                                                 [17] = 1,
                                                 [18] = 2,
                                                 [19] = 1,
                                                 [20] = 1,
                                                 [21] = 15};

const char *soak_run(uint64_t n_operations) {
    static subject s;
    TRY(subject_open(&s, head));
    s.audit_period = AUDIT_PERIOD;
    s.target_bytes = s.setup.capacity_bytes / 100 * 95;
    s.typical_bytes = 6 * MIB;
    TRY(play(&s, n_operations));
    return subject_close(&s);
}
