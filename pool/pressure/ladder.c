/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pressure/ladder.h"

#include "pool/base/log.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/proofs.h"
#include "pool/blocks/region.h"
#include "pool/growth/asleep_memory.h"
#include "pool/growth/give_back.h"
#include "pool/pressure/host_memory.h"
#include "pool/pressure/oom_callbacks.h"
#include "pool/pressure/oom_report.h"
#include "pool/streams/host_waits.h"
#include "pool/streams/progress.h"

enum {
    MOST_SPILLS = 4,   /* other threads may take what was made for a request */
    MOST_CLIMBS = 4,   /* other threads may keep freeing: at most so many climbs */
    MOST_RELEASES = 4, /* of cached handles: a failed attempt caches what it made         */
    MOST_PASSES = 2,   /* through the driver: what is missing, then what all of it would take     */
    MOST_DOUBLINGS = 15 /* of what is missing, at most DPOOL_MAX_REQUEST and a little: in 64 bits */
};

static uint64_t frees_now(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    uint64_t frees = a->counts.allocs - a->map.count;
    dti_lock_release(&a->index_lock);
    return frees;
}

/* ---- What a rung costs, for the statistics -------------------------------------------------- */

/* In the allocator's life: taken before and after a rung. Where several threads lack memory at a
 * time, what one has caused may count for another as well. */
typedef struct cost {
    uint64_t host_waits;
    uint64_t released_bytes;
} cost;

static cost cost_now(ductile_allocator *a) {
    dvmm_counters d;
    dvmm_get_counters(a->driver, &d);
    dvmm_store_totals t = dvmm_store_read(&a->store);
    return (cost){dvmm_count_host_waits(&d), t.created_bytes - t.held_bytes};
}

static void count_cost(ductile_allocator *a, const cost *before) {
    cost now = cost_now(a);
    uint64_t released = now.released_bytes - before->released_bytes;
    dti_lock_acquire(&a->index_lock);
    a->counts.pressure_waits += now.host_waits > before->host_waits;
    a->counts.pressure_returns += released > 0;
    a->counts.pressure_returned += released;
    dti_lock_release(&a->index_lock);
}

/* ---- Cached handles ------------------------------------------------------------------------ */

/* Cached handles of several granules count as held and may fit no gap: releases the largest. */
static bool release_oversized_cached(ductile_allocator *a, dpool_climb *c) {
    if (!dpool_has_large_handles(a) || c->n_tries == MOST_RELEASES) {
        return false;
    }
    dvmm_capture_mode mode = dpool_grow_lock(a);
    uint64_t cached = a->store.totals.cached_bytes;
    uint64_t missing = dti_max(c->request->missing, a->granule);
    (void)dvmm_store_shrink_cache(&a->store, cached > missing ? cached - missing : 0);
    dpool_grow_unlock(a, mode);
    return cached > 0;
}

/* ---- Memory that may not move -------------------------------------------------------------- */

/* The limit may have been lowered. */
static uint64_t bytes_above_limit(ductile_allocator *a) {
    uint64_t held = dvmm_store_read(&a->store).held_bytes;
    dti_lock_acquire(&a->index_lock);
    uint64_t limit = a->counts.limit;
    dti_lock_release(&a->index_lock);
    return held > limit ? held - limit : 0;
}

/* What goes back may have been part of the place, so that the second time all of the request is
 * missing: it may begin and end inside a granule. */
static uint64_t bytes_to_pass(ductile_allocator *a, const dpool_climb *c) {
    return c->n_tries == 0 ? c->request->missing
                           : bytes_above_limit(a) + c->request->size + 2 * a->granule;
}

/* What the options keep from moving can still go through the driver: as much as is missing goes
 * back, for the next attempt to create again. */
static bool pass_through_driver(ductile_allocator *a, dpool_climb *c) {
    return !dpool_all_may_move(a, c->request) && c->n_tries < MOST_PASSES &&
           dpool_give_back(a, bytes_to_pass(a, c), false);
}

