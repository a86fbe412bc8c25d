/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What PyTorch's allocators have in common, native, with expandable segments and without a cache:
 * rounding, size classes, best fit within a stream, splitting, merging, uses by other streams, and
 * the one answer to running out: give back everything that is wholly free and try again.
 *
 * Not thread-safe, and without PyTorch's lock: a bench drives a contender from one thread.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_TORCH_CACHE_H
#define DUCTILE_BENCH_CONTENDERS_TORCH_CACHE_H

#include "bench/base/hash_map.h"
#include "bench/contenders/contender.h"
#include "bench/contenders/torch_blocks.h"
#include "bench/contenders/torch_events.h"
#include "vmm/base/align.h"

/* PyTorch's constants. */
#define TORCH_UNIT ((uint64_t)512)            /* requests are multiples of it          */
#define TORCH_SMALL_MAX DTI_MIB               /* the largest request of the small class */
#define TORCH_SMALL_SEGMENT (2 * DTI_MIB)     /* memory is got for it in these          */
#define TORCH_LARGE_SEGMENT (20 * DTI_MIB)    /* and for requests up to                 */
#define TORCH_LARGE_MIN (10 * DTI_MIB)        /* this; above, rounded up to             */
#define TORCH_LARGE_ROUNDING (2 * DTI_MIB)    /* multiples of this                      */
#define TORCH_REQUEST_MAX ((uint64_t)1 << 62) /* keeps all roundings from wrapping      */

typedef struct torch_cache torch_cache;

/* Where they differ. Of a policy that keeps no free block, find, min_remainder and release_free are
 * NULL. */
typedef struct torch_policy {
    /* The free block that serves a request, still in its set; NULL: none. */
    torch_block *(*find)(torch_cache *cache, torch_arena *arena, uint64_t size);
    /* A new block that holds at least `size`, in no set. ERR_OUT_OF_MEMORY: at the cap. */
    ductile_status (*grow)(torch_cache *cache, torch_arena *arena, uint64_t size,
                           torch_block **out);
    /* The smallest remainder of a block that is split off. */
    uint64_t (*min_remainder)(const torch_arena *arena);
    /* Takes a block that nothing uses any more. */
    ductile_status (*take_back)(torch_cache *cache, torch_block *block);
    /* Gives back what is wholly free. */
    ductile_status (*release_free)(torch_cache *cache);
} torch_policy;

/* First member of such a contender: what the functions below get as `self` begins with it. */
struct torch_cache {
    const torch_policy *policy;
    dvmm_driver *driver;
    uint64_t capacity_bytes; /* 0: none */
    uint64_t most_granted;  /* of what would be held, where the cap was asked: with a cap between */
    uint64_t least_refused; /* these two every answer would be the same */
    uint64_t reserved_bytes;
    uint64_t reserved_peak_bytes;
    uint64_t allocs, frees;  /* by the driver, of memory without handles */
    uint64_t pressure_waits; /* see contender.h */
    uint64_t pressure_returns;
    uint64_t pressure_returned_bytes;
    torch_store store;
    torch_events events;
    hash_map live; /* address to block */
};

/* Writes `text` as the message of a failed init and returns `status`. */
ductile_status contender_refuse(ductile_status status, const char *text, char *message,
                                size_t size);

/* A contender of so many bytes, all zero but for its cache. As contender_ops.init. */
ductile_status torch_cache_create(const torch_policy *policy, size_t bytes,
                                  const contender_env *env, void **self, char *message,
                                  size_t size);
/* Frees every live block, waits for the device and gives everything back. */
void torch_cache_fini(torch_cache *cache);
/* What is left where the driver has all memory back. */
void torch_cache_drop(torch_cache *cache);
/* Makes room for what one allocation needs to note. False: no host memory. */
bool torch_cache_reserve(torch_cache *cache);

/* What PyTorch asks the driver for to serve a request; the cap is checked with it. */
uint64_t torch_segment_size(uint64_t size);
bool torch_cache_fits_cap(torch_cache *cache, uint64_t more);
void torch_cache_add_reserved(torch_cache *cache, uint64_t bytes);
void torch_cache_sub_reserved(torch_cache *cache, uint64_t bytes);

/* For torch_policy.take_back: the block is free, united with its neighbours; or its memory, which
 * torch_cache_grow_alone got for it from the driver, goes back. Pre of both: it is in no set. */
ductile_status torch_cache_keep(torch_cache *cache, torch_block *block);
ductile_status torch_cache_release(torch_cache *cache, torch_block *block);
/* For torch_policy.grow: a piece of driver memory of its own. */
ductile_status torch_cache_grow_alone(torch_cache *cache, torch_arena *arena, uint64_t bytes,
                                      torch_block **out);

/* For contender_ops. */
void torch_cache_destroy(void *self);
ductile_status torch_cache_alloc(void *self, uint64_t size, ductile_stream stream,
                                 ductile_addr *out);
ductile_status torch_cache_free(void *self, ductile_addr address);
ductile_status torch_cache_record_stream(void *self, ductile_addr address, ductile_stream stream);
ductile_status torch_cache_use_pool(void *self, ductile_pool_id from, ductile_pool_id to);
ductile_status torch_cache_end_pool(void *self, ductile_pool_id pool);
/* Waits for every event and gives back what is wholly free, but in pools that are kept. */
ductile_status torch_cache_trim(void *self);
/* The span is that of a contender whose every piece of memory is a range of its own, in use as a
 * whole: their sum. */
void torch_cache_stats(void *self, contender_stats *out);
void torch_cache_walk(void *self, contender_visit visit, void *user);

/* Fills what the driver's counters know; the rest is left alone. */
void torch_cache_driver_stats(const torch_cache *cache, contender_stats *out);

#endif
