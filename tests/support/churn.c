/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/churn.h"

#include "tests/support/complain.h"
#include "tests/support/rng.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_REMEMBERED 24 /* operations a failure prints                        */
#define N_LIVE_MAX 160  /* blocks alive at a time: an audit is linear in them */
#define PHASE_OPS 120   /* operations until another phase is drawn            */
#define SMALL_BYTES 65536
#define MISUSED_SPACE 0x10000u /* no range of the device lies that low */

typedef enum phase { GROW, CHURN, FRAGMENT, DRAIN, STORM, N_PHASES } phase;

/* One run. Owner: churn_run. */
typedef struct churn {
    const churn_setup *setup;
    world w;
    rng r;
    phase phase;
    uint64_t step;
    ductile_addr last_freed; /* 0, or an address that was live once */
    bool has_silent_memory;  /* a stream ended untold: its memory comes back under pressure only */
    churn_tally tally;
    char history[N_REMEMBERED][96]; /* a ring, by step */
} churn;

__attribute__((format(printf, 2, 3))) static void note(churn *c, const char *format, ...) {
    char *line = c->history[c->step % N_REMEMBERED];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof c->history[0], format, arguments);
    va_end(arguments);
}

static size_t any_stream(churn *c) {
    return (size_t)rng_below(&c->r, c->w.f.n_streams);
}

/* ---- Sizes --------------------------------------------------------------------------------- */

static uint64_t edge_size(churn *c) {
    static const uint64_t sizes[] = {0,
                                     1,
                                     511,
                                     512,
                                     513,
                                     FIXTURE_GRANULE - 1,
                                     FIXTURE_GRANULE,
                                     FIXTURE_GRANULE + 1,
                                     3 * FIXTURE_GRANULE + 512,
                                     (uint64_t)1 << 63,
                                     SIZE_MAX / 2,
                                     SIZE_MAX - DUCTILE_ALIGNMENT,
                                     SIZE_MAX};
    return sizes[rng_below(&c->r, sizeof sizes / sizeof sizes[0])];
}

static uint64_t any_size(churn *c) {
    uint64_t dice = rng_below(&c->r, 100);
    if (dice < 6) {
        return edge_size(c);
    }
    if (c->phase == STORM && dice < 50) {
        return rng_between(&c->r, 1, c->w.f.capacity_bytes + FIXTURE_GRANULE);
    }
    if (dice < 50) {
        return rng_between(&c->r, 1, SMALL_BYTES);
    }
    return rng_between(&c->r, 1, (dice < 85 ? 1 : 8) * FIXTURE_GRANULE);
}

/* ---- Operations ---------------------------------------------------------------------------- */

static const char *do_alloc(churn *c) {
    uint64_t size = c->w.m.n < N_LIVE_MAX ? any_size(c) : SIZE_MAX;
    size_t stream = any_stream(c);
    const char *why = world_alloc(&c->w, size, stream);
    note(c, "alloc %" PRIu64 " on %zu: %s", size, stream, ductile_status_name(c->w.status));
    bool is_ok = c->w.status == DUCTILE_OK;
    c->tally.allocs += is_ok;
    c->tally.refusals += !is_ok;
    return why;
}

/* Every other block where fragmenting: each hole keeps its neighbours apart. */
static size_t victim(churn *c) {
    size_t i = (size_t)rng_below(&c->r, c->w.m.n);
    return c->phase == FRAGMENT && i + 1 < c->w.m.n ? (i | 1) % c->w.m.n : i;
}

static const char *do_free(churn *c) {
    if (c->w.m.n == 0) {
        return NULL;
    }
    size_t i = victim(c);
    c->last_freed = c->w.m.blocks[i].address;
    note(c, "free %llx", c->last_freed);
    c->tally.frees++;
    return world_free(&c->w, i);
}

static const char *do_verified_free(churn *c) {
    if (c->w.m.n == 0) {
        return NULL;
    }
    size_t i = victim(c);
    c->last_freed = c->w.m.blocks[i].address;
    note(c, "verify and free %llx", c->last_freed);
    c->tally.frees++;
    c->tally.verified++;
    TRY(world_verify(&c->w, i));
    return world_free(&c->w, i);
}

static const char *do_use(churn *c) {
    if (c->w.m.n == 0) {
        return NULL;
    }
    size_t i = victim(c);
    size_t stream = any_stream(c);
    note(c, "use %llx of %zu on %zu", c->w.m.blocks[i].address, c->w.m.blocks[i].stream, stream);
    c->tally.recorded++;
    return world_use_on(&c->w, i, stream);
}