/* Beside a capture, what a stream alone proves may go back, and not move to another stream. */
static bool wait_and_pass_through_driver(ductile_allocator *a, dpool_climb *c) {
    bool may_help = !dpool_all_may_move(a, c->request) || c->was_captured;
    return may_help && c->n_tries < MOST_PASSES && dpool_give_back(a, bytes_to_pass(a, c), true);
}

/* ---- Private pools ------------------------------------------------------------------------- */

/* From now on plain pools that are in use give what they have proven, too. */
static bool ask_pools(ductile_allocator *a, dpool_climb *c) {
    if (c->request->from_pools || !dpool_has_pools(a)) {
        return false;
    }
    c->request->from_pools = true;
    return true;
}

/* ---- Callbacks ----------------------------------------------------------------------------- */

static bool ask_callbacks(ductile_allocator *a, dpool_climb *c) {
    return dpool_oom_callbacks_ask(a, &c->walk, c->request->missing, c->request->stream);
}

/* ---- Pending memory ------------------------------------------------------------------------ */

/* Waits on the host for the oldest pending memory, as much as is missing. Each time twice as much,
 * for what comes back may not lie together. */
static bool wait_for_pending(ductile_allocator *a, dpool_climb *c) {
    if (c->waits_left == 0) {
        return false;
    }
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    uint64_t bytes = dti_max(c->request->missing, a->granule)
                     << dti_min(c->n_tries, MOST_DOUBLINGS);
    bool waited = dpool_wait_oldest(a, c->request->arena, bytes) > 0;
    c->waits_left--;
    dvmm_capture_restore(a->driver, mode);
    return waited;
}

/* A stream that cannot wait on the GPU: the host does, for the work on the arena's free memory. */
static bool wait_for_spans(ductile_allocator *a, dpool_climb *c) {
    bool waited = false;
    if (c->request->could_not_wait) {
        dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
        (void)dpool_wait_on_host(a, NULL, &waited);
        dvmm_capture_restore(a->driver, mode);
    }
    return waited;
}

/* ---- Memory of sleeping pools -------------------------------------------------------------- */

/* Copies whose end the call that made them, of a sleep or a wake, did not see. */
static bool finish_copies(ductile_allocator *a, dpool_climb *c) {
    (void)c;
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    bool any = dpool_finish_copies(a, NULL);
    dvmm_capture_restore(a->driver, mode);
    return any;
}

/* ---- Memory that leaves -------------------------------------------------------------------- */

/* What attempts leave there, where gaps must appear in the order of calls. */
static bool reclaim_dedicated(ductile_allocator *a, dpool_climb *c) {
    (void)c;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    uint64_t before = a->counts.mapped; /* changed under both locks */
    dpool_poll_all(a, UINT32_MAX);      /* what was pending leaves now */
    (void)dpool_unmap_unused(a, DPOOL_UNUSED_GONE, UINT64_MAX);
    bool any = a->counts.mapped < before;
    dpool_grow_unlock(a, mode);
    return any;
}

/* ---- All work of the device ---------------------------------------------------------------- */

/* Memory that only a wait can give to the requester: pending, or free and unproven. What is free
 * in its own arena needs no proof, unless it leaves. */
static bool could_a_wait_help(ductile_allocator *a, const dpool_arena *own) {
    bool could = false;
    dpool_lock_both(a); /* no pending list is out of its arena for a poll */
    for (const dpool_arena *arena = a->arenas; arena != NULL && !could; arena = arena->next) {
        could = arena == own && !own->is_elastic
                    ? own->pending.list.first != NULL || dpool_awaits_leaving_locked(a, own)
                    : dpool_awaits_proof_locked(a, arena);
    }
    dpool_unlock_both(a);
    return could;
}

