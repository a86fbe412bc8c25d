/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory there is: limits, other processes, trims, faults; looks; misuse. */
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "segments/granules.h"
#include "tests/model/subject.h"
#include "tests/support/limits.h"
#include "vmm/base/align.h"

#include <ductile_pressure.h>

#include <string.h>

/* ---- Limits -------------------------------------------------------------------------------- */

uint64_t limit_of(const subject *s) {
    uint64_t least = s->setup.capacity_bytes - s->external_bytes;
    return s->cap_bytes != 0 && s->cap_bytes < least ? s->cap_bytes : least;
}

/* Granules of all handles that hold a byte of a live block. Handles are widened to in the order of
 * addresses, so that blocks that share one count it once. Only for moments when no other call is
 * running and no pool is asleep. */
static uint64_t granules_of_held_handles(ductile_allocator *allocator, const model *m) {
    uint64_t n = 0;
    ductile_addr counted = 0; /* up to there */
    for (size_t i = 0; i < m->n; i++) {
        const dpool_block *b = dpool_map_find(&allocator->map, m->blocks[i].address);
        const dseg_segment *seg = b->region->seg;
        dseg_span s =
            dseg_widen_to_handles(seg, dseg_granules_over(seg, b->addr, b->addr + b->size));
        ductile_addr from = dti_max(dseg_addr(seg, s.first), counted);
        ductile_addr to = dseg_addr(seg, s.end);
        n += to > from ? (to - from) / allocator->granule : 0;
        counted = dti_max(to, counted);
    }
    return n;
}

/* Single granules; but where nothing may be created, and where a pool wakes, the handle of a
 * dedicated block that is gone serves others as it is, and stays whole for as long as a part of it
 * is in use. */
uint64_t held_by_live(subject *s) {
    return s->may_hold_large ? granules_of_held_handles(s->f.allocator, &s->m)
                             : model_pinned_granules(&s->m, s->granule);
}

bool caches_large(const subject *s) {
    const dvmm_handle_store *store = &s->f.allocator->store;
    bool any = false;
    for (size_t i = 1; i < DVMM_HANDLE_SIZES; i++) {
        any |= store->cached[i] != NULL;
    }
    return any;
}

static const char *limits_are_right(subject *s) {
    ductile_limits l = {.struct_size = sizeof l};
    NEED_OK(ductile_get_limits(s->f.allocator, &l));
    NEED(l.soft_limit_bytes <= l.limit_bytes && l.limit_bytes <= l.device_bytes &&
             l.device_bytes == s->setup.capacity_bytes,
         "limits: soft %llu, hard %llu, device %llu", (unsigned long long)l.soft_limit_bytes,
         (unsigned long long)l.limit_bytes, (unsigned long long)l.device_bytes);
    NEED(s->cap_bytes == 0 || l.limit_bytes <= s->cap_bytes, "the cap of %llu is not in effect",
         (unsigned long long)s->cap_bytes);
    return NULL;
}

const char *do_limit(subject *s, const record *r) {
    if (!has(s, PRESSURE)) {
        return NULL;
    }
    if (r->a % 3 == 0) {
        double share = (1 + r->c % 64) / 64.0;
        say(s, "limit %g of the device", share);
        NEED_OK(set_limit(s->f.allocator, DUCTILE_SHARE(share)));
        s->cap_bytes = (uint64_t)(share * (double)s->setup.capacity_bytes);
    } else {
        uint64_t cap = r->b % 2 == 0 ? 0 : 1 + any_below(2 * s->setup.capacity_bytes, r->d);
        say(s, "limit %llu", (unsigned long long)cap);
        NEED_OK(set_limit(s->f.allocator, cap));
        s->cap_bytes = cap;
    }
    s->reserved_bytes = fixture_stats(s->f.allocator).reserved_bytes;
    s->may_hold_large |= s->reserved_bytes > limit_of(s);
    return limits_are_right(s);
}

const char *do_soft_limit(subject *s, const record *r) {
    uint64_t limit = r->b % 3 == 0 ? 0 : any_below(s->setup.capacity_bytes, r->d);
    if (!has(s, PRESSURE)) {
        return NULL;
    }
    say(s, "soft limit %llu", (unsigned long long)limit);
    NEED_OK(set_soft_limit(s->f.allocator, limit));
    return limits_are_right(s);
}

