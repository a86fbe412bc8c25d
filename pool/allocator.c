/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls: they check arguments and call the rooms below. No algorithm here. */
#include "pool/base/guards.h"
#include "pool/base/log.h"
#include "pool/base/options.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/give_back.h"
#include "pool/growth/maintenance.h"
#include "pool/growth/sizes.h"
#include "pool/inspect/validate.h"
#include "pool/pools/pools.h"
#include "pool/pressure/ladder.h"
#include "pool/pressure/limits.h"
#include "pool/pressure/oom_report.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"
#include "vmm/cuda/open.h"
#include "vmm/driver/open_virtual.h"
#include "vmm/driver/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Create -------------------------------------------------------------------------------- */

static ductile_status open_driver(ductile_allocator *a, char *message, size_t size) {
    const ductile_options *o = &a->options;
    if (o->driver == DUCTILE_DRIVER_VIRTUAL) {
        return dvmm_open_virtual(o->virtual_gpu, &a->driver, message, size);
    }
    return dvmm_open_cuda(o->device, &a->driver, message, size);
}

/* Handles are multiples of the driver's granule. */
static ductile_status choose_handles(ductile_allocator *a, char *message, size_t size) {
    a->granule = dvmm_get_caps(a->driver)->granule_bytes;
    uint64_t largest = dpool_largest_handle(&a->options, a->granule);
    if (!dti_is_aligned(largest, a->granule) || largest > 64 * DTI_GIB) {
        (void)snprintf(
            message, size,
            "sizes must be auto, or a multiple of the driver's granule (%llu bytes) of at "
            "most 64 GiB",
            (unsigned long long)a->granule);
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    dpool_sizes_init(a, largest);
    return DUCTILE_OK;
}

static void set_up(ductile_allocator *a) {
    const ductile_options *o = &a->options;
    a->is_plain = o->caching_off == 0 && o->zero == 0 && o->check < DPOOL_AUDIT_GROW &&
                  DUCTILE_CHECK < DPOOL_AUDIT_CALL && o->find != DUCTILE_FIND_OVERRUNS &&
                  o->record_stream == DUCTILE_RECORD_POLL;
    a->device_bytes = dvmm_get_caps(a->driver)->total_bytes;
    dti_lock_init(&a->index_lock, DTI_RANK_INDEX);
    dti_lock_init(&a->grow_lock, DTI_RANK_GROW);
    dvmm_phys_props props = {.handle_types = (uint32_t)o->shareable, .rdma = o->rdma != 0};
    dvmm_store_init(&a->store, a->driver, a->granule, 0, props);
    dvmm_markers_init(&a->markers, a->driver);
    dvmm_host_arena_init(&a->host_arena, a->driver);
    dvmm_set_trace(a->driver, dpool_record_failure, NULL, false);
    dpool_callbacks_init(&a->oom_callbacks, DPOOL_CALLBACK_OOM);
    dpool_callbacks_init(&a->map_callbacks, DPOOL_CALLBACK_MAP);
    a->instance_id = dpool_next_instance_id();
    a->age = 1;
    atomic_init(&a->captures, (int)o->captures);
    dti_lock_acquire(&a->index_lock);
    dpool_limits_apply_locked(a);
    dti_lock_release(&a->index_lock);
}

/* Probes each requested property, because the capability bits of a device are not enough. */
static ductile_status check_properties(ductile_allocator *a, char *message, size_t size) {
    const dvmm_phys_props *props = &a->store.props;
    bool is_plain = props->handle_types == 0 && !props->rdma;
    return is_plain ? DUCTILE_OK : dvmm_probe_props(a->driver, props, message, size);
}

/* Where the driver cannot map memory of the host, or has none, it says so at once. */
static ductile_status check_spilling(ductile_allocator *a, char *message, size_t size) {
    const dvmm_phys_props host = {.is_host = true};
    return a->options.spill_bytes == 0 ? DUCTILE_OK
                                       : dvmm_probe_props(a->driver, &host, message, size);
}

static ductile_status make_host_memory(ductile_allocator *a, char *message, size_t size) {
    uint64_t bytes = a->options.sleep_host_bytes;
    ductile_status status = bytes > 0 ? ductile_sleep_host_reserve(a, bytes, NULL) : DUCTILE_OK;
    if (status != DUCTILE_OK) {
        (void)snprintf(message, size,
                       "sleep_host_bytes: %llu bytes of host memory cannot be page-locked: %s",
                       (unsigned long long)bytes, ductile_status_string(status));
        (void)dvmm_host_arena_fini(&a->host_arena);
    }
    return status;
}

/* Of this thread's last ductile_create. */
static _Thread_local char create_error[512];

static void report_refused_create(const ductile_options *given, ductile_status status) {
    if (create_error[0] == '\0') {
        (void)snprintf(create_error, sizeof create_error, "%s", ductile_status_string(status));
    }
    if (status == DUCTILE_ERR_INVALID_ARGUMENT || status == DUCTILE_ERR_UNSUPPORTED) {
        dpool_name_environment(create_error, sizeof create_error);
    }
    if (given != NULL && given->struct_size >= sizeof *given && given->log != NULL) {
        given->log(given->log_user, DUCTILE_LOG_ERROR, create_error);
    }
}

static ductile_status create(ductile_allocator **out, const ductile_options *options, char *message,
                             size_t size) {
    ductile_allocator *a = calloc(1, sizeof *a);
    if (a == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = dpool_default_pool_make(a);
    if (status == DUCTILE_OK) {
        status = dpool_options_resolve(options, &a->options, message, size);
    }
    if (status != DUCTILE_OK) {
        goto free_allocator;
    }
    status = open_driver(a, message, size);
    if (status != DUCTILE_OK) {
        goto free_allocator;
    }
    status = choose_handles(a, message, size);
    if (status != DUCTILE_OK) {
        goto close_driver;
    }
    set_up(a);
    status = check_properties(a, message, size);
    if (status == DUCTILE_OK) {
        status = check_spilling(a, message, size);
    }
    if (status == DUCTILE_OK) {
        status = make_host_memory(a, message, size);
    }
    if (status != DUCTILE_OK) {
        goto close_driver;
    }
    *out = a;
    return DUCTILE_OK;

close_driver:
    dvmm_close(a->driver);
free_allocator:
    dpool_free_pool(a->default_pool);
    free(a);
    return status;
}

ductile_status ductile_create(ductile_allocator **out, const ductile_options *options) {
    if (out == NULL) {
        (void)snprintf(create_error, sizeof create_error,
                       "there is no place for the allocator: out is NULL");
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *out = NULL;
    create_error[0] = '\0';
    ductile_status status = create(out, options, create_error, sizeof create_error);
    if (status != DUCTILE_OK) {
        report_refused_create(options, status);
    }
    return status;
}

const char *ductile_create_error(void) {
    return create_error;
}

/* ---- Allocate and free --------------------------------------------------------------------- */

static inline dpool_arena *find_arena_locked(ductile_allocator *a, const dpool_private_pool *pool,
                                             ductile_stream stream) {
    if (pool != NULL) {
        return dpool_arena_find_locked(a, pool, stream);
    }
    dpool_arena *arena = a->recent;
    if (__builtin_expect(arena == NULL || arena->stream != stream, 0)) {
        arena = dpool_arena_find_locked(a, a->default_pool, stream);
        a->recent = arena != NULL && arena->thread == 0 ? arena : a->recent;
    }
    return arena;
}

/* The quick path when something else is due. Called with the index lock held; unlocks it. */
static __attribute__((noinline)) dpool_block *
alloc_and_maintain(ductile_allocator *a, dpool_arena *arena, uint64_t size, uint64_t requested) {
    unsigned what = dpool_maintenance_begin_locked(a, arena);
    dpool_block *b = what == DPOOL_MAINTENANCE_STOP
                         ? NULL
                         : dpool_alloc_from_free_locked(a, arena, size, requested);
    dti_lock_release(&a->index_lock);
    if ((what & DPOOL_MAINTENANCE_LATER) != 0) {
        dpool_maintenance_do(a, arena, what);
    }
    return b;
}

/* The quick path: a block when a free one fits. pool: NULL for the default one. */
static inline dpool_block *alloc_hit(ductile_allocator *a, const dpool_private_pool *pool,
                                     uint64_t size, uint64_t requested, ductile_stream stream) {
    dpool_block *b = NULL;
    dti_lock_acquire(&a->index_lock);
    dpool_arena *arena = find_arena_locked(a, pool, stream);
    if (__builtin_expect(arena != NULL, 1)) {
        arena->calls.n++;
        if (__builtin_expect(arena->calls.n >= arena->calls.maintenance_at, 0)) {
            return alloc_and_maintain(a, arena, size, requested);
        }
        b = dpool_alloc_from_free_locked(a, arena, size, requested);
    }
    dti_lock_release(&a->index_lock);
    return b;
}

/* No caller has seen the block: a request that fails counts as none. */
static void take_back(ductile_allocator *a, dpool_block *b) {
    dti_lock_acquire(&a->index_lock);
    dpool_unserve_locked(a, b);
    dti_lock_release(&a->index_lock);
    if (a->options.caching_off != 0) {
        (void)dpool_trim(a, 0);
    }
}

static ductile_status hand_over(ductile_allocator *a, dpool_block *b, size_t size,
                                ductile_stream stream, ductile_addr *out) {
    ductile_addr addr = b->addr;
    dpool_audit(a, DPOOL_AUDIT_CALL);
    ductile_status status = DUCTILE_OK;
    if (a->options.zero != 0) {
        status = dseg_zero(&a->store, addr, size, stream);
    }
    if (status != DUCTILE_OK) {
        take_back(a, b);
    }
    *out = status == DUCTILE_OK ? addr : 0;
    return status;
}

/* What the slow path found, if it found anything. */
static ductile_status hand_over_slow(ductile_allocator *a, const dpool_request *r,
                                     ductile_status status, ductile_addr *out) {
    dpool_audit(a, DPOOL_AUDIT_GROW);
    if (status == DUCTILE_OK) {
        status = hand_over(a, r->block, r->requested, r->stream, out);
    }
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        a->counts.slow_allocs++;
        dti_lock_release(&a->index_lock);
    }
    return status;
}

/* The quick path has looked for the request, or it wants a handle of its own. */
static __attribute__((noinline)) ductile_status alloc_missed(ductile_allocator *a, size_t size,
                                                             ductile_stream stream, bool is_alone,
                                                             ductile_addr *out) {
    *out = 0;
    dpool_request r = {.size =
                           is_alone ? dti_round_up(size, a->granule) : dpool_rounded_size(a, size),
                       .requested = size,
                       .stream = stream,
                       .is_alone = is_alone};
    ductile_status status = dpool_pool_of(a, size, stream, &r.pool);
    if (status == DUCTILE_OK) {
        status = hand_over_slow(a, &r, dpool_alloc_slow(a, &r), out);
        dpool_unpin(a, r.pool);
    }
    return status;
}

/* A request that belongs to the pool, which is pinned. */
static ductile_status alloc_in(ductile_allocator *a, dpool_private_pool *pool, size_t size,
                               ductile_stream stream, ductile_addr *out) {
    dpool_request r = {
        .size = dpool_rounded_size(a, size), .requested = size, .pool = pool, .stream = stream};
    const dpool_private_pool *of = pool != a->default_pool ? pool : NULL;
    dpool_block *b = alloc_hit(a, of, r.size, size, stream);
    if (b != NULL) {
        b = dpool_wait_before_return(a, b);
    }
    return b != NULL ? hand_over(a, b, size, stream, out)
                     : hand_over_slow(a, &r, dpool_alloc_slow(a, &r), out);
}

/* Requests that the quick path does not serve: requests with options that need more than a
 * block, impossible sizes, and all requests while pools are open or the default pool sleeps. */
static __attribute__((noinline)) ductile_status
alloc_otherwise(ductile_allocator *a, size_t size, ductile_stream stream, ductile_addr *out) {
    *out = 0;
    if (size == 0) {
        return DUCTILE_OK;
    }
    if (size > DPOOL_MAX_REQUEST) {
        return dpool_refuse_impossible(a, size, stream);
    }
    if (a->options.find == DUCTILE_FIND_OVERRUNS) {
        return alloc_missed(a, size, stream, true, out);
    }
    dpool_private_pool *pool = NULL;
    ductile_status status = dpool_pool_of(a, size, stream, &pool);
    if (status == DUCTILE_OK) {
        status = alloc_in(a, pool, size, stream, out);
        dpool_unpin(a, pool);
    }
    return status;
}

/* Flattened: the calls between the parts of a hit would cost 7 % of its instructions. */
__attribute__((flatten)) ductile_status ductile_alloc(ductile_allocator *a, size_t size,
                                                      ductile_stream stream, ductile_addr *out) {
    if (__builtin_expect(a == NULL || out == NULL, 0)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (__builtin_expect(!dvmm_is_usable(a->driver), 0)) {
        *out = 0;
        return dvmm_usable(a->driver);
    }
    bool is_quick = a->is_plain && !dpool_has_routes(a) && size - 1 < DPOOL_MAX_REQUEST;
    if (__builtin_expect(!is_quick, 0)) {
        return alloc_otherwise(a, size, stream, out);
    }
    dpool_block *b = alloc_hit(a, NULL, dpool_round(size), size, stream);
    if (__builtin_expect(b == NULL, 0)) {
        return alloc_missed(a, size, stream, false, out);
    }
    *out = b->addr;
    return DUCTILE_OK;
}

ductile_status ductile_alloc_dedicated(ductile_allocator *a, size_t size, ductile_stream stream,
                                       ductile_addr *out) {
    if (a == NULL || out == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *out = 0;
    ductile_status status = dvmm_usable(a->driver);
    if (status != DUCTILE_OK || size == 0) {
        return status;
    }
    return size > DPOOL_MAX_REQUEST ? dpool_refuse_impossible(a, size, stream)
                                    : alloc_missed(a, size, stream, true, out);
}

ductile_status ductile_record_stream(ductile_allocator *a, ductile_addr address,
                                     ductile_stream stream) {
    ductile_status status = dpool_may_change(a);
    if (status != DUCTILE_OK || address == 0) {
        return status;
    }
    return dpool_use_add(a, address, stream);
}

/* ---- Give back ----------------------------------------------------------------------------- */

/* What the trim is about: all that is held, or what is mapped behind the blocks of one pool. */
static uint64_t held_by(ductile_allocator *a, const ductile_pool_id *id) {
    ductile_stats s = {.struct_size = sizeof s};
    if (id == NULL) {
        return dvmm_store_read(&a->store).held_bytes;
    }
    return ductile_get_stats(a, id, &s) == DUCTILE_OK ? s.reserved_bytes : 0;
}

static ductile_status trim_pool(ductile_allocator *a, ductile_pool_id id, uint64_t keep_bytes) {
    dpool_private_pool *pool = dpool_pin_pool(a, id);
    if (pool == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dpool_trim_pool(a, pool, keep_bytes);
    dpool_unpin(a, pool);
    return status;
}

ductile_status ductile_trim(ductile_allocator *a, const ductile_pool_id *id, uint64_t keep_bytes,
                            uint64_t *released) {
    if (released != NULL) {
        *released = 0;
    }
    DTI_TRY(dpool_may_change(a));
    uint64_t before = held_by(a, id);
    dpool_forget_failure();
    ductile_status status = id != NULL ? trim_pool(a, *id, keep_bytes) : dpool_trim(a, keep_bytes);
    dpool_log_losses(a);
    dpool_audit(a, DPOOL_AUDIT_TRIM);
    uint64_t after = held_by(a, id);
    if (released != NULL && after < before) {
        *released = before - after;
    }
    return status;
}
