/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How large handles are made (docs/dev/decisions/0046): at most a 1,024th of what is then held, and
 * a 4,096th of what could be held before that, as a power of two of granules. Where four
 * requests move more than one handle, so many times the 1,024th, up to 16, that they move fewer.
 *
 * A driver call costs the same for a handle of 2 MiB and for one of 64 MiB. But memory that is free
 * in a handle that a live block reaches into serves only requests that fit there. So what strands
 * is a share of what is held, and of what is left near the limit, where tightness decides whether a
 * program lives. There, free memory in large handles is exchanged for granules where a request
 * needs it elsewhere, and granules keep their old addresses (homes.h).
 *
 * The room is what this process may hold: the limit, or what it holds and the device has free, if
 * that is less. All calls: grow lock held.
 */
#ifndef DUCTILE_POOL_GROWTH_SIZES_H
#define DUCTILE_POOL_GROWTH_SIZES_H

#include "pool/blocks/arena.h"

/* The largest handle that the options allow, in bytes: a chosen size as it was chosen. */
uint64_t dpool_largest_handle(const ductile_options *o, uint64_t granule);

/* Called once, with the result. Pre: a->granule is set. */
void dpool_sizes_init(ductile_allocator *a, uint64_t largest);

/* The granules of the largest handle that is made now, but for dedicated ones, by a request that
 * creates so many in all. */
uint32_t dpool_handle_granules(const ductile_allocator *a, uint64_t created);

/* The same for memory that goes and comes back whole, by a sleep: what is held at that moment says
 * nothing about how large its handles may be. They are larger in a pool with a tag. */
uint32_t dpool_whole_granules(ductile_allocator *a, const dpool_private_pool *pool);

/* The same for memory of one block of so many bytes alone, also near the limit. */
uint32_t dpool_granules_in_block(ductile_allocator *a, const dpool_private_pool *pool,
                                 uint64_t bytes);

/* Is it to have handles of its own, in a pool with a tag? Only near the limit, where those that
 * hold many blocks are small. */
bool dpool_is_alone_in_handles(const ductile_allocator *a, uint64_t bytes);

bool dpool_has_tag(ductile_allocator *a, const dpool_private_pool *pool);

/* By how much so many held bytes exceed that limit, or the store's. */
uint64_t dpool_above_limits(const ductile_allocator *a, uint64_t held, uint64_t most_held);

/* What may be held in all, by the limit and by what the device has free now. One driver call. */
uint64_t dpool_room(ductile_allocator *a);

/* Looks how much room is left. One call in 64 asks the driver. Called by each attempt and
 * wake; index lock not held. */
void dpool_sizes_look(ductile_allocator *a);

/* Requests may get a handle of so many granules, or have got one: also the cached handle of a
 * dedicated block, where nothing may be created, or in a pool that wakes. */
void dpool_sizes_note(ductile_allocator *a, uint32_t n_granules);

/* The device had less memory than was thought. True when the request should be tried again, with
 * smaller handles and the free memory of other streams. */
bool dpool_sizes_refused(ductile_allocator *a);

/* After so many handles of that size were mapped for a request or a compaction. Those for which
 * more is held than ever before do not count. */
void dpool_sizes_count_moves(ductile_allocator *a, uint32_t n_handles);

/* Before the peaks of the statistics are reset: growth goes by them. Index lock held, no other. */
void dpool_note_in_use_locked(ductile_allocator *a);

/* Is notably more held than was in use at most? Index lock held, too. */
bool dpool_strands_locked(const ductile_allocator *a);

/* Should a request of `size` create so many bytes, though free memory could move to it? True while
 * there is room, also below max_held, and hardly more is held than was in use at most, this request
 * included: what is needed for the first time has to be created in the end, and moving memory to
 * and fro costs more than creating it once. Index lock held. */
bool dpool_should_create_locked(ductile_allocator *a, uint64_t size, uint64_t bytes,
                                uint64_t max_held);

#endif
