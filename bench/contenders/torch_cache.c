/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/torch_cache.h"
#include "bench/driver/bench_calls.h"
#include "vmm/base/status.h"

#include <stdio.h>
#include <stdlib.h>

/* A split, a mapped piece and a fresh segment take a block each. */
enum { BLOCKS_PER_ALLOC = 4 };

/* ---- Sizes and accounting ------------------------------------------------------------------ */

static uint64_t round_request(uint64_t size) {
    return dti_round_up(size, TORCH_UNIT);
}

uint64_t torch_segment_size(uint64_t size) {
    if (size <= TORCH_SMALL_MAX) {
        return TORCH_SMALL_SEGMENT;
    }
    return size < TORCH_LARGE_MIN ? TORCH_LARGE_SEGMENT : dti_round_up(size, TORCH_LARGE_ROUNDING);
}

bool torch_cache_fits_cap(torch_cache *cache, uint64_t more) {
    uint64_t wanted = cache->reserved_bytes + more;
    bool fits = cache->capacity_bytes == 0 || wanted <= cache->capacity_bytes;
    if (fits) {
        cache->most_granted = dti_max(cache->most_granted, wanted);
    } else {
        cache->least_refused = dti_min(cache->least_refused, wanted);
    }
    return fits;
}

void torch_cache_add_reserved(torch_cache *cache, uint64_t bytes) {
    cache->reserved_bytes += bytes;
    cache->reserved_peak_bytes = dti_max(cache->reserved_peak_bytes, cache->reserved_bytes);
}

void torch_cache_sub_reserved(torch_cache *cache, uint64_t bytes) {
    cache->reserved_bytes -= bytes;
}

/* ---- Pieces of driver memory --------------------------------------------------------------- */

ductile_status torch_cache_grow_alone(torch_cache *cache, torch_arena *arena, uint64_t bytes,
                                      torch_block **out) {
    if (!torch_cache_fits_cap(cache, bytes)) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    ductile_addr address = 0;
    ductile_status status = bench_mem_alloc(cache->driver, bytes, &address);
    if (status == DUCTILE_OK) {
        cache->allocs++;
        torch_cache_add_reserved(cache, bytes);
        *out = torch_block_take(&cache->store, arena, address, bytes);
    }
    return status;
}

ductile_status torch_cache_release(torch_cache *cache, torch_block *block) {
    ductile_status status = bench_mem_free(cache->driver, block->address);
    if (status == DUCTILE_OK) {
        cache->frees++;
        torch_cache_sub_reserved(cache, block->size);
        torch_block_put(&cache->store, block);
    }
    return status;
}

ductile_status torch_cache_keep(torch_cache *cache, torch_block *block) {
    torch_block_merge(&cache->store, block);
    torch_block_insert(block);
    return DUCTILE_OK;
}

/* ---- Life cycle ---------------------------------------------------------------------------- */

ductile_status contender_refuse(ductile_status status, const char *text, char *message,
                                size_t size) {
    if (size > 0) {
        (void)snprintf(message, size, "%s", text);
    }
    return status;
}

static void on_done(void *user, torch_block *block) {
    torch_cache *cache = user;
    (void)cache->policy->take_back(cache, block);
}

ductile_status torch_cache_create(const torch_policy *policy, size_t bytes,
                                  const contender_env *env, void **self, char *message,
                                  size_t size) {
    torch_cache *cache = calloc(1, bytes);
    *self = cache;
    if (cache == NULL) {
        return contender_refuse(DUCTILE_ERR_OUT_OF_HOST_MEMORY, "no host memory", message, size);
    }
    *cache = (torch_cache){.policy = policy,
                           .driver = env->driver,
                           .capacity_bytes = env->capacity_bytes,
                           .least_refused = UINT64_MAX};
    torch_events_init(&cache->events, env->driver, on_done, cache);
    return DUCTILE_OK;
}

static void free_all_live(torch_cache *cache) {
    for (size_t i = 0; i < cache->live.n_slots; i++) {
        torch_block *block = (torch_block *)cache->live.slots[i].value;
        if (block != NULL) {
            torch_events_drop_uses(&cache->events, block);
            block->is_live = false;
            (void)cache->policy->take_back(cache, block);
        }
    }
}