const char *do_external(subject *s, const record *r) {
    uint64_t most = s->setup.capacity_bytes - fixture_state(&s->f).used_bytes;
    uint64_t wanted = r->b % 3 == 0 ? 0 : any_below(s->setup.capacity_bytes, r->d);
    if (!has(s, PRESSURE)) {
        return NULL;
    }
    s->external_bytes = wanted < most ? wanted : most;
    say(s, "another process holds %llu", (unsigned long long)s->external_bytes);
    NEED_OK(ductile_virtual_set_external_bytes(s->f.gpu, s->external_bytes));
    s->reserved_bytes = fixture_stats(s->f.allocator).reserved_bytes;
    return NULL;
}

/* ---- Trims --------------------------------------------------------------------------------- */

static const char *trim_to(subject *s, uint64_t keep) {
    uint64_t released = UINT64_MAX;
    uint64_t before = fixture_stats(s->f.allocator).reserved_bytes;
    bool may_have_left = s->m.has_sleeping_pool; /* what a failed wake has: a trim takes it all */
    ductile_status status = ductile_trim(s->f.allocator, NULL, keep, &released);
    uint64_t after = fixture_stats(s->f.allocator).reserved_bytes;
    TRY(may_be(s, "trim", status, status == DUCTILE_OK));
    NEED(before - after == released, "trim says %llu bytes, reserved fell by %llu",
         (unsigned long long)released, (unsigned long long)(before - after));
    NEED(before > keep || released == 0 || may_have_left,
         "a trim gave back though less than asked was held");
    return NULL;
}

static const char *free_dedicated(subject *s) {
    for (size_t i = s->m.n; i-- > 0;) {
        const model_block *b = &s->m.blocks[i];
        TRY(b->is_dedicated && !b->is_asleep ? free_block(s, i, 0) : NULL);
    }
    return NULL;
}

/* The small request has a mark recorded, which proves that the GPU is done. */
const char *leave_large_handle(subject *s, const record *r) {
    record large = *r;
    record small = *r;
    large.c = small.c = 0; /* any_size: an edge */
    large.d = 8 + r->d % 2;
    small.d = 2;
    TRY(do_dedicated(s, &large));
    TRY(free_dedicated(s));
    TRY(do_alloc(s, &small));
    TRY(sync_all(s));
    return trim_to(s, UINT64_MAX);
}

const char *do_trim(subject *s, const record *r) {
    uint64_t keep = any_below(s->setup.capacity_bytes, r->d);
    say(s, "trim to %llu", (unsigned long long)keep);
    return trim_to(s, keep);
}

static bool is_unused(const subject *s) {
    bool any_pool = false;
    for (unsigned i = 1; i <= N_POOLS; i++) {
        any_pool |= pool_exists(s, i) || s->pools[i].may_be_asleep;
    }
    return s->m.n == 0 && !any_pool && s->n_pins == 0 && s->n_imports == 0;
}

static const char *largest_fits(subject *s, size_t slot) {
    uint64_t held = is_simple(s) ? held_by_live(s) : UINT64_MAX;
    uint64_t allowed = limit_of(s) / s->granule;
    ductile_addr address = 0;
    if (held >= allowed) {
        return NULL;
    }
    uint64_t size = (allowed - held) * s->granule;
    ductile_status status = ductile_alloc(s->f.allocator, size, s->slots[slot].stream, &address);
    NEED(status == DUCTILE_OK,
         "%llu bytes are refused with all work done, and live bytes in %llu "
         "of %llu granules: %s",
         (unsigned long long)size, (unsigned long long)held, (unsigned long long)allowed,
         ductile_status_name(status));
    NEED_OK(ductile_free(s->f.allocator, address));
    return NULL;
}

const char *nothing_is_stuck(subject *s, size_t slot) {
    TRY(sync_all(s));
    TRY(trim_to(s, 0));
    ductile_stats t = fixture_stats(s->f.allocator);
    uint64_t least = is_simple(s) ? held_by_live(s) * s->granule : 0;
    NEED(t.pending_blocks == 0, "%llu blocks are pending with all work done and after a trim",
         (unsigned long long)t.pending_blocks);
    NEED(t.reserved_bytes == t.quarantined_bytes || !is_unused(s),
         "after a trim %llu bytes are held with nothing alive: %llu free, %llu cached",
         (unsigned long long)t.reserved_bytes, (unsigned long long)t.free_bytes,
         (unsigned long long)t.cached_bytes);
    NEED(t.reserved_bytes == least || !is_simple(s),
         "after a trim with all work done %llu bytes are held, with live bytes in %llu",
         (unsigned long long)t.reserved_bytes, (unsigned long long)least);
    return largest_fits(s, slot);
}

const char *do_rest(subject *s, const record *r) {
    if (is_capturing(s) || s->n_routes > 0 || s->is_faulty) {
        return NULL;
    }
    say(s, "all work ends, and a trim");
    return nothing_is_stuck(s, owner_slot(s, r->a));
}

