/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's native allocator: segments of 2 MiB, 20 MiB or the request's size from cuMemAlloc,
 * split and merged inside, given back only when the cap is reached and only when wholly free.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/torch_cache.h"
#include "vmm/base/status.h"

static torch_block *find_best_fit(torch_cache *cache, torch_arena *arena, uint64_t size) {
    (void)cache;
    return torch_block_of(torch_set_find_at_least(&arena->free, size, 0));
}

/* A large block keeps a remainder of up to 1 MiB, lest the large class fill with slivers. */
static uint64_t min_remainder(const torch_arena *arena) {
    return arena->is_small ? TORCH_UNIT : TORCH_SMALL_MAX + TORCH_UNIT;
}

static ductile_status grow(torch_cache *cache, torch_arena *arena, uint64_t size,
                           torch_block **out) {
    return torch_cache_grow_alone(cache, arena, torch_segment_size(size), out);
}

static ductile_status release_block(torch_cache *cache, torch_block *block) {
    torch_block_remove(block);
    ductile_status status = torch_cache_release(cache, block);
    if (status != DUCTILE_OK) {
        torch_block_insert(block);
    }
    return status;
}

static ductile_status release_arena(torch_cache *cache, torch_arena *arena) {
    torch_node *next = NULL;
    for (torch_node *node = torch_set_find_first(&arena->free); node != NULL; node = next) {
        next = torch_set_find_next(node);
        torch_block *block = torch_block_of(node);
        if (torch_block_is_split(block)) {
            continue;
        }
        DTI_TRY(release_block(cache, block));
    }
    return DUCTILE_OK;
}

static ductile_status release_free(torch_cache *cache) {
    ductile_status status = DUCTILE_OK;
    for (torch_arena *arena = cache->store.arenas; arena != NULL && status == DUCTILE_OK;
         arena = arena->next) {
        status = torch_arena_gives(arena) ? release_arena(cache, arena) : DUCTILE_OK;
    }
    return status;
}

static const torch_policy classic_policy = {
    .find = find_best_fit,
    .grow = grow,
    .min_remainder = min_remainder,
    .take_back = torch_cache_keep,
    .release_free = release_free,
};

/* ---- The contender's table ----------------------------------------------------------------- */

static ductile_status classic_init(const contender_env *env, void **self, char *message,
                                   size_t size) {
    return torch_cache_create(&classic_policy, sizeof(torch_cache), env, self, message, size);
}

const contender_ops contender_classic = {
    .name = "classic",
    .summary = "PyTorch's native allocator: 2 and 20 MiB segments, flushed at the cap",
    .init = classic_init,
    .fini = torch_cache_destroy,
    .alloc = torch_cache_alloc,
    .free = torch_cache_free,
    .record_stream = torch_cache_record_stream,
    .use_pool = torch_cache_use_pool,
    .end_pool = torch_cache_end_pool,
    .trim = torch_cache_trim,
    .stats = torch_cache_stats,
    .walk = torch_cache_walk,
};
