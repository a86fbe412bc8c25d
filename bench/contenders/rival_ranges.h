/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache whose memory lies in ranges, one per stream and size class, that grow in place by handles
 * of one size, at the lowest address where the request fits: PyTorch's expandable segments.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_RIVAL_RANGES_H
#define DUCTILE_BENCH_CONTENDERS_RIVAL_RANGES_H

#include "bench/contenders/rival_cache.h"
#include "bench/contenders/rival_segment.h"

/* First member of a contender that keeps its memory so. */
typedef struct rival_ranges {
    rival_cache cache; /* first: the policy gets a pointer to it */
    uint64_t large_handle_bytes;
    bool moves; /* handles of free memory go where memory is missing, before new ones are made */
    rival_segment *segments;
    uint64_t span_bytes; /* sum over the segments */
    uint64_t span_peak_bytes;
} rival_ranges;

/* As rival_cache_create. */
ductile_status rival_ranges_create(const rival_policy *policy, size_t bytes,
                                   const contender_env *env, void **self, char *message,
                                   size_t size);

/* The range of an arena, reserved where there is none yet; NULL: it cannot be. */
rival_segment *rival_ranges_reserve(rival_ranges *r, rival_arena *arena);
/* A free block that starts at the address and holds `size`, still in its set; what has no memory is
 * mapped. NULL: the span is not free, or no memory is left. */
rival_block *rival_ranges_open(rival_ranges *r, rival_arena *arena, ductile_addr address,
                               uint64_t size);

/* For rival_policy. */
rival_block *rival_ranges_find(rival_cache *cache, rival_arena *arena, uint64_t size);
ductile_status rival_ranges_grow(rival_cache *cache, rival_arena *arena, uint64_t size,
                                 rival_block **out);
uint64_t rival_ranges_min_remainder(const rival_arena *arena);
ductile_status rival_ranges_release_free(rival_cache *cache);

/* For contender_ops. */
void rival_ranges_destroy(void *self);
void rival_ranges_stats(void *self, contender_stats *out);

#endif
