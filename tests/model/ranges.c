/* SPDX-License-Identifier: Apache-2.0 */
/* Elastic ranges. A committed unit is a block of the model, with which all else may happen. */
#include "tests/model/subject.h"

#include <ductile_elastic.h>

/* What a commit or a decommit is about. */
typedef struct part {
    range_state *of;
    uint64_t first, n; /* units */
    size_t user;       /* a slot whose stream uses them; N_SLOTS: none does */
    bool is_blank;     /* what is new is not written */
    ductile_status status;
} part;

static ductile_addr unit_address(const part *p, uint64_t i) {
    return ductile_elastic_address(p->of->range) + (p->first + i) * p->of->unit;
}

static model_block *unit_at(subject *s, const part *p, uint64_t i) {
    size_t found = model_find(&s->m, unit_address(p, i));
    return found < s->m.n ? &s->m.blocks[found] : NULL;
}

static part some_part(range_state *of, const record *r) {
    uint64_t first = r->d % of->n_units;
    uint64_t most = of->n_units - first;
    return (part){.of = of, .first = first, .n = 1 + (r->d >> 8) % most, .user = N_SLOTS};
}

static uint64_t count_missing(subject *s, const part *p) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < p->n; i++) {
        n += unit_at(s, p, i) == NULL;
    }
    return n;
}

/* ---- Open and close ------------------------------------------------------------------------ */

static const char *open_it(subject *s, range_state *of, const record *r) {
    size_t slot = owner_slot(s, r->a);
    unsigned pool = pool_for(s, slot);
    uint64_t unit = s->granule * (1 + r->c % 3);
    ductile_elastic_options options = {.struct_size = sizeof options, .unit_bytes = unit};
    uint64_t bytes = unit * (1 + r->d % 16);
    ductile_elastic *range = NULL;
    s->status =
        ductile_elastic_open(s->f.allocator, bytes, s->slots[slot].stream, &options, &range);
    say(s, "open a range of %llu units of %llu on %zu, pool %u: %s",
        (unsigned long long)(bytes / unit), (unsigned long long)unit, slot, pool,
        ductile_status_name(s->status));
    if (s->status != DUCTILE_OK) {
        bool is_short = s->status == DUCTILE_ERR_OUT_OF_ADDRESSES && s->is_short_of_addresses;
        bool sleeps = s->status == DUCTILE_ERR_ASLEEP && s->pools[pool].is_asleep;
        NEED(range == NULL, "a range that is refused is there");
        return may_be(s, "elastic_open", s->status, is_short || sleeps);
    }
    *of = (range_state){range, slot, pool, s->pools[pool].id, unit, bytes / unit};
    return NULL;
}

static const char *withdraw_units(subject *s, const part *p) {
    for (uint64_t i = 0; i < p->n; i++) {
        model_block *b = unit_at(s, p, i);
        if (b != NULL) {
            (void)withdraw_block(s, (size_t)(b - s->m.blocks));
        }
    }
    return NULL;
}

const char *end_range(subject *s, range_state *of) {
    const part all = {.of = of, .n = of->n_units};
    TRY(withdraw_units(s, &all));
    ductile_status status = ductile_elastic_close(of->range);
    of->range = NULL;
    TRY(may_be(s, "elastic_close", status, status == DUCTILE_OK));
    note_if_gone(s, of->pool);
    return NULL;
}

const char *end_ranges(subject *s, size_t slot) {
    for (size_t i = 0; i < N_RANGES; i++) {
        bool is_meant = slot == ANY_SLOT || s->ranges[i].slot == slot;
        TRY(is_meant && s->ranges[i].range != NULL ? end_range(s, &s->ranges[i]) : NULL);
    }
    return NULL;
}

void forget_ranges(subject *s) {
    for (size_t i = 0; i < N_RANGES; i++) {
        s->ranges[i].range = NULL;
    }
}

void leave_ranges(subject *s, size_t slot) {
    for (size_t i = 0; i < N_RANGES; i++) {
        s->ranges[i].slot = s->ranges[i].slot == slot ? (size_t)GONE : s->ranges[i].slot;
    }
}

