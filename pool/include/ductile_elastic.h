/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elastic ranges: addresses that stay, behind which memory comes and goes, for what grows and
 * shrinks in place: the cache of a server, a vector, a table.
 *
 *     ductile_elastic *cache = NULL;
 *     ductile_elastic_options options = {.struct_size = sizeof options, .unit_bytes = 64u << 20};
 *     if (ductile_elastic_open(a, 32ull << 30, stream, &options, &cache) == DUCTILE_OK &&
 *         ductile_elastic_commit(cache, 0, 1ull << 30) == DUCTILE_OK) {
 *         ... kernels on the stream use the first GiB, from ductile_elastic_address(cache) on ...
 *         (void)ductile_elastic_commit(cache, 1ull << 30, 64u << 20);     // it grows in place
 *         ductile_elastic_decommit(cache, 512u << 20, 576u << 20, NULL, 0); // and shrinks
 *         ductile_elastic_close(cache);
 *     }
 *
 * A range belongs to one stream and consists of units of one size. A unit that is committed is a
 * block like any other: ductile_block_info, ductile_walk, pins, tags, sleep and the statistics know
 * it, and ductile_free of its address is a decommit of that unit. Its memory comes from where the
 * memory of a request comes from that no free block serves, free memory of all streams first, and
 * once it is decommitted and the GPU is known to be done with it, it serves other requests.
 *
 * A decommitted unit stays mapped until its memory is wanted elsewhere. To touch it is a use after
 * a free: it may work for a while. So decommit as early as the program can; no owner has to be
 * asked for memory back under pressure.
 *
 * What memory leaves by is an unmap, behind a proof that the GPU is done, never a second mapping.
 * So a commit always finds its addresses unused, and has to wait only as an allocation does that
 * lacks memory. What the same stream has just freed outside of the range serves a commit as another
 * stream's memory would: once it is proven done.
 *
 * Included by ductile.h; compiles alone.
 */
#ifndef DUCTILE_ELASTIC_H
#define DUCTILE_ELASTIC_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

/** An open range. */
typedef struct ductile_elastic ductile_elastic;

/** How a range is divided. Set struct_size; fields left 0 have their defaults. */
typedef struct ductile_elastic_options {
    size_t struct_size;  /* set by the caller */
    uint64_t unit_bytes; /* what is committed and decommitted at once, a multiple of the driver's
                            granule (2 MiB on today's GPUs); 0: one granule. Each driver call costs
                            as much for 2 MiB as for 64 MiB */
} ductile_elastic_options;

/**
 * Reserves the addresses of a range, without memory.
 *
 * Arguments: bytes: how large it can ever become; rounded up to whole units. Addresses cost no
 *            memory, but count as those of all ranges do (option address_budget_bytes). stream: the
 *            order of work on it, as for ductile_alloc. options: NULL: defaults. out: the range.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (an argument is NULL or 0, bytes are above 2^47, the
 *            unit is no multiple of the granule, the options are of no known size); ERR_ASLEEP (the
 *            pool that requests of this thread and stream belong to sleeps); ERR_OUT_OF_ADDRESSES
 *            (also while those of closed ranges would come back once the GPU is done: the open
 *            waits for nothing, ductile_trim does); ERR_OUT_OF_HOST_MEMORY, ERR_BUSY (inside a map
 *            callback), ERR_DEVICE_LOST, ERR_DRIVER, ERR_EXITING, ERR_FORKED.
 * On error:  *out is NULL.
 * Ownership: the caller closes it, before ductile_destroy: the handle ends with the allocator. It
 *            belongs to the pool that a request of this thread on the stream would go to now, also
 *            when that pool is not open any more: its rules say whom the range's free memory
 *            serves, and the range sleeps with it.
 * Threads:   safe. Calls with one range: commits and decommits of any threads may run at a time;
 *            the caller keeps them apart from the close, and commits apart from decommits of the
 *            same units.
 * Streams:   close it before ductile_stream_done(stream). After that, commits are refused.
 * Cost:      one driver call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status
ductile_elastic_open(ductile_allocator *allocator, uint64_t bytes, ductile_stream stream,
                     const ductile_elastic_options *options, ductile_elastic **out);

/** The address of the first unit, the same as long as the range is open. NULL: 0. */
DUCTILE_API ductile_addr ductile_elastic_address(const ductile_elastic *range);