/* Uses a block elsewhere and frees it while that work may still be under way. */
static const char *do_free_on(churn *c) {
    if (c->w.m.n == 0) {
        return NULL;
    }
    size_t i = victim(c);
    size_t stream = any_stream(c);
    c->last_freed = c->w.m.blocks[i].address;
    note(c, "use and free %llx on %zu", c->last_freed, stream);
    c->tally.frees++;
    TRY(world_use_on(&c->w, i, stream));
    return world_free_on(&c->w, i, stream);
}

static const char *do_advance(churn *c) {
    uint64_t n = rng_between(&c->r, 1, 40);
    note(c, "advance %" PRIu64, n);
    ductile_virtual_advance(c->w.f.gpu, n);
    return NULL;
}

static const char *do_sync(churn *c) {
    size_t stream = any_stream(c);
    note(c, "sync %zu", stream);
    NEED_OK(ductile_virtual_stream_sync(c->w.f.gpu, c->w.f.streams[stream]));
    return NULL;
}

static const char *do_order(churn *c) {
    size_t later = any_stream(c);
    size_t earlier = any_stream(c);
    note(c, "stream %zu waits for %zu", later, earlier);
    if (later == earlier) {
        return NULL;
    }
    NEED_OK(
        ductile_virtual_stream_wait(c->w.f.gpu, c->w.f.streams[later], c->w.f.streams[earlier]));
    return NULL;
}

static const char *do_trim(churn *c) {
    uint64_t keep = rng_below(&c->r, c->w.f.capacity_bytes);
    uint64_t before = fixture_stats(c->w.f.allocator).reserved_bytes;
    uint64_t released = UINT64_MAX;
    note(c, "trim to %" PRIu64, keep);
    NEED_OK(ductile_trim(c->w.f.allocator, keep, &released));
    uint64_t after = fixture_stats(c->w.f.allocator).reserved_bytes;
    NEED(before - after == released, "trim says %" PRIu64 " bytes, reserved fell by %" PRIu64,
         released, before - after);
    NEED(before > keep || released == 0, "trim gave back though it held less than asked");
    c->tally.trims++;
    return NULL;
}

/* Only live granules are left, and what pending blocks touch. */
static const char *do_empty_cache(churn *c) {
    note(c, "empty cache");
    NEED_OK(ductile_empty_cache(c->w.f.allocator));
    ductile_stats s = fixture_stats(c->w.f.allocator);
    uint64_t least = model_pinned_granules(&c->w.m, FIXTURE_GRANULE) * FIXTURE_GRANULE;
    uint64_t most = least + s.pending_bytes + 2 * FIXTURE_GRANULE * s.pending_blocks;
    NEED(s.reserved_bytes >= least &&
             (s.reserved_bytes <= most || c->has_silent_memory || c->w.may_refuse),
         "an empty cache holds %" PRIu64 " bytes: %" PRIu64 " in granules with live bytes, %" PRIu64
         " pending, %" PRIu64 " free, %" PRIu64 " cached",
         s.reserved_bytes, least, s.pending_bytes, s.free_bytes, s.cached_bytes);
    return NULL;
}

static const char *do_limit(churn *c) {
    uint64_t limit = rng_percent(&c->r, 40) ? 0 : rng_below(&c->r, 2 * c->w.f.capacity_bytes);
    note(c, "limit %" PRIu64, limit);
    return world_set_limit(&c->w, limit);
}

/* An address that is no live start, and what it has to be called. */
static ductile_addr wrong_address(churn *c, ductile_status *expected) {
    if (c->w.m.n > 0 && rng_percent(&c->r, 40)) {
        const model_block *b = &c->w.m.blocks[victim(c)];
        *expected = DUCTILE_ERR_INTERIOR_POINTER;
        return b->address + rng_between(&c->r, 1, b->size - 1);
    }
    if (c->last_freed != 0 && model_find(&c->w.m, c->last_freed) == c->w.m.n &&
        rng_percent(&c->r, 60)) {
        *expected = DUCTILE_OK; /* reused, its range given back, or not live: see below */
        return c->last_freed;
    }
    *expected = DUCTILE_ERR_FOREIGN_POINTER;
    return rng_between(&c->r, 1, MISUSED_SPACE);
}

static bool is_pointer_error(ductile_status s) {
    return s == DUCTILE_ERR_FOREIGN_POINTER || s == DUCTILE_ERR_INTERIOR_POINTER ||
           s == DUCTILE_ERR_NOT_LIVE;
}

