/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls of elastic ranges. A commit is a request whose place is given; a decommit is the
 * public free of each unit.
 */
#include "pool/free.h"

#include "pool/base/guards.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/region.h"
#include "pool/blocks/units.h"
#include "pool/growth/attempt.h"
#include "pool/inspect/validate.h"
#include "pool/pools/asleep.h"
#include "pool/pools/pools.h"
#include "pool/pressure/ladder.h"
#include "pool/streams/marks.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t most_bytes = UINT64_C(1) << 47;

/* ---- Open ---------------------------------------------------------------------------------- */

/* 0: the options, or the sizes, are none. */
static uint64_t unit_of(const ductile_allocator *a, const ductile_elastic_options *given) {
    ductile_elastic_options known = {.struct_size = sizeof known};
    if (given != NULL &&
        (given->struct_size < sizeof(size_t) || given->struct_size > sizeof known)) {
        return 0;
    }
    if (given != NULL) {
        memcpy(&known, given, given->struct_size);
    }
    uint64_t unit = known.unit_bytes != 0 ? known.unit_bytes : a->granule;
    return unit % a->granule == 0 && unit <= most_bytes ? unit : 0;
}

static ductile_status make_region(ductile_allocator *a, ductile_elastic *range) {
    dpool_request r = {.size = range->bytes, .arena = range->arena, .is_range = true};
    DTI_TRY(dpool_add_range(a, &r));
    range->region = range->arena->blocks.regions;
    range->region->seg->unit_granules = (uint32_t)(range->unit_bytes / a->granule);
    return DUCTILE_OK;
}

/* From here on a range that is open keeps its arena, and the arena its pool. */
static void end_open(ductile_allocator *a, ductile_elastic *range, bool is_open) {
    dti_lock_acquire(&a->index_lock);
    range->arena->range = is_open ? range : NULL;
    range->arena->users.n_waiters--;
    dti_lock_release(&a->index_lock);
    if (!is_open) {
        dpool_arena_drop_if_empty(a, range->arena);
    }
}

static ductile_status open_in(ductile_allocator *a, dpool_private_pool *pool, ductile_stream stream,
                              ductile_elastic *range) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    range->arena = dpool_arena_make_elastic(a, pool, stream);
    ductile_status status = DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    if (range->arena != NULL) {
        status = make_region(a, range);
        end_open(a, range, status == DUCTILE_OK);
    }
    dpool_grow_unlock(a, mode);
    return status;
}

