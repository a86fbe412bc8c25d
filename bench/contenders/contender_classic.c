/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's native allocator: segments of 2 MiB, 20 MiB or the request's size from cuMemAlloc,
 * split and merged inside, given back only when the cap is reached and only when wholly free.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/rival_cache.h"
#include "vmm/base/status.h"

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
    return rival_cache_grow_alone(cache, arena, rival_segment_size(size), out);
}

static ductile_status release_block(rival_cache *cache, rival_block *block) {
    rival_block_remove(block);
    ductile_status status = rival_cache_release(cache, block);
    if (status != DUCTILE_OK) {
        rival_block_insert(block);
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
        DTI_TRY(release_block(cache, block));
    }
    return DUCTILE_OK;
}

static ductile_status release_free(rival_cache *cache) {
    ductile_status status = DUCTILE_OK;
    for (rival_arena *arena = cache->store.arenas; arena != NULL && status == DUCTILE_OK;
         arena = arena->next) {
        status = rival_arena_gives(arena) ? release_arena(cache, arena) : DUCTILE_OK;
    }
    return status;
}

static const rival_policy classic_policy = {
    .find = find_best_fit,
    .grow = grow,
    .min_remainder = min_remainder,
    .take_back = rival_cache_keep,
    .release_free = release_free,
};

/* ---- The contender's table ----------------------------------------------------------------- */

static ductile_status classic_init(const contender_env *env, void **self, char *message,
                                   size_t size) {
    return rival_cache_create(&classic_policy, sizeof(rival_cache), env, self, message, size);
}

const contender_ops contender_classic = {
    .name = "classic",
    .summary = "PyTorch's native allocator: 2 and 20 MiB segments, flushed at the cap",
    .init = classic_init,
    .fini = rival_cache_destroy,
    .alloc = rival_cache_alloc,
    .free = rival_cache_free,
    .record_stream = rival_cache_record_stream,
    .use_pool = rival_cache_use_pool,
    .end_pool = rival_cache_end_pool,
    .trim = rival_cache_trim,
    .stats = rival_cache_stats,
    .walk = rival_cache_walk,
};
