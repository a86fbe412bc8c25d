/* SPDX-License-Identifier: Apache-2.0 */
/* Device and options from bytes; the beginning, the audit and the end of a run. */
#include "tests/model/subject.h"

#include "tests/support/audit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void say(subject *s, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(s->text, sizeof s->text, format, arguments);
    va_end(arguments);
}

bool has(const subject *s, family f) {
    return (s->families & (unsigned)f) != 0;
}

/* ---- What the first bytes choose ----------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void add_option(subject *s, const char *format, ...) {
    size_t n = strlen(s->conf);
    if (n > 0 && n + 1 < sizeof s->conf) {
        s->conf[n++] = ',';
        s->conf[n] = '\0';
    }
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(s->conf + n, sizeof s->conf - n, format, arguments);
    va_end(arguments);
}

enum { PARTS_OF_LARGE = 32 }; /* MOST_BLOCKS of half of one are more than it has */

static void choose_device(subject *s, const uint8_t *b) {
    static const uint64_t capacities[] = {64, 96, 128, 48, 256, 80, 160, 512};
    static const uint64_t large[] = {24, 32, 32, 48, 48, 64, 128, 256};
    static const uint64_t granules[] = {2048, 2048, 2048, 512};
    uint64_t mib = s->is_large ? large[b[0] % 8] << 10 : capacities[b[0] % 8];
    s->granule = granules[b[1] % 4] << 10;
    s->setup.capacity_bytes = mib * MIB * s->granule / (2 * MIB);
    s->unit_bytes = s->is_large ? s->setup.capacity_bytes / PARTS_OF_LARGE : s->granule;
    s->setup.granule_bytes = s->granule;
    s->setup.schedule = (ductile_schedule)(b[2] % 4);
    s->setup.lag = (uint64_t)1 << b[3] % 9;
    s->setup.seed = b[4];
    s->setup.n_devices = has(s, PEERS) ? 2 : 1;
    s->has_context_events = b[5] % 4 != 0;
    s->setup.no_context_events = !s->has_context_events;
}

/* Half of the runs lack most kinds of operations, so that strict rules hold in them. */
static void choose_families(subject *s, const uint8_t *b) {
    unsigned wanted = b[6] | (unsigned)(b[7] & 1) << 8;
    s->families = b[7] % 4 < 2 ? wanted : wanted & (PRESSURE | FOREIGN);
    s->families &= s->goes_home ? PINS | PEERS | FAULTS : ALL_FAMILIES;
    s->families |= s->is_sleepy ? POOLS : 0;
    s->families &= s->is_sleepy ? ~(unsigned)PINS : ALL_FAMILIES;
}

static void choose_policies(subject *s, const uint8_t *b) {
    static const char *const reuse[] = {"streams", "streams", "stream", "wait"};
    static const char *const captures[] = {"pools", "unannounced", "announced"};
    static const ductile_captures modes[] = {DUCTILE_CAPTURES_UNANNOUNCED, DUCTILE_CAPTURES_POOLS,
                                             DUCTILE_CAPTURES_ANNOUNCED};
    add_option(s, "reuse:%s", b[8] % 4 == 3 ? "never" : reuse[b[10] % 4]);
    add_option(s, "record_stream:%s", b[9] % 3 == 0 && !s->goes_home ? "wait" : "poll");
    s->captures = modes[b[11] % 3];
    s->captures_at_first = s->captures;
    add_option(s, "captures:%s", captures[s->captures]);
    if (b[12] % 4 == 0) {
        add_option(s, "compact:off");
    }
}

static void choose_sizes(subject *s, const uint8_t *b) {
    static const uint64_t handles[] = {0, 0, 0, 4, 16};
    uint64_t chosen = s->goes_home || s->is_large ? 0 : handles[b[13] % 5];
    s->is_tight = !s->is_large && (s->goes_home || (chosen == 0 && b[23] / 2 % 4 < 2));
    s->max_handle_bytes = (s->is_tight ? 1 : chosen) * s->granule;
    if (s->max_handle_bytes != 0) {
        add_option(s, "sizes:%llu", (unsigned long long)s->max_handle_bytes);
    }
    s->is_short_of_addresses = b[16] % 8 == 0;
    if (s->is_short_of_addresses) {
        add_option(s, "address_budget_bytes:%llu",
                   (unsigned long long)(s->setup.capacity_bytes * (1 + b[16] / 8)));
    }
}

