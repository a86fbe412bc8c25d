/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's native allocator: segments of 2 MiB, 20 MiB or the request's size from cuMemAlloc,
 * split and merged inside, given back only when the cap is reached and only when wholly free.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/rival_cache.h"
#include "bench/contenders/rival_report.h"

#include <stdlib.h>

static rival_block *find_best_fit(rival_cache *cache, rival_arena *arena, uint64_t size) {
    (void)cache;
    return rival_block_of(rival_set_find_at_least(&arena->free, size, 0));
}

/* A large block keeps a remainder of up to 1 MiB, lest the large class fill with slivers. */
static uint64_t min_remainder(const rival_arena *arena) {
    return arena->is_small ? RIVAL_UNIT : RIVAL_SMALL_MAX + RIVAL_UNIT;
}

static ductile_status grow(rival_cache *cache, rival_arena *arena, uint64_t size,
                           rival_block **out) {
    uint64_t bytes = rival_segment_size(size);
    if (!rival_cache_fits_cap(cache, bytes)) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    ductile_addr address = 0;
    ductile_status status = dvmm_mem_alloc(cache->driver, bytes, &address);
    if (status == DUCTILE_OK) {
        rival_cache_add_reserved(cache, bytes);
        *out = rival_block_take(&cache->store, arena, address, bytes);
    }
    return status;
}

static ductile_status release_block(rival_cache *cache, rival_block *block) {
    ductile_status status = dvmm_mem_free(cache->driver, block->address);
    if (status == DUCTILE_OK) {
        rival_cache_sub_reserved(cache, block->size);
        rival_block_remove(block);
        rival_block_put(&cache->store, block);
    }
    return status;
}

static ductile_status release_arena(rival_cache *cache, rival_arena *arena) {
    rival_node *next = NULL;
    for (rival_node *node = rival_set_find_first(&arena->free); node != NULL; node = next) {
        next = rival_set_find_next(node);
        rival_block *block = rival_block_of(node);
        if (rival_block_is_split(block)) {
            continue;
        }
        ductile_status status = release_block(cache, block);
        if (status != DUCTILE_OK) {
            return status;
        }
    }
    return DUCTILE_OK;
}

static ductile_status release_free(rival_cache *cache) {
    ductile_status status = DUCTILE_OK;
    for (rival_arena *arena = cache->store.arenas; arena != NULL && status == DUCTILE_OK;
         arena = arena->next) {
        status = release_arena(cache, arena);
    }
    return status;
}

static const rival_policy classic_policy = {
    .find = find_best_fit,
    .grow = grow,
    .min_remainder = min_remainder,
    .release_free = release_free,
};

/* ---- The contender's table ----------------------------------------------------------------- */

static ductile_status classic_init(const contender_env *env, void **self, char *message,
                                   size_t size) {
    rival_cache *cache = malloc(sizeof(*cache));
    *self = cache;
    if (cache == NULL) {
        return rival_refuse(DUCTILE_ERR_OUT_OF_HOST_MEMORY, "no host memory", message, size);
    }
    rival_cache_init(cache, &classic_policy, env);
    return DUCTILE_OK;
}

static void classic_fini(void *self) {
    rival_cache_fini(self);
    free(self);
}

static ductile_status classic_alloc(void *self, uint64_t size, ductile_stream stream,
                                    ductile_addr *out) {
    return rival_cache_alloc(self, size, stream, out);
}

static ductile_status classic_free(void *self, ductile_addr address) {
    return rival_cache_free(self, address);
}

static ductile_status classic_record_stream(void *self, ductile_addr address,
                                            ductile_stream stream) {
    return rival_cache_record_stream(self, address, stream);
}

static ductile_status classic_trim(void *self) {
    return rival_cache_trim(self);
}

/* Every segment is a range of its own and in use as a whole, so their span is their sum. */
static void classic_stats(void *self, contender_stats *out) {
    const rival_cache *cache = self;
    rival_cache_stats(cache, out);
    out->address_span_bytes = cache->reserved_peak_bytes;
}

static void classic_walk(void *self, contender_visit visit, void *user) {
    rival_cache_walk(self, visit, user);
}

const contender_ops contender_classic = {
    .name = "classic",
    .summary = "PyTorch's native allocator: 2 and 20 MiB segments, flushed at the cap",
    .init = classic_init,
    .fini = classic_fini,
    .alloc = classic_alloc,
    .free = classic_free,
    .record_stream = classic_record_stream,
    .trim = classic_trim,
    .stats = classic_stats,
    .walk = classic_walk,
};