/* Waits for all work of the device: afterwards all free memory is proven. Captures that this
 * allocator knows nothing of cannot be asked about, so it is done only where it may help, and
 * once on a way up. */
static bool wait_for_all_work(ductile_allocator *a, dpool_climb *c) {
    if (c->n_tries > 0 || !could_a_wait_help(a, c->request->arena)) {
        return false;
    }
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    ductile_status status = dpool_wait_for_all_work(a, NULL);
    c->was_captured = status == DUCTILE_ERR_CAPTURING;
    bool waited = status == DUCTILE_OK || (c->was_captured && dpool_wait_for_newest_mark(a));
    dvmm_capture_restore(a->driver, mode);
    if (waited) {
        (void)reclaim_dedicated(a, c); /* what it has proven */
    }
    return waited;
}

/* ---- Memory of the host --------------------------------------------------------------------- */

/* The first attempt says how much is missing. */
static bool spill(ductile_allocator *a, dpool_climb *c) {
    dpool_request *r = c->request;
    if (c->n_tries == 0) {
        r->spills = dpool_may_spill(a, r);
        r->refused = 0;
    } else {
        r->spills = c->n_tries < MOST_SPILLS && r->lacks_host > 0 &&
                    dpool_make_host_memory(a, r->lacks_host);
    }
    return r->spills;
}

/* Its own free memory would have served the request where it is; to become part of a block that
 * spills it has to leave. The arena of the latest attempt may be gone. */
static void prove_own(ductile_allocator *a, const dpool_request *r) {
    dpool_lock_both(a);
    const dpool_arena *own = dpool_arena_find_locked(a, r->pool, r->stream);
    bool awaits = own != NULL && dpool_awaits_proof_locked(a, own);
    dpool_unlock_both(a);
    if (awaits) {
        dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
        (void)dpool_wait_for_all_work(a, NULL);
        dvmm_capture_restore(a->driver, mode);
    }
}

/* Once all else was given up. Beside a capture no thread could wait. */
static bool spill_at_top(ductile_allocator *a, dpool_climb *c) {
    bool is_first = c->n_tries == 0;
    if (is_first && !c->was_captured) {
        dpool_note_futile(a, c->request->missing);
    }
    bool spills = spill(a, c);
    if (is_first && spills) {
        prove_own(a, c->request);
    }
    return spills;
}

/* ---- The ladder ---------------------------------------------------------------------------- */

typedef struct rung {
    dpool_rung_fn relieve;
    bool for_soft;    /* disturbs no other request: also before creating above the soft limit */
    bool for_pending; /* may help units that are PENDING, where no other memory does */
} rung;

/* From the bottom. Finished markers, and memory that may move without a wait, are part of every
 * attempt. */
static const rung ladder[] = {
    /* handles that exist and fit nowhere */
    {release_oversized_cached, true, false},
    /* free memory that options forbid to move */
    {pass_through_driver, true, false},
    /* proven memory of pools in use */
    {ask_pools, false, false},
    /* memory of the user's */
    {ask_callbacks, false, false},
    /* memory that recorded streams still use */
    {wait_for_pending, true, true},
    /* the same, of a stream that cannot wait */
    {wait_for_spans, true, false},
    /* memory of pools that sleep, which a failed call has left mapped */
    {finish_copies, true, false},
    /* memory that leaves, and is proven */
    {reclaim_dedicated, true, false},
    /* memory of silent streams */
    {wait_for_all_work, false, true},
    /* the second again, now that all is proven */
    {wait_and_pass_through_driver, false, false},
    /* memory of the host, page-locked */
    {spill_at_top, false, false},
};

enum { N_RUNGS = sizeof ladder / sizeof ladder[0] };

static void go_to_bottom(ductile_allocator *a, dpool_climb *c) {
    c->rung = 0;
    c->n_tries = 0;
    dpool_mark_what_captures_left(a);
    c->waits_left = dpool_count_pending_marks(a);
    c->frees_seen = frees_now(a);
}

