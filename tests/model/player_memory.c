/* SPDX-License-Identifier: Apache-2.0 */
/* What a scenario may say of memory as a whole:
 * pools, trims, limits, pins, peers, faults, the end. */
#include "tests/model/player.h"
#include "tests/support/limits.h"

#include <ductile_share.h>

#include <string.h>

/* ---- Pools --------------------------------------------------------------------------------- */

const char *pool_or_default_at(const words *w, size_t i, unsigned *out) {
    uint64_t pool = 0;
    TRY(number_at(w, i, &pool));
    NEED(pool <= N_PLAIN_POOLS, "there is no pool %s", word_at(w, i));
    *out = (unsigned)pool;
    return NULL;
}

const char *pool_at(const words *w, size_t i, unsigned *out) {
    TRY(pool_or_default_at(w, i, out));
    NEED(*out != 0, "no pool is meant");
    return NULL;
}

/* "open 1": for the thread's requests; "open 1 2": for those of stream 2. */
VERB(open_it, "open") {
    POOL(pool);
    uint64_t only = N_SLOTS;
    TRY(w->n > 2 ? number_at(w, 2, &only) : NULL);
    TRY(open_pool(&p->s, pool, only));
    return answers(p, w, p->s.status);
}

VERB(close_it, "close") {
    POOL(pool);
    p->s.status = DUCTILE_ERR_INVALID_ARGUMENT; /* where the model knows that it is not open */
    TRY(close_pool(&p->s, pool));
    return answers(p, w, p->s.status);
}

VERB(hold, "hold") {
    POOL(pool);
    TRY(hold_pool(&p->s, pool));
    return answers(p, w, p->s.status);
}

VERB(release, "release") {
    POOL(pool);
    if (p->s.pools[pool].n_refs == 0 && p->how.is_lenient) {
        return NULL;
    }
    TRY(release_pool(&p->s, pool));
    return answers(p, w, p->s.status);
}

/* "kind 1 plain", "kind 1 capture" */
VERB(set_kind, "kind") {
    POOL(pool);
    ductile_pool_kind kind = has_word(w, "plain") ? DUCTILE_POOL_PLAIN : DUCTILE_POOL_CAPTURE;
    return answers(p, w, ductile_pool_set_kind(p->s.f.allocator, p->s.pools[pool].id, kind));
}

/* "plain 1": held, and of that kind. */
VERB(plain, "plain") {
    POOL(pool);
    TRY(hold(p, w));
    ductile_pool_id id = p->s.pools[pool].id;
    NEED_OK(ductile_pool_set_kind(p->s.f.allocator, id, DUCTILE_POOL_PLAIN));
    return NULL;
}

/* "gives 8M": so much goes back. */
static const char *gives(const player *p, const words *w, size_t i, uint64_t released) {
    uint64_t expected = 0;
    if (strcmp(word_at(w, i), "gives") != 0) {
        return NULL;
    }
    TRY(number_at(w, i + 1, &expected));
    NEED(p->how.is_lenient || released == expected, "%llu bytes go back",
         (unsigned long long)released);
    return NULL;
}

static const char *trim_as_said(player *p, const words *w, const ductile_pool_id *pool, size_t at) {
    uint64_t keep = 0;
    uint64_t released = 0;
    bool keeps = strcmp(word_at(w, at), "to") == 0;
    TRY(keeps ? number_at(w, at + 1, &keep) : NULL);
    TRY(answers(p, w, ductile_trim(p->s.f.allocator, pool, keep, &released)));
    return gives(p, w, keeps ? at + 2 : at, released);
}

/* "trim_pool 1": or 0, what is in none; otherwise as trim. */
VERB(trim_pool, "trim_pool") {
    unsigned pool = 0;
    TRY(pool_or_default_at(w, 1, &pool));
    return trim_as_said(p, w, &p->s.pools[pool].id, 2);
}

