/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the report. The grow lock keeps the list of streams unchanged. The index lock is unlocked
 * between pieces, so blocks may come and go, and numbers of different pieces may differ by them. */
#include "pool/pressure/oom_report.h"

#include "pool/base/guards.h"
#include "pool/base/log.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/proofs.h"
#include "pool/blocks/region.h"

#include "segments/granules.h"

#include "vmm/base/align.h"

#include <inttypes.h>
#include <string.h>

enum {
    VISITS = 65536,       /* free blocks visited; ductile_pressure.h documents it */
    VISITS_PER_HOLD = 128 /* in one hold of the index lock */
};

/* Owner: its thread. Valid for the allocator with that id. */
typedef struct last_report {
    uint64_t instance_id;
    ductile_oom_report report;
} last_report;

static _Thread_local last_report last;

uint64_t dpool_next_instance_id(void) {
    static atomic_uint_fast64_t n_given;
    return atomic_fetch_add(&n_given, 1) + 1;
}

/* ---- Free blocks --------------------------------------------------------------------------- */

typedef struct block_counts {
    ductile_oom_report *report;
    ductile_oom_holder *holder;
    const dpool_arena *arena;
    bool is_requesters;
    bool is_kept;           /* for graphs */
    bool is_of_requests;    /* in the pool of the request */
    uint64_t movable_bytes; /* in whole handles, which could serve elsewhere */
    uint64_t visited_bytes;
    uint32_t visits_left; /* over all streams */
    dpool_block last;     /* a copy of the last visited block; size 0: none */
} block_counts;

/* The bytes of the granules that lie wholly in the block. */
static uint64_t whole_granules(const ductile_allocator *a, const dpool_block *b) {
    uint64_t start = b->addr - b->region->seg->range.addr;
    uint64_t low = dti_round_up(start, a->granule);
    uint64_t high = dti_round_down(start + b->size, a->granule);
    return high > low ? high - low : 0;
}

/* The bytes of the handles that lie wholly in the block and may move. What sleeps has none. */
static uint64_t movable_handles(const ductile_allocator *a, const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    const dpool_arena *arena = b->region->arena;
    if (dpool_is_frozen(arena)) {
        return 0;
    }
    dseg_span s = dseg_movable_in(seg, dseg_granules_in(seg, b->addr, b->addr + b->size));
    return dseg_is_empty(s) ? 0 : (s.end - s.first) * a->granule;
}

static unsigned size_index(uint64_t size) {
    unsigned power = 63u - (unsigned)__builtin_clzll(size);
    unsigned index = power < 9 ? 0 : power - 9;
    return index < DUCTILE_OOM_SIZES ? index : DUCTILE_OOM_SIZES - 1;
}

static void count_block(const ductile_allocator *a, block_counts *t, const dpool_block *b) {
    uint64_t whole = whole_granules(a, b);
    unsigned index = size_index(b->size);
    t->report->free_blocks_by_size[index]++;
    t->report->free_bytes_by_size[index] += b->size;
    t->report->pinned_bytes += b->size - whole;
    t->movable_bytes += movable_handles(a, b);
    if (t->is_kept) {
        t->holder->kept_bytes += whole;
        t->report->kept_bytes += t->is_of_requests ? 0 : whole;
    } else if (b->age >= dpool_proof_to_leave(a, t->arena).age) {
        t->holder->unproven_bytes += whole;
        bool moves_at_once = t->is_requesters && !t->arena->is_elastic;
        t->report->unproven_bytes += moves_at_once ? 0 : whole;
    }
    t->holder->largest_free_bytes = dti_max(t->holder->largest_free_bytes, b->size);
    t->visited_bytes += b->size;
}

/* Visits the next blocks downwards in size. False at the end, or when enough were visited. */
static bool visit_piece(ductile_allocator *a, block_counts *t) {
    const dpool_block *b = NULL;
    dti_lock_acquire(&a->index_lock);
    for (uint32_t i = 0; i < VISITS_PER_HOLD && t->visits_left > 0; i++) {
        b = dpool_index_below(&t->arena->index, t->last.size == 0 ? NULL : &t->last);
        if (b == NULL) {
            break;
        }
        t->visits_left--;
        t->last = *b;
        count_block(a, t, b);
    }
    dti_lock_release(&a->index_lock);
    return b != NULL && t->visits_left > 0;
}

