/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: requests, frees, uses on streams, contents. */
#include "pool/blocks/address_map.h"
#include "pool/blocks/region.h"
#include "tests/model/subject.h"

#include "tests/support/memory_look.h"

#include <string.h>

/* ---- Operands ------------------------------------------------------------------------------ */

static size_t named_slot(const subject *s, size_t operand) {
    size_t slot = operand % N_NAMED;
    return slot == OWN_SLOT ? thread_slot(s) : slot;
}

size_t owner_slot(const subject *s, uint8_t operand) {
    for (size_t i = 0; i < N_NAMED && !s->goes_home; i++) {
        size_t slot = named_slot(s, operand + i);
        if (s->slots[slot].kind != PEER_STREAM && !rests(s, slot)) {
            return slot;
        }
    }
    return 0;
}

size_t user_slot(const subject *s, uint8_t operand) {
    size_t slot = named_slot(s, operand);
    return s->slots[slot].kind == PEER_STREAM && !s->has_peer ? 1 : slot;
}

model_block *any_block(subject *s, uint32_t operand) {
    return s->m.n > 0 ? &s->m.blocks[operand % s->m.n] : NULL;
}

uint64_t any_below(uint64_t end, uint32_t operand) {
    enum { STEP = 4099 };
    return end > UINT32_MAX ? operand * (uint64_t)STEP % end : operand % end;
}

uint64_t any_size(const subject *s, const record *r) {
    const uint64_t g = s->granule;
    const uint64_t edges[] = {0,          1,          511,
                              512,        513,        g - 1,
                              g,          g + 1,      3 * g + 5,
                              2 * g,      UINT64_MAX, UINT64_MAX - 511,
                              1ull << 63, 1ull << 47, s->setup.capacity_bytes,
                              g - 512};
    switch (r->c % 16) {
    case 0:
        return edges[r->d % 16];
    case 1:
        return 1 + any_below(s->setup.capacity_bytes + g, r->d);
    case 2:
    case 3:
        return 1 + r->d % (8 * g);
    case 4:
    case 5:
    case 6:
        return 1 + r->d % g;
    case 7:
    case 8:
    case 9:
        return 1 + r->d % 65536;
    default:
        return 1 + s->typical_bytes / 2 + any_below(2 * s->typical_bytes, r->d);
    }
}

unsigned pool_for(const subject *s, size_t slot) {
    for (size_t i = s->n_routes; i-- > 0;) {
        const route *r = &s->routes[i];
        bool is_accepted = r->only == N_SLOTS ? r->opener == s->crew.here
                                              : s->slots[r->only].stream == s->slots[slot].stream;
        if (is_accepted) {
            return r->pool;
        }
    }
    return 0;
}

/* ---- Contents ------------------------------------------------------------------------------ */

enum { SAMPLE_BYTES = 64 };

/* What a thread does with a block on a slot's stream. */
typedef struct deed {
    const model_block *b;
    size_t slot;
} deed;

static const char *fill_here(subject *s, void *argument) {
    const model_block *b = ((const deed *)argument)->b;
    size_t slot = ((const deed *)argument)->slot;
    ductile_status status =
        ductile_virtual_fill(s->f.gpu, b->address, b->pattern, b->size, s->slots[slot].stream);
    NEED(status == DUCTILE_OK, "block %llx of %llu bytes cannot be written: %s", b->address,
         (unsigned long long)b->size, ductile_status_name(status));
    return NULL;
}

const char *fill_block(subject *s, model_block *b, size_t slot) {
    deed d = {b, slot};
    TRY(with_stream(s, slot, fill_here, &d));
    b->is_blank = is_captured(s, slot); /* a graph fills it when it is launched, if ever */
    b->captured = b->is_blank ? b->pattern : b->captured;
    return NULL;
}

typedef struct block_look {
    const subject *s;
    const deed *d;
} block_look;

