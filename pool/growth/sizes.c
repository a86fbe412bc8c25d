/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/sizes.h"

#include "pool/blocks/proofs.h"
#include "pool/streams/progress.h"

#include "vmm/base/align.h"

/* Chosen on recorded programs: docs/dev/decisions/0046. */
enum {
    CALLS_BETWEEN_LOOKS = 64,
    SHARE_OF_HELD = 1024, /* a handle is at most this part of what is held, */
    SHARE_OF_LEFT = 4096, /* and this part of what could still be           */
    MOST_TIMES = 16,      /* where much moves, so many times the former at most; */
    REQUESTS = 8192,      /* that is looked at after so many requests,           */
    MUCH = 4,             /* and is more than one move in so many of them,       */
    LITTLE = 16,          /* until it is less than one in so many                */
    SHARE_OF_ROOM = 2048, /* what sleeps: this part of the room, */
    SHARE_FOR_TAG = 512,  /* or, in a pool with a tag, this one  */
    SHARE_OF_BLOCK = 16,  /* near the limit there, of the one block that it lies in */
    TIGHT_ABOVE = 80,     /* per cent of the room                */
    TIGHT_UNTIL = 70,
    SHARE_OF_ENDED = 16,    /* less than this part of what was in use is held: see below */
    SHARE_OF_SLACK = 256,   /* this part of the most that was in use                 */
    SHARE_OF_STRANDED = 128 /* and this one */
};

static const uint64_t largest_bytes = 64 * DTI_MIB;
static const uint64_t largest_for_tag_bytes = 256 * DTI_MIB;
static const uint64_t least_alone_bytes = 128 * DTI_MIB;

/* One size was chosen by hand: all free memory moves before more is created. */
static bool is_fixed(const ductile_options *o) {
    return o->sizes != 0;
}

static void set_flag(_Atomic bool *flag, bool value) {
    atomic_store_explicit(flag, value, memory_order_relaxed);
}

uint64_t dpool_largest_handle(const ductile_options *o, uint64_t granule) {
    return is_fixed(o) ? o->sizes : dti_max(dti_round_down(largest_bytes, granule), granule);
}

void dpool_sizes_init(ductile_allocator *a, uint64_t largest) {
    a->sizes.most_granules = (uint32_t)(largest / a->granule);
    a->sizes.times = 1;
}

/* ---- Sizes --------------------------------------------------------------------------------- */

bool dpool_has_tag(ductile_allocator *a, const dpool_private_pool *pool) {
    dti_lock_acquire(&a->index_lock);
    bool has_tag = pool->tag[0] != '\0';
    dti_lock_release(&a->index_lock);
    return has_tag;
}

/* Powers of two: what one handle leaves is filled by others. */
static uint64_t power_of_two_below(uint64_t n) {
    uint64_t power = 1;
    while (power <= n / 2) {
        power *= 2;
    }
    return power;
}

static uint64_t bytes_left(const ductile_allocator *a) {
    return a->sizes.room_bytes - dti_min(a->sizes.room_bytes, a->store.totals.held_bytes);
}

uint32_t dpool_handle_granules(const ductile_allocator *a, uint64_t created) {
    DTI_ASSERT_HELD(&a->grow_lock);
    if (is_fixed(&a->options)) {
        return a->sizes.most_granules;
    }
    uint64_t after = a->store.totals.held_bytes + created * a->granule;
    uint64_t share = after / SHARE_OF_HELD * a->sizes.times;
    uint64_t most = dti_min(share, bytes_left(a) / SHARE_OF_LEFT) / a->granule;
    return (uint32_t)power_of_two_below(dti_min(most, a->sizes.most_granules));
}