static void visit_leaving_blocks(ductile_allocator *a, block_counts *t) {
    dti_lock_acquire(&a->index_lock);
    for (const dpool_block *b = t->arena->blocks.leaving.first; b != NULL; b = b->list_next) {
        count_block(a, t, b);
    }
    dti_lock_release(&a->index_lock);
}

/* Visits blocks from the largest down,
 * so that what is not visited is small and pins its granules. */
static void visit_free_blocks(ductile_allocator *a, block_counts *t) {
    visit_leaving_blocks(a, t);
    while (visit_piece(a, t)) {
    }
    bool has_more = t->holder->free_bytes > t->visited_bytes;
    uint64_t rest = has_more ? t->holder->free_bytes - t->visited_bytes : 0;
    if (t->visits_left == 0) {
        t->report->unvisited_bytes += rest;
        t->report->pinned_bytes += rest;
    } else if (a->options.find == DUCTILE_FIND_OVERRUNS) {
        t->report->pinned_bytes += rest; /* pads before blocks in use */
    }
}

/* ---- Streams ------------------------------------------------------------------------------- */

static ductile_oom_holder holder_of(ductile_allocator *a, const dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    ductile_oom_holder h = {
        .stream = arena->stream,
        .pool = arena->pool->id,
        .held_bytes = arena->blocks.mapped_bytes,
        .live_bytes = arena->live.bytes,
        .pending_bytes = arena->blocks.pending_bytes,
        .free_bytes = arena->blocks.mapped_bytes - arena->live.bytes - arena->blocks.pending_bytes,
    };
    dti_lock_release(&a->index_lock);
    return h;
}

/* Keeps the streams that hold most, largest first. */
static void keep_holder(ductile_oom_report *report, const ductile_oom_holder *h) {
    uint64_t n = report->n_holders++;
    uint64_t at = dti_min(n, DUCTILE_OOM_HOLDERS);
    while (at > 0 && report->holders[at - 1].held_bytes < h->held_bytes) {
        at--;
    }
    for (uint64_t i = DUCTILE_OOM_HOLDERS - 1; i > at; i--) {
        report->holders[i] = report->holders[i - 1];
    }
    if (at < DUCTILE_OOM_HOLDERS) {
        report->holders[at] = *h;
    }
}

static bool is_same(ductile_pool_id a, ductile_pool_id b) {
    return a.first == b.first && a.second == b.second;
}

static bool keeps_for_graphs(ductile_allocator *a, const dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    bool keeps = dpool_had_graphs(arena) && dpool_is_frozen(arena);
    dti_lock_release(&a->index_lock);
    return keeps;
}

/* Returns how much of what it holds could serve no other request. */
static uint64_t add_arena(ductile_allocator *a, ductile_oom_report *report,
                          const dpool_arena *arena, const dpool_arena *own, uint32_t *visits_left) {
    ductile_oom_holder h = holder_of(a, arena);
    if (h.held_bytes == 0) {
        return 0;
    }
    block_counts t = {.report = report,
                      .holder = &h,
                      .arena = arena,
                      .is_requesters = arena == own,
                      .is_kept = arena != own && keeps_for_graphs(a, arena),
                      .is_of_requests = is_same(arena->pool->id, report->pool),
                      .visits_left = *visits_left};
    visit_free_blocks(a, &t);
    *visits_left = t.visits_left;
    report->largest_free_bytes = dti_max(report->largest_free_bytes, h.largest_free_bytes);
    report->largest_free_here_bytes =
        arena == own ? h.largest_free_bytes : report->largest_free_here_bytes;
    keep_holder(report, &h);
    return h.held_bytes - dti_min(t.movable_bytes, h.held_bytes);
}

static uint64_t add_arenas(ductile_allocator *a, ductile_oom_report *report,
                           const dpool_request *r) {
    uint32_t visits_left = VISITS;
    uint64_t stays = 0;
    dti_lock_acquire(&a->index_lock);
    const dpool_arena *own =
        r->units != NULL ? r->arena : dpool_arena_find_locked(a, r->pool, r->stream);
    dti_lock_release(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        stays += add_arena(a, report, arena, own, &visits_left);
    }
    return stays;
}

/* ---- The whole ----------------------------------------------------------------------------- */