static void choose_limits(subject *s, const uint8_t *b) {
    if (b[17] % 8 == 0) {
        s->cap_bytes = (2 + b[17] / 8) * s->unit_bytes;
        add_option(s, "limit_bytes:%llu", (unsigned long long)s->cap_bytes);
    }
    if (b[18] % 8 == 0) {
        add_option(s, "soft_limit_bytes:%u0%%", 1 + b[18] / 8 % 9);
    }
    if (b[18] % 8 == 1) {
        add_option(s, "soft_limit_bytes:%llu", (unsigned long long)(b[18] / 8 * s->unit_bytes));
    }
}

static void choose_spilling(subject *s, const uint8_t *b) {
    uint64_t host = (8 + b[30] / 4) * s->unit_bytes; /* of the machine */
    s->spills = b[30] % 4 == 3 && !s->goes_home;
    if (s->spills) {
        uint64_t bytes = (1 + b[31] % 96) * s->unit_bytes;
        add_option(s, "spill_bytes:%llu", (unsigned long long)bytes);
        s->setup.host_bytes = host;
        s->spill_bytes = bytes < host ? bytes : host;
    }
}

static void choose_rest(subject *s, const uint8_t *b) {
    s->caches = b[19] % 16 != 0;
    if (!s->caches) {
        add_option(s, "caching:off");
    }
    s->is_guarded = b[19] / 16 == 0 && !s->goes_home;
    if (s->is_guarded) {
        add_option(s, "find:overruns");
    }
    if (b[20] % 8 == 0) {
        add_option(s, "zero:on");
    }
    if (b[21] % 16 < (s->is_large ? 2 : 3)) { /* 3 looks at all of it, each time */
        add_option(s, "check:%u", 1u + b[21] % 16);
    }
    if (b[21] / 16 == 0) {
        add_option(s, "sleep_host_bytes:2M");
    }
    s->shares = has(s, SHARING);
    if (s->shares) {
        add_option(s, "shareable:fd");
    }
    s->audit_period = 1u << b[22] % 6;
    s->is_listening = has(s, CALLBACKS) && b[23] % 2 == 0 && !s->is_large;
    s->setup.conf = s->conf;
}

enum { SMALL_BYTES = 2048 };

static void choose_life(subject *s, const uint8_t *b) {
    s->has_debts = b[24] % 4 != 0 && !s->goes_home;
    s->is_crowded = b[26] % 2 != 0;
    s->crew.n = b[25] % 3 == 0 ? 2 + b[25] / 3 % (MOST_THREADS - 1) : 0;
    s->is_teeming = b[27] % 8 == 7;
    s->is_teeming &= !s->goes_home && !s->is_sleepy && !s->is_large;
    s->typical_bytes = s->is_teeming  ? SMALL_BYTES
                       : s->goes_home ? 6 * s->unit_bytes
                       : s->is_sleepy ? 2 * s->unit_bytes
                                      : s->unit_bytes / 2;
    s->target_bytes = s->is_teeming   ? MOST_SMALL_BLOCKS * SMALL_BYTES
                      : s->is_crowded ? s->setup.capacity_bytes
                                      : s->setup.capacity_bytes / 2;
    s->audit_period = s->is_teeming || s->is_large ? 32 : s->audit_period;
}

static void choose(subject *s, const uint8_t *chosen) {
    s->is_large = chosen[14] % 32 == 31;
    s->may_hold_large = s->is_large;
    s->goes_home = chosen[28] % 4 >= (s->is_large ? 2 : 3);
    s->is_sleepy = chosen[29] % 4 == 3 && !s->goes_home;
    choose_families(s, chosen);
    choose_device(s, chosen);
    choose_policies(s, chosen);
    choose_sizes(s, chosen);
    choose_limits(s, chosen);
    choose_spilling(s, chosen);
    choose_rest(s, chosen);
    choose_life(s, chosen);
}

/* ---- Streams ------------------------------------------------------------------------------- */

