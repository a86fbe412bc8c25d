/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/audit.h"

#include "tests/support/complain.h"
#include "vmm/driver/driver.h"
#include "vmm/driver/open_virtual.h"

#include <string.h>

#define ULL(x) ((unsigned long long)(x))

/* Two numbers that have to be equal, with what they are. */
static const char *same(const char *what, uint64_t got, uint64_t expected) {
    NEED(got == expected, "%s: %llu, not %llu", what, ULL(got), ULL(expected));
    return NULL;
}

/* ---- The walk ------------------------------------------------------------------------------ */

/* What is recounted from a walk, by state of block. */
typedef struct recount {
    uint64_t bytes[DUCTILE_BLOCK_ASLEEP + 1];
    uint64_t blocks[DUCTILE_BLOCK_ASLEEP + 1];
    uint64_t requested_bytes; /* of live blocks */
    uint64_t asleep_requested_bytes;
    uint64_t segments;
    uint64_t address_bytes;
    uint64_t span_bytes; /* from the first to the last block that has memory, over ranges */
} recount;

/* One walk under way. `why` is the first complaint. */
typedef struct walk {
    const model *model;
    recount *count;
    ductile_block_info last; /* the block before; size 0 before the first */
    uint64_t first_memory;   /* of this segment: first byte with memory, and the end of the last */
    uint64_t end_memory;
    const char *why;
} walk;

static const char *enter_segment(walk *w, const ductile_block_info *b) {
    w->count->segments++;
    w->count->address_bytes += b->segment_bytes;
    w->first_memory = 0;
    w->end_memory = 0;
    bool is_import = b->state == DUCTILE_BLOCK_IMPORTED; /* lies anywhere in its range */
    NEED(b->address == b->segment || is_import, "range %llx begins with block %llx", b->segment,
         b->address);
    return NULL;
}

static const char *follow_block(const ductile_block_info *last, const ductile_block_info *b) {
    NEED(last->address + last->size == b->address, "block %llx ends at %llx, the next is %llx",
         last->address, last->address + last->size, b->address);
    NEED(!(last->state == DUCTILE_BLOCK_FREE && b->state == DUCTILE_BLOCK_FREE),
         "free blocks %llx and %llx are not merged", last->address, b->address);
    NEED(last->segment_bytes == b->segment_bytes, "range %llx changes its size", b->segment);
    return NULL;
}

static const char *leave_segment(const ductile_block_info *last) {
    if (last->size == 0 || last->state == DUCTILE_BLOCK_IMPORTED) {
        return NULL;
    }
    NEED(last->address + last->size == last->segment + last->segment_bytes,
         "the last block of range %llx ends at %llx", last->segment, last->address + last->size);
    return NULL;
}

static const char *live_is_known(const model *m, const ductile_block_info *b) {
    size_t i = model_find(m, b->address);
    NEED(i < m->n, "live block %llx was never handed out", b->address);
    NEED(m->blocks[i].is_asleep == (b->state == DUCTILE_BLOCK_ASLEEP), "block %llx is %s asleep",
         b->address, m->blocks[i].is_asleep ? "not" : "by itself");
    TRY(same("requested size of a live block", b->requested_size, m->blocks[i].requested));
    NEED(b->size >= m->blocks[i].size, "live block %llx has %llu bytes, not %llu", b->address,
         ULL(b->size), ULL(m->blocks[i].size));
    return NULL;
}

static const char *sound_block(const walk *w, const ductile_block_info *b) {
    NEED(b->size > 0 && b->size % DUCTILE_ALIGNMENT == 0, "block %llx has %llu bytes", b->address,
         ULL(b->size));
    NEED(b->state <= DUCTILE_BLOCK_ASLEEP, "block %llx is in state %d", b->address, (int)b->state);
    NEED(b->state != DUCTILE_BLOCK_BUSY, "block %llx is left busy", b->address);
    bool has_request = b->state == DUCTILE_BLOCK_LIVE || b->state == DUCTILE_BLOCK_PENDING ||
                       b->state == DUCTILE_BLOCK_ASLEEP || b->state == DUCTILE_BLOCK_IMPORTED;
    NEED((b->requested_size != 0) == has_request, "block %llx in state %d has %llu requested bytes",
         b->address, (int)b->state, ULL(b->requested_size));
    bool is_users = b->state == DUCTILE_BLOCK_LIVE || b->state == DUCTILE_BLOCK_ASLEEP;
    if (is_users && w->model != NULL) {
        return live_is_known(w->model, b);
    }
    return NULL;
}

static void add_block(walk *w, const ductile_block_info *b) {
    w->count->bytes[b->state] += b->size;
    w->count->blocks[b->state]++;
    w->count->requested_bytes += b->state == DUCTILE_BLOCK_LIVE ? b->requested_size : 0;
    w->count->asleep_requested_bytes += b->state == DUCTILE_BLOCK_ASLEEP ? b->requested_size : 0;
    if (b->state == DUCTILE_BLOCK_GAP) {
        return;
    }
    if (w->end_memory == 0) {
        w->first_memory = b->address;
        w->end_memory = b->address;
    }
    w->count->span_bytes += b->address + b->size - w->end_memory;
    w->end_memory = b->address + b->size;
}

