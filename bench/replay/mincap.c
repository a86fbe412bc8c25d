/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/mincap.h"

/* A search under way: fails <= low, holds >= high as far as known. */
typedef struct search {
    mincap_probe probe;
    void *user;
    uint64_t low;
    uint64_t high;
    uint64_t top; /* the largest capacity known to suffice */
    bool failed;
} search;

static bool suffices(search *s, uint64_t granules) {
    return !s->failed && s->probe(s->user, granules, &s->failed);
}

static void bisect(search *s) {
    while (!s->failed && s->high - s->low > 1) {
        uint64_t middle = s->low + (s->high - s->low) / 2;
        if (suffices(s, middle)) {
            s->high = middle;
        } else {
            s->low = middle;
        }
    }
}

/* Looks above the answer. True: all that was tried holds. */
static bool holds_above(search *s) {
    for (uint64_t distance = 1; s->high + distance < s->top; distance *= 2) {
        uint64_t above = s->high + distance;
        if (!suffices(s, above)) {
            s->low = above;
            s->high = s->top;
            return false;
        }
    }
    return true;
}

static bool find_enough(search *s, uint64_t guess) {
    enum { RAISES = 4 };
    for (int i = 0; i <= RAISES && !s->failed; i++) {
        if (suffices(s, guess)) {
            s->high = guess;
            s->top = guess;
            return true;
        }
        s->low = guess;
        guess += guess / 8 + 1;
    }
    return false;
}

uint64_t mincap_search(mincap_probe probe, void *user, uint64_t too_few, uint64_t enough) {
    search s = {.probe = probe, .user = user, .low = too_few};
    if (!find_enough(&s, enough > too_few ? enough : too_few + 1)) {
        return 0;
    }
    do {
        bisect(&s);
    } while (!s.failed && !holds_above(&s));
    return s.failed ? 0 : s.high;
}

/* ---- On a replay --------------------------------------------------------------------------- */

static bool probe_replay(void *user, uint64_t granules, bool *failed) {
    replay_spec spec = *(const replay_spec *)user;
    replay_result result;
    spec.capacity_bytes = granules * spec.device->caps.granule_bytes;
    spec.watch = NULL;
    replay_run(&spec, &result);
    *failed = result.outcome == RUN_FAILED || result.outcome == RUN_ABSENT;
    return result.outcome == RUN_COMPLETED;
}

static uint64_t granules_for(const replay_spec *spec, uint64_t bytes) {
    uint64_t granule = spec->device->caps.granule_bytes;
    return bytes / granule + (bytes % granule != 0);
}

uint64_t mincap_find(const replay_spec *spec, const replay_result *uncapped) {
    replay_spec own = *spec;
    uint64_t too_few = granules_for(spec, spec->trace->live_peak_bytes) - 1;
    uint64_t enough = granules_for(spec, uncapped->total.reserved_peak_bytes);
    return mincap_search(probe_replay, &own, too_few, enough) * spec->device->caps.granule_bytes;
}