void torch_cache_fini(torch_cache *cache) {
    (void)dvmm_context_sync(cache->driver);
    for (torch_pool *pool = cache->store.pools; pool != NULL; pool = pool->next) {
        pool->is_kept = false;
    }
    free_all_live(cache);
    (void)torch_cache_trim(cache);
    torch_cache_drop(cache);
}

void torch_cache_drop(torch_cache *cache) {
    torch_events_fini(&cache->events);
    hash_map_drop(&cache->live);
    torch_store_fini(&cache->store);
}

void torch_cache_destroy(void *self) {
    torch_cache_fini(self);
    free(self);
}

/* ---- Allocate ------------------------------------------------------------------------------ */

bool torch_cache_reserve(torch_cache *cache) {
    return hash_map_reserve(&cache->live) && torch_store_reserve(&cache->store, BLOCKS_PER_ALLOC);
}

ductile_status torch_cache_trim(void *self) {
    torch_cache *cache = self;
    ductile_status status = torch_events_wait(&cache->events);
    return status == DUCTILE_OK && cache->policy->release_free != NULL
               ? cache->policy->release_free(cache)
               : status;
}

static uint64_t host_waits(const torch_cache *cache) {
    dvmm_counters counters;
    dvmm_get_counters(cache->driver, &counters);
    return dvmm_count_host_waits(&counters);
}

static ductile_status flush(torch_cache *cache) {
    uint64_t waits = host_waits(cache);
    uint64_t reserved = cache->reserved_bytes;
    ductile_status status = torch_cache_trim(cache);
    cache->pressure_waits += host_waits(cache) > waits;
    cache->pressure_returns += cache->reserved_bytes < reserved;
    cache->pressure_returned_bytes += reserved - cache->reserved_bytes;
    return status;
}