const char *make_stream(subject *s, size_t slot, stream_kind kind) {
    ductile_virtual_gpu *gpu = s->f.gpu;
    ductile_stream *out = &s->slots[slot].stream;
    ductile_status status = DUCTILE_OK;
    switch (kind) {
    case ORDINARY_STREAM:
        status = ductile_virtual_stream_create(gpu, out);
        break;
    case BLOCKING_STREAM:
        status = ductile_virtual_stream_create_blocking(gpu, out);
        break;
    case FOREIGN_STREAM:
        status = ductile_virtual_stream_create_foreign(gpu, out);
        break;
    case PEER_STREAM:
        status = ductile_virtual_stream_create_on(gpu, 1, out);
        break;
    case LEGACY_STREAM:
        *out = NULL;
        break;
    case THREAD_STREAM:
        *out = (ductile_stream)2;
        break;
    }
    s->slots[slot].kind = kind;
    s->slots[slot].is_recorded = false;
    s->slots[slot].rests_until = 0;
    s->slots[slot].is_gone = false;
    NEED(status == DUCTILE_OK, "a stream cannot be made: %s", ductile_status_name(status));
    return NULL;
}

static const char *make_streams(subject *s) {
    static const stream_kind kinds[N_NAMED] = {ORDINARY_STREAM, ORDINARY_STREAM, ORDINARY_STREAM,
                                               BLOCKING_STREAM, LEGACY_STREAM,   THREAD_STREAM};
    s->n_slots = N_NAMED + (s->crew.n > 0 ? s->crew.n - 1 : 0);
    for (size_t i = 0; i < s->n_slots; i++) {
        stream_kind kind = i < N_NAMED ? kinds[i] : THREAD_STREAM;
        kind = i == 6 && has(s, FOREIGN) ? FOREIGN_STREAM : kind;
        kind = i == 7 && has(s, PEERS) ? PEER_STREAM : kind;
        TRY(make_stream(s, i, kind));
    }
    return NULL;
}

static bool is_default(stream_kind kind) {
    return kind == LEGACY_STREAM || kind == THREAD_STREAM;
}

static void end_streams(subject *s) {
    for (size_t i = 0; i < s->n_slots; i++) {
        if (!is_default(s->slots[i].kind)) {
            (void)ductile_virtual_stream_destroy(s->f.gpu, s->slots[i].stream);
        }
    }
}

void plan_no_fault(subject *s) {
    (void)!ductile_virtual_inject(s->f.gpu, NULL);
    s->is_armed = false;
}

const char *sync_all(subject *s) {
    plan_no_fault(s);
    for (size_t i = 0; i < s->n_slots; i++) {
        TRY(s->slots[i].is_gone ? NULL : sync_slot(s, i));
    }
    TRY(fixture_finish_work(&s->f));
    return forgive_all(s);
}

/* ---- What holds now ------------------------------------------------------------------------ */

bool is_capturing(const subject *s) {
    for (size_t i = 0; i < N_GRAPHS; i++) {
        if (s->graphs[i].is_capturing) {
            return true;
        }
    }
    return false;
}

bool is_captured(const subject *s, size_t slot) {
    for (size_t i = 0; i < N_GRAPHS; i++) {
        if (s->graphs[i].is_capturing && s->graphs[i].slot == slot) {
            return true;
        }
    }
    return false;
}

bool is_simple(const subject *s) {
    return is_simple_but_spills(s) && !s->spills;
}

bool is_simple_but_spills(const subject *s) {
    bool any_pool = s->pools[0].is_asleep;
    for (unsigned i = 1; i <= N_POOLS; i++) {
        any_pool |= pool_exists(s, i);
    }
    return !any_pool && !is_capturing(s) && s->n_pins == 0 && s->ends.importer == NULL &&
           !s->is_faulty && !s->is_guarded && (s->is_tight || s->is_large) &&
           !s->is_short_of_addresses;
}