/* ---- Memory as a whole --------------------------------------------------------------------- */

/* "trim", "trim gives 8M", "trim to 16M gives 8M" */
VERB(trim, "trim") {
    return trim_as_said(p, w, NULL, 1);
}

/* All work ends, and a trim leaves nothing unused. */
VERB(rest, "rest") {
    p->s.is_scripted = false;
    const char *why = nothing_is_stuck(&p->s, 0);
    p->s.is_scripted = true;
    return p->s.is_faulty ? NULL : why;
}

VERB(limit, "limit") {
    TRY(number_at(w, 1, &p->s.cap_bytes));
    NEED_OK(set_limit(p->s.f.allocator, p->s.cap_bytes));
    p->s.reserved_bytes = fixture_stats(p->s.f.allocator).reserved_bytes;
    p->s.may_hold_large |= p->s.reserved_bytes > limit_of(&p->s);
    return NULL;
}

/* One that has a number, and a call with it. */
#define NUMBER_VERB(function, word, call)                                                          \
    VERB(function, word) {                                                                         \
        uint64_t number = 0;                                                                       \
        TRY(number_at(w, 1, &number));                                                             \
        return answers(p, w, call);                                                                \
    }

NUMBER_VERB(soft_limit, "soft_limit", set_soft_limit(p->s.f.allocator, number))

/* "host_memory 40M": room for contents of pools that sleep. */
NUMBER_VERB(host_memory, "host_memory", ductile_sleep_host_reserve(p->s.f.allocator, number, NULL))

/* "margin 10M": so much of the device stays free. */
NUMBER_VERB(margin, "margin", ductile_set_margin(p->s.f.allocator, number))

/* "external 16M": another process holds so much. */
NUMBER_VERB(external, "external",
            ductile_virtual_set_external_bytes(p->s.f.gpu, p->s.external_bytes = number))

VERB(captures, "captures") {
    p->s.captures = has_word(w, "pools")       ? DUCTILE_CAPTURES_POOLS
                    : has_word(w, "announced") ? DUCTILE_CAPTURES_ANNOUNCED
                                               : DUCTILE_CAPTURES_UNANNOUNCED;
    return answers(p, w, ductile_set_captures(p->s.f.allocator, p->s.captures));
}

/* The other GPU reaches every block, or none. Where calls go on failing, no change is undone. */
static const char *reach_is_as_known(const player *p) {
    const subject *s = &p->s;
    bool can_tell = !p->how.fault.persistent && fixture_state(&s->f).poisoned == 0;
    for (size_t i = 0; can_tell && i < s->m.n; i++) {
        const model_block *b = &s->m.blocks[i];
        for (uint64_t at = 0; at < b->size && !b->is_asleep; at += FIXTURE_GRANULE) {
            int access = ductile_virtual_access(s->f.gpu, b->address + at, 1);
            NEED(access == (s->has_peer ? 3 : 0), "another GPU has access %d to block %llx", access,
                 b->address);
        }
    }
    return NULL;
}

/* "peer on", "peer off": another GPU gets access; "peer": who reaches what is looked at. */
VERB(peer, "peer") {
    bool on = has_word(w, "on");
    ductile_status status = w->n < 2 ? DUCTILE_OK
                            : on     ? ductile_enable_peer(p->s.f.allocator, 1)
                                     : ductile_disable_peer(p->s.f.allocator, 1);
    p->s.has_peer = status == DUCTILE_OK && w->n > 1 ? on : p->s.has_peer;
    TRY(reach_is_as_known(p));
    return answers(p, w, status);
}

/* "free_host_memory gives 8M": of that what holds no contents goes. */
VERB(free_host_memory, "free_host_memory") {
    uint64_t released = 0;
    TRY(answers(p, w, ductile_sleep_host_release(p->s.f.allocator, 0, &released)));
    return gives(p, w, 1, released);
}