static const char *step(walk *w, const ductile_block_info *b) {
    bool is_new = w->last.size == 0 || b->segment != w->last.segment;
    if (is_new) {
        TRY(leave_segment(&w->last));
        TRY(enter_segment(w, b));
    } else {
        TRY(follow_block(&w->last, b));
    }
    TRY(sound_block(w, b));
    add_block(w, b);
    w->last = *b;
    return NULL;
}

static int visit(void *user, const ductile_block_info *block) {
    walk *w = user;
    w->why = step(w, block);
    return w->why != NULL;
}

static const char *walk_all(ductile_allocator *allocator, const model *m, recount *out) {
    memset(out, 0, sizeof *out);
    walk w = {.model = m, .count = out};
    NEED_OK(ductile_walk(allocator, NULL, visit, &w));
    TRY(w.why);
    TRY(leave_segment(&w.last));
    if (m != NULL) {
        TRY(same("live blocks walked",
                 out->blocks[DUCTILE_BLOCK_LIVE] + out->blocks[DUCTILE_BLOCK_ASLEEP], m->n));
        TRY(same("bytes requested, walked", out->requested_bytes + out->asleep_requested_bytes,
                 m->requested_bytes));
    }
    return NULL;
}

/* ---- The statistics ------------------------------------------------------------------------ */

/* Also while other threads allocate. */
static const char *identities_of_each_call(const ductile_stats *s) {
    NEED(s->requested_bytes <= s->allocated_bytes, "requested %llu > allocated %llu",
         ULL(s->requested_bytes), ULL(s->allocated_bytes));
    TRY(same("reserved_bytes", s->reserved_bytes + s->spilled_bytes,
             s->allocated_bytes + s->free_bytes + s->pending_bytes + s->cached_bytes +
                 s->quarantined_bytes));
    NEED(s->reserved_peak_bytes >= s->reserved_bytes, "reserved peak below its value");
    NEED(s->spilled_live_bytes <= s->spilled_bytes, "spilled and in use %llu > spilled %llu",
         ULL(s->spilled_live_bytes), ULL(s->spilled_bytes));
    return same("allocs - frees", s->allocs - s->frees, s->live_blocks + s->asleep_blocks);
}

static const char *identities(const ductile_stats *s) {
    TRY(identities_of_each_call(s));
    NEED(s->creates - s->releases >= s->handles, "%llu handles, more than were made",
         ULL(s->handles));
    if (s->quarantined_bytes == 0) {
        TRY(same("creates - releases", s->creates - s->releases, s->handles));
    }
    NEED(s->mapped_bytes <= s->address_span_bytes && s->address_span_bytes <= s->address_bytes,
         "mapped %llu <= span %llu <= addresses %llu does not hold", ULL(s->mapped_bytes),
         ULL(s->address_span_bytes), ULL(s->address_bytes));
    if (s->quarantined_bytes == 0) {
        TRY(same("mapped_bytes", s->mapped_bytes,
                 s->allocated_bytes + s->free_bytes + s->pending_bytes + s->retiring_bytes));
    }
    return NULL;
}

static const char *peaks(const ductile_stats *s) {
    NEED(s->requested_peak_bytes >= s->requested_bytes, "requested peak below its value");
    NEED(s->allocated_peak_bytes >= s->allocated_bytes, "allocated peak below its value");
    NEED(s->address_span_peak_bytes >= s->address_span_bytes, "span peak below its value");
    return NULL;
}

/* A guard is in no segment's size. */
static const char *addresses(ductile_allocator *allocator, const ductile_stats *s,
                             const recount *r) {
    ductile_options o;
    ductile_options_init(&o);
    ductile_get_options(allocator, &o);
    NEED(s->address_bytes >= r->address_bytes, "ranges are longer than the addresses reserved");
    return o.find == DUCTILE_FIND_OVERRUNS
               ? NULL
               : same("address_bytes", s->address_bytes, r->address_bytes);
}

