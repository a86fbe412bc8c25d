/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's own stream-ordered pool, used as PyTorch's cudaMallocAsync backend uses it: a block
 * goes back on its own stream, or, when other streams used it, on a stream that waits for them all.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/torch_cache.h"
#include "bench/driver/bench_calls.h"
#include "vmm/base/status.h"

#include <stdlib.h>

typedef struct async_pool {
    torch_cache
        base; /* without a policy: only its blocks and their uses; no event is ever queued */
    ductile_stream unifying; /* waits for every stream that used a block, then frees it     */
    dvmm_event event;        /* recorded and waited for at once: one serves all             */
} async_pool;

static dvmm_driver *driver_of(const async_pool *p) {
    return p->base.driver;
}

/* ---- Free ---------------------------------------------------------------------------------- */

static ductile_status wait_for(async_pool *p, ductile_stream stream) {
    DTI_TRY(dvmm_event_record(driver_of(p), p->event, stream));
    return dvmm_stream_wait_event(driver_of(p), p->unifying, p->event);
}

static ductile_status wait_for_users(async_pool *p, const torch_block *block) {
    DTI_TRY(wait_for(p, block->arena->stream));
    for (const torch_use *use = block->uses; use != NULL; use = use->next) {
        DTI_TRY(wait_for(p, use->queue->stream));
    }
    return DUCTILE_OK;
}

static ductile_status give_back(async_pool *p, const torch_block *block) {
    ductile_stream stream = block->arena->stream;
    if (block->uses != NULL) {
        DTI_TRY(wait_for_users(p, block));
        stream = p->unifying;
    }
    DTI_TRY(bench_mem_free_async(driver_of(p), block->address, stream));
    p->base.frees++;
    return DUCTILE_OK;
}

static ductile_status async_free(void *self, ductile_addr address) {
    async_pool *p = self;
    if (address == 0) {
        return DUCTILE_OK;
    }
    torch_block *block = (torch_block *)hash_map_find(&p->base.live, address);
    if (block == NULL) {
        return DUCTILE_ERR_NOT_LIVE;
    }
    DTI_TRY(give_back(p, block));
    torch_events_drop_uses(&p->base.events, block);
    hash_map_remove(&p->base.live, address);
    torch_block_put(&p->base.store, block);
    return DUCTILE_OK;
}

static ductile_status async_trim(void *self) {
    async_pool *p = self;
    DTI_TRY(dvmm_context_sync(driver_of(p)));
    return bench_async_pool_trim(driver_of(p), 0);
}

/* ---- Allocate ------------------------------------------------------------------------------ */

static ductile_status async_alloc(void *self, uint64_t size, ductile_stream stream,
                                  ductile_addr *out) {
    async_pool *p = self;
    *out = 0;
    if (size == 0) {
        return DUCTILE_OK;
    }
    torch_arena *arena =
        torch_cache_reserve(&p->base) ? torch_store_arena(&p->base.store, stream, false) : NULL;
    if (arena == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    DTI_TRY(bench_mem_alloc_async(driver_of(p), size, stream, out));
    p->base.allocs++;
    torch_block *block = torch_block_take(&p->base.store, arena, *out, size);
    hash_map_set(&p->base.live, *out, (uintptr_t)block);
    return DUCTILE_OK;
}

/* ---- Life cycle ---------------------------------------------------------------------------- */

static ductile_status open_pool(async_pool *p) {
    DTI_TRY(async_trim(p)); /* the pool outlives a run: its peak must not */
    DTI_TRY(dvmm_stream_create(driver_of(p), &p->unifying));
    ductile_status status = dvmm_event_create(driver_of(p), &p->event);
    if (status != DUCTILE_OK) {
        (void)dvmm_stream_destroy(driver_of(p), p->unifying);
    }
    return status;
}

static ductile_status async_init(const contender_env *env, void **self, char *message,
                                 size_t size) {
    *self = NULL;
    if (!bench_has_async_pool(env->driver)) {
        return contender_refuse(DUCTILE_ERR_UNSUPPORTED, "this device has no stream-ordered pool",
                                message, size);
    }
    if (env->capacity_bytes != 0) {
        return contender_refuse(DUCTILE_ERR_UNSUPPORTED, "the driver's pool cannot be capped",
                                message, size);
    }
    DTI_TRY(torch_cache_create(NULL, sizeof(async_pool), env, self, message, size));
    ductile_status status = open_pool(*self);
    if (status != DUCTILE_OK) {
        free(*self);
        *self = NULL;
        return contender_refuse(status, ductile_status_string(status), message, size);
    }
    return DUCTILE_OK;
}

static void async_fini(void *self) {
    async_pool *p = self;
    for (size_t i = 0; i < p->base.live.n_slots; i++) {
        torch_block *block = (torch_block *)p->base.live.slots[i].value;
        if (block != NULL) {
            (void)give_back(p, block);
            torch_events_drop_uses(&p->base.events, block);
        }
    }
    (void)async_trim(p);
    (void)dvmm_event_destroy(driver_of(p), p->event);
    (void)dvmm_stream_destroy(driver_of(p), p->unifying);
    torch_cache_drop(&p->base);
    free(p);
}

/* The pool's addresses are the driver's secret: what it holds stands for their span. */
static void async_stats(void *self, contender_stats *out) {
    const async_pool *p = self;
    *out = (contender_stats){0};
    (void)bench_async_pool_info(driver_of(p), &out->reserved_bytes, &out->reserved_peak_bytes);
    out->address_span_bytes = out->reserved_peak_bytes;
    torch_cache_driver_stats(&p->base, out);
}

const contender_ops contender_cumemallocasync = {
    .name = "cumemallocasync",
    .summary = "the driver's stream-ordered pool (CUDA only)",
    .init = async_init,
    .fini = async_fini,
    .alloc = async_alloc,
    .free = async_free,
    .record_stream = torch_cache_record_stream,
    .trim = async_trim,
    .stats = async_stats,
};