static ductile_status open_range(ductile_allocator *a, uint64_t bytes, ductile_stream stream,
                                 uint64_t unit, ductile_elastic **out) {
    ductile_elastic *range = calloc(1, sizeof *range);
    if (range == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    *range =
        (ductile_elastic){.allocator = a, .unit_bytes = unit, .bytes = dti_round_up(bytes, unit)};
    dpool_private_pool *pool = NULL;
    ductile_status status = dpool_pool_of(a, bytes, stream, &pool);
    if (status == DUCTILE_OK) {
        status = open_in(a, pool, stream, range);
        dpool_unpin(a, pool);
    }
    if (status != DUCTILE_OK) {
        free(range);
        return status;
    }
    *out = range;
    return DUCTILE_OK;
}

ductile_status ductile_elastic_open(ductile_allocator *a, uint64_t bytes, ductile_stream stream,
                                    const ductile_elastic_options *options, ductile_elastic **out) {
    if (a == NULL || out == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *out = NULL;
    DTI_TRY(dvmm_usable(a->driver));
    uint64_t unit = unit_of(a, options);
    if (bytes == 0 || bytes > most_bytes || unit == 0) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    return dpool_is_inside_callback(DPOOL_CALLBACK_MAP) ? DUCTILE_ERR_BUSY
                                                        : open_range(a, bytes, stream, unit, out);
}

ductile_addr ductile_elastic_address(const ductile_elastic *range) {
    return range != NULL ? range->region->seg->range.addr : 0;
}

uint64_t ductile_elastic_unit(const ductile_elastic *range) {
    return range != NULL ? range->unit_bytes : 0;
}

uint64_t ductile_elastic_bytes(const ductile_elastic *range) {
    return range != NULL ? range->bytes : 0;
}

/* ---- Commit -------------------------------------------------------------------------------- */

static bool are_units(const ductile_elastic *range, uint64_t offset, uint64_t bytes) {
    return range != NULL && offset % range->unit_bytes == 0 && bytes % range->unit_bytes == 0 &&
           offset <= range->bytes && bytes <= range->bytes - offset;
}

static dpool_units units_at(const ductile_elastic *range, uint64_t offset, uint64_t bytes) {
    ductile_addr from = ductile_elastic_address(range) + offset;
    return (dpool_units){range, from, from + bytes};
}

/* Is the pool awake and the stream there? Keeps the pool so until dpool_unpin, and serves what is
 * still in place. */
static ductile_status begin_commit(ductile_allocator *a, const dpool_units *u, uint64_t *missing) {
    dpool_arena *arena = u->range->arena;
    uint64_t bytes[DPOOL_STATES];
    dti_lock_acquire(&a->index_lock);
    ductile_status status = dpool_arena_may_be_named(arena)
                                ? dpool_admit_locked(a, arena->pool, dpool_units_bytes(u))
                                : DUCTILE_ERR_INVALID_ARGUMENT;
    if (status == DUCTILE_OK) {
        arena->pool->n_users++;
        bool is_served = a->options.zero == 0 && dpool_units_take_locked(a, u);
        dpool_units_sum_locked(a, u, bytes);
        *missing = is_served ? 0 : dpool_units_bytes(u) - bytes[DPOOL_LIVE];
    }
    dti_lock_release(&a->index_lock);
    return status;
}

static ductile_status commit_missing(ductile_allocator *a, const dpool_units *u, uint64_t missing) {
    dpool_request r = {.size = missing,
                       .requested = missing,
                       .pool = u->range->arena->pool,
                       .stream = u->range->arena->stream,
                       .units = u,
                       .arena = u->range->arena};
    ductile_status status = dpool_alloc_slow(a, &r);
    dpool_audit(a, DPOOL_AUDIT_GROW);
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        a->counts.slow_allocs++;
        dti_lock_release(&a->index_lock);
    }
    return status;
}

ductile_status ductile_elastic_commit(ductile_elastic *range, uint64_t offset, uint64_t bytes) {
    if (!are_units(range, offset, bytes)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_allocator *a = range->allocator;
    ductile_status status = dvmm_usable(a->driver);
    if (status != DUCTILE_OK || bytes == 0) {
        return status;
    }
    const dpool_units u = units_at(range, offset, bytes);
    uint64_t missing = 0;
    DTI_TRY(begin_commit(a, &u, &missing));
    if (missing > 0) {
        status = commit_missing(a, &u, missing);
    }
    dpool_unpin(a, range->arena->pool);
    dpool_audit(a, DPOOL_AUDIT_CALL);
    return status;
}

/* ---- Decommit ------------------------------------------------------------------------------ */

/* The next unit in use from `*at` on, and *at behind it; 0 for none. */
static ductile_addr next_in_use(ductile_allocator *a, const dpool_units *u, ductile_addr *at) {
    ductile_addr found = 0;
    dti_lock_acquire(&a->index_lock);
    const dpool_units rest = {u->range, *at, u->to};
    const dpool_block *b = *at < u->to ? dpool_units_first_locked(a, &rest) : NULL;
    while (b != NULL && b->addr < u->to && !dpool_is_in_use(b)) {
        b = b->next;
    }
    if (b != NULL && b->addr < u->to) {
        found = b->addr;
        *at = dpool_end(b);
    }
    dti_lock_release(&a->index_lock);
    return found;
}

/* On all of them, before any is freed. */
static ductile_status record(ductile_allocator *a, const dpool_units *u,
                             const ductile_stream *streams, size_t n_streams) {
    ductile_addr at = u->from;
    for (ductile_addr unit = n_streams > 0 ? next_in_use(a, u, &at) : 0; unit != 0;
         unit = next_in_use(a, u, &at)) {
        for (size_t i = 0; i < n_streams; i++) {
            ductile_status status = dpool_use_add(a, unit, streams[i]);
            bool is_gone = status == DUCTILE_ERR_NOT_LIVE; /* another thread was faster */
            DTI_TRY(is_gone ? DUCTILE_OK : status);
        }
    }
    return DUCTILE_OK;
}

static void free_units(ductile_allocator *a, const dpool_units *u) {
    ductile_addr at = u->from;
    for (ductile_addr unit = next_in_use(a, u, &at); unit != 0; unit = next_in_use(a, u, &at)) {
        (void)dpool_free(a, unit);
    }
    dpool_end_frees(a);
}

ductile_status ductile_elastic_decommit(ductile_elastic *range, uint64_t offset, uint64_t bytes,
                                        const ductile_stream *streams, size_t n_streams) {
    if (!are_units(range, offset, bytes) || (streams == NULL && n_streams > 0)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_allocator *a = range->allocator;
    DTI_TRY(dvmm_usable(a->driver));
    const dpool_units u = units_at(range, offset, bytes);
    DTI_TRY(record(a, &u, streams, n_streams));
    free_units(a, &u);
    return DUCTILE_OK;
}

/* ---- Close --------------------------------------------------------------------------------- */

/* What a later call finds proven goes then (dpool_has_ended). */
static void end_range(ductile_allocator *a, ductile_elastic *range) {
    dpool_arena *arena = range->arena;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    dti_lock_acquire(&a->index_lock);
    arena->range = NULL;
    dpool_want_mark_locked(a);
    dti_lock_release(&a->index_lock);
    dpool_regions_release_empty(a, arena);
    dpool_arena_drop_if_empty(a, arena);
    dpool_grow_unlock(a, mode);
}

ductile_status ductile_elastic_close(ductile_elastic *range) {
    if (range == NULL) {
        return DUCTILE_OK;
    }
    ductile_allocator *a = range->allocator;
    DTI_TRY(dpool_may_let_go(a)); /* otherwise it ends with the allocator, whose arena has it */
    (void)ductile_elastic_decommit(range, 0, range->bytes, NULL, 0);
    end_range(a, range);
    free(range);
    return DUCTILE_OK;
}