const char *may_be(subject *s, const char *call, ductile_status status, bool is_admissible) {
    s->status = status;
    s->is_over |= status == DUCTILE_ERR_DEVICE_LOST || status == DUCTILE_ERR_EXITING;
    if (s->is_scripted) {
        return NULL;
    }
    bool is_clean = s->is_over || status == DUCTILE_ERR_OUT_OF_MEMORY ||
                    status == DUCTILE_ERR_DRIVER || status == DUCTILE_ERR_OUT_OF_ADDRESSES ||
                    status == DUCTILE_ERR_CAPTURING || status == DUCTILE_ERR_BUSY ||
                    status == DUCTILE_ERR_UNSUPPORTED || status == DUCTILE_ERR_BAD_MESSAGE ||
                    status == DUCTILE_ERR_ASLEEP || status == DUCTILE_ERR_AWAKE;
    bool is_hard = s->hardship.is_planned && (is_clean || status == DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    NEED(is_admissible || is_hard || (s->is_faulty && is_clean), "%s: %s", call,
         ductile_status_name(status));
    return NULL;
}

/* ---- The beginning ------------------------------------------------------------------------- */

static uint64_t give_back_some(void *user, ductile_allocator *a, uint64_t missing,
                               ductile_stream stream) {
    subject *s = user;
    (void)a, (void)stream;
    uint64_t before = s->live_bytes;
    for (size_t i = s->m.n; i-- > 0 && before - s->live_bytes < missing;) {
        const char *why = i < s->m.n && !s->m.blocks[i].is_asleep ? free_block(s, i, 0) : NULL;
        s->wrong = s->wrong != NULL ? s->wrong : why;
        if (why != NULL || before - s->live_bytes > s->setup.capacity_bytes / 8) {
            break;
        }
    }
    return before - s->live_bytes;
}

/* Memory leaves under no live block, but for those of a pool that falls asleep or wakes just now.
 */
static void look_for_live(subject *s, const ductile_map_event *e) {
    for (size_t i = 0; i < s->m.n; i++) {
        const model_block *b = &s->m.blocks[i];
        bool meets = b->address < e->address + e->size && e->address < b->address + b->size;
        if (meets && !b->is_asleep && s->moving_pool != ANY_POOL && b->pool + 1 != s->moving_pool) {
            s->wrong = "memory leaves under a live block";
        }
    }
}

/* Beside each event of a map callback: what must stay stays, and a trim is refused. */
static void look_at_event(void *user, ductile_allocator *a, const ductile_map_event *e) {
    subject *s = user;
    if (e->change == DUCTILE_MAP_LEAVING) {
        look_for_live(s, e);
    }
    for (size_t i = 0; i < s->n_pins; i++) {
        const pin_state *p = &s->pins[i];
        bool meets = p->address < e->address + e->size && e->address < p->address + p->size;
        if (meets && e->change == DUCTILE_MAP_LEAVING) {
            s->wrong = "pinned memory leaves";
        }
    }
    if (ductile_trim(a, NULL, 0, NULL) != DUCTILE_ERR_BUSY && !s->is_faulty) {
        s->wrong = "a trim inside a map callback is not refused";
    }
}

static const char *add_listener(subject *s) {
    if (!s->is_listening) {
        return NULL;
    }
    memset(&s->listener, 0, sizeof s->listener);
    s->listener.beside = look_at_event;
    s->listener.user = s;
    return shadow_open(&s->listener, s->f.allocator, s->f.gpu);
}

static const char *make_allocator(subject *s) {
    name_pools(s);
    TRY(fixture_add_allocator(&s->f, &s->setup, &s->f.allocator));
    if (has(s, CALLBACKS)) {
        NEED_OK(ductile_add_oom_callback(s->f.allocator, give_back_some, s, 0, &s->oom_callback));
    }
    return add_listener(s);
}

void subject_init(subject *s) {
    memset(s, 0, sizeof *s);
    s->ends.out = s->ends.in = -1;
    model_init(&s->m);
}

const char *subject_begin(subject *s) {
    TRY(fixture_open_device(&s->f, &s->setup));
    TRY(audit_reset_capture_mode(&s->f));
    TRY(make_streams(s));
    TRY(make_allocator(s));
    return start_threads(s);
}

const char *subject_open(subject *s, const uint8_t *chosen) {
    subject_init(s);
    choose(s, chosen);
    TRY(subject_begin(s));
    say(s, "%llu MiB, granule %llu KiB, schedule %d, lag %llu, families %#x, %zu threads, %s%s",
        (unsigned long long)(s->setup.capacity_bytes / MIB), (unsigned long long)(s->granule >> 10),
        (int)s->setup.schedule, (unsigned long long)s->setup.lag, s->families, s->crew.n,
        s->has_context_events ? "" : "no context events, ", s->conf);
    return NULL;
}

/* ---- The audit ----------------------------------------------------------------------------- */

const char *no_violation(const subject *s) {
    ductile_virtual_violation first = {.struct_size = sizeof first};
    if (fixture_state(&s->f).violations <= s->n_foreseen) {
        return NULL;
    }
    (void)!ductile_virtual_get_violation(s->f.gpu, 0, &first);
    return complain(
        "the device saw a violation: %s=%llu, %s", ductile_virtual_violation_name(first.kind),
        (unsigned long long)ductile_virtual_violations_of(s->f.gpu, first.kind), first.text);
}

static const char *is_sound(ductile_allocator *a) {
    char report[256] = "";
    NEED(ductile_check(a, report, sizeof report) == DUCTILE_OK, "the importer: %s", report);
    return NULL;
}

static const char *limit_is_kept(subject *s) {
    uint64_t reserved = fixture_stats(s->f.allocator).reserved_bytes;
    NEED(s->is_faulty || reserved <= limit_of(s) || reserved <= s->reserved_bytes,
         "grown to %llu bytes above the limit of %llu", (unsigned long long)reserved,
         (unsigned long long)limit_of(s));
    s->reserved_bytes = reserved;
    return NULL;
}

/* Of the host's memory no more than may be, and only where it may. */
static const char *spilling_is_kept(subject *s) {
    ductile_stats t = fixture_stats(s->f.allocator);
    ductile_options o = {.struct_size = sizeof o};
    ductile_get_options(s->f.allocator, &o);
    bool is_alone = s->ends.importer == NULL && !s->is_faulty;
    NEED(t.spill_locked_bytes <= o.spill_bytes && t.spilled_bytes <= t.spill_locked_bytes,
         "%llu bytes of the host are locked, %llu mapped; %llu may be",
         (unsigned long long)t.spill_locked_bytes, (unsigned long long)t.spilled_bytes,
         (unsigned long long)o.spill_bytes);
    NEED(!is_alone || fixture_state(&s->f).host_bytes == t.spill_locked_bytes,
         "of the host the device has %llu bytes, and the allocator says %llu",
         (unsigned long long)fixture_state(&s->f).host_bytes,
         (unsigned long long)t.spill_locked_bytes);
    for (size_t i = 0; i < s->m.n && t.spilled_bytes > 0; i++) {
        const model_block *b = &s->m.blocks[i];
        bool may = b->size >= s->granule && !b->is_dedicated && b->pool <= N_PLAIN_POOLS;
        NEED(may || !is_spilled(s, b), "block %llx, of pool %u, lies in memory of the host",
             b->address, b->pool);
    }
    return NULL;
}

/* The table that map callbacks keep is what is mapped. */
static const char *listener_is_right(subject *s) {
    bool device_agrees = !s->is_faulty && s->ends.importer == NULL;
    if (s->is_faulty && s->m.has_sleeping_pool) {
        return shadow_complaint(&s->listener); /* what a failed unmap left has been said to leave */
    }
    return device_agrees ? shadow_is_true(&s->listener, s->f.allocator)
                         : shadow_matches_segments(&s->listener, s->f.allocator);
}

const char *subject_audit(subject *s) {
    NEED(s->wrong == NULL, "%s", s->wrong);
    if (s->is_over) {
        return no_violation(s);
    }
    TRY(s->is_listening ? listener_is_right(s) : NULL);
    TRY(limit_is_kept(s));
    TRY(spilling_is_kept(s));
    if (s->is_faulty || s->is_misused || s->ends.importer != NULL) {
        TRY(audit_allocator(s->f.allocator, &s->m));
        TRY(s->ends.importer != NULL ? is_sound(s->ends.importer) : NULL);
        return no_violation(s);
    }
    TRY(audit_capture_mode(&s->f));
    return audit_fixture(&s->f, &s->m);
}

/* ---- The end ------------------------------------------------------------------------------- */

static const char *free_all(subject *s) {
    while (s->m.n > 0 && !s->is_over) {
        size_t before = s->m.n;
        TRY(free_block(s, s->m.n - 1, 0));
        if (s->m.n == before) {
            break; /* a fault */
        }
    }
    return NULL;
}

/* With everything freed the whole device can be allocated; and given back. */
static const char *the_whole_device(subject *s) {
    ductile_addr address = 0;
    if (is_simple(s)) {
        uint64_t all = limit_of(s) / s->granule * s->granule;
        ductile_status status = ductile_alloc(s->f.allocator, all, s->slots[0].stream, &address);
        NEED(status == DUCTILE_OK, "the whole device of %llu bytes cannot be allocated: %s",
             (unsigned long long)all, ductile_status_name(status));
        NEED_OK(ductile_free(s->f.allocator, address));
    }
    return NULL;
}

static const char *empty(subject *s) {
    TRY(s->is_faulty ? sync_all(s) : nothing_is_stuck(s, 0));
    TRY(the_whole_device(s));
    TRY(sync_all(s));
    NEED_OK(ductile_trim(s->f.allocator, NULL, 0, NULL));
    ductile_stats left = fixture_stats(s->f.allocator);
    NEED(left.reserved_bytes == left.quarantined_bytes || s->is_faulty,
         "%llu bytes are held with nothing alive, %llu of them quarantined, %llu free, %llu cached",
         (unsigned long long)left.reserved_bytes, (unsigned long long)left.quarantined_bytes,
         (unsigned long long)left.free_bytes, (unsigned long long)left.cached_bytes);
    NEED(left.pinned_bytes == 0 || s->is_faulty, "memory is pinned without a pin");
    NEED(left.spill_locked_bytes == 0 || s->is_faulty, "%llu bytes of the host are locked",
         (unsigned long long)left.spill_locked_bytes);
    return NULL;
}

static const char *end_all(subject *s) {
    plan_no_fault(s);
    TRY(end_graphs(s));
    TRY(end_pools(s));
    TRY(end_sharing(s));
    TRY(subject_audit(s));
    for (size_t i = 0; i < s->m.n && !s->is_over; i++) {
        TRY(verify_block(s, &s->m.blocks[i]));
    }
    TRY(s->is_over ? NULL : end_ranges(s, ANY_SLOT));
    TRY(free_all(s));
    return s->is_over ? NULL : subject_audit(s);
}

/* After faults memory may be lost; without them nothing is. */
static const char *leave(subject *s) {
    ductile_status status = ductile_destroy(s->f.allocator);
    s->f.allocator = NULL;
    TRY(s->is_listening ? shadow_complaint(&s->listener) : NULL);
    if (s->is_over) {
        return NULL;
    }
    NEED(status == DUCTILE_OK || s->is_faulty, "destroy: %s", ductile_status_name(status));
    return s->is_faulty || s->is_misused ? no_violation(s) : fixture_leak_gate(&s->f);
}

const char *subject_close(subject *s) {
    TRY(end_all(s));
    TRY(s->is_over ? NULL : empty(s));
    TRY(leave(s));
    subject_abandon(s);
    return NULL;
}

void subject_abandon(subject *s) {
    end_threads(s);
    if (s->ends.out >= 0) {
        (void)close(s->ends.out);
        (void)close(s->ends.in);
    }
    for (size_t i = 0; i < N_GRAPHS; i++) {
        ductile_virtual_graph_destroy(s->graphs[i].graph);
    }
    if (s->f.gpu != NULL) {
        end_streams(s);
    }
    fixture_abandon(&s->f);
    model_fini(&s->m);
}

/* A program that destroys an allocator with live blocks has waited for streams
 * of other contexts. */
static const char *end_blocks(subject *s) {
    while (s->m.n > 0) {
        if (!s->m.blocks[s->m.n - 1].is_asleep) {
            ductile_virtual_block_end(s->f.gpu, s->m.blocks[s->m.n - 1].address);
        }
        (void)model_remove(&s->m, s->m.n - 1);
    }
    s->live_bytes = 0;
    return NULL;
}

const char *subject_make_anew(subject *s, bool is_idle) {
    TRY(end_graphs(s));
    TRY(end_pools(s));
    TRY(end_sharing(s));
    plan_no_fault(s);
    TRY(is_idle ? sync_all(s) : sync_foreign(s));
    TRY(end_blocks(s));
    forget_ranges(s);
    TRY(leave(s));
    for (size_t i = 0; i < s->n_slots; i++) {
        TRY(forgive(s, i));
    }
    memset(s->pools, 0, sizeof s->pools);
    s->m.has_sleeping_pool = false;
    s->has_left_asleep = false;
    s->has_peer = false;
    s->has_silent_memory = false;
    s->may_hold_large = s->is_large;
    s->cap_bytes = 0;
    s->n_forbidden = 0;
    s->reserved_bytes = 0;
    s->last_freed = 0;
    s->captures = s->captures_at_first;
    TRY(s->is_over ? NULL : make_allocator(s));
    ductile_limits limits = {.struct_size = sizeof limits};
    NEED_OK(ductile_get_limits(s->f.allocator, &limits));
    s->cap_bytes = limits.limit_bytes;
    return NULL;
}
