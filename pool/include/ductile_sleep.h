/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleep: the physical memory of pools goes back to the driver while every address stays, and comes
 * back later at the same addresses, so that two programs, or two parts of one, take turns on a GPU.
 *
 * What sleeps is a pool (ductile_pools.h); {0,0}, all memory outside private pools, is one of them.
 * A pool may carry a tag, a name that several pools can share: sets of pools sleep and wake by
 * tag. A call for a set changes all of its pools or none.
 *
 *     (void)ductile_pool_set_tag(a, weights, "weights", DUCTILE_CONTENTS_KEEP);
 *     (void)ductile_pool_set_tag(a, cache, "kv_cache", DUCTILE_CONTENTS_DROP);
 *     (void)ductile_sleep_host_reserve(a, 40ull << 30, NULL);         // host memory, made ahead
 *     ductile_sleep_request everything = {.struct_size = sizeof everything, .all = 1};
 *     (void)ductile_sleep_set(a, &everything, NULL);
 *     ... another program has the device ...
 *     ductile_sleep_tag first = {"weights", DUCTILE_CONTENTS_POLICY};
 *     ductile_sleep_request wake = {.struct_size = sizeof wake, .tags = &first, .n_tags = 1};
 *     ductile_sleep_report report = {.struct_size = sizeof report};
 *     if (ductile_wake_set(a, &wake, &report) == DUCTILE_ERR_OUT_OF_MEMORY)
 *         ... report.missing_bytes more must be free on the device; nothing has changed ...
 *
 * While a pool sleeps no thread may touch its memory: a kernel or a copy that does ends the CUDA
 * context with an illegal address (ERR_DEVICE_LOST afterwards), as any unmapped address does.
 *
 * Included by ductile.h; compiles alone.
 */
#ifndef DUCTILE_SLEEP_H
#define DUCTILE_SLEEP_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tags ---------------------------------------------------------------------------------- */

/**
 * Names a pool, and says what becomes of its contents where a sleep leaves that to the pool. Both
 * hold as long as the pool exists (for the default pool: the allocator); a call replaces both.
 * Several pools may have one tag, each with a policy of its own.
 *
 * Arguments: id: {0,0} is the default pool. tag: fewer than DUCTILE_TAG_BYTES bytes, copied; NULL
 *            or "": no tag. contents: the policy.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no such pool or policy, the tag is too long);
 *            ERR_ASLEEP (the pool sleeps: its tag is how it is woken); ERR_BUSY (it is falling
 *            asleep or being woken); ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pool_set_tag(ductile_allocator *allocator,
                                                                ductile_pool_id id, const char *tag,
                                                                ductile_contents contents);

/* ---- Sleep and wake ------------------------------------------------------------------------ */

/** A tag, and what a sleep does with the contents of its pools. A wake ignores `contents`. */
typedef struct ductile_sleep_tag {
    const char *tag;
    ductile_contents contents; /* POLICY: `contents` of the request */
} ductile_sleep_tag;

/**
 * Which pools. The set is: every pool of the allocator if `all` is set, else the pools that carry
 * one of `tags` and those in `pools`; without what `except_tags` and `except_pools` name. Fields
 * left 0 or NULL name nothing. With `all`, `tags` only says what becomes of contents.
 *
 * A sleep takes the contents for a pool from its entry in `tags`; where that says POLICY, or there
 * is none, from `contents`; where that says POLICY, from the pool; where that says POLICY, contents
 * are kept if it is the default pool, or a stream under capture has requested memory of it, and
 * dropped if not.
 */
