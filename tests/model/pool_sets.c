/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of pools that sleep and wake together. Pool 0 is the default one. */
#include "tests/model/subject.h"

ductile_pool_id pool_id_of(uint64_t pool) {
    return pool == 0 ? (ductile_pool_id){0, 0} : (ductile_pool_id){pool, 7};
}

ductile_pool_info pool_info_of(const subject *s, unsigned pool) {
    ductile_pool_info info = {.struct_size = sizeof info};
    ductile_pool_id id = pool_id_of(pool);
    (void)!ductile_list_pools(s->f.allocator, &id, &info, 1, NULL);
    return info;
}

static void take_contents(subject *s, unsigned pool, ductile_contents contents) {
    for (size_t i = 0; i < s->m.n; i++) {
        model_block *b = &s->m.blocks[i];
        bool is_new = contents == DUCTILE_CONTENTS_ZERO || contents == DUCTILE_CONTENTS_POISON;
        if (b->pool == pool && is_new) {
            b->pattern = contents == DUCTILE_CONTENTS_ZERO ? 0 : 0xFF;
            b->is_blank = false;
        }
    }
}

/* All pools of the set have changed, or none. */
static const char *look_at(subject *s, unsigned pool, ductile_status status) {
    ductile_pool_info info = pool_info_of(s, pool);
    bool sleeps = info.state == DUCTILE_POOL_ASLEEP;
    bool slept = s->pools[pool].is_asleep;
    if (!pool_exists(s, pool)) {
        s->pools[pool].may_be_asleep |= sleeps;
        return NULL;
    }
    NEED(status == DUCTILE_OK || sleeps == slept, "pool %u has changed, with %s", pool,
         ductile_status_name(status));
    if (sleeps && slept) {
        return NULL;
    }
    bool is_new =
        info.contents == DUCTILE_CONTENTS_ZERO || info.contents == DUCTILE_CONTENTS_POISON;
    bool is_known = s->n_pins == 0 || !is_new; /* what stays mapped is not filled */
    s->pools[pool].keeps_contents = sleeps && info.contents != DUCTILE_CONTENTS_DROP && is_known;
    TRY(pool_sleeps(s, pool, sleeps));
    take_contents(s, pool, sleeps && is_known ? info.contents : DUCTILE_CONTENTS_POLICY);
    return NULL;
}

/* To the device they have not ended, but use nothing meanwhile. Those of random programs use pools
 * of their own, which are not in these sets. */
static void let_graphs_rest(subject *s, bool rest) {
    for (size_t i = 0; i < N_GRAPHS && s->is_scripted; i++) {
        if (s->graphs[i].graph != NULL) {
            ductile_virtual_graph_rest(s->graphs[i].graph, rest);
        }
    }
}

static bool is_any_asleep(const subject *s) {
    bool is_any = false;
    for (unsigned pool = 0; pool < N_SETS; pool++) {
        is_any |= s->pools[pool].is_asleep;
    }
    return is_any;
}

const char *change_set(subject *s, const ductile_sleep_request *r, const bool *is_meant,
                       bool sleeps, ductile_sleep_report *report, ductile_status *status) {
    *report = (ductile_sleep_report){.struct_size = sizeof *report};
    for (unsigned pool = 0; pool < N_SETS; pool++) {
        if (sleeps && is_meant[pool] && !s->pools[pool].is_asleep) {
            pool_may_sleep(s, pool);
        }
    }
    s->moving_pool = ANY_POOL;
    let_graphs_rest(s, true);
    *status = sleeps ? ductile_sleep_set(s->f.allocator, r, report)
                     : ductile_wake_set(s->f.allocator, r, report);
    s->moving_pool = 0;
    bool is_undone = sleeps && *status != DUCTILE_OK && !s->is_scripted;
    TRY(is_undone ? sync_all(s) : NULL); /* to the device the blocks are new ones now */
    for (unsigned pool = 0; pool < N_SETS && fixture_state(&s->f).poisoned == 0; pool++) {
        bool is_same = !is_meant[pool] || (!sleeps && !s->pools[pool].is_asleep);
        TRY(is_same ? NULL : look_at(s, pool, *status));
    }
    let_graphs_rest(s, is_any_asleep(s));
    return NULL;
}

/* ---- Promotion ------------------------------------------------------------------------------ */

static bool has_spilled(const subject *s, unsigned pool) {
    bool has_some = false;
    for (size_t i = 0; i < s->m.n; i++) {
        has_some |= s->m.blocks[i].pool == pool && is_spilled(s, &s->m.blocks[i]);
    }
    return has_some;
}

enum { LARGEST_HANDLE = 16 }; /* granules */

/* Where nothing but live memory keeps the device's, what is left has no room for one handle. */
static const char *no_room_is_left(subject *s) {
    uint64_t spilled = 0;
    for (size_t i = 0; i < s->m.n; i++) {
        spilled += spilled_bytes(s, &s->m.blocks[i]) / s->granule;
    }
    uint64_t on_device = held_by_live(s) - spilled;
    uint64_t allowed = limit_of(s) / s->granule;
    NEED(spilled == 0 || on_device + kept_for_small(s) + LARGEST_HANDLE > allowed,
         "%llu granules stay in the host, though of %llu of the device's only %llu hold live bytes",
         (unsigned long long)spilled, (unsigned long long)allowed, (unsigned long long)on_device);
    return NULL;
}