/* ---- Commit -------------------------------------------------------------------------------- */

/* The report of a refusal is of the thread that was refused. A callback that was asked for memory
 * may have freed units of the part itself, which are missing then. */
static const char *commit_here(subject *s, void *argument) {
    part *p = argument;
    uint64_t asked = count_missing(s, p) * p->of->unit;
    p->status = ductile_elastic_commit(p->of->range, p->first * p->of->unit, p->n * p->of->unit);
    uint64_t missing = count_missing(s, p) * p->of->unit;
    return p->status == DUCTILE_ERR_OUT_OF_MEMORY ? lacks_memory(s, asked, missing) : NULL;
}

/* What a graph uses is of its own pool here, and so goes with it; and its launches write to units
 * that were decommitted, so that none comes back behind the capture. */
static bool may_commit(const subject *s, const range_state *of) {
    if (of->slot == GONE) {
        return true;
    }
    bool is_for_graph = of->pool > N_PLAIN_POOLS && of->pool == pool_for(s, of->slot);
    bool is_free = is_captured(s, of->slot) ? is_for_graph && !is_in_debt(s, of->slot)
                                            : of->pool <= N_PLAIN_POOLS;
    return is_free && !rests(s, of->slot) && s->m.n + of->n_units < MOST_BLOCKS;
}

/* A graph would fill it with zeros again at each launch. */
static bool would_record(const subject *s, const part *p) {
    ductile_options o = {.struct_size = sizeof o};
    ductile_get_options(s->f.allocator, &o);
    return o.zero != 0 && p->of->slot != GONE && is_captured(s, p->of->slot);
}

static const char *is_refused(subject *s, const part *p) {
    bool is_out = p->status == DUCTILE_ERR_OUT_OF_MEMORY;
    const pool_state *pool = &s->pools[p->of->pool]; /* one that nothing else refers to may wake */
    bool sleeps = p->status == DUCTILE_ERR_ASLEEP && (pool->is_asleep || pool->may_be_asleep);
    bool is_gone = p->status == DUCTILE_ERR_INVALID_ARGUMENT && p->of->slot == GONE;
    bool is_lost = p->status == DUCTILE_ERR_DRIVER && s->is_faulty;
    bool is_unrecorded = p->status == DUCTILE_ERR_CAPTURING && would_record(s, p);
    return may_be(s, "elastic_commit", p->status,
                  is_out || sleeps || is_gone || is_lost || is_unrecorded);
}

/* Those that are there keep what they contain. */
static const char *admit_units(subject *s, const part *p) {
    for (uint64_t i = 0; i < p->n; i++) {
        const model_block *there = unit_at(s, p, i);
        if (there != NULL) {
            TRY(verify_block(s, there));
            continue;
        }
        model_block b = {.address = unit_address(p, i),
                         .requested = p->of->unit,
                         .stream = p->of->slot,
                         .pool = p->of->pool};
        TRY(p->is_blank ? admit_blank(s, &b) : admit_block(s, &b));
    }
    return NULL;
}

static const char *commit(subject *s, part *p) {
    if (!may_commit(s, p->of)) {
        say(s, "no commit");
        return NULL;
    }
    uint64_t missing = count_missing(s, p);
    size_t slot = p->of->slot != GONE ? p->of->slot : 0;
    TRY(p->of->slot != GONE ? pay(s, slot) : NULL);
    TRY(with_stream(s, slot, commit_here, p));
    say(s, "commit %llu to %llu of range %zu, %llu missing: %s", (unsigned long long)p->first,
        (unsigned long long)(p->first + p->n), (size_t)(p->of - s->ranges),
        (unsigned long long)missing, ductile_status_name(p->status));
    if (p->status != DUCTILE_OK) {
        return is_refused(s, p);
    }
    NEED(p->of->slot != GONE, "a range whose stream has ended grows");
    NEED(!s->pools[p->of->pool].is_asleep, "a sleeping pool has served a commit");
    return admit_units(s, p);
}

/* ---- Decommit ------------------------------------------------------------------------------ */