typedef struct ductile_sleep_request {
    size_t struct_size; /* set by the caller */
    int all;            /* 1: all pools, the default pool included */
    int lenient;        /* 1: pools that are as asked for already, tags that no pool has and pools
                           that do not exist are passed over, and counted in the report; 0: they
                           are errors. With `all`, pools that are so already are no error.       */
    const ductile_sleep_tag *tags;
    size_t n_tags;
    const ductile_pool_id *pools; /* {0,0}: the default pool */
    size_t n_pools;
    const char *const *except_tags; /* may name what does not exist */
    size_t n_except_tags;
    const ductile_pool_id *except_pools; /* may name what does not exist */
    size_t n_except_pools;
    ductile_contents contents; /* sleep only */
    ductile_pool_id bypass;    /* sleep only: a private pool outside the set, which serves the
                                  requests of the default pool while that one sleeps, if this call
                                  puts it to sleep; made plain if it does not exist; `all` leaves it
                                  out; {0,0}: none, such requests are refused */
    int retain; /* wake only; 1: kept contents stay on the host as they are, so that they can be
                   read (ductile_kept_contents) while the blocks are used again; the pool's next
                   sleep, or a wake without it, ends that, and so does freeing a block. A sleep
                   that keeps as many bytes again copies them to the same place; one that fails
                   before it copies or drops contents leaves them */
} ductile_sleep_request;

/** What a call did, or what stopped it. */
typedef struct ductile_sleep_report {
    size_t struct_size;     /* set by the caller                                               */
    uint64_t pools;         /* put to sleep or woken by this call; on error 0              */
    uint64_t passed_over;   /* were so already, or do not exist (lenient, all)                 */
    uint64_t bytes;         /* physical memory that left, or came back                         */
    uint64_t copied_bytes;  /* contents copied to the host, or back                            */
    uint64_t stayed_bytes;  /* sleep: memory of the set that stays mapped: pinned, exported, or
                               not unmapped by the driver                                      */
    uint64_t missing_bytes; /* ERR_OUT_OF_MEMORY of a wake: so many more must be free on the
                               device, or under the limit; else 0                              */
    ductile_pool_id pool;   /* on error: the pool that stopped the call; {0,0}: the default pool,
                               or none                                                         */
    char tag[DUCTILE_TAG_BYTES]; /* on error: its tag, or the tag that no pool has; "": none   */
    char message[192];           /* on error: one line that says what to do; else ""           */
} ductile_sleep_report;