/* The pool runs again, or sleeps after a failure. */
static const char *look_at_promoted(subject *s, unsigned pool, ductile_status status) {
    bool sleeps = pool_info_of(s, pool).state == DUCTILE_POOL_ASLEEP;
    NEED(!sleeps || status != DUCTILE_OK, "pool %u sleeps after a promotion", pool);
    s->pools[pool].keeps_contents = true;
    return pool_sleeps(s, pool, sleeps);
}

static const char *verify_all_of(subject *s, unsigned pool) {
    const char *why = NULL;
    for (size_t i = 0; i < s->m.n && why == NULL; i++) {
        why = s->m.blocks[i].pool == pool ? verify_block(s, &s->m.blocks[i]) : NULL;
    }
    return why;
}

const char *promote(subject *s, ductile_sleep_report *report, ductile_status *status) {
    bool is_moved[N_SETS];
    *report = (ductile_sleep_report){.struct_size = sizeof *report};
    for (unsigned pool = 0; pool < N_SETS; pool++) {
        is_moved[pool] = !s->pools[pool].is_asleep && has_spilled(s, pool);
        if (is_moved[pool]) {
            pool_may_sleep(s, pool);
        }
    }
    s->moving_pool = ANY_POOL;
    let_graphs_rest(s, true);
    *status = ductile_promote(s->f.allocator, report);
    s->moving_pool = 0;
    bool is_undone = *status != DUCTILE_OK && !s->is_scripted;
    TRY(is_undone ? sync_all(s) : NULL); /* to the device the blocks are new ones now */
    for (unsigned pool = 0; pool < N_SETS && fixture_state(&s->f).poisoned == 0; pool++) {
        TRY(is_moved[pool] ? look_at_promoted(s, pool, *status) : NULL);
    }
    let_graphs_rest(s, is_any_asleep(s));
    for (unsigned pool = 0; pool < N_SETS && fixture_state(&s->f).poisoned == 0; pool++) {
        TRY(is_moved[pool] ? verify_all_of(s, pool) : NULL);
    }
    return NULL;
}

/* Contents go through the host, which has no room for those of a large device. */
const char *do_promote(subject *s) {
    ductile_sleep_report report;
    ductile_status status = DUCTILE_OK;
    uint64_t before = fixture_stats(s->f.allocator).spilled_live_bytes;
    if (is_capturing(s) || s->is_large) {
        return NULL;
    }
    TRY(sync_foreign(s));
    TRY(promote(s, &report, &status));
    say(s, "promote: %s, %llu of %llu", ductile_status_name(status),
        (unsigned long long)report.bytes, (unsigned long long)before);
    /* An open pool may mean a capture. */
    bool is_refused = s->n_routes > 0 && status == DUCTILE_ERR_CAPTURING;
    TRY(may_be(s, "promote", status, status == DUCTILE_OK || is_refused));
    NEED(s->is_over || report.bytes + report.stayed_bytes <= before,
         "%llu bytes were promoted and %llu stayed, of %llu", (unsigned long long)report.bytes,
         (unsigned long long)report.stayed_bytes, (unsigned long long)before);
    bool is_known = status == DUCTILE_OK && is_simple_but_spills(s) && s->external_bytes == 0;
    return is_known ? no_room_is_left(s) : NULL;
}

/* ---- As random programs do it -------------------------------------------------------------- */

/* POLICY may be KEEP, for which the host has no room beside a large device. */
static ductile_contents any_contents_of_set(const subject *s, const record *r) {
    return (ductile_contents)(s->is_large ? DUCTILE_CONTENTS_DROP + r->b % 3 : r->b % 5);
}

static ductile_sleep_request set_of(const subject *s, const record *r, ductile_pool_id *pools,
                                    bool *is_meant) {
    ductile_sleep_request set = {.struct_size = sizeof set,
                                 .lenient = 1,
                                 .pools = pools,
                                 .contents = any_contents_of_set(s, r),
                                 .retain = r->b / 5 % 2};
    for (unsigned pool = 0; pool < N_SETS; pool++) {
        is_meant[pool] = r->a >> pool & 1;
        if (is_meant[pool]) {
            pools[set.n_pools++] = pool_id_of(pool);
        }
    }
    return set;
}

/* Pools that are as they should be already, and such that do not exist, are among them. */
const char *do_sets(subject *s, const record *r) {
    ductile_pool_id pools[N_SETS];
    bool is_meant[N_SETS];
    const ductile_sleep_request set = set_of(s, r, pools, is_meant);
    bool sleeps = r->d % 2 == 0;
    ductile_sleep_report report;
    ductile_status status = DUCTILE_OK;
    if (set.n_pools == 0) {
        return NULL;
    }
    TRY(sync_foreign(s));
    s->may_hold_large |= caches_large(s);
    TRY(change_set(s, &set, is_meant, sleeps, &report, &status));
    say(s, "%s pools %u, contents %u, retained %d: %s", sleeps ? "sleep" : "wake",
        (unsigned)r->a % (1u << N_SETS), (unsigned)set.contents, set.retain,
        ductile_status_name(status));
    bool is_short = !sleeps && status == DUCTILE_ERR_OUT_OF_MEMORY;
    return may_be(s, sleeps ? "sleep_set" : "wake_set", status, status == DUCTILE_OK || is_short);
}
