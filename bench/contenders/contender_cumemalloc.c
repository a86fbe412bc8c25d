/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No caching: every request is a cuMemAlloc, every free a cuMemFree, as PyTorch does when its
 * caching is switched off. A block used by another stream is freed once that work was seen done.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/torch_cache.h"

/* Reserved bytes count whole granules from one granule up. Smaller allocations share granules, in a
 * way that only the driver knows: they count with their own size. */
static uint64_t held_bytes(const torch_cache *cache, uint64_t size) {
    uint64_t granule = dvmm_get_caps(cache->driver)->granule_bytes;
    return dti_round_up(size, size < granule ? DUCTILE_ALIGNMENT : granule);
}

static ductile_status grow(torch_cache *cache, torch_arena *arena, uint64_t size,
                           torch_block **out) {
    return torch_cache_grow_alone(cache, arena, held_bytes(cache, size), out);
}

static const torch_policy uncached_policy = {.grow = grow, .take_back = torch_cache_release};

static ductile_status uncached_init(const contender_env *env, void **self, char *message,
                                    size_t size) {
    return torch_cache_create(&uncached_policy, sizeof(torch_cache), env, self, message, size);
}

const contender_ops contender_cumemalloc = {
    .name = "cumemalloc",
    .summary = "no caching: cuMemAlloc and cuMemFree for every request",
    .init = uncached_init,
    .fini = torch_cache_destroy,
    .alloc = torch_cache_alloc,
    .free = torch_cache_free,
    .record_stream = torch_cache_record_stream,
    .trim = torch_cache_trim,
    .stats = torch_cache_stats,
};
