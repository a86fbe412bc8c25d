/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever a program allocates, frees, trims, pins, pauses and resumes, on a device that is never
 * large enough: a table kept by map callbacks is what the segments and the device hold after every
 * step; every block that is returned lies in what was announced; nothing leaves under a live block;
 * and what a callback may do, free and allocate what a free block serves, it can do.
 */
#include "pool/blocks/arena.h"
#include "tests/support/churn.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/numbered.h"
#include "tests/support/rng.h"
#include "tests/support/shadow.h"

#include <string.h>

enum { MOST_LIVE = 64, MOST_PINS = 6, N_SEEDS = 12, DEFAULT_OPS = 600 };

#define CAPACITY (64 * MIB)

static const ductile_pool_id POOL = {3, 4};

typedef struct live_block {
    ductile_addr address;
    uint64_t size;
    bool in_pool;
} live_block;

typedef struct state {
    fixture f;
    rng r;
    shadow shadow;
    live_block live[MOST_LIVE];
    size_t n_live;
    ductile_addr pins[MOST_PINS];
    size_t n_pins;
    bool is_paused;
    bool leaves_paused; /* memory may leave under the pool's blocks */
    const char *wrong;  /* in a callback */
    uint64_t n_refused; /* requests of callbacks that would have mapped memory */
    uint64_t n_freed;   /* blocks that callbacks freed */
} state;

static void forget(state *s, size_t i) {
    s->live[i] = s->live[--s->n_live];
}

/* ---- In the callback ----------------------------------------------------------------------- */

static void look_for_live(state *s, const ductile_map_event *e) {
    for (size_t i = 0; i < s->n_live; i++) {
        const live_block *b = &s->live[i];
        bool overlaps = b->address < e->address + e->size && e->address < b->address + b->size;
        if (overlaps && !(b->in_pool && s->leaves_paused)) {
            s->wrong = "memory leaves under a live block";
        }
    }
}

/* Frees a block, or asks for one: too large for the device, or so small that a hit may do. */
static void use_allocator(state *s, ductile_allocator *a) {
    ductile_addr addr = 0;
    if (rng_percent(&s->r, 10) && s->n_live > 0 && !s->is_paused && !s->leaves_paused) {
        s->wrong = ductile_free(a, s->live[0].address) == DUCTILE_OK ? s->wrong : "no free inside";
        forget(s, 0);
        s->n_freed++;
    }
    if (rng_percent(&s->r, 20)) {
        uint64_t size = rng_percent(&s->r, 50) ? CAPACITY : 512;
        ductile_status status = ductile_alloc(a, size, s->f.streams[0], &addr);
        if (status == DUCTILE_OK) {
            s->wrong = ductile_free(a, addr) == DUCTILE_OK ? s->wrong : "no free inside";
        } else if (status != DUCTILE_ERR_BUSY) {
            s->wrong = "a request inside a callback is refused otherwise than as busy";
        }
        s->n_refused += status == DUCTILE_ERR_BUSY;
    }
    if (ductile_empty_cache(a) != DUCTILE_ERR_BUSY) {
        s->wrong = "a trim inside a callback is not refused";
    }
}

static void beside(void *user, ductile_allocator *a, const ductile_map_event *e) {
    state *s = user;
    if (e->change == DUCTILE_MAP_LEAVING) {
        look_for_live(s, e);
    }
    use_allocator(s, a);
}

/* ---- Steps --------------------------------------------------------------------------------- */

static const char *take(state *s, bool in_pool) {
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
        s->live[s->n_live++] = (live_block){addr, size, in_pool};
        TRY(shadow_covers(&s->shadow, addr, size));
    }
    return NULL;
}

static const char *alloc_one(state *s) {
    if (s->n_live == MOST_LIVE) {
        return NULL;
    }
    if (s->is_paused || !rng_percent(&s->r, 30)) {
        return take(s, false);
    }
    NEED_OK(ductile_pool_begin(s->f.allocator, POOL, NULL, NULL));
    const char *why = take(s, true);
    NEED_OK(ductile_pool_end(s->f.allocator, POOL));
    NEED_OK(ductile_pool_release(s->f.allocator, POOL)); /* that of the begin */
    return why;
}

static const char *free_one(state *s) {
    if (s->n_live == 0) {
        return NULL;
    }
    size_t i = rng_below(&s->r, s->n_live);
    ductile_addr addr = s->live[i].address;
    ductile_stream other = s->f.streams[rng_below(&s->r, s->f.n_streams)];
    forget(s, i);
    NEED_OK(rng_percent(&s->r, 20) ? ductile_free_on(s->f.allocator, addr, other)
                                   : ductile_free(s->f.allocator, addr));
    return NULL;
}

