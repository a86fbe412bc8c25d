/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever a program allocates, frees, trims and pins, on a device that is never large enough:
 * behind a pinned address stays the handle that was there when it was pinned, the recount of pins
 * holds after every step, and in the end all memory goes back.
 */
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "tests/support/churn.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/numbered.h"
#include "tests/support/rng.h"

#include <ductile_share.h>

enum { MOST_LIVE = 64, MOST_PINS = 12, N_SEEDS = 12, DEFAULT_OPS = 1500, MOST_GRANULES = 16 };

#define CAPACITY (64 * MIB)

/* What was behind an address when it was pinned, as far as one handle can tell: the first. */
typedef struct pinned {
    ductile_addr addr;
    const dseg_segment *seg;
    uint32_t first;
    uint32_t n;
    const dvmm_handle *handles[MOST_GRANULES];
} pinned;

typedef struct state {
    fixture f;
    rng r;
    ductile_addr live[MOST_LIVE];
    size_t n_live;
    pinned pins[MOST_PINS];
    size_t n_pins;
} state;

static const char *alloc_one(state *s) {
    if (s->n_live == MOST_LIVE) {
        return NULL;
    }
    uint64_t size = rng_percent(&s->r, 40) ? 512 * (1 + rng_below(&s->r, 64))
                                           : 4096 * (1 + rng_below(&s->r, 3500));
    ductile_stream stream = s->f.streams[rng_below(&s->r, s->f.n_streams)];
    ductile_addr addr = 0;
    ductile_status status = rng_percent(&s->r, 15)
                                ? ductile_alloc_dedicated(s->f.allocator, size, stream, &addr)
                                : ductile_alloc(s->f.allocator, size, stream, &addr);
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY, "alloc: %s",
         ductile_status_name(status));
    if (status == DUCTILE_OK) {
        s->live[s->n_live++] = addr;
    }
    return NULL;
}

static const char *free_one(state *s) {
    if (s->n_live > 0) {
        size_t i = rng_below(&s->r, s->n_live);
        NEED_OK(ductile_free(s->f.allocator, s->live[i]));
        s->live[i] = s->live[--s->n_live];
    }
    return NULL;
}

static pinned look_at(const state *s, ductile_addr addr) {
    dpool_block *b = dpool_map_find(&s->f.allocator->map, addr);
    const dseg_segment *seg = b->region->seg;
    pinned p = {.addr = addr, .seg = seg, .first = dseg_granule(seg, addr)};
    p.n = dseg_granule(seg, dpool_end(b) - 1) - p.first + 1;
    for (uint32_t i = 0; i < p.n && i < MOST_GRANULES; i++) {
        p.handles[i] = seg->slots[p.first + i].handle;
    }
    return p;
}

static const char *pin_one(state *s) {
    if (s->n_live > 0 && s->n_pins < MOST_PINS) {
        ductile_addr addr = s->live[rng_below(&s->r, s->n_live)];
        s->pins[s->n_pins++] = look_at(s, addr);
        NEED_OK(ductile_pin(s->f.allocator, addr));
    }
    return NULL;
}

static const char *unpin_one(state *s) {
    if (s->n_pins > 0) {
        size_t i = rng_below(&s->r, s->n_pins);
        NEED_OK(ductile_unpin(s->f.allocator, s->pins[i].addr));
        s->pins[i] = s->pins[--s->n_pins];
    }
    return NULL;
}

static const char *trim_some(state *s) {
    NEED_OK(ductile_trim(s->f.allocator, rng_below(&s->r, 2) * CAPACITY / 2, NULL));
    return NULL;
}

static const char *step(state *s) {
    uint64_t what = rng_below(&s->r, 100);
    if (what < 45) {
        return alloc_one(s);
    }
    if (what < 84) {
        return free_one(s);
    }
    if (what < 91) {
        return pin_one(s);
    }
    return what < 97 ? unpin_one(s) : trim_some(s);
}

static const char *check_pins(const state *s) {
    for (size_t i = 0; i < s->n_pins; i++) {
        const pinned *p = &s->pins[i];
        for (uint32_t g = 0; g < p->n && g < MOST_GRANULES; g++) {
            const dseg_slot *slot = &p->seg->slots[p->first + g];
            NEED(slot->state == DSEG_MAPPED && slot->handle == p->handles[g],
                 "granule %u behind a pinned address has changed", g);
        }
    }
    char report[256] = "";
    NEED(ductile_check(s->f.allocator, report, sizeof report) == DUCTILE_OK, "%s", report);
    return NULL;
}

static const char *end(state *s) {
    while (s->n_pins > 0) {
        TRY(unpin_one(s));
    }
    while (s->n_live > 0) {
        TRY(free_one(s));
    }
    TRY(fixture_sync_all(&s->f));
    NEED_OK(ductile_empty_cache(s->f.allocator));
    NEED(fixture_stats(s->f.allocator).reserved_bytes == 0, "memory is held with nothing alive");
    NEED(fixture_stats(s->f.allocator).pinned_bytes == 0, "memory is pinned by nobody");
    return fixture_close(&s->f);
}

static const char *run(uint64_t seed) {
    static const char *const confs[] = {NULL, "max_handle_bytes:8M", "recycle:pressure",
                                        "cross_stream_reuse:off"};
    static state s;
    s = (state){.r = rng_seeded(seed)};
    const fixture_setup setup = {.capacity_bytes = CAPACITY,
                                 .schedule = DUCTILE_SCHEDULE_RANDOM,
                                 .seed = seed,
                                 .n_streams = 3,
                                 .conf = confs[seed % 4]};
    TRY(fixture_open(&s.f, &setup));
    uint64_t n_ops = churn_setting("DUCTILE_TEST_OPS", DEFAULT_OPS);
    for (uint64_t i = 0; i < n_ops; i++) {
        const char *why = step(&s);
        why = why == NULL ? check_pins(&s) : why;
        NEED(why == NULL, "step %llu: %s", (unsigned long long)i, why);
    }
    return end(&s);
}

ParameterizedTestParameters(prop_pins, pinned_memory_stays) {
    return numbered(7000, N_SEEDS);
}

ParameterizedTest(uint64_t *seed, prop_pins, pinned_memory_stays) {
    assert_run(run, *seed);
}