enum { LARGEST_HANDLE_MIB = 64 };

/* Without pools and pins only live and pending memory is left. */
const char *do_empty(subject *s, const record *r) {
    (void)r;
    say(s, "empty the cache");
    TRY(trim_to(s, 0));
    ductile_stats t = fixture_stats(s->f.allocator);
    if (!is_simple(s) || s->has_silent_memory) {
        return NULL;
    }
    uint64_t least = held_by_live(s) * s->granule;
    uint64_t most_stranded = 2 * (s->is_large ? LARGEST_HANDLE_MIB * MIB : s->granule);
    uint64_t most = least + t.pending_bytes + most_stranded * t.pending_blocks;
    NEED(t.reserved_bytes >= least && t.reserved_bytes <= most,
         "an empty cache holds %llu bytes: %llu in granules with live bytes, %llu pending",
         (unsigned long long)t.reserved_bytes, (unsigned long long)least,
         (unsigned long long)t.pending_bytes);
    return NULL;
}

/* ---- Faults -------------------------------------------------------------------------------- */

static const char *const fault_calls[] = {
    "map",           "unmap",        "phys_create",     "phys_release",   "set_access",
    "event_record",  "event_query",  "event_sync",      "context_record", "context_sync",
    "stream_sync",   "event_create", "address_reserve", "address_free",   "mem_info",
    "capture_status"};

/* 700 and 4 end the context; the others do not. */
static const int fault_codes[] = {1, 2, 999, 2, 1, 999, 400, 801, 1, 2, 999, 1, 2, 1, 700, 4};

const char *do_fault(subject *s, const record *r) {
    if (!has(s, FAULTS) || is_capturing(s)) {
        return NULL;
    }
    ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                   .call = fault_calls[r->a % 16],
                                   .nth = 1 + r->b % 8,
                                   .code = fault_codes[r->c % 16],
                                   .persistent = r->d % 4 == 0,
                                   .effect = (int)(r->d / 4 % 3)};
    if (fault.effect == 2 && r->a % 16 != 1 && r->a % 16 != 4) {
        fault.effect = 0;
    }
    say(s, "call %llu of %s will fail with %d, effect %d%s", (unsigned long long)fault.nth,
        fault.call, fault.code, fault.effect, fault.persistent ? ", and all later ones" : "");
    NEED_OK(ductile_virtual_inject(s->f.gpu, &fault));
    s->is_armed = true;
    s->is_faulty = true;
    return NULL;
}

const char *do_no_fault(subject *s, const record *r) {
    (void)r;
    if (!s->is_armed) {
        return NULL;
    }
    say(s, "no fault any more");
    plan_no_fault(s);
    return NULL;
}

/* ---- Callbacks ----------------------------------------------------------------------------- */

static uint64_t give_nothing(void *user, ductile_allocator *a, uint64_t missing,
                             ductile_stream stream) {
    subject *s = user;
    (void)stream;
    s->wrong = missing > 0 || ductile_trim(a, NULL, 0, NULL) != DUCTILE_ERR_INVALID_ARGUMENT
                   ? s->wrong
                   : "a callback is asked for nothing";
    return 0;
}

const char *do_callback(subject *s, const record *r) {
    uint64_t id = 0;
    if (!has(s, CALLBACKS)) {
        return NULL;
    }
    say(s, "a callback more, and away");
    NEED_OK(ductile_add_oom_callback(s->f.allocator, give_nothing, s, -1, &id));
    TRY(do_alloc(s, r));
    NEED_OK(ductile_remove_oom_callback(s->f.allocator, id));
    NEED(ductile_remove_oom_callback(s->f.allocator, id) == DUCTILE_ERR_INVALID_ARGUMENT,
         "a callback is removed twice");
    return NULL;
}

/* ---- Looks --------------------------------------------------------------------------------- */

static int measure(void *user, const char *text, size_t length) {
    (void)text;
    *(uint64_t *)user += length;
    return 0;
}

static const char *peaks_fall(subject *s) {
    ductile_reset_peaks(s->f.allocator);
    ductile_stats t = fixture_stats(s->f.allocator);
    NEED(t.reserved_peak_bytes == t.reserved_bytes && t.allocated_peak_bytes == t.allocated_bytes &&
             t.requested_peak_bytes == t.requested_bytes && t.live_peak_blocks == t.live_blocks,
         "a peak is not its value after the reset");
    return NULL;
}