static const char *read_here(const void *user, void *to, ductile_addr from, uint64_t size) {
    const block_look *l = user;
    ductile_stream stream = l->s->slots[l->d->slot].stream;
    NEED_OK(ductile_virtual_read_back(l->s->f.gpu, to, from, size, stream));
    return NULL;
}

static const char *let_time_pass(const void *user) {
    ductile_virtual_advance(((const block_look *)user)->s->f.gpu, 1u << 20);
    return NULL;
}

static uint8_t pattern_here(const void *user, uint64_t offset) {
    (void)offset;
    return ((const block_look *)user)->d->b->pattern;
}

static const char *look_at_block(const subject *s, const deed *d) {
    const block_look user = {s, d};
    const memory_look at = {.address = d->b->address,
                            .size = d->b->size,
                            .read = read_here,
                            .wait = let_time_pass,
                            .expected = pattern_here,
                            .user = &user};
    return expect_memory(&at);
}

static const char *verify_sample(const subject *s, const deed *d, uint64_t at) {
    const block_look user = {s, d};
    uint8_t bytes[SAMPLE_BYTES];
    TRY(read_here(&user, bytes, d->b->address + at, sizeof bytes));
    if (bytes[0] == d->b->pattern && memcmp(bytes, bytes + 1, sizeof bytes - 1) == 0) {
        return NULL;
    }
    const char *differs = look_at_block(s, d);
    return complain("block %llx holds %02x at %llu, not %02x; %s", d->b->address, bytes[0],
                    (unsigned long long)at, d->b->pattern,
                    differs != NULL ? differs : "all of it is right by now");
}

/* Both ends, and places in every granule: what another block would have overwritten. */
static const char *verify_here(subject *s, void *argument) {
    const deed *d = argument;
    for (uint64_t at = 0; at < d->b->size; at += s->granule / 2) {
        TRY(verify_sample(s, d, at));
    }
    return verify_sample(s, d, d->b->size - SAMPLE_BYTES);
}

const char *verify_block(subject *s, const model_block *b) {
    if (b->is_asleep || b->is_blank || is_capturing(s)) {
        return NULL;
    }
    deed d = {b, b->stream == GONE ? 0 : b->stream};
    return with_stream(s, d.slot, verify_here, &d);
}

/* ---- Requests ------------------------------------------------------------------------------ */

static const char *report_is_sound(subject *s, uint64_t size) {
    ductile_oom_report r = {.struct_size = sizeof r};
    NEED_OK(ductile_get_oom_report(s->f.allocator, &r));
    NEED(r.number > 0 && r.requested_bytes == size, "the report is of a request for %llu",
         (unsigned long long)r.requested_bytes);
    NEED(r.held_bytes + r.spilled_bytes ==
             r.live_bytes + r.free_bytes + r.pending_bytes + r.cached_bytes + r.quarantined_bytes,
         "the report's sum is not what is held");
    return NULL;
}

/* Without pools, pins and the like, memory may be refused only when whole granules that hold no
 * live byte are too few. */
static const char *is_full(subject *s, uint64_t size) {
    uint64_t rounded = model_rounded(size);
    uint64_t needed = rounded / s->granule + (rounded % s->granule != 0);
    uint64_t held = held_by_live(s);
    uint64_t allowed = limit_of(s) / s->granule;
    NEED(held + needed > allowed,
         "alloc of %llu refused, though of %llu granules only %llu hold live bytes",
         (unsigned long long)size, (unsigned long long)allowed, (unsigned long long)held);
    return NULL;
}

uint64_t spilled_bytes(const subject *s, const model_block *b) {
    const dpool_block *own = dpool_map_find(&s->f.allocator->map, b->address);
    return own != NULL ? own->size - dpool_device_bytes(own) : 0;
}

bool is_spilled(const subject *s, const model_block *b) {
    return spilled_bytes(s, b) > 0;
}