static const char *do_misuse(churn *c) {
    ductile_status expected = DUCTILE_OK;
    ductile_addr address = wrong_address(c, &expected);
    size_t stream = any_stream(c);
    note(c, "misuse %llx", address);
    ductile_block_info info = {.struct_size = sizeof info};
    ductile_stats before = fixture_stats(c->w.f.allocator);
    ductile_status got[4] = {
        ductile_free(c->w.f.allocator, address),
        ductile_free_on(c->w.f.allocator, address, c->w.f.streams[stream]),
        ductile_record_stream(c->w.f.allocator, address, c->w.f.streams[stream]),
        ductile_query_block(c->w.f.allocator, address, &info)};
    for (size_t i = 0; i < 4; i++) {
        NEED(is_pointer_error(got[i]), "call %zu with %llx: %s", i, address,
             ductile_status_name(got[i]));
        NEED(expected == DUCTILE_OK || got[i] == expected, "call %zu with %llx: %s, not %s", i,
             address, ductile_status_name(got[i]), ductile_status_name(expected));
        NEED(got[i] == got[0], "the calls do not agree about %llx", address);
    }
    ductile_stats after = fixture_stats(c->w.f.allocator);
    NEED(memcmp(&before, &after, sizeof after) == 0, "a refused call changed the statistics");
    return NULL;
}

static const char *do_query(churn *c) {
    if (c->w.m.n == 0) {
        return NULL;
    }
    const model_block *b = &c->w.m.blocks[victim(c)];
    ductile_block_info info = {.struct_size = sizeof info};
    note(c, "query %llx", b->address);
    NEED_OK(ductile_query_block(c->w.f.allocator, b->address, &info));
    NEED(info.address == b->address && info.requested_size == b->requested &&
             info.size >= b->size && info.state == DUCTILE_BLOCK_LIVE &&
             info.stream == c->w.f.streams[b->stream],
         "the query describes another block than %llx", b->address);
    NEED(info.segment <= b->address && b->address + info.size <= info.segment + info.segment_bytes,
         "block %llx does not lie in its range", b->address);
    return NULL;
}

static const char *do_reset_peaks(churn *c) {
    note(c, "reset peaks");
    ductile_reset_peaks(c->w.f.allocator);
    ductile_stats s = fixture_stats(c->w.f.allocator);
    NEED(s.reserved_peak_bytes == s.reserved_bytes && s.allocated_peak_bytes == s.allocated_bytes &&
             s.requested_peak_bytes == s.requested_bytes &&
             s.address_span_peak_bytes == s.address_span_bytes,
         "a peak is not its value after the reset");
    return NULL;
}

static const char *do_verify_all(churn *c) {
    note(c, "verify all");
    c->tally.verified += c->w.m.n;
    return world_verify_all(&c->w);
}

/* A stream ends and another takes its place, maybe under the same handle. Whoever does not tell
 * the allocator has to wait first, as the new stream is not ordered after the old one's work. */
static const char *do_replace_stream(churn *c) {
    size_t stream = any_stream(c);
    bool tells = rng_percent(&c->r, 60);
    note(c, "stream %zu ends, %s", stream, tells ? "told" : "waited for");
    for (size_t i = c->w.m.n; i-- > 0;) {
        const model_block *b = &c->w.m.blocks[i];
        if (b->stream == stream || (b->recorded >> stream & 1) != 0) {
            TRY(world_free(&c->w, i));
            c->tally.frees++;
        }
    }
    if (tells) {
        NEED_OK(ductile_stream_done(c->w.f.allocator, c->w.f.streams[stream]));
    } else {
        NEED_OK(ductile_virtual_stream_sync(c->w.f.gpu, c->w.f.streams[stream]));
        c->has_silent_memory = true;
    }
    NEED_OK(ductile_virtual_stream_destroy(c->w.f.gpu, c->w.f.streams[stream]));
    NEED_OK(ductile_virtual_stream_create(c->w.f.gpu, &c->w.f.streams[stream]));
    return NULL;
}

/* Another process breathes: mostly a little, sometimes all there is. */
static const char *do_breathe(churn *c) {
    uint64_t most = c->w.f.capacity_bytes;
    uint64_t bytes = rng_percent(&c->r, 30) ? 0 : rng_below(&c->r, most);
    c->tally.breaths++;
    TRY(world_set_external(&c->w, bytes));
    note(c, "another process holds %" PRIu64, c->w.external_bytes);
    return NULL;
}

static const char *do_soft_limit(churn *c) {
    uint64_t limit = rng_percent(&c->r, 30) ? 0 : rng_below(&c->r, c->w.f.capacity_bytes);
    note(c, "soft limit %" PRIu64, limit);
    NEED_OK(ductile_set_soft_limit(c->w.f.allocator, limit));
    return NULL;
}

