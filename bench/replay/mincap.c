/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/mincap.h"

#include "vmm/base/align.h"

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

enum { MAX_KNOWN = 256 };

/* Capacities, in granules, that all end alike. */
typedef struct known_range {
    uint64_t from, to;
    bool completes;
} known_range;

typedef struct replays {
    replay_spec spec;
    known_range known[MAX_KNOWN];
    size_t n_known;
} replays;

static const known_range *find_known(const replays *r, uint64_t granules) {
    for (size_t i = 0; i < r->n_known; i++) {
        if (r->known[i].from <= granules && granules <= r->known[i].to) {
            return &r->known[i];
        }
    }
    return NULL;
}

/* What a replay says of other capacities: those that would have answered every request alike. */
static void keep_known(replays *r, uint64_t granules, const replay_result *result) {
    uint64_t granule = r->spec.plan.device->caps.granule_bytes;
    const contender_stats *stats = &result->total;
    known_range range = {granules, granules, result->outcome == RUN_COMPLETED};
    if (stats->same_below > 0) {
        range.from = dti_min(granules, (stats->same_from + granule - 1) / granule);
        range.to = dti_max(granules, (stats->same_below - 1) / granule);
    }
    if (r->n_known < MAX_KNOWN) {
        r->known[r->n_known++] = range;
    }
}

static bool probe_replay(void *user, uint64_t granules, bool *failed) {
    replays *r = user;
    const known_range *known = find_known(r, granules);
    replay_result result;
    if (known != NULL) {
        return known->completes;
    }
    r->spec.plan.capacity_bytes = granules * r->spec.plan.device->caps.granule_bytes;
    replay_run(&r->spec, &result);
    *failed = result.outcome == RUN_FAILED || result.outcome == RUN_ABSENT;
    if (!*failed) {
        keep_known(r, granules, &result);
    }
    return result.outcome == RUN_COMPLETED;
}

static uint64_t granules_for(const replay_spec *spec, uint64_t bytes) {
    uint64_t granule = spec->plan.device->caps.granule_bytes;
    return bytes / granule + (bytes % granule != 0);
}

uint64_t mincap_find(const replay_spec *spec, const replay_result *uncapped) {
    replays own = {.spec = *spec};
    own.spec.watch = NULL;
    own.spec.plan.is_untimed = true;
    uint64_t too_few = granules_for(spec, spec->trace->live_peak_bytes) - 1;
    uint64_t enough = granules_for(spec, uncapped->total.reserved_peak_bytes);
    return mincap_search(probe_replay, &own, too_few, enough) *
           spec->plan.device->caps.granule_bytes;
}