/* Of the device's, where requests spill. */
uint64_t kept_for_small(const subject *s) {
    uint64_t share = limit_of(s) / s->granule / 256;
    return share < 16 ? 16 : share + 1;
}

/* With the host's memory, but for what is kept for small requests. */
static const char *is_full_with_host(subject *s, uint64_t size) {
    uint64_t rounded = model_rounded(size);
    uint64_t needed = rounded / s->granule + (rounded % s->granule != 0);
    uint64_t held = held_by_live(s) + kept_for_small(s);
    uint64_t allowed = (limit_of(s) + s->spill_bytes) / s->granule;
    bool may_spill = size >= s->granule && s->n_forbidden == 0 && !s->has_peer;
    NEED(!may_spill || held + needed > allowed,
         "alloc of %llu refused, though of %llu granules, with the host's, only %llu hold live "
         "bytes or are kept",
         (unsigned long long)size, (unsigned long long)allowed, (unsigned long long)held);
    return NULL;
}

const char *lacks_memory(subject *s, uint64_t asked, uint64_t missing) {
    TRY(is_simple(s) ? is_full(s, missing) : NULL);
    return s->is_faulty ? NULL : report_is_sound(s, asked);
}

static const char *refused(subject *s, uint64_t size, size_t slot, bool is_dedicated) {
    bool is_asleep = s->pools[pool_for(s, slot)].is_asleep;
    bool is_short = s->status == DUCTILE_ERR_OUT_OF_ADDRESSES && s->is_short_of_addresses;
    bool sleeps = s->status == DUCTILE_ERR_ASLEEP && is_asleep;
    bool is_out = s->status == DUCTILE_ERR_OUT_OF_MEMORY;
    TRY(may_be(s, "alloc", s->status, is_short || sleeps || is_out));
    bool could_spill = is_out && s->spills && !is_dedicated && is_simple_but_spills(s);
    TRY(could_spill ? is_full_with_host(s, size) : NULL);
    return is_out ? lacks_memory(s, size, size) : NULL;
}

const char *admit_blank(subject *s, model_block *b) {
    b->size = model_rounded(b->requested);
    b->pattern = ++s->next_pattern;
    ductile_virtual_block_begin(s->f.gpu, b->address, b->size);
    TRY(model_add(&s->m, b));
    s->live_bytes += b->size;
    if (s->is_listening) {
        TRY(shadow_covers(&s->listener, b->address, b->size));
    }
    s->m.blocks[model_find(&s->m, b->address)].is_blank = true;
    return NULL;
}

const char *admit_block(subject *s, model_block *b) {
    TRY(admit_blank(s, b));
    model_block *own = &s->m.blocks[model_find(&s->m, b->address)];
    return fixture_state(&s->f).poisoned != 0 ? NULL : fill_block(s, own, b->stream);
}

/* A stream under capture allocates only from the pool of its graph, and cannot pay what it owes. */
static bool may_allocate(const subject *s, size_t slot) {
    bool can = !is_captured(s, slot) || (pool_for(s, slot) > N_PLAIN_POOLS && !is_in_debt(s, slot));
    return can && s->m.n < (s->is_teeming ? (size_t)MOST_SMALL_BLOCKS : (size_t)MOST_BLOCKS);
}

static const char *request_block(subject *s, uint64_t size, size_t slot, bool is_dedicated) {
    model_block b = {.address = 1,
                     .requested = size,
                     .stream = slot,
                     .pool = pool_for(s, slot),
                     .is_dedicated = is_dedicated || s->is_guarded};
    if (!may_allocate(s, slot)) {
        say(s, "no alloc");
        return NULL;
    }
    TRY(pay(s, slot));
    ductile_stream stream = s->slots[slot].stream;
    s->status = is_dedicated ? ductile_alloc_dedicated(s->f.allocator, size, stream, &b.address)
                             : ductile_alloc(s->f.allocator, size, stream, &b.address);
    say(s, "%s %llu on %zu, pool %u: %s %llx", is_dedicated ? "dedicated" : "alloc",
        (unsigned long long)size, slot, b.pool, ductile_status_name(s->status), b.address);
    if (s->status != DUCTILE_OK) {
        NEED(b.address == 0, "a refused request wrote %llx", b.address);
        return refused(s, size, slot, is_dedicated);
    }
    NEED((size == 0) == (b.address == 0), "%llu bytes are at %llx", (unsigned long long)size,
         b.address);
    NEED(size == 0 || !s->pools[b.pool].is_asleep, "a sleeping pool has served a request");
    return size == 0 ? NULL : admit_block(s, &b);
}