static bool relieve_by(ductile_allocator *a, dpool_climb *c, const rung *r) {
    cost before = cost_now(a);
    bool any = r->relieve(a, c);
    count_cost(a, &before);
    return any;
}

/* Something was given up: true. At the top: false. */
static bool relieve(ductile_allocator *a, dpool_climb *c) {
    for (; c->rung < N_RUNGS; c->rung++, c->n_tries = 0) {
        const rung *r = &ladder[c->rung];
        bool may_help = (r->for_soft || !c->request->is_soft) &&
                        (r->for_pending || !c->request->awaits_pending);
        if (may_help && relieve_by(a, c, r)) {
            c->n_tries++;
            return true;
        }
    }
    return false;
}

/* ---- Attempts ------------------------------------------------------------------------------ */

static ductile_status wait_beside_captures(ductile_allocator *a) {
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    ductile_status status = dpool_wait_for_all_work(a, NULL);
    dvmm_capture_restore(a->driver, mode);
    return status;
}

/* When addresses are short: ranges of idle streams can be given back once the work on their memory
 * is done. */
static ductile_status attempt(ductile_allocator *a, dpool_request *r) {
    ductile_status status = DUCTILE_ERR_OUT_OF_ADDRESSES;
    for (int i = 0; i < 2 && status == DUCTILE_ERR_OUT_OF_ADDRESSES; i++) {
        if (i > 0 && wait_beside_captures(a) != DUCTILE_OK) {
            break;
        }
        dvmm_capture_mode mode = dpool_grow_lock(a);
        status = dpool_attempt(a, r);
        dpool_grow_unlock(a, mode);
    }
    return status;
}

static bool has_lost_device(const ductile_allocator *a) {
    return dvmm_usable(a->driver) != DUCTILE_OK;
}

/* Releases what the failed attempts created, or a refused request would keep the device full. */
static void give_up_locked(ductile_allocator *a, const dpool_climb *c) {
    DTI_ASSERT_HELD(&a->grow_lock);
    (void)dvmm_store_shrink_cache(&a->store, c->cached_before);
    (void)dvmm_store_shrink_host(&a->store, c->host_cached_before);
    dpool_report_take(a, c->request, c->was_captured);
}

/* Looks once more, now that every rung has been climbed: what others gave back meanwhile is seen,
 * and no other thread can take it through the slow path before the request is refused. */
static ductile_status attempt_at_top(ductile_allocator *a, dpool_climb *c, bool *again) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    ductile_status status = dpool_attempt(a, c->request);
    bool is_out = status == DUCTILE_ERR_OUT_OF_MEMORY && !has_lost_device(a);
    *again = is_out && ++c->n_climbs < MOST_CLIMBS && frees_now(a) != c->frees_seen;
    if (is_out && !*again) {
        give_up_locked(a, c);
    }
    dpool_grow_unlock(a, mode);
    return status;
}

/* One way up: attempts and rungs in turn. */
static ductile_status climb(ductile_allocator *a, dpool_climb *c) {
    go_to_bottom(a, c);
    ductile_status status = DUCTILE_ERR_OUT_OF_MEMORY;
    while (status == DUCTILE_ERR_OUT_OF_MEMORY && relieve(a, c)) {
        bool awaited_pending = c->request->awaits_pending;
        status = attempt(a, c->request);
        if (awaited_pending && !c->request->awaits_pending) { /* it lacks memory, if anything */
            c->rung = c->n_tries = 0;
        }
    }
    return status;
}

/* A climb for as much has found nothing, and too little has been freed since: so none is made, no
 * callback asked and no wait. Above the soft limit rather than in the host's memory. */