static const char *pin_or_unpin(state *s) {
    if (s->n_pins == MOST_PINS || (s->n_pins > 0 && rng_percent(&s->r, 50))) {
        size_t i = rng_below(&s->r, s->n_pins);
        NEED_OK(ductile_unpin(s->f.allocator, s->pins[i]));
        s->pins[i] = s->pins[--s->n_pins];
    } else if (s->n_live > 0) {
        const live_block *b = &s->live[rng_below(&s->r, s->n_live)];
        if (!(b->in_pool && s->is_paused)) {
            s->pins[s->n_pins++] = b->address;
            NEED_OK(ductile_pin(s->f.allocator, b->address));
        }
    }
    return NULL;
}

static const char *pause_or_resume(state *s) {
    ductile_status status = DUCTILE_OK;
    s->leaves_paused = true;
    if (s->is_paused) {
        status = ductile_resume(s->f.allocator, POOL);
    } else {
        status = ductile_pause(s->f.allocator, POOL, 0);
    }
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY, "pause or resume: %s",
         ductile_status_name(status));
    s->is_paused ^= status == DUCTILE_OK;
    s->leaves_paused = s->is_paused;
    return NULL;
}

static const char *step(state *s) {
    uint64_t what = rng_below(&s->r, 100);
    if (what < 47) {
        return alloc_one(s);
    }
    if (what < 85) {
        return free_one(s);
    }
    if (what < 91) {
        return pin_or_unpin(s);
    }
    if (what < 95) {
        return pause_or_resume(s);
    }
    if (what < 96) {
        return fixture_sync_all(&s->f);
    }
    NEED_OK(ductile_trim(s->f.allocator, rng_below(&s->r, 2) * CAPACITY / 2, NULL));
    return NULL;
}

static const char *look(state *s) {
    char report[256] = "";
    NEED(s->wrong == NULL, "%s", s->wrong);
    TRY(shadow_is_true(&s->shadow, s->f.allocator));
    NEED(ductile_check(s->f.allocator, report, sizeof report) == DUCTILE_OK, "%s", report);
    return NULL;
}

static const char *end(state *s) {
    s->shadow.beside = NULL;
    while (s->n_pins > 0) {
        NEED_OK(ductile_unpin(s->f.allocator, s->pins[--s->n_pins]));
    }
    while (s->n_live > 0) {
        TRY(free_one(s));
    }
    TRY(fixture_sync_all(&s->f));
    NEED(s->shadow.n_mapped > 0 && s->shadow.n_left > 0, "nobody was told of anything");
    NEED(s->n_refused > 0 && s->n_freed > 0, "no callback used the allocator");
    TRY(fixture_close(&s->f)); /* the callback hears of what is left */
    TRY(shadow_complaint(&s->shadow));
    NEED(s->shadow.n == 0, "%zu mappings were never said to leave", s->shadow.n);
    return NULL;
}

static const char *run(uint64_t seed) {
    static const char *const confs[] = {
        NULL,
        "max_handle_bytes:8M",
        "recycle:pressure",
        "cross_stream_reuse:off",
        "cross_stream_reuse:wait",
        "record_stream:wait",
        "soft_limit_bytes:32M",
        "caching:off",
    };
    static state s;
    memset(&s, 0, sizeof s);
    s.r = rng_seeded(seed);
    const fixture_setup setup = {.capacity_bytes = CAPACITY,
                                 .schedule = DUCTILE_SCHEDULE_RANDOM,
                                 .seed = seed,
                                 .n_streams = 3,
                                 .conf = confs[seed % 8]};
    TRY(fixture_open(&s.f, &setup));
    s.shadow.beside = beside;
    s.shadow.user = &s;
    TRY(shadow_open(&s.shadow, s.f.allocator, s.f.gpu));
    NEED_OK(ductile_pool_retain(s.f.allocator, POOL));
    NEED_OK(ductile_pool_set_kind(s.f.allocator, POOL, DUCTILE_POOL_PLAIN));
    uint64_t n_ops = churn_setting("DUCTILE_TEST_OPS", DEFAULT_OPS);
    for (uint64_t i = 0; i < n_ops; i++) {
        const char *why = step(&s);
        why = why == NULL ? look(&s) : why;
        NEED(why == NULL, "step %llu: %s", (unsigned long long)i, why);
    }
    return end(&s);
}

ParameterizedTestParameters(prop_announce, the_table_of_a_listener_is_true) {
    return numbered(9000, N_SEEDS);
}

ParameterizedTest(uint64_t *seed, prop_announce, the_table_of_a_listener_is_true) {
    assert_run(run, *seed);
}
