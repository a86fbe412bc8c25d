/* SPDX-License-Identifier: Apache-2.0 */
/* Private pools: open, held, asleep. Pools above N_PLAIN_POOLS belong to graphs. */
#include "tests/model/subject.h"

/* ---- Which pools there are ----------------------------------------------------------------- */

size_t blocks_in(const subject *s, unsigned pool) {
    size_t n = 0;
    for (size_t i = 0; i < s->m.n; i++) {
        n += s->m.blocks[i].pool == pool;
    }
    return n;
}

bool pool_exists(const subject *s, unsigned pool) {
    return pool == 0 || s->pools[pool].n_refs > 0 || blocks_in(s, pool) > 0;
}

static void set_asleep(subject *s, unsigned pool, bool is_asleep) {
    s->pools[pool].is_asleep = is_asleep;
    s->m.has_sleeping_pool = s->has_left_asleep;
    for (unsigned i = 0; i <= N_POOLS; i++) {
        s->m.has_sleeping_pool |= s->pools[i].is_asleep || s->pools[i].may_be_asleep;
    }
}

/* A pool without a reference goes with its memory, asleep or not. */
void note_if_gone(subject *s, unsigned pool) {
    if (pool != 0 && !pool_exists(s, pool)) {
        s->pools[pool].may_be_asleep |= s->pools[pool].is_asleep;
        set_asleep(s, pool, false);
    }
}

/* The first reference makes a new pool, or takes up what is left of one. */
static const char *note_if_back(subject *s, unsigned pool) {
    pool_state *p = &s->pools[pool];
    ductile_pool_info info = {.struct_size = sizeof info};
    NEED_OK(ductile_list_pools(s->f.allocator, &p->id, &info, 1, NULL));
    NEED(info.asleep == 0 || p->may_be_asleep, "a new pool is asleep");
    p->may_be_asleep = false;
    set_asleep(s, pool, info.asleep != 0);
    return NULL;
}

void name_pools(subject *s) {
    for (unsigned pool = 1; pool <= N_PLAIN_POOLS; pool++) {
        s->pools[pool].id = pool_id_of(pool);
    }
}

static unsigned plain_pool(uint8_t operand) {
    return 1 + operand % N_PLAIN_POOLS;
}

/* ---- Open, held ---------------------------------------------------------------------------- */

static int accepts(void *user, ductile_stream stream) {
    return stream == *(const ductile_stream *)user;
}

const char *open_pool(subject *s, unsigned pool, size_t only) {
    pool_state *p = &s->pools[pool];
    bool is_new = !pool_exists(s, pool);
    ductile_status status = only == N_SLOTS ? ductile_pool_begin(s->f.allocator, p->id, NULL, NULL)
                                            : ductile_pool_begin(s->f.allocator, p->id, accepts,
                                                                 &s->slots[only].stream);
    TRY(may_be(s, "pool_begin", status, status == DUCTILE_OK));
    if (status == DUCTILE_OK) {
        p->n_refs++;
        p->n_open++;
        s->routes[s->n_routes++] = (route){pool, only, s->crew.here};
    }
    return status == DUCTILE_OK && is_new ? note_if_back(s, pool) : NULL;
}

/* One more than the index; 0: none. */
static size_t last_route(const subject *s, unsigned pool, bool by_this_thread) {
    size_t i = s->n_routes;
    while (i > 0 && (s->routes[i - 1].pool != pool ||
                     (by_this_thread && s->routes[i - 1].opener != s->crew.here))) {
        i--;
    }
    return i;
}

const char *close_pool(subject *s, unsigned pool) {
    pool_state *p = &s->pools[pool];
    size_t i = last_route(s, pool, true);
    i = i > 0 ? i : last_route(s, pool, false);
    if (i == 0) {
        return NULL;
    }
    ductile_status status = ductile_pool_end(s->f.allocator, p->id);
    TRY(may_be(s, "pool_end", status, status == DUCTILE_OK));
    for (; i < s->n_routes; i++) {
        s->routes[i - 1] = s->routes[i];
    }
    s->n_routes--;
    p->n_open--;
    return NULL;
}

static const char *close_all(subject *s) {
    size_t before = s->n_routes + 1;
    while (s->n_routes > 0 && s->n_routes < before) { /* else the device is lost */
        before = s->n_routes;
        TRY(close_pool(s, s->routes[before - 1].pool));
    }
    return NULL;
}

const char *hold_pool(subject *s, unsigned pool) {
    pool_state *p = &s->pools[pool];
    bool is_new = !pool_exists(s, pool);
    ductile_status status = ductile_pool_retain(s->f.allocator, p->id);
    TRY(may_be(s, "pool_retain", status, status == DUCTILE_OK));
    p->n_refs += status == DUCTILE_OK;
    return status == DUCTILE_OK && is_new ? note_if_back(s, pool) : NULL;
}