/* As PyTorch: memory that the wait or the release freed is not searched again, only grown into. */
static ductile_status grow_or_flush(torch_cache *cache, torch_arena *arena, uint64_t size,
                                    torch_block **out) {
    ductile_status status = cache->policy->grow(cache, arena, size, out);
    if (status != DUCTILE_ERR_OUT_OF_MEMORY) {
        return status;
    }
    status = flush(cache);
    if (status == DUCTILE_OK && !torch_cache_reserve(cache)) {
        status = DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    return status == DUCTILE_OK ? cache->policy->grow(cache, arena, size, out) : status;
}

static ductile_status get_block(torch_cache *cache, torch_arena *arena, uint64_t size,
                                torch_block **out) {
    *out = cache->policy->find != NULL ? cache->policy->find(cache, arena, size) : NULL;
    if (*out == NULL) {
        return grow_or_flush(cache, arena, size, out);
    }
    torch_block_remove(*out);
    return DUCTILE_OK;
}

static void make_live(torch_cache *cache, torch_block *block, uint64_t size) {
    const torch_policy *policy = cache->policy;
    if (policy->find != NULL && block->size - size >= policy->min_remainder(block->arena)) {
        torch_block_insert(torch_block_split(&cache->store, block, size));
    }
    block->is_live = true;
    hash_map_set(&cache->live, block->address, (uintptr_t)block);
}

static ductile_status alloc_rounded(torch_cache *cache, uint64_t size, ductile_stream stream,
                                    torch_block **out) {
    if (!torch_cache_reserve(cache)) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    DTI_TRY(torch_events_poll(&cache->events));
    torch_arena *arena = torch_store_arena(&cache->store, stream, size <= TORCH_SMALL_MAX);
    if (arena == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    return get_block(cache, arena, size, out);
}

ductile_status torch_cache_alloc(void *self, uint64_t size, ductile_stream stream,
                                 ductile_addr *out) {
    torch_cache *cache = self;
    *out = 0;
    if (size == 0) {
        return DUCTILE_OK;
    }
    if (size > TORCH_REQUEST_MAX) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    uint64_t rounded = round_request(size);
    torch_block *block = NULL;
    DTI_TRY(alloc_rounded(cache, rounded, stream, &block));
    make_live(cache, block, rounded);
    *out = block->address;
    return DUCTILE_OK;
}

/* ---- Free ---------------------------------------------------------------------------------- */

ductile_status torch_cache_free(void *self, ductile_addr address) {
    torch_cache *cache = self;
    if (address == 0) {
        return DUCTILE_OK;
    }
    torch_block *block = (torch_block *)hash_map_find(&cache->live, address);
    if (block == NULL) {
        return DUCTILE_ERR_NOT_LIVE;
    }
    if (block->uses != NULL) {
        DTI_TRY(torch_events_record(&cache->events, block));
    }
    hash_map_remove(&cache->live, address);
    block->is_live = false;
    return block->n_pending == 0 ? cache->policy->take_back(cache, block) : DUCTILE_OK;
}

ductile_status torch_cache_record_stream(void *self, ductile_addr address, ductile_stream stream) {
    torch_cache *cache = self;
    torch_block *block = (torch_block *)hash_map_find(&cache->live, address);
    return block != NULL ? torch_events_add_use(&cache->events, block, stream)
                         : DUCTILE_ERR_NOT_LIVE;
}

/* ---- Pools --------------------------------------------------------------------------------- */

ductile_status torch_cache_use_pool(void *self, ductile_pool_id from, ductile_pool_id to) {
    torch_cache *cache = self;
    torch_pool *pool = NULL;
    (void)from;
    if (to.first != 0 || to.second != 0) {
        pool = torch_store_pool(&cache->store, to);
        if (pool == NULL) {
            return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
        }
        pool->is_kept = true;
    }
    cache->store.pool = pool;
    return DUCTILE_OK;
}

/* As PyTorch: what is wholly free goes back when memory is short, and the rest as it comes free. */
ductile_status torch_cache_end_pool(void *self, ductile_pool_id id) {
    torch_cache *cache = self;
    torch_pool *pool = torch_store_pool(&cache->store, id);
    if (pool == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    pool->is_kept = false;
    return DUCTILE_OK;
}

/* ---- Inspection ---------------------------------------------------------------------------- */

static void visit_block(void *user, const torch_block *block) {
    const contender_walk *to = user;
    if (block->is_mapped) {
        contender_span span = {.address = block->address,
                               .size = block->size,
                               .state = block->is_live                 ? SPAN_LIVE
                                        : torch_block_is_usable(block) ? SPAN_FREE
                                                                       : SPAN_PENDING,
                               .begins = block->prev == NULL,
                               .stream = block->arena->stream,
                               .pool = block->arena->pool != NULL ? block->arena->pool->id
                                                                  : (ductile_pool_id){0},
                               .least = block->arena->is_small ? 0 : TORCH_SMALL_MAX + 1,
                               .most = block->arena->is_small ? TORCH_SMALL_MAX : UINT64_MAX};
        to->visit(to->user, &span);
    }
}

void torch_cache_walk(void *self, contender_visit visit, void *user) {
    const torch_cache *cache = self;
    contender_walk to = {visit, user};
    torch_store_walk(&cache->store, visit_block, &to);
}

/* ---- Statistics ---------------------------------------------------------------------------- */

void torch_cache_driver_stats(const torch_cache *cache, contender_stats *out) {
    dvmm_counters counters;
    dvmm_get_counters(cache->driver, &counters);
    out->creates = dvmm_successes(&counters, DVMM_CALL_phys_create) + cache->allocs;
    out->releases = dvmm_successes(&counters, DVMM_CALL_phys_release) + cache->frees;
    out->maps = dvmm_successes(&counters, DVMM_CALL_map);
    out->unmaps = dvmm_successes(&counters, DVMM_CALL_unmap);
    out->stream_syncs = dvmm_count_host_waits(&counters);
    out->event_waits = counters.calls[DVMM_CALL_stream_wait_event];
    out->driver_time_ns = counters.driver_time_ns;
    out->driver_host_ns = counters.host_time_ns;
}

void torch_cache_stats(void *self, contender_stats *out) {
    const torch_cache *cache = self;
    *out = (contender_stats){.reserved_bytes = cache->reserved_bytes,
                             .reserved_peak_bytes = cache->reserved_peak_bytes,
                             .address_span_bytes = cache->reserved_peak_bytes,
                             .same_from = cache->most_granted,
                             .same_below = cache->least_refused,
                             .pressure_waits = cache->pressure_waits,
                             .pressure_returns = cache->pressure_returns,
                             .pressure_returned_bytes = cache->pressure_returned_bytes};
    torch_cache_driver_stats(cache, out);
}