/**
 * Gives the physical memory behind the live and free blocks of a set of pools back to the driver,
 * and keeps every address reserved. The live blocks fall asleep. All pools of the set do,
 * or none. Graphs keep their addresses; launch them again once their pools are woken.
 *
 * Arguments: request: not NULL. report: NULL to ignore.
 * Returns:   DUCTILE_OK (an empty set included); ERR_INVALID_ARGUMENT (a tag that no pool carries,
 *            no such pool, no such policy, the bypass is in the set, an empty request);
 *            ERR_ASLEEP (a pool of the set sleeps already); ERR_BUSY (a pool of the set is falling
 *            asleep or being woken, other threads keep freeing blocks that streams still use, or
 *            the call comes from a map callback, or from an out-of-memory callback while requests
 *            of the set are under way); ERR_CAPTURING (a capture is under way, or another GPU has
 *            access and a recorded stream is being captured); ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER,
 *            ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  every pool is as before: its blocks are live, with their contents.
 * Ownership: sleeping blocks can be freed, queried and walked. Requests that belong to a sleeping
 *            pool get ERR_ASLEEP (ductile_sleep_refusal names the tag); requests of the default
 *            pool go to the bypass, if there is one.
 * Threads:   safe. From the call on, no thread may use the memory of the set or launch its graphs.
 *            Calls of other threads on other pools go on.
 * Streams:   waits for all work of the device issued before the call, and with peers for streams
 *            recorded on the blocks. Contents are as that work left them.
 * Cost:      the waits; an unmap and a release per handle; with KEEP the copies, at the speed of
 * the link once the host memory is there (ductile_sleep_host_reserve). Map callbacks get LEAVING
 * for each range. Memory that is pinned or exported stays mapped.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_sleep_set(ductile_allocator *allocator,
                                                             const ductile_sleep_request *request,
                                                             ductile_sleep_report *report);

/**
 * Puts physical memory behind a set of sleeping pools again, at the same addresses, with the
 * contents that the sleep promised. All pools of the set are woken, or none.
 *
 * Arguments: request: not NULL. report: NULL to ignore.
 * Returns:   DUCTILE_OK (an empty set included); ERR_INVALID_ARGUMENT (as ductile_sleep_set);
 *            ERR_AWAKE (a pool of the set does not sleep; one without references is passed over:
 *            it wakes by itself when only pinned memory is left in it); ERR_BUSY (a pool of the set
 *            is falling asleep or being woken, which a trim of another thread does, too, or a
 *            request of one, after a failure; or the call comes from a map callback);
 *            ERR_OUT_OF_MEMORY
 *            (missing_bytes of the report says how much more must be free: free it and call again);
 *            ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  every pool sleeps as before, with its kept contents. If the end of copies cannot be
 *            waited for, the memory they use stays mapped until a wait succeeds: of the next try,
 *            of a trim, or of a request that is short of memory.
 * Threads:   safe. Other threads' requests that no free block serves wait while it maps.
 * Streams:   contents are in place when it returns.
 * Cost:      a map per handle; when memory is short, first a trim of the missing amount; the
 *            copies, which it waits for. Map callbacks get MAPPED for each range, with the contents
 *            in place.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_wake_set(ductile_allocator *allocator,
                                                            const ductile_sleep_request *request,
                                                            ductile_sleep_report *report);

/**
 * Calls ductile_sleep_set for one pool, without a report.
 *
 * Arguments: id: {0,0} is the default pool; its requests are refused until it is woken.
 * Returns, on error, ownership, threads, streams, cost: as ductile_sleep_set.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_sleep(ductile_allocator *allocator,
                                                         ductile_pool_id id,
                                                         ductile_contents contents);

/**
 * Calls ductile_wake_set for one pool, without a report.
 *
 * Returns, on error, threads, streams, cost: as ductile_wake_set.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_wake(ductile_allocator *allocator,
                                                        ductile_pool_id id);

/* ---- Memory that has spilled ---------------------------------------------------------------- */

/**
 * Moves memory of live blocks that spilled to the host (ductile_pressure.h) to the device, as far
 * as it has room by now. The blocks keep their addresses and their contents. What the device has no
 * room for stays as it is, which is no error.
 *
 * It is a short sleep: all pools with such blocks serve no request until it returns, and are awake
 * then. Before that, free memory of the device goes back to the driver, as much as is missing.
 *
 * Arguments: report: NULL to ignore. `bytes`: moved to the device; `stayed_bytes`: of the host,
 *            still in use; `pools`: that had such blocks; `passed_over`: that sleep, or
 *            are put to sleep, woken or promoted by another thread.
 * Returns:   DUCTILE_OK, at once if nothing is spilled; ERR_BUSY, ERR_CAPTURING,
 *            ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED, as
 *            ductile_sleep_set; ERR_INVALID_ARGUMENT.
 * On error:  every block has its contents; `bytes` says what was moved. If the driver neither maps
 *            memory of the device at a block's address nor the host's again, or does not copy the
 *            contents back, the pool that the report names sleeps, with contents: ductile_wake
 *            (only then may the error be ERR_OUT_OF_MEMORY).
 * Threads:   as ductile_sleep_set: no thread uses memory of these pools, or requests any, until it
 *            returns. Frees are good.
 * Streams:   waits for all work of the device issued before the call. Contents are in place when
 *            it returns.
 * Cost:      the wait, and two copies over the link, by way of at most 256 MiB of page-locked
 *            memory (ductile_sleep_host_reserve), which stays with the allocator. An unmap and a
 *            map per handle. Map callbacks get LEAVING and MAPPED for each range.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_promote(ductile_allocator *allocator,
                                                           ductile_sleep_report *report);

/* ---- While it sleeps ----------------------------------------------------------------------- */