const char *release_pool(subject *s, unsigned pool) {
    pool_state *p = &s->pools[pool];
    ductile_status status = ductile_pool_release(s->f.allocator, p->id);
    TRY(may_be(s, "pool_release", status, status == DUCTILE_OK));
    p->n_refs -= status == DUCTILE_OK;
    note_if_gone(s, pool);
    return NULL;
}

const char *do_pool_open(subject *s, const record *r) {
    unsigned pool = plain_pool(r->a);
    if (!has(s, POOLS) || s->n_routes >= MOST_ROUTES / 2) {
        return NULL;
    }
    say(s, "pool %u opens", pool);
    return open_pool(s, pool, r->b % 2 == 0 ? N_SLOTS : owner_slot(s, r->c));
}

const char *do_pool_close(subject *s, const record *r) {
    (void)r;
    for (size_t i = s->n_routes; i-- > 0;) {
        unsigned pool = s->routes[i].pool;
        if (pool <= N_PLAIN_POOLS) {
            say(s, "pool %u closes", pool);
            return close_pool(s, pool);
        }
    }
    return NULL;
}

const char *do_pool_hold(subject *s, const record *r) {
    unsigned pool = plain_pool(r->a);
    pool_state *p = &s->pools[pool];
    if (!has(s, POOLS)) {
        return NULL;
    }
    if (p->n_refs > p->n_open && r->b % 3 != 0) {
        say(s, "pool %u loses a reference", pool);
        return release_pool(s, pool);
    }
    say(s, "pool %u gets a reference", pool);
    return hold_pool(s, pool);
}

const char *do_pool_kind(subject *s, const record *r) {
    unsigned pool = plain_pool(r->a);
    pool_state *p = &s->pools[pool];
    if (!has(s, POOLS)) {
        return NULL;
    }
    say(s, "pool %u becomes of kind %u", pool, r->b % 2);
    ductile_status status =
        ductile_pool_set_kind(s->f.allocator, p->id, (ductile_pool_kind)(r->b % 2));
    bool is_fine = status == DUCTILE_OK || status == DUCTILE_ERR_BUSY;
    return may_be(s, "pool_set_kind", status,
                  p->n_refs > 0 ? is_fine : status == DUCTILE_ERR_INVALID_ARGUMENT);
}

/* ---- Looks --------------------------------------------------------------------------------- */

static int count_live(void *user, const ductile_block_info *block) {
    size_t *n = user;
    *n += block->state == DUCTILE_BLOCK_LIVE || block->state == DUCTILE_BLOCK_ASLEEP;
    return 0;
}

/* A pool without a reference exists until its memory has gone. */
static bool may_answer(const subject *s, unsigned pool, ductile_status status) {
    return status == DUCTILE_OK ||
           (status == DUCTILE_ERR_INVALID_ARGUMENT && !pool_exists(s, pool));
}

const char *do_pool_view(subject *s, const record *r) {
    unsigned pool = 1 + r->a % N_POOLS;
    const pool_state *p = &s->pools[pool];
    ductile_pool_info info = {.struct_size = sizeof info};
    ductile_stats stats = {.struct_size = sizeof stats};
    size_t n = 0;
    if (p->id.first == 0) {
        return NULL;
    }
    say(s, "view pool %u", pool);
    ductile_status got[3] = {ductile_list_pools(s->f.allocator, &p->id, &info, 1, NULL),
                             ductile_get_stats(s->f.allocator, &p->id, &stats),
                             ductile_walk(s->f.allocator, &p->id, count_live, &n)};
    for (size_t i = 0; i < 3; i++) {
        NEED(may_answer(s, pool, got[i]) && got[i] == got[0], "view %zu of pool %u: %s", i, pool,
             ductile_status_name(got[i]));
    }
    if (got[0] == DUCTILE_OK) {
        bool is_asleep = info.asleep != 0;
        NEED(info.references == p->n_refs && info.open == p->n_open &&
                 (is_asleep == p->is_asleep || !pool_exists(s, pool)),
             "pool %u has %llu references, is open %llu times, asleep %d", pool,
             (unsigned long long)info.references, (unsigned long long)info.open, info.asleep);
        NEED(n == blocks_in(s, pool) && stats.live_blocks + stats.asleep_blocks == n,
             "pool %u has %zu blocks, not %zu", pool, n, blocks_in(s, pool));
    }
    return NULL;
}