/* How often each operation is drawn in each phase, in parts of the phase's sum. */
static const struct operation {
    const char *(*run)(churn *c);
    uint8_t weight[N_PHASES];
} operations[] = {
    {do_alloc, {140, 80, 70, 10, 140}},
    {do_free, {12, 44, 60, 90, 16}},
    {do_verified_free, {4, 8, 10, 30, 4}},
    {do_use, {12, 16, 12, 6, 8}},
    {do_free_on, {4, 16, 16, 30, 8}},
    {do_advance, {8, 10, 10, 10, 6}},
    {do_sync, {2, 4, 2, 4, 2}},
    {do_order, {2, 4, 4, 2, 2}},
    {do_trim, {2, 2, 2, 6, 2}},
    {do_empty_cache, {2, 2, 2, 4, 2}},
    {do_limit, {0, 2, 2, 0, 4}},
    {do_misuse, {4, 4, 4, 4, 2}},
    {do_query, {4, 4, 4, 2, 2}},
    {do_reset_peaks, {2, 2, 2, 2, 2}},
    {do_verify_all, {0, 2, 2, 0, 0}},
    {do_replace_stream, {0, 1, 1, 1, 1}},
};
#define N_OPERATIONS (sizeof operations / sizeof operations[0])

static const struct operation *draw(churn *c) {
    uint64_t sum = 0;
    for (size_t i = 0; i < N_OPERATIONS; i++) {
        sum += operations[i].weight[c->phase];
    }
    uint64_t dice = rng_below(&c->r, sum);
    size_t i = 0;
    while (dice >= operations[i].weight[c->phase]) {
        dice -= operations[i++].weight[c->phase];
    }
    return &operations[i];
}

/* ---- A run --------------------------------------------------------------------------------- */

static const char *one_step(churn *c) {
    if (c->step % PHASE_OPS == 0) {
        c->phase = (phase)rng_below(&c->r, N_PHASES);
    }
    note(c, "nothing");
    if (c->setup->breathes && rng_percent(&c->r, 12)) {
        TRY(rng_percent(&c->r, 80) ? do_breathe(c) : do_soft_limit(c));
    } else {
        TRY(draw(c)->run(c));
    }
    TRY(world_audit(&c->w));
    uint64_t pending = fixture_stats(c->w.f.allocator).pending_bytes;
    if (pending > c->tally.pending_peak_bytes) {
        c->tally.pending_peak_bytes = pending;
    }
    return NULL;
}

/* With everything freed the whole device can be had, and given back. */
static const char *the_end(churn *c) {
    note(c, "the end");
    TRY(world_verify_all(&c->w));
    TRY(world_free_all(&c->w));
    TRY(world_set_limit(&c->w, 0));
    TRY(world_set_external(&c->w, 0));
    TRY(world_must_alloc(&c->w, c->w.f.capacity_bytes, 0));
    TRY(world_verify_all(&c->w));
    TRY(world_free_all(&c->w));
    TRY(world_audit(&c->w));
    TRY(fixture_sync_all(&c->w.f)); /* also what the frees themselves put on the streams */
    NEED_OK(ductile_empty_cache(c->w.f.allocator));
    TRY(world_audit(&c->w));
    ductile_stats s = fixture_stats(c->w.f.allocator);
    NEED(s.reserved_bytes == 0, "%" PRIu64 " bytes are held with nothing alive", s.reserved_bytes);
    c->tally.recycled_handles = s.recycled_handles;
    c->tally.compacted_handles = s.compacted_handles;
    return NULL;
}

static const char *all_steps(churn *c) {
    for (c->step = 0; c->step < c->setup->n_ops; c->step++) {
        TRY(one_step(c));
    }
    return the_end(c);
}

/* The complaint with all it takes to have the run again. */
static const char *explain(const churn *c, const char *why) {
    char text[N_REMEMBERED * 128] = "";
    size_t n = 0;
    uint64_t first = c->step + 1 > N_REMEMBERED ? c->step + 1 - N_REMEMBERED : 0;
    for (uint64_t i = first; i <= c->step; i++) {
        int wrote = snprintf(text + n, sizeof text - n, "\n  %" PRIu64 ": %s", i,
                             c->history[i % N_REMEMBERED]);
        n += wrote > 0 ? (size_t)wrote : 0;
    }
    return complain("seed %" PRIu64 ", step %" PRIu64 ": %s; the latest operations:%s",
                    c->setup->seed, c->step, why, text);
}

const char *churn_run(const churn_setup *setup, churn_tally *tally) {
    churn *c = calloc(1, sizeof *c);
    NEED(c != NULL, "no host memory for the test");
    c->setup = setup;
    c->r = rng_seeded(setup->seed);
    const char *why = world_open(&c->w, &setup->fixture, setup->has_contents);
    c->w.may_refuse = setup->may_refuse;
    if (why == NULL) {
        why = all_steps(c);
        const char *left = world_close(&c->w);
        why = why != NULL ? explain(c, why) : left;
    }
    if (tally != NULL) {
        *tally = c->tally;
    }
    free(c);
    return why;
}

uint64_t churn_setting(const char *name, uint64_t fallback) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') {
        return fallback;
    }
    return strtoull(text, NULL, 0);
}