VERB(reset_peaks, "reset_peaks") {
    ductile_reset_peaks(p->s.f.allocator);
    return NULL;
}

/* ---- Pins ---------------------------------------------------------------------------------- */

VERB(pin, "pin") {
    ADDRESS(address);
    size_t i = model_find(&p->s.m, address);
    if (p->s.n_pins == MOST_PINS) {
        return complain("too many pins");
    }
    ductile_status status = ductile_pin(p->s.f.allocator, address);
    if (status == DUCTILE_OK && i < p->s.m.n) {
        p->s.pins[p->s.n_pins++] = (pin_state){address, p->s.m.blocks[i].size, false};
    }
    return answers(p, w, status);
}

/* "free_pinned a": who pinned it goes on to use it, until the unpin. */
VERB(free_pinned, "free_pinned") {
    ADDRESS(address);
    size_t i = model_find(&p->s.m, address);
    if (i == p->s.m.n) {
        return p->how.is_lenient ? NULL : complain("nothing to free");
    }
    p->s.live_bytes -= model_remove(&p->s.m, i).size;
    return answers(p, w, ductile_free(p->s.f.allocator, address));
}

VERB(unpin, "unpin") {
    ADDRESS(address);
    if (model_find(&p->s.m, address) == p->s.m.n) {
        ductile_virtual_block_end(p->s.f.gpu, address);
    }
    for (size_t i = 0; i < p->s.n_pins; i++) {
        if (p->s.pins[i].address == address) {
            p->s.pins[i] = p->s.pins[--p->s.n_pins];
            break;
        }
    }
    return answers(p, w, ductile_unpin(p->s.f.allocator, address));
}

/* ---- Faults -------------------------------------------------------------------------------- */

/* "fault map": the next such call, "fault any": the next of any kind; "fault map always"; "nth 3",
 * "code 2", "done": after its work, "part": after the first part of it. "lossy": memory may be lost
 * by it. */
VERB(fault, "fault") {
    uint64_t nth = 1;
    uint64_t code = 1;
    const bool is_any = strcmp(word_at(w, 1), "any") == 0;
    for (size_t i = 2; i + 1 < w->n; i++) {
        uint64_t *value = strcmp(w->at[i], "nth") == 0    ? &nth
                          : strcmp(w->at[i], "code") == 0 ? &code
                                                          : NULL;
        TRY(value != NULL ? number_at(w, i + 1, value) : NULL);
    }
    const ductile_virtual_fault it = {.struct_size = sizeof it,
                                      .call = is_any ? NULL : word_at(w, 1),
                                      .nth = nth,
                                      .code = (int)code,
                                      .persistent = has_word(w, "always"),
                                      .effect = has_word(w, "part") ? 2 : has_word(w, "done")};
    NEED_OK(ductile_virtual_inject(p->s.f.gpu, &it));
    p->s.is_faulty |= has_word(w, "lossy");
    return NULL;
}

/* The fault has come; no other does. */
VERB(no_fault, "no_fault") {
    uint64_t fired = ductile_virtual_faults_fired(p->s.f.gpu);
    NEED(p->how.is_lenient || fired > 0, "no such call was made");
    NEED_OK(ductile_virtual_inject(p->s.f.gpu, NULL));
    return NULL;
}

/* ---- The end ------------------------------------------------------------------------------- */

/* With live blocks, and work on them. */
VERB(destroy, "destroy") {
    subject *s = &p->s;
    for (size_t i = 0; i < s->m.n; i++) {
        if (!s->m.blocks[i].is_asleep) {
            ductile_virtual_block_end(s->f.gpu, s->m.blocks[i].address);
        }
    }
    ductile_status status = ductile_destroy(s->f.allocator);
    s->f.allocator = NULL;
    p->is_over = true;
    TRY(answers(p, w, status));
    TRY(no_violation(s));
    return status == DUCTILE_OK && !s->is_faulty ? fixture_leak_gate(&s->f) : NULL;
}