/** The size of a unit, and of the whole range, in bytes. NULL: 0. */
DUCTILE_API uint64_t ductile_elastic_unit(const ductile_elastic *range);
DUCTILE_API uint64_t ductile_elastic_bytes(const ductile_elastic *range);

/**
 * Puts memory behind units: an allocation on the range's stream. All of those that are missing get
 * memory, or none. Units that are committed keep their contents; what others contain is undefined,
 * unless the option `zero` is set.
 *
 * Arguments: offset, bytes: whole units inside the range. 0 bytes: nothing happens.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no such units; the stream has ended, or is the
 *            per-thread default stream of another thread); ERR_OUT_OF_MEMORY, as of ductile_alloc,
 *            with a report (ductile_pressure.h), also when a unit's recorded streams are not done
 *            and cannot be waited for; ERR_ASLEEP (its pool sleeps); ERR_CAPTURING (the stream is
 *            being captured, and would have to wait for work of another one, or the option `zero`
 *            is set); ERR_DRIVER (also of units whose addresses the driver once failed to unmap:
 *            they are lost);
 *            ERR_OUT_OF_HOST_MEMORY, ERR_BUSY (inside a map callback), ERR_DEVICE_LOST,
 *            ERR_EXITING, ERR_FORKED.
 * On error:  no unit has changed that the caller could see.
 * Streams:   ready for work on the range's stream. During captures it takes cached, new and proven
 *            memory, and what is still in place; graphs may use committed units alone, and the
 *            program decommits them after the last launch.
 * Threads:   safe.
 * Cost:      of units that no request has taken since they were decommitted: no driver call, and no
 *            lock but one for a moment. Of others a map for each handle (as large as the unit,
 *            up to 64 MiB) and one call for access, and what an allocation does that creates or
 *            moves memory. It waits for the GPU only where such an allocation would before it is
 *            refused, and where a unit's recorded streams still use it.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_elastic_commit(ductile_elastic *range,
                                                                  uint64_t offset, uint64_t bytes);

/**
 * Gives units back: a ductile_free_ex of each of them that is committed. Work on the range's stream
 * that was submitted before may still use them; work of other streams if the caller names them, or
 * has recorded them (ductile_record_stream), or orders them before the stream's next commit or
 * allocation.
 *
 * Arguments: offset, bytes: whole units inside the range. streams, n_streams: other streams that
 *            use them; NULL and 0: none.
 * Returns:   DUCTILE_OK, also of units that are not committed; ERR_INVALID_ARGUMENT (no such units,
 *            or streams is NULL); ERR_OUT_OF_HOST_MEMORY (only with streams); ERR_DEVICE_LOST,
 *            ERR_EXITING, ERR_FORKED.
 * On error:  all units are committed as before; some of the streams may be recorded on them.
 * Threads:   safe. Asleep: good.
 * Cost:      without streams no driver call and no wait, however much work is under way; each
 *            stream costs one event of each unit. With caching:off it trims.
 */
DUCTILE_API ductile_status ductile_elastic_decommit(ductile_elastic *range, uint64_t offset,
                                                    uint64_t bytes, const ductile_stream *streams,
                                                    size_t n_streams);

/**
 * Decommits all units and ends the range: its memory serves others as soon as it is proven, and
 * the addresses go when nothing is mapped at them any more. NULL: does nothing.
 *
 * Returns:   DUCTILE_OK; ERR_EXITING, ERR_FORKED, after which the handle is gone all the same.
 * Threads:   safe for different ranges; waits while another thread maps memory.
 * Cost:      at most one driver call; no wait for the GPU. With caching:off it trims.
 */
DUCTILE_API ductile_status ductile_elastic_close(ductile_elastic *range);

#ifdef __cplusplus
}
#endif

#endif