const char *do_alloc(subject *s, const record *r) {
    return request_block(s, any_size(s, r), owner_slot(s, r->a), false);
}

const char *do_dedicated(subject *s, const record *r) {
    return request_block(s, any_size(s, r), owner_slot(s, r->a), true);
}

/* ---- Frees --------------------------------------------------------------------------------- */

model_block withdraw_block(subject *s, size_t i) {
    model_block b = model_remove(&s->m, i);
    if (!b.is_asleep) {
        ductile_virtual_block_end(s->f.gpu, b.address);
    }
    s->live_bytes -= b.size;
    return b;
}

/* It is gone, or live as before. */
static const char *after_free(subject *s, const model_block *b, const char *call,
                              ductile_status status) {
    TRY(may_be(s, call, status, status == DUCTILE_OK));
    if (status == DUCTILE_OK) {
        s->last_freed = b->address;
        note_if_gone(s, b->pool);
        return NULL;
    }
    s->live_bytes += b->size;
    if (!b->is_asleep) {
        ductile_virtual_block_begin(s->f.gpu, b->address, b->size);
    }
    return model_add(&s->m, b);
}

const char *free_block(subject *s, size_t i, unsigned how) {
    model_block b = withdraw_block(s, i);
    bool asks = how % 4 == 1;
    s->is_pending = 7;
    ductile_status status =
        asks ? ductile_free_ex(s->f.allocator, b.address, NULL, 0, &s->is_pending)
             : ductile_free(s->f.allocator, b.address);
    bool is_said = !asks || s->is_pending == 0 || s->is_pending == 1;
    s->wrong = is_said ? s->wrong : "is_pending was not set";
    return after_free(s, &b, "free", status);
}

static const char *free_on_here(subject *s, void *argument) {
    const deed *d = argument;
    s->status = ductile_free_ex(s->f.allocator, d->b->address, &s->slots[d->slot].stream, 1, NULL);
    return NULL;
}

const char *free_block_on(subject *s, model_block *b, size_t slot) {
    model_block gone = withdraw_block(s, (size_t)(b - s->m.blocks));
    deed d = {&gone, slot};
    TRY(with_stream(s, slot, free_on_here, &d));
    s->slots[slot].is_recorded = true;
    return after_free(s, &gone, "free_on", s->status);
}

const char *free_blocks_of_pool(subject *s, unsigned pool) {
    for (size_t i = s->m.n; i-- > 0;) {
        if (i < s->m.n && s->m.blocks[i].pool == pool) {
            TRY(free_block(s, i, 0));
        }
    }
    return NULL;
}

const char *do_free(subject *s, const record *r) {
    if (s->m.n == 0) {
        return NULL;
    }
    size_t i = r->d % s->m.n;
    say(s, "free %llx", s->m.blocks[i].address);
    if (r->b % 4 == 0) {
        TRY(verify_block(s, &s->m.blocks[i]));
    }
    return free_block(s, i, r->c);
}

/* Towards the phase's target. */
static const char *balance(subject *s, const record *r) {
    bool grows = r->b < (s->live_bytes < s->target_bytes ? 190 : 70);
    return grows ? do_alloc(s, r) : do_free(s, r);
}