/** Why the calling thread's latest request was refused with ERR_ASLEEP. */
typedef struct ductile_refusal {
    size_t struct_size; /* set by the caller */
    ductile_pool_id pool;
    char tag[DUCTILE_TAG_BYTES]; /* "": the pool has none */
    uint64_t bytes;              /* requested             */
} ductile_refusal;

/**
 * Names the sleeping pool that the calling thread's latest refused request belongs to. Requests are
 * ductile_alloc, ductile_alloc_dedicated and ductile_pool_alloc_at.
 *
 * Returns:   DUCTILE_OK; ERR_NOT_LIVE (no request of this thread to this allocator was refused so);
 *            ERR_INVALID_ARGUMENT, ERR_FORKED.
 * Threads:   safe; each thread has its own.
 * Cost:      no driver call, no lock.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_sleep_refusal(ductile_allocator *allocator,
                                                                 ductile_refusal *out);

/**
 * Finds the kept contents behind an address of a sleeping block, to read (or change) them without a
 * wake: the next wake copies what is there. Also finds what a wake with `retain` has left.
 *
 * Arguments: address: in a block whose contents were kept, its start or inside. host: receives the
 *            host address of the byte; not NULL. bytes: receives how many bytes lie there in one
 *            piece, to the end of the block; NULL to ignore.
 * Returns:   DUCTILE_OK; ERR_AWAKE (the block does not sleep, and none were retained);
 *            ERR_NOT_READY (its pool is falling asleep or being woken); ERR_UNSUPPORTED (its
 *            contents were not kept: of the pool, or of this block, since its memory stayed
 *            mapped);
 *            ERR_FOREIGN_POINTER, ERR_NOT_LIVE, ERR_INVALID_ARGUMENT, ERR_FORKED.
 * On error:  *host is NULL and *bytes 0.
 * Ownership: the memory is the allocator's. It is valid until the block is freed, or a wake of
 *            its pool without `retain` begins; for a block that is awake, or a sleep begins.
 * Threads:   safe. The caller orders its accesses before those calls.
 * Cost:      logarithmic in the blocks of the pool, and where the address is inside of the block,
 *            linear in those of its segment.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_kept_contents(ductile_allocator *allocator,
                                                                 ductile_addr address, void **host,
                                                                 uint64_t *bytes);

/* ---- Host memory --------------------------------------------------------------------------- */

/**
 * Makes page-locked host memory for kept contents ahead of the sleep that needs it, which otherwise
 * makes it then, at a fraction of the speed of the link. The memory stays with the allocator and
 * serves each later sleep, until ductile_sleep_host_release or ductile_destroy.
 *
 * Arguments: bytes: how much there shall be in all, contents kept now included. held: receives how
 *            much there is now; NULL to ignore.
 * Returns:   DUCTILE_OK, also when there was enough; ERR_OUT_OF_HOST_MEMORY (the machine, or a
 *            control group of the process, has less left), ERR_DRIVER, ERR_BUSY (called from a map
 *            callback), ERR_INVALID_ARGUMENT, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  there is as much as before.
 * Threads:   safe; a sleep or wake with contents in another thread waits. Touches the memory with
 *            several threads, which end before the call returns.
 * Cost:      about 0.1 s per GiB with huge pages, several times that without; one driver call for
 *            each piece.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_sleep_host_reserve(ductile_allocator *allocator,
                                                                      uint64_t bytes,
                                                                      uint64_t *held);

/**
 * Gives back host memory that holds no contents.
 *
 * Arguments: keep_bytes: so much stays, contents kept now included. released: receives how much
 *            went back; NULL to ignore.
 * Returns:   DUCTILE_OK, also when less could be given back; ERR_DRIVER, ERR_BUSY (called from a
 *            map callback), ERR_INVALID_ARGUMENT, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  *released counts what went before the error.
 * Threads:   safe; a sleep or wake with contents in another thread waits.
 * Cost:      one driver call for each piece.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_sleep_host_release(ductile_allocator *allocator,
                                                                      uint64_t keep_bytes,
                                                                      uint64_t *released);

#ifdef __cplusplus
}
#endif
#endif