static void fill_totals(ductile_allocator *a, ductile_oom_report *o) {
    dti_lock_acquire(&a->index_lock);
    dpool_counts *c = &a->counts;
    o->number = ++c->out_of_memory;
    o->limit_bytes = dti_min(c->limit, a->device_bytes);
    o->soft_limit_bytes = dti_min(c->soft_limit, o->limit_bytes);
    dvmm_store_totals t = dvmm_store_read(&a->store);
    o->held_bytes = t.held_bytes;
    o->live_bytes = c->allocated;
    o->free_bytes =
        t.held_bytes + t.spilled_bytes - t.cached_bytes - t.lost_bytes - c->allocated - c->pending;
    o->pending_bytes = c->pending;
    o->cached_bytes = t.cached_bytes;
    o->quarantined_bytes = t.lost_bytes + t.spill_lost_bytes;
    o->spilled_bytes = t.spilled_bytes + t.spill_lost_bytes;
    o->spill_locked_bytes = t.spill_bytes;
    o->spill_limit_bytes = a->store.spill_limit_bytes;
    o->retiring_bytes = c->retiring;
    o->device = a->options.device;
    o->margin_bytes = a->store.margin_bytes; /* changed under both locks */
    dti_lock_release(&a->index_lock);
    o->device_bytes = a->device_bytes;
    o->granule_bytes = a->granule;
}

/* Other processes hold what the device has in use beyond what is held here. */
static void fill_device(ductile_allocator *a, ductile_oom_report *o) {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
    if (dvmm_store_device_memory(&a->store, &free_bytes, &total_bytes) != DUCTILE_OK) {
        return;
    }
    uint64_t used = total_bytes - free_bytes;
    o->device_free_bytes = free_bytes;
    o->others_bytes = used > o->held_bytes ? used - o->held_bytes : 0;
}

void dpool_report_take(ductile_allocator *a, const dpool_request *r, bool captured) {
    ductile_oom_report *o = &last.report;
    last.instance_id = a->instance_id;
    *o = (ductile_oom_report){.struct_size = sizeof *o,
                              .captured = captured,
                              .stream = r->stream,
                              .pool = r->pool->id,
                              .requested_bytes = r->requested,
                              .rounded_bytes = r->size,
                              .missing_bytes = r->missing,
                              .needed_bytes = r->needed};
    fill_totals(a, o);
    fill_device(a, o);
    uint64_t stays = add_arenas(a, o, r);
    if (r->needed == 0) {
        uint64_t size = dti_min(r->size, UINT64_MAX / 2);
        o->needed_bytes = dti_round_up(size, a->granule) + stays + o->quarantined_bytes;
    }
}

ductile_status ductile_get_oom_report(ductile_allocator *a, ductile_oom_report *out) {
    DTI_TRY(dpool_may_fill(a, out, sizeof *out));
    size_t size = out->struct_size;
    memset(out, 0, size);
    if (last.instance_id == a->instance_id) {
        memcpy(out, &last.report, size);
    }
    out->struct_size = size;
    return DUCTILE_OK;
}

/* ---- The log ------------------------------------------------------------------------------- */

/* The thread's latest refusal is this one. */
static void log_out_of_memory(ductile_allocator *a, uint64_t requested) {
    ductile_oom_report r = {.struct_size = sizeof r};
    if (ductile_get_oom_report(a, &r) != DUCTILE_OK) {
        return;
    }
    dpool_log(a, DUCTILE_LOG_WARNING,
              "out of memory: %" PRIu64 " bytes requested, %" PRIu64 " missing; limit %" PRIu64
              ", held %" PRIu64 ": %" PRIu64 " live, %" PRIu64 " free, %" PRIu64
              " waiting for other streams, %" PRIu64 " lost; device free %" PRIu64
              " (ductile_get_oom_report says what would help)",
              requested, r.missing_bytes, r.limit_bytes, r.held_bytes, r.live_bytes, r.free_bytes,
              r.pending_bytes, r.quarantined_bytes, r.device_free_bytes);
}

void dpool_log_refusal(ductile_allocator *a, ductile_status status, uint64_t requested) {
    if (a->options.log == NULL) {
        return;
    }
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        log_out_of_memory(a, requested);
    } else {
        dpool_log_failure(a, status, requested);
    }
}