static const char *decommit_here(subject *s, void *argument) {
    part *p = argument;
    size_t n = p->user < N_SLOTS;
    const ductile_stream *streams = n > 0 ? &s->slots[p->user].stream : NULL;
    p->status = ductile_elastic_decommit(p->of->range, p->first * p->of->unit, p->n * p->of->unit,
                                         streams, n);
    return NULL;
}

/* Other streams use the units, and are named. */
static const char *use_units(subject *s, const part *p) {
    for (uint64_t i = 0; i < p->n; i++) {
        model_block *b = unit_at(s, p, i);
        TRY(b != NULL ? use_elsewhere(s, b, p->user) : NULL);
    }
    return NULL;
}

static bool may_be_used(subject *s, const part *p) {
    bool may = true;
    for (uint64_t i = 0; i < p->n && may; i++) {
        const model_block *b = unit_at(s, p, i);
        may = b == NULL || may_use_block(s, b, p->user);
    }
    return may;
}

static const char *decommit(subject *s, part *p, const record *r) {
    size_t user = user_slot(s, r->b);
    p->user = r->a % 3 == 0 ? user : (size_t)N_SLOTS;
    p->user = p->user < N_SLOTS && may_be_used(s, p) ? p->user : (size_t)N_SLOTS;
    TRY(p->user < N_SLOTS ? use_units(s, p) : NULL);
    const uint64_t n = p->n - count_missing(s, p);
    TRY(withdraw_units(s, p));
    TRY(with_stream(s, p->user < N_SLOTS ? p->user : 0, decommit_here, p));
    say(s, "decommit %llu to %llu of range %zu, %llu committed, user %zu: %s",
        (unsigned long long)p->first, (unsigned long long)(p->first + p->n),
        (size_t)(p->of - s->ranges), (unsigned long long)n, p->user,
        ductile_status_name(p->status));
    if (p->user < N_SLOTS) {
        s->slots[p->user].is_recorded = true;
    }
    TRY(may_be(s, "elastic_decommit", p->status, p->status == DUCTILE_OK));
    NEED(p->status == DUCTILE_OK || s->is_over || fixture_state(&s->f).poisoned != 0,
         "a decommit has failed: %s", ductile_status_name(p->status));
    note_if_gone(s, p->of->pool);
    return NULL;
}

/* ---- For scenarios -------------------------------------------------------------------------- */

static part part_of(range_state *of, uint64_t offset, uint64_t bytes) {
    return (part){.of = of, .first = offset / of->unit, .n = bytes / of->unit, .user = N_SLOTS};
}

const char *admit_range(subject *s, range_state *of, uint64_t offset, uint64_t bytes,
                        bool is_blank) {
    part p = part_of(of, offset, bytes);
    p.is_blank = is_blank;
    return admit_units(s, &p);
}

const char *withdraw_range(subject *s, range_state *of, uint64_t offset, uint64_t bytes) {
    const part p = part_of(of, offset, bytes);
    return withdraw_units(s, &p);
}

/* ---- Any of them ---------------------------------------------------------------------------- */

static const char *commit_or_decommit(subject *s, range_state *of, const record *r) {
    part p = some_part(of, r);
    bool grows = r->c % 8 < (s->live_bytes < s->target_bytes ? 5 : 3);
    return grows ? commit(s, &p) : decommit(s, &p, r);
}

/* With the pool of a graph that is gone: the next one's has the same number. */
static bool is_of_old_graph(const subject *s, const range_state *of) {
    return of->pool > N_PLAIN_POOLS && (of->pool_id.first != s->pools[of->pool].id.first ||
                                        of->pool_id.second != s->pools[of->pool].id.second);
}

const char *do_elastic(subject *s, const record *r) {
    range_state *of = &s->ranges[r->b % N_RANGES];
    if (s->goes_home || s->is_teeming) {
        return NULL;
    }
    if (of->range == NULL) {
        return open_it(s, of, r);
    }
    if (r->c % 32 == 31 || is_of_old_graph(s, of)) {
        say(s, "close range %zu", (size_t)(of - s->ranges));
        return end_range(s, of);
    }
    return commit_or_decommit(s, of, r);
}