/* What has a tag is put to sleep, and goes back whole: the fewer handles, the sooner. */
uint32_t dpool_whole_granules(ductile_allocator *a, const dpool_private_pool *pool) {
    if (is_fixed(&a->options) || dpool_is_tight(a)) {
        return dpool_handle_granules(a, 0);
    }
    bool has_tag = dpool_has_tag(a, pool);
    uint64_t most = a->sizes.room_bytes / (has_tag ? SHARE_FOR_TAG : SHARE_OF_ROOM);
    uint64_t n = dti_min(most, has_tag ? largest_for_tag_bytes : largest_bytes) / a->granule;
    return (uint32_t)dti_max(n, 1);
}

/* Such a handle strands nothing while its block lives, and little of what takes its place. */
uint32_t dpool_granules_in_block(ductile_allocator *a, const dpool_private_pool *pool,
                                 uint64_t bytes) {
    uint32_t whole = dpool_whole_granules(a, pool);
    if (is_fixed(&a->options) || !dpool_has_tag(a, pool)) {
        return whole;
    }
    uint64_t most = dti_min(a->sizes.room_bytes / SHARE_FOR_TAG, largest_for_tag_bytes);
    return (uint32_t)dti_max(whole, dti_min(most, bytes / SHARE_OF_BLOCK) / a->granule);
}

bool dpool_is_alone_in_handles(const ductile_allocator *a, uint64_t bytes) {
    return dpool_is_tight(a) && bytes >= least_alone_bytes;
}

/* ---- What moves ---------------------------------------------------------------------------- */

/* Moves cost the host by the handle. Twice as large, about half as many handles move. Requests that
 * find free memory look at nothing, so that many may have come since the last look. */
static uint32_t times_for(uint32_t times, uint64_t n_moves, uint64_t n_requests) {
    if (n_moves * LITTLE < n_requests) {
        for (uint64_t n = n_requests; n >= REQUESTS && times > 1; n -= REQUESTS) {
            times /= 2;
        }
        return times;
    }
    while (n_moves * MUCH > n_requests && times < MOST_TIMES) {
        times *= 2;
        n_moves /= 2;
    }
    return times;
}

/* There may be fewer than before: one whose stream could not wait is taken back. */
static void look_at_moves(ductile_allocator *a) {
    dpool_sizes *s = &a->sizes;
    dti_lock_acquire(&a->index_lock);
    uint64_t requests = a->counts.allocs;
    dti_lock_release(&a->index_lock);
    if (requests >= s->requests_before + REQUESTS) {
        s->times = times_for(s->times, s->n_moves, requests - s->requests_before);
        s->n_moves = 0;
        s->requests_before = requests;
    }
}

void dpool_sizes_count_moves(ductile_allocator *a, uint32_t n_handles) {
    DTI_ASSERT_HELD(&a->grow_lock);
    if (a->store.totals.held_bytes <= a->sizes.most_held) {
        a->sizes.n_moves += n_handles;
    }
}

/* ---- What was in use ------------------------------------------------------------------------ */

/* Since it was forgotten, or a user reset the statistics' peaks. Where the held memory must not
 * depend on the time of a call, what is pending does not count. */
static uint64_t peak_in_use(const ductile_allocator *a) {
    return dpool_retires_in_order(a) ? a->counts.allocated_peak : a->counts.active_peak;
}

static uint64_t most_in_use(const ductile_allocator *a) {
    return dti_max(a->sizes.most_in_use, peak_in_use(a));
}

void dpool_note_in_use_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    a->sizes.most_in_use = most_in_use(a);
}

bool dpool_strands_locked(const ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->grow_lock);
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t most = most_in_use(a);
    return a->store.totals.held_bytes > most + most / SHARE_OF_STRANDED;
}

/* The statistics keep the peaks of all time. */
static void restart_peaks_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_counts *c = &a->counts;
    c->past_allocated_peak = dti_max(c->past_allocated_peak, c->allocated_peak);
    c->past_active_peak = dti_max(c->past_active_peak, c->active_peak);
    c->allocated_peak = c->allocated;
    c->active_peak = c->allocated + c->pending;
    a->sizes.most_in_use = 0;
}

