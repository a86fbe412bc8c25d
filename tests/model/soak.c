/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/soak.h"

#include "tests/model/decoder.h"
#include "tests/model/subject.h"
#include "tests/support/command.h"
#include "tests/support/cpu_time.h"
#include "tests/support/flat.h"
#include "tests/support/rng.h"

#include <string.h>

enum { AUDIT_PERIOD = 5000 };

static flat_sample measure(const subject *s, double seconds, uint64_t n) {
    ductile_stats stats = fixture_stats(s->f.allocator);
    return flat_measure(&stats, seconds, n, fixture_state(&s->f).mappings);
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
    static flat_sample all[FLAT_PARTS];
    rng r = rng_seeded(77);
    uint64_t n = n_operations / FLAT_PARTS;
    for (size_t i = 0; i < FLAT_PARTS; i++) {
        double begin = cpu_seconds();
        for (uint64_t k = 0; k < n; k++) {
            record it = any_record(&r);
            const char *why = subject_step(s, &it);
            NEED(why == NULL, "%s, in operation %llu (%s)", why, (unsigned long long)s->step,
                 s->text);
        }
        all[i] = measure(s, cpu_seconds() - begin, n);
        flat_print(&all[i], (i + 1) * n);
    }
    return flat_judge(all);
}

/* 512 MiB, one thread, four kinds of streams, pins, captures and their graphs; work lags behind. */
static const uint8_t head[DECODER_HEAD_BYTES] = {[0] = 7,   [2] = DUCTILE_SCHEDULE_LAGGING,
                                                 [3] = 4,   [4] = 1,
                                                 [5] = 1,   [6] = POOLS | CAPTURES | PINS,
                                                 [7] = 1,   [9] = 1,
                                                 [11] = 1, /* captures:pools */
                                                 [12] = 1,  [14] = 1,
                                                 [15] = 1,  [16] = 1,
                                                 [17] = 1,  [18] = 2,
                                                 [19] = 1,  [20] = 1,
                                                 [21] = 15, [25] = 1};

const char *soak_run(uint64_t n_operations) {
    static subject s;
    TRY(subject_open(&s, head));
    s.audit_period = AUDIT_PERIOD;
    s.target_bytes = s.setup.capacity_bytes / 100 * 95;
    s.typical_bytes = 6 * MIB;
    TRY(play(&s, n_operations));
    return subject_close(&s);
}