const char *do_pool_trim(subject *s, const record *r) {
    unsigned pool = r->a % (N_POOLS + 1);
    ductile_pool_id id = s->pools[pool].id;
    uint64_t released = 1;
    if (pool != 0 && id.first == 0) {
        return NULL;
    }
    say(s, "trim pool %u", pool);
    ductile_status status = ductile_trim(s->f.allocator, &id, 0, &released);
    return may_be(s, "pool_trim", status,
                  pool == 0 ? status == DUCTILE_OK : may_answer(s, pool, status));
}

/* ---- Sleep --------------------------------------------------------------------------------- */

static void tell_device(subject *s, unsigned pool, bool live) {
    for (size_t i = 0; i < s->m.n; i++) {
        const model_block *b = &s->m.blocks[i];
        if (b->pool == pool && live) {
            ductile_virtual_block_begin(s->f.gpu, b->address, b->size);
        } else if (b->pool == pool) {
            ductile_virtual_block_end(s->f.gpu, b->address);
        }
    }
    if (pool > N_PLAIN_POOLS) {
        ductile_virtual_graph_rest(s->graphs[pool - N_PLAIN_POOLS - 1].graph, !live);
    }
}

static void mark_asleep(subject *s, unsigned pool, bool is_asleep) {
    set_asleep(s, pool, is_asleep);
    for (size_t i = 0; i < s->m.n; i++) {
        model_block *b = &s->m.blocks[i];
        if (b->pool == pool) {
            b->is_asleep = is_asleep;
            b->is_blank |= is_asleep && !s->pools[pool].keeps_contents;
        }
    }
}

const char *sync_foreign(subject *s) {
    for (size_t i = 0; i < s->n_slots && !is_capturing(s); i++) { /* which forbids it */
        if (s->slots[i].kind == FOREIGN_STREAM && !s->slots[i].is_gone) {
            NEED_OK(ductile_virtual_stream_sync(s->f.gpu, s->slots[i].stream));
        }
    }
    return NULL;
}

const char *sleep_pool(subject *s, unsigned pool, ductile_contents contents) {
    bool is_there = pool_exists(s, pool);
    TRY(sync_foreign(s));
    tell_device(s, pool, false);
    s->pools[pool].keeps_contents = contents == DUCTILE_CONTENTS_KEEP;
    s->moving_pool = pool + 1;
    ductile_status status = ductile_sleep(s->f.allocator, s->pools[pool].id, contents);
    s->moving_pool = 0;
    say(s, "sleep pool %u: %s", pool, ductile_status_name(status));
    if (status == DUCTILE_OK && is_there) {
        mark_asleep(s, pool, true);
    } else if (status == DUCTILE_OK) {
        s->pools[pool].may_be_asleep = true;
        set_asleep(s, pool, false);
    } else {
        /* To the device the blocks are new ones now. */
        TRY(is_capturing(s) || s->is_scripted ? NULL : sync_all(s));
        tell_device(s, pool, true);
    }
    bool is_none = !is_there && (may_answer(s, pool, status) || status == DUCTILE_ERR_ASLEEP);
    /* An open pool may mean a capture. */
    bool meets_capture = s->n_routes > 0 && status == DUCTILE_ERR_CAPTURING;
    return may_be(s, "sleep", status,
                  is_none || meets_capture || (is_there && status == DUCTILE_OK));
}

/* Blocks whose contents were not kept get new ones. */
static const char *refill(subject *s, unsigned pool) {
    for (size_t i = 0; i < s->m.n; i++) {
        model_block *b = &s->m.blocks[i];
        bool can = b->stream != GONE && !is_captured(s, b->stream);
        if (b->pool == pool && b->is_blank && can) {
            TRY(fill_block(s, b, b->stream));
        }
    }
    return NULL;
}

const char *wake_pool(subject *s, unsigned pool) {
    s->moving_pool = pool + 1;
    s->may_hold_large |= caches_large(s);
    TRY(hardship_begin(s));
    ductile_status status = ductile_wake(s->f.allocator, s->pools[pool].id);
    hardship_end(s);
    s->moving_pool = 0;
    say(s, "wake pool %u: %s", pool, ductile_status_name(status));
    TRY(may_be(s, "wake", status, status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY));
    if (status != DUCTILE_OK) {
        return NULL;
    }
    mark_asleep(s, pool, false);
    tell_device(s, pool, true);
    return refill(s, pool);
}

void pool_may_sleep(subject *s, unsigned pool) {
    tell_device(s, pool, false);
}

const char *pool_sleeps(subject *s, unsigned pool, bool sleeps) {
    bool slept = s->pools[pool].is_asleep;
    mark_asleep(s, pool, sleeps);
    if (!sleeps) {
        tell_device(s, pool, true);
    }
    return slept && !sleeps ? refill(s, pool) : NULL;
}

/* The host has no room for the contents of a large device. */
static ductile_contents any_contents(const subject *s, const record *r) {
    return r->b % 3 != 0 && !s->is_large ? DUCTILE_CONTENTS_KEEP : DUCTILE_CONTENTS_DROP;
}