/* Many at a time, on two streams, so that there are soon many of them. */
static const char *balance_small(subject *s, const record *r) {
    record each = *r;
    each.a %= 2;
    for (unsigned i = 0; i < 16; i++) {
        each.d = each.d * 1664525u + 1013904223u;
        each.b = (uint8_t)(each.d >> 24);
        each.c = 15;
        TRY(balance(s, &each));
    }
    return NULL;
}

/* How large handles are made goes by how many move in thousands of requests: most of a program's
 * find free memory. The model and the device learn of none of these. */
static const char *request_many(subject *s, const record *r) {
    enum { MANY = 2048, SMALL = 512 };
    size_t slot = owner_slot(s, r->a);
    bool finds_free_memory = s->caches && !s->is_guarded && !is_captured(s, slot);
    if (!finds_free_memory || !may_allocate(s, slot)) {
        return NULL;
    }
    TRY(pay(s, slot));
    s->status = DUCTILE_OK;
    for (unsigned i = 0; i < MANY && s->status == DUCTILE_OK; i++) {
        ductile_addr address = 0;
        s->status = ductile_alloc(s->f.allocator, SMALL, s->slots[slot].stream, &address);
        if (s->status != DUCTILE_OK) {
            return refused(s, SMALL, slot, false);
        }
        s->status = ductile_free(s->f.allocator, address);
    }
    say(s, "many requests on %zu: %s", slot, ductile_status_name(s->status));
    return may_be(s, "free", s->status, s->status == DUCTILE_OK);
}

const char *do_balance(subject *s, const record *r) {
    if (s->is_large && r->d % 16 == 0) {
        return request_many(s, r);
    }
    return s->is_teeming && r->c % 16 != 0 ? balance_small(s, r) : balance(s, r);
}

const char *do_phase(subject *s, const record *r) {
    static const uint64_t percents[] = {5, 20, 50, 70, 85, 95, 105, 130};
    size_t least = s->is_crowded ? 4 : 0;
    uint64_t percent = percents[least + r->a % (8 - least)];
    if (s->is_teeming) {
        s->target_bytes = MOST_SMALL_BLOCKS * s->typical_bytes / 100 * percent;
    } else {
        s->target_bytes = s->setup.capacity_bytes / 100 * percent;
        s->typical_bytes = s->unit_bytes >> r->b % 8;
    }
    say(s, "live memory goes to %llu bytes in blocks of about %llu",
        (unsigned long long)s->target_bytes, (unsigned long long)s->typical_bytes);
    return NULL;
}

/* ---- Uses on other streams ----------------------------------------------------------------- */

bool may_use_block(const subject *s, const model_block *b, size_t slot) {
    bool is_own_captured = b->stream != GONE && is_captured(s, b->stream);
    return b->stream != slot && !b->is_asleep && !is_captured(s, slot) && !is_own_captured;
}

const char *use_elsewhere(subject *s, model_block *b, size_t slot) {
    TRY(order_slots(s, b->stream, slot));
    ductile_virtual_use use = {.address = b->address, .size = b->size, .writes = 1};
    NEED_OK(ductile_virtual_launch(s->f.gpu, s->slots[slot].stream, &use, 1));
    return NULL;
}

static const char *record_here(subject *s, void *argument) {
    const deed *d = argument;
    s->status = ductile_record_stream(s->f.allocator, d->b->address, s->slots[d->slot].stream);
    return NULL;
}

const char *record_use(subject *s, model_block *b, size_t slot) {
    deed d = {b, slot};
    TRY(with_stream(s, slot, record_here, &d));
    TRY(may_be(s, "record_stream", s->status, s->status == DUCTILE_OK));
    if (s->status != DUCTILE_OK) {
        return sync_slot(s, slot);
    }
    b->recorded |= 1u << slot;
    s->slots[slot].is_recorded = true;
    return NULL;
}

