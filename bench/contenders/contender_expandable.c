/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's expandable segments: one huge range per stream and size class that grows by 2 MiB or
 * 20 MiB handles, at the lowest address where the request fits. At the cap every wholly free handle
 * of every segment is unmapped and released, with a wait for the segment's stream for each free
 * block.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/rival_ranges.h"

static const rival_policy expandable_policy = {
    .find = rival_ranges_find,
    .grow = rival_ranges_grow,
    .min_remainder = rival_ranges_min_remainder,
    .take_back = rival_cache_keep,
    .release_free = rival_ranges_release_free,
};

static ductile_status expandable_init(const contender_env *env, void **self, char *message,
                                      size_t size) {
    return rival_ranges_create(&expandable_policy, sizeof(rival_ranges), env, self, message, size);
}

const contender_ops contender_expandable = {
    .name = "expandable",
    .summary =
        "PyTorch's expandable segments: 2 and 20 MiB handles, growth only, flushed at the cap",
    .init = expandable_init,
    .fini = rival_ranges_destroy,
    .alloc = rival_cache_alloc,
    .free = rival_cache_free,
    .record_stream = rival_cache_record_stream,
    .trim = rival_cache_trim,
    .stats = rival_ranges_stats,
    .walk = rival_cache_walk,
};