static const char *recounted(const ductile_stats *s, const recount *r, bool is_asleep) {
    TRY(same("requested_bytes", s->requested_bytes, r->requested_bytes));
    TRY(same("allocated_bytes", s->allocated_bytes, r->bytes[DUCTILE_BLOCK_LIVE]));
    TRY(same("asleep_bytes", s->asleep_bytes, r->bytes[DUCTILE_BLOCK_ASLEEP]));
    TRY(same("asleep_blocks", s->asleep_blocks, r->blocks[DUCTILE_BLOCK_ASLEEP]));
    if (s->asleep_blocks == 0 &&
        !is_asleep) { /* behind sleeping blocks may be memory the driver kept mapped */
        TRY(same("free_bytes", s->free_bytes, r->bytes[DUCTILE_BLOCK_FREE]));
    }
    TRY(same("pending_bytes", s->pending_bytes, r->bytes[DUCTILE_BLOCK_PENDING]));
    TRY(same("retiring_bytes", s->retiring_bytes, r->bytes[DUCTILE_BLOCK_RETIRING]));
    TRY(same("live_blocks", s->live_blocks, r->blocks[DUCTILE_BLOCK_LIVE]));
    TRY(same("free_blocks", s->free_blocks, r->blocks[DUCTILE_BLOCK_FREE]));
    TRY(same("pending_blocks", s->pending_blocks, r->blocks[DUCTILE_BLOCK_PENDING]));
    TRY(same("gap_blocks", s->gap_blocks, r->blocks[DUCTILE_BLOCK_GAP]));
    TRY(same("segments", s->segments, r->segments));
    if (r->blocks[DUCTILE_BLOCK_QUARANTINED] + s->asleep_blocks == 0 && !is_asleep) {
        TRY(same("address_span_bytes", s->address_span_bytes, r->span_bytes));
    }
    return NULL;
}

static const char *checked(ductile_allocator *allocator) {
    char report[512] = "";
    ductile_status status = ductile_check(allocator, report, sizeof report);
    NEED(status == DUCTILE_OK, "ductile_check: %s: %s", ductile_status_name(status), report);
    return NULL;
}

static const char *audit_into(ductile_allocator *allocator, const model *m, ductile_stats *s,
                              recount *r) {
    TRY(checked(allocator));
    TRY(walk_all(allocator, m, r));
    *s = fixture_stats(allocator);
    TRY(identities(s));
    TRY(peaks(s));
    TRY(addresses(allocator, s, r));
    return recounted(s, r, m != NULL && m->has_sleeping_pool);
}

const char *audit_allocator(ductile_allocator *allocator, const model *m) {
    ductile_stats s;
    recount r;
    return audit_into(allocator, m, &s, &r);
}

/* ---- The device ---------------------------------------------------------------------------- */

/* Leaves the thread in *mode, and stores the one that it was in. */
static const char *exchange_mode(const fixture *f, dvmm_capture_mode *mode) {
    dvmm_driver *d = NULL;
    NEED_OK(dvmm_open_virtual(f->gpu, &d, NULL, 0));
    ductile_status status = dvmm_capture_exchange_mode(d, mode);
    dvmm_close(d);
    NEED_OK(status);
    return NULL;
}

const char *audit_capture_mode(const fixture *f) {
    dvmm_capture_mode mode = DVMM_CAPTURE_GLOBAL;
    TRY(exchange_mode(f, &mode));
    dvmm_capture_mode found = mode;
    TRY(found != DVMM_CAPTURE_GLOBAL ? exchange_mode(f, &mode) : NULL);
    NEED(found != DVMM_CAPTURE_RELAXED, "a call left the thread in relaxed capture mode");
    return NULL;
}

const char *audit_reset_capture_mode(const fixture *f) {
    dvmm_capture_mode mode = DVMM_CAPTURE_GLOBAL;
    return exchange_mode(f, &mode);
}

const char *audit_fixture(const fixture *f, const model *m) {
    ductile_stats s;
    recount r;
    TRY(audit_into(f->allocator, m, &s, &r));
    ductile_virtual_state v = fixture_state(f);
    char violation[256] = "";
    ductile_virtual_last_violation(f->gpu, violation, sizeof violation);
    NEED(v.violations == 0, "the device saw a violation: %s", violation);
    TRY(same("reservations on the device", v.reservations, s.segments));
    TRY(same("addresses reserved on the device", v.reserved_address_bytes, s.address_bytes));
    TRY(same("handles on the device", v.handles, s.handles));
    if (r.blocks[DUCTILE_BLOCK_QUARANTINED] == 0) {
        TRY(same("mappings on the device", v.mappings, s.maps - s.unmaps));
    }
    return NULL;
}

/* ---- At any time --------------------------------------------------------------------------- */

typedef struct tiling {
    ductile_addr segment, next;
    bool is_broken;
} tiling;

static int follow(void *user, const ductile_block_info *b) {
    tiling *t = user;
    bool may_begin = b->address == b->segment || b->state == DUCTILE_BLOCK_IMPORTED;
    t->is_broken = b->segment == t->segment ? b->address != t->next : !may_begin;
    t->segment = b->segment;
    t->next = b->address + b->size;
    return t->is_broken;
}

const char *audit_at_any_time(ductile_allocator *allocator) {
    tiling t = {.segment = 0};
    ductile_stats s = fixture_stats(allocator);
    TRY(identities_of_each_call(&s));
    NEED_OK(ductile_walk(allocator, NULL, follow, &t));
    NEED(!t.is_broken, "blocks do not tile the range at %llx", t.segment);
    return checked(allocator);
}