static ductile_status spill_without_climb(ductile_allocator *a, dpool_climb *c) {
    dpool_request *r = c->request;
    ductile_status status = DUCTILE_ERR_OUT_OF_MEMORY;
    if (!dpool_is_futile(a, r->missing) || !dpool_may_spill(a, r)) {
        return status;
    }
    if (r->is_soft) {
        r->is_soft = false;
        status = attempt(a, r);
    }
    for (c->n_tries = 0; status == DUCTILE_ERR_OUT_OF_MEMORY && spill(a, c); c->n_tries++) {
        status = attempt(a, r);
    }
    return status;
}

/* Climbs until the request is served or refused, at first below the soft limit. */
static ductile_status attempt_under_pressure(ductile_allocator *a, dpool_climb *c) {
    dpool_request *r = c->request;
    ductile_status status = spill_without_climb(a, c);
    bool again = true;
    while (status == DUCTILE_ERR_OUT_OF_MEMORY && again) {
        status = climb(a, c);
        bool was_soft = r->is_soft;
        r->is_soft = false;
        if (status == DUCTILE_ERR_OUT_OF_MEMORY) { /* above the soft limit rather than not at all */
            status = was_soft ? attempt(a, r) : attempt_at_top(a, c, &again);
        }
    }
    return status;
}

/* ---- The slow path ------------------------------------------------------------------------- */

typedef struct situation {
    uint64_t most;        /* that could ever be held         */
    uint64_t cached;      /* handles, now                    */
    uint64_t host_cached; /* likewise, of the host's memory */
    uint64_t host_limit;
    bool has_soft;
} situation;

static situation look(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    dvmm_store_totals t = dvmm_store_read(&a->store);
    situation s = {.most = dti_min(a->counts.limit, a->device_bytes),
                   .cached = t.cached_bytes,
                   .host_cached = t.spill_cached_bytes,
                   .host_limit = a->store.spill_limit_bytes, /* changed under both locks */
                   .has_soft = a->counts.soft_limit < a->counts.limit};
    dti_lock_release(&a->index_lock);
    return s;
}

/* A sticky error met on the way says more than that there was no memory. */
static ductile_status refuse(ductile_allocator *a, ductile_status status, uint64_t requested) {
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && has_lost_device(a)) {
        status = dvmm_usable(a->driver);
    }
    dpool_log_refusal(a, status, requested);
    return status;
}

/* Before anything is given up for it. */
static ductile_status refuse_at_once(ductile_allocator *a, dpool_request *r) {
    r->missing = r->size;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    dpool_report_take(a, r, false);
    dpool_grow_unlock(a, mode);
    return DUCTILE_ERR_OUT_OF_MEMORY;
}

/* A request larger than the device, which has a part of it. */
static bool could_spill(ductile_allocator *a, const dpool_request *r, const situation *s) {
    return r->size - s->most <= s->host_limit && dpool_may_spill(a, r);
}

ductile_status dpool_alloc_slow(ductile_allocator *a, dpool_request *r) {
    if (dpool_is_inside_callback(DPOOL_CALLBACK_MAP)) {
        return DUCTILE_ERR_BUSY;
    }
    situation s = look(a);
    r->is_soft = s.has_soft;
    dpool_climb c = {.request = r, .cached_before = s.cached, .host_cached_before = s.host_cached};
    dpool_wait_retired(a, r->pool, r->stream);
    dpool_forget_failure();
    bool can_be = r->size <= s.most || could_spill(a, r, &s);
    ductile_status status = can_be ? attempt(a, r) : refuse_at_once(a, r);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && can_be) {
        status = attempt_under_pressure(a, &c);
    }
    dpool_log_losses(a);
    return status == DUCTILE_OK ? status : refuse(a, status, r->requested);
}

ductile_status dpool_refuse_impossible(ductile_allocator *a, uint64_t size, ductile_stream stream) {
    dpool_request r = {.size = size, .requested = size, .pool = a->default_pool, .stream = stream};
    dpool_forget_failure();
    return refuse(a, refuse_at_once(a, &r), size);
}