const char *do_sleep(subject *s, const record *r) {
    unsigned pool = 1 + r->a % N_POOLS;
    if (!has(s, POOLS) || s->pools[pool].id.first == 0 ||
        (!s->pools[pool].is_asleep && (s->n_pins > 0 || is_capturing(s)))) {
        return NULL;
    }
    return s->pools[pool].is_asleep ? wake_pool(s, pool) : sleep_pool(s, pool, any_contents(s, r));
}

/* What was dedicated may come back as a part of the pool. */
static const char *wake_up(subject *s, unsigned pool, const record *r) {
    TRY(r->b % 2 == 0 && pool != 0 ? leave_large_handle(s, r) : NULL);
    TRY(r->c % 4 == 1 ? fail_to_wake(s, pool, r) : NULL);
    TRY(s->pools[pool].is_asleep && r->c % 8 != 1 ? wake_pool(s, pool) : NULL);
    TRY(r->d % 4 == 0 ? free_blocks_of_pool(s, pool) : NULL);
    bool may_open = pool != 0 && !s->pools[pool].is_asleep && s->n_routes < MOST_ROUTES / 2;
    return may_open ? open_pool(s, pool, r->b % 4 < 2 ? N_SLOTS : owner_slot(s, r->c)) : NULL;
}

/* A pool that has nothing in it yet is opened instead. Pool 0 is the default one. */
const char *do_nap(subject *s, const record *r) {
    unsigned pool = r->a % N_SETS;
    if (is_capturing(s)) {
        return NULL;
    }
    if (r->c % 4 == 0) {
        TRY(close_all(s));
        return do_sets(s, r);
    }
    if (s->pools[pool].is_asleep) {
        return wake_up(s, pool, r);
    }
    TRY(close_all(s));
    if (pool != 0 && blocks_in(s, pool) == 0) {
        return open_pool(s, pool, N_SLOTS);
    }
    TRY(pool != 0 && s->pools[pool].n_refs == 0 ? hold_pool(s, pool) : NULL);
    return sleep_pool(s, pool, any_contents(s, r));
}

/* ---- Back at an address -------------------------------------------------------------------- */

static ductile_status alloc_again(const subject *s, const model_block *b) {
    return ductile_pool_alloc_at(s->f.allocator, s->pools[b->pool].id, b->address, b->requested);
}

/* Where a stream could not be marked, a marker of the context tells, if there may be one, and the
 * first call records it. */
static const char *have_back(subject *s, model_block *b) {
    bool may_mark = s->has_context_events && s->captures != DUCTILE_CAPTURES_UNANNOUNCED;
    ductile_status status = alloc_again(s, b);
    if (status == DUCTILE_ERR_BUSY && b->is_unmarkable) {
        TRY(sync_all(s));
        status = alloc_again(s, b);
    }
    bool is_unknown = b->is_unmarkable && (!may_mark || s->n_routes > 0);
    NEED(status == DUCTILE_OK || (status == DUCTILE_ERR_BUSY && is_unknown),
         "a block that is idle is not had back: %s", ductile_status_name(status));
    b->recorded = 0;
    b->is_unmarkable = false;
    return status == DUCTILE_OK ? admit_block(s, b) : NULL;
}

/* A block of a graph is freed and made again, as a checkpoint is restored. */
const char *do_alloc_at(subject *s, const record *r) {
    model_block *b = any_block(s, r->d);
    if (b == NULL || b->pool <= N_PLAIN_POOLS || b->is_asleep || b->is_dedicated ||
        b->recorded != 0 || b->stream == GONE || is_capturing(s) || s->is_faulty) {
        return NULL;
    }
    say(s, "free %llx and have it back", b->address);
    model_block again = *b;
    s->graphs[b->pool - N_PLAIN_POOLS - 1].is_stale = true;
    TRY(free_block(s, (size_t)(b - s->m.blocks), 0));
    TRY(sync_all(s));
    return have_back(s, &again);
}

/* ---- The end ------------------------------------------------------------------------------- */

const char *end_pools(subject *s) {
    TRY(close_all(s));
    for (unsigned pool = 0; pool <= N_POOLS && !s->is_over; pool++) {
        if (s->pools[pool].is_asleep) {
            TRY(wake_pool(s, pool));
        }
        TRY(s->pools[pool].is_asleep ? free_blocks_of_pool(s, pool) : NULL);
        TRY(s->pools[0].is_asleep ? wake_pool(s, 0) : NULL); /* it stays, and needs nothing now */
        for (unsigned n = s->pools[pool].n_refs; n > 0; n--) {
            TRY(release_pool(s, pool));
        }
    }
    return NULL;
}