static const char *options_repeat(subject *s) {
    ductile_options o;
    ductile_options again;
    char text[1024];
    ductile_options_init(&o);
    ductile_options_init(&again);
    ductile_get_options(s->f.allocator, &o);
    NEED(ductile_options_format(&o, text, sizeof text) < sizeof text, "options without an end");
    NEED_OK(ductile_options_parse(&again, text, NULL, 0));
    NEED(again.reuse == o.reuse && again.zero == o.zero && again.sizes == o.sizes &&
             again.limit_bytes == o.limit_bytes,
         "options change when they are written and read: %s", text);
    return NULL;
}

static const char *forbid_or_allow(subject *s) {
    bool forbids = s->n_forbidden == 0;
    say(s, "%s spilling", forbids ? "forbid" : "allow");
    s->n_forbidden = forbids;
    NEED_OK(forbids ? ductile_spill_forbid(s->f.allocator) : ductile_spill_allow(s->f.allocator));
    return NULL;
}

const char *do_views(subject *s, const record *r) {
    ductile_oom_report report = {.struct_size = sizeof report};
    char text[4096];
    uint64_t length = 0;
    if (s->spills && r->b % 4 == 0) {
        return forbid_or_allow(s);
    }
    if (s->spills && r->b % 4 == 1) {
        return do_promote(s);
    }
    say(s, "look at %u", r->a % 4);
    switch (r->a % 4) {
    case 0:
        return peaks_fall(s);
    case 1:
        return options_repeat(s);
    case 2:
        NEED_OK(ductile_snapshot_json(s->f.allocator, measure, &length));
        NEED(length > 100, "a snapshot of %llu bytes", (unsigned long long)length);
        return NULL;
    default:
        NEED_OK(ductile_get_oom_report(s->f.allocator, &report));
        NEED(ductile_oom_report_format(&report, DUCTILE_REPORT_TEXT, text, sizeof text) > 0 &&
                 ductile_oom_report_format(&report, DUCTILE_REPORT_JSON, text, sizeof text) > 0,
             "a report without text");
        return NULL;
    }
}

/* ---- Misuse -------------------------------------------------------------------------------- */

static bool is_pointer_error(ductile_status s) {
    return s == DUCTILE_ERR_FOREIGN_POINTER || s == DUCTILE_ERR_INTERIOR_POINTER ||
           s == DUCTILE_ERR_NOT_LIVE;
}

/* An address that no live block starts at, and what it has to be called; OK: any of the three. */
static ductile_addr wrong_address(const subject *s, const record *r, ductile_status *expected) {
    *expected = DUCTILE_ERR_FOREIGN_POINTER;
    if (s->m.n > 0 && r->a % 3 == 0) {
        const model_block *b = &s->m.blocks[r->d % s->m.n];
        *expected = b->is_asleep ? DUCTILE_OK : DUCTILE_ERR_INTERIOR_POINTER;
        return b->address + 1 + r->d % (b->size - 1);
    }
    if (r->a % 3 == 1 && s->last_freed != 0 && model_find(&s->m, s->last_freed) == s->m.n) {
        *expected = DUCTILE_OK;
        return s->last_freed;
    }
    return 1 + r->d % 65536;
}

const char *do_misuse(subject *s, const record *r) {
    ductile_status expected;
    ductile_addr address = wrong_address(s, r, &expected);
    ductile_stream stream = s->slots[owner_slot(s, r->b)].stream;
    ductile_block_info info = {.struct_size = sizeof info};
    say(s, "misuse %llx", address);
    ductile_stats before = fixture_stats(s->f.allocator);
    ductile_status got[5] = {ductile_free(s->f.allocator, address),
                             ductile_free_ex(s->f.allocator, address, &stream, 1, NULL),
                             ductile_record_stream(s->f.allocator, address, stream),
                             ductile_query_block(s->f.allocator, address, &info),
                             ductile_pin(s->f.allocator, address)};
    for (size_t i = 0; i < 5 && !s->is_over; i++) {
        s->is_over |= got[i] == DUCTILE_ERR_DEVICE_LOST;
        NEED(s->is_over || (is_pointer_error(got[i]) && got[i] == got[0]),
             "call %zu with %llx: %s, where another says %s", i, address,
             ductile_status_name(got[i]), ductile_status_name(got[0]));
        NEED(s->is_over || expected == DUCTILE_OK || got[i] == expected, "call %zu with %llx: %s",
             i, address, ductile_status_name(got[i]));
    }
    ductile_stats after = fixture_stats(s->f.allocator);
    NEED(memcmp(&before, &after, sizeof after) == 0, "a refused call changed the statistics");
    return NULL;
}
