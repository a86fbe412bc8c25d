/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's expandable segments: one huge range per stream and size class that grows by 2 MiB or
 * 20 MiB handles, at the lowest address where the request fits. At the cap every wholly free handle
 * of every segment is unmapped and released, with a wait for the segment's stream for each free
 * block.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/rival_ranges.h"
#include "bench/contenders/rival_report.h"

#include <stdlib.h>

static const rival_policy expandable_policy = {
    .find = rival_ranges_find,
    .grow = rival_ranges_grow,
    .min_remainder = rival_ranges_min_remainder,
    .release_free = rival_ranges_release_free,
};

/* ---- The contender's table ----------------------------------------------------------------- */

static ductile_status expandable_init(const contender_env *env, void **self, char *message,
                                      size_t size) {
    rival_ranges *r = malloc(sizeof(*r));
    *self = r;
    if (r == NULL) {
        return rival_refuse(DUCTILE_ERR_OUT_OF_HOST_MEMORY, "no host memory", message, size);
    }
    rival_ranges_init(r, &expandable_policy, env);
    return DUCTILE_OK;
}

static void expandable_fini(void *self) {
    rival_ranges_fini(self);
    free(self);
}

static ductile_status expandable_alloc(void *self, uint64_t size, ductile_stream stream,
                                       ductile_addr *out) {
    rival_ranges *r = self;
    return rival_cache_alloc(&r->cache, size, stream, out);
}

static ductile_status expandable_free(void *self, ductile_addr address) {
    rival_ranges *r = self;
    return rival_cache_free(&r->cache, address);
}

static ductile_status expandable_record_stream(void *self, ductile_addr address,
                                               ductile_stream stream) {
    rival_ranges *r = self;
    return rival_cache_record_stream(&r->cache, address, stream);
}

static ductile_status expandable_trim(void *self) {
    rival_ranges *r = self;
    return rival_cache_trim(&r->cache);
}

static void expandable_stats(void *self, contender_stats *out) {
    rival_ranges_stats(self, out);
}

static void expandable_walk(void *self, contender_visit visit, void *user) {
    const rival_ranges *r = self;
    rival_cache_walk(&r->cache, visit, user);
}

const contender_ops contender_expandable = {
    .name = "expandable",
    .summary =
        "PyTorch's expandable segments: 2 and 20 MiB handles, growth only, flushed at the cap",
    .init = expandable_init,
    .fini = expandable_fini,
    .alloc = expandable_alloc,
    .free = expandable_free,
    .record_stream = expandable_record_stream,
    .trim = expandable_trim,
    .stats = expandable_stats,
    .walk = expandable_walk,
};