const char *do_use(subject *s, const record *r) {
    model_block *b = any_block(s, r->d);
    size_t slot = user_slot(s, r->a);
    if (b == NULL || !may_use_block(s, b, slot)) {
        return NULL;
    }
    say(s, "use %llx of %zu on %zu, and record", b->address, b->stream, slot);
    if (r->b % 2 == 0) {
        TRY(record_use(s, b, slot));
        return use_elsewhere(s, b, slot);
    }
    TRY(use_elsewhere(s, b, slot));
    return record_use(s, b, slot);
}

const char *do_free_on(subject *s, const record *r) {
    model_block *b = any_block(s, r->d);
    size_t slot = user_slot(s, r->a);
    if (b == NULL || !may_use_block(s, b, slot)) {
        return NULL;
    }
    say(s, "use %llx of %zu on %zu, and free it there", b->address, b->stream, slot);
    TRY(use_elsewhere(s, b, slot));
    TRY(free_block_on(s, b, slot));
    return s->status == DUCTILE_OK ? NULL : sync_slot(s, slot);
}

/* Without a word to the allocator: the block's own stream waits for the use, before the free or
 * after it, when it allocates again. */
const char *do_join(subject *s, const record *r) {
    model_block *b = any_block(s, r->d);
    size_t slot = user_slot(s, r->a);
    if (b == NULL || b->stream == GONE || !may_use_block(s, b, slot)) {
        return NULL;
    }
    size_t own = b->stream;
    stream_kind kind = s->slots[slot].kind;
    bool is_late = r->b % 4 != 0 && s->has_debts && kind != FOREIGN_STREAM && kind != PEER_STREAM &&
                   s->slots[own].kind != FOREIGN_STREAM && s->n_debts < MOST_DEBTS;
    say(s, "use %llx of %zu on %zu, joined %s", b->address, own, slot,
        is_late ? "when it is due" : "at once");
    TRY(use_elsewhere(s, b, slot));
    if (!is_late) {
        return order_slots(s, slot, own);
    }
    TRY(owe(s, own, slot));
    s->slots[own].rests_until = s->step + (r->c % 4 == 0 ? 400u : r->c) / (1u + r->c % 3);
    return free_block(s, (size_t)(b - s->m.blocks), 0);
}

/* ---- Looks --------------------------------------------------------------------------------- */

const char *do_verify(subject *s, const record *r) {
    say(s, "verify");
    for (size_t i = r->a % 8; i < s->m.n; i += 8) {
        TRY(verify_block(s, &s->m.blocks[i]));
    }
    return NULL;
}

const char *do_query(subject *s, const record *r) {
    const model_block *b = any_block(s, r->d);
    if (b == NULL) {
        return NULL;
    }
    say(s, "query %llx", b->address);
    ductile_block_info info = {.struct_size = sizeof info};
    NEED_OK(ductile_query_block(s->f.allocator, b->address, &info));
    ductile_block_state state = b->is_asleep ? DUCTILE_BLOCK_ASLEEP : DUCTILE_BLOCK_LIVE;
    NEED(info.address == b->address && info.requested_size == b->requested &&
             info.size >= b->size && info.state == state,
         "the query describes another block than %llx", b->address);
    NEED(info.pool.first == s->pools[b->pool].id.first &&
             info.pool.second == s->pools[b->pool].id.second,
         "block %llx is in another pool", b->address);
    NEED(b->stream == GONE || info.stream == s->slots[b->stream].stream,
         "block %llx is of another stream", b->address);
    bool is_pinned = false; /* sleeping blocks show nothing of it */
    for (size_t i = 0; i < s->n_pins && !b->is_asleep; i++) {
        is_pinned |= s->pins[i].address < b->address + b->size &&
                     b->address < s->pins[i].address + s->pins[i].size;
    }
    NEED(!is_pinned || (info.flags & DUCTILE_BLOCK_PINNED) != 0, "block %llx is not pinned",
         b->address);
    return NULL;
}
