/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No caching: every request is a cuMemAlloc, every free a cuMemFree, as PyTorch does when its
 * caching is switched off. A block used by another stream is freed once that work was seen done.
 */
#include "bench/base/hash_map.h"
#include "bench/contenders/contender.h"
#include "bench/contenders/rival_blocks.h"
#include "bench/contenders/rival_events.h"
#include "bench/contenders/rival_report.h"

#include "vmm/base/align.h"

#include <stdlib.h>

/* reserved_bytes counts whole granules from one granule up. Smaller allocations share granules, in
 * a way that only the driver knows: they count with their own size. */
typedef struct uncached {
    dvmm_driver *driver;
    uint64_t capacity_bytes;
    uint64_t reserved_bytes;
    uint64_t reserved_peak_bytes;
    rival_store store;
    rival_events events;
    hash_map live;
} uncached;

/* ---- Free ---------------------------------------------------------------------------------- */

static ductile_status release_block(uncached *u, rival_block *block) {
    ductile_status status = dvmm_mem_free(u->driver, block->address);
    u->reserved_bytes -= block->size;
    rival_block_put(&u->store, block);
    return status;
}

static void on_done(void *user, rival_block *block) {
    (void)release_block(user, block);
}

static ductile_status uncached_free(void *self, ductile_addr address) {
    uncached *u = self;
    if (address == 0) {
        return DUCTILE_OK;
    }
    rival_block *block = (rival_block *)hash_map_find(&u->live, address);
    if (block == NULL) {
        return DUCTILE_ERR_NOT_LIVE;
    }
    if (block->uses != NULL) {
        ductile_status status = rival_events_record(&u->events, block);
        if (status != DUCTILE_OK) {
            return status;
        }
    }
    hash_map_remove(&u->live, address);
    return block->n_pending == 0 ? release_block(u, block) : DUCTILE_OK;
}

static ductile_status uncached_record_stream(void *self, ductile_addr address,
                                             ductile_stream stream) {
    uncached *u = self;
    rival_block *block = (rival_block *)hash_map_find(&u->live, address);
    return block != NULL ? rival_events_add_use(&u->events, block, stream) : DUCTILE_ERR_NOT_LIVE;
}

static ductile_status uncached_trim(void *self) {
    uncached *u = self;
    return rival_events_wait(&u->events);
}

/* ---- Allocate ------------------------------------------------------------------------------ */

static ductile_status try_alloc(uncached *u, uint64_t size, ductile_addr *out) {
    if (u->capacity_bytes != 0 && u->reserved_bytes + size > u->capacity_bytes) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    return dvmm_mem_alloc(u->driver, size, out);
}

static ductile_status alloc_or_wait(uncached *u, uint64_t size, ductile_addr *out) {
    ductile_status status = rival_events_poll(&u->events);
    if (status != DUCTILE_OK) {
        return status;
    }
    status = try_alloc(u, size, out);
    if (status != DUCTILE_ERR_OUT_OF_MEMORY) {
        return status;
    }
    status = rival_events_wait(&u->events);
    return status == DUCTILE_OK ? try_alloc(u, size, out) : status;
}

static rival_arena *prepare(uncached *u, ductile_stream stream) {
    return hash_map_reserve(&u->live) && rival_store_reserve(&u->store, 1)
               ? rival_store_arena(&u->store, stream, false)
               : NULL;
}

static uint64_t held_bytes(const uncached *u, uint64_t size) {
    uint64_t granule = dvmm_get_caps(u->driver)->granule_bytes;
    return dti_round_up(size, size < granule ? DUCTILE_ALIGNMENT : granule);
}

static ductile_status uncached_alloc(void *self, uint64_t size, ductile_stream stream,
                                     ductile_addr *out) {
    uncached *u = self;
    *out = 0;
    if (size == 0) {
        return DUCTILE_OK;
    }
    if (size > (uint64_t)1 << 62) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    rival_arena *arena = prepare(u, stream);
    if (arena == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    uint64_t rounded = held_bytes(u, size);
    ductile_status status = alloc_or_wait(u, rounded, out);
    if (status != DUCTILE_OK) {
        return status;
    }
    hash_map_set(&u->live, *out, (uintptr_t)rival_block_take(&u->store, arena, *out, rounded));
    u->reserved_bytes += rounded;
    u->reserved_peak_bytes = dti_max(u->reserved_peak_bytes, u->reserved_bytes);
    return DUCTILE_OK;
}

/* ---- Life cycle ---------------------------------------------------------------------------- */

static ductile_status uncached_init(const contender_env *env, void **self, char *message,
                                    size_t size) {
    uncached *u = calloc(1, sizeof(*u));
    *self = u;
    if (u == NULL) {
        return rival_refuse(DUCTILE_ERR_OUT_OF_HOST_MEMORY, "no host memory", message, size);
    }
    u->driver = env->driver;
    u->capacity_bytes = env->capacity_bytes;
    rival_events_init(&u->events, env->driver, on_done, u);
    return DUCTILE_OK;
}

static void uncached_fini(void *self) {
    uncached *u = self;
    (void)dvmm_context_sync(u->driver);
    (void)rival_events_wait(&u->events);
    for (size_t i = 0; i < u->live.n_slots; i++) {
        rival_block *block = (rival_block *)u->live.slots[i].value;
        if (block != NULL) {
            rival_events_drop_uses(&u->events, block);
            (void)release_block(u, block);
        }
    }
    rival_events_fini(&u->events);
    hash_map_drop(&u->live);
    rival_store_fini(&u->store);
    free(u);
}

/* Every allocation is a range of its own, so their span is their sum. */
static void uncached_stats(void *self, contender_stats *out) {
    const uncached *u = self;
    *out = (contender_stats){.reserved_bytes = u->reserved_bytes,
                             .reserved_peak_bytes = u->reserved_peak_bytes,
                             .address_span_bytes = u->reserved_peak_bytes};
    rival_driver_stats(u->driver, out);
}

const contender_ops contender_cumemalloc = {
    .name = "cumemalloc",
    .summary = "no caching: cuMemAlloc and cuMemFree for every request",
    .init = uncached_init,
    .fini = uncached_fini,
    .alloc = uncached_alloc,
    .free = uncached_free,
    .record_stream = uncached_record_stream,
    .trim = uncached_trim,
    .stats = uncached_stats,
};