/* Where little of it is still held, a part of the program has ended: what it used says nothing
 * about the next one. A program that trims at every step keeps its weights, and its peak counts. */
static void forget_what_ended(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    dpool_note_in_use_locked(a);
    bool has_ended = a->store.totals.held_bytes < a->sizes.most_in_use / SHARE_OF_ENDED;
    if (has_ended) {
        restart_peaks_locked(a);
        a->sizes.calls_until_look = 0;
    }
    dti_lock_release(&a->index_lock);
}

/* ---- The room ------------------------------------------------------------------------------ */

uint64_t dpool_above_limits(const ductile_allocator *a, uint64_t held, uint64_t most_held) {
    uint64_t most = dti_min(most_held, a->store.limit_bytes);
    return held > most ? held - most : 0;
}

uint64_t dpool_room(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->grow_lock);
    uint64_t most = dti_min(a->store.limit_bytes, a->device_bytes);
    uint64_t free_bytes = 0;
    uint64_t total = 0;
    bool is_known = dvmm_store_device_memory(&a->store, &free_bytes, &total) == DUCTILE_OK;
    free_bytes -= dti_min(free_bytes, a->store.margin_bytes);
    return is_known ? dti_min(most, a->store.totals.held_bytes + free_bytes) : most;
}

/* Where the held memory must not depend on the time of a call, the driver is not asked. */
static uint64_t read_room(ductile_allocator *a) {
    return dpool_retires_in_order(a) ? dti_min(a->store.limit_bytes, a->device_bytes)
                                     : dpool_room(a);
}

/* Does not become false again while the memory that was held once would make it true. */
static bool is_near(const dpool_sizes *s, bool is_tight) {
    return s->most_held > s->room_bytes / 100 * (is_tight ? TIGHT_UNTIL : TIGHT_ABOVE);
}

void dpool_sizes_look(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->grow_lock);
    dpool_sizes *s = &a->sizes;
    forget_what_ended(a);
    look_at_moves(a);
    if (s->calls_until_look-- == 0) {
        s->room_bytes = read_room(a);
        s->calls_until_look = CALLS_BETWEEN_LOOKS;
    }
    s->most_held = dti_max(s->most_held, a->store.totals.held_bytes);
    set_flag(&s->is_tight, !is_fixed(&a->options) && is_near(s, dpool_is_tight(a)));
    uint32_t n_granules = dpool_handle_granules(a, 0);
    dpool_sizes_note(a, n_granules);
    set_flag(&s->goes_home, n_granules == 1 && (is_fixed(&a->options) || s->times == 1));
}

void dpool_sizes_note(ductile_allocator *a, uint32_t n_granules) {
    DTI_ASSERT_HELD(&a->grow_lock);
    if (n_granules > 1) {
        set_flag(&a->sizes.has_large, true);
    }
}

bool dpool_sizes_refused(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->grow_lock);
    if (is_fixed(&a->options) || dpool_is_tight(a)) {
        return false;
    }
    a->sizes.room_bytes = a->store.totals.held_bytes;
    set_flag(&a->sizes.is_tight, true);
    return true;
}

/* As in peak_in_use. */
static uint64_t in_use_now(const ductile_allocator *a) {
    return a->counts.allocated + (dpool_retires_in_order(a) ? 0 : a->counts.pending);
}

bool dpool_should_create_locked(ductile_allocator *a, uint64_t size, uint64_t bytes,
                                uint64_t max_held) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_note_in_use_locked(a);
    if (is_fixed(&a->options) || dpool_is_tight(a)) {
        return false;
    }
    uint64_t in_use = dti_max(a->sizes.most_in_use, in_use_now(a) + size);
    uint64_t after = a->store.totals.held_bytes + bytes;
    uint64_t most = dti_min(max_held, a->sizes.room_bytes / 100 * TIGHT_ABOVE);
    return after <= dti_min(most, in_use + in_use / SHARE_OF_SLACK);
}
