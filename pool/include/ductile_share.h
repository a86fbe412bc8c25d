/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that more than this allocator knows of: pinned for a registration (NCCL, RDMA), accessible
 * to other GPUs of the machine, passed to other processes, or received from them.
 *
 * One allocator serves one tenant and one property class: all of its handles are of one kind
 * (options `shareable`, `rdma`), and the same devices have access to all of its memory. Use another
 * allocator for another tenant. Memory moves between two allocators only through the driver.
 *
 * Passing a block passes the whole granules that it lies in. The other process can read and write
 * whatever else lies in those granules. Share only with processes that you trust, or share blocks
 * that have granules of their own (ductile_alloc_dedicated).
 *
 * Some libraries keep an address after you register it with them (UCX, NCCL, NVSHMEM). Pin the
 * block for that time, or drop the registration when a callback says that the memory leaves
 * (ductile_add_map_callback).
 *
 * Included by ductile.h; compiles alone.
 */
#ifndef DUCTILE_SHARE_H
#define DUCTILE_SHARE_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Pins --------------------------------------------------------------------------------- */

/**
 * Pins the memory behind a live block. Until it is unpinned as often as it was pinned, the memory
 * is not moved, compacted, given back or unmapped, even after the block is freed. Free memory that
 * is pinned is reused only at its own address and by its own stream.
 *
 * Arguments: address: the start of a live block.
 * Returns:   DUCTILE_OK; ERR_FOREIGN_POINTER, ERR_INTERIOR_POINTER, ERR_NOT_LIVE; ERR_ASLEEP (the
 *            block is asleep); ERR_UNSUPPORTED (it is spilled); ERR_INVALID_ARGUMENT,
 *            ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * Ownership: a pin belongs to the address. Give it back with ductile_unpin(address), before or
 *            after the free. Suppose the block is freed and a larger block that starts there is
 *            pinned: then all memory pinned through that address stays pinned until the address has
 *            no pins left. ductile_destroy ends all pins.
 * Threads:   safe; waits while another thread maps memory.
 * Cost:      linear in the granules of the block.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pin(ductile_allocator *allocator,
                                                       ductile_addr address);

/**
 * Gives back one pin. After the last one, free memory behind it counts as freed now: all work that
 * uses it by the registration must be issued before this call.
 *
 * Arguments: address: as given to ductile_pin.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (allocator is NULL, or the live block has no pin);
 *            ERR_FOREIGN_POINTER, ERR_INTERIOR_POINTER, ERR_NOT_LIVE; ERR_EXITING, ERR_FORKED.
 * Threads:   safe; waits while another thread maps memory.
 * Cost:      linear in the granules that the address pinned.
 */
DUCTILE_API ductile_status ductile_unpin(ductile_allocator *allocator, ductile_addr address);

/* ---- Callbacks for mappings ---------------------------------------------------------------- */

/** What happens to the memory at an address. */
typedef enum ductile_map_change {
    DUCTILE_MAP_MAPPED = 0, /**< it is mapped, and every device that gets access has it           */
    DUCTILE_MAP_LEAVING = 1 /**< it is about to be unmapped, or mapped at a second address        */
} ductile_map_change;

/** One physical handle at one address; for an import, all of its memory. */
typedef struct ductile_map_event {
    size_t struct_size;
    ductile_map_change change;
    int device;            /**< ordinal of this allocator's GPU                                */
    ductile_addr address;  /**< of the mapping, a multiple of the granule                      */
    uint64_t size;         /**< bytes                                                          */
    uint64_t handle;       /**< the driver's handle: compare it, do not release it; 0: imported */
    ductile_stream stream; /**< that the memory belongs to; for an import, its stream          */
    ductile_pool_id pool;  /**< the private pool that holds the memory; {0,0}: none            */
    const char *tag;       /**< its tag (ductile_sleep.h), valid during the call; "": none     */
} ductile_map_event;

/**
 * Learns of every mapping, for caches of registrations (UCX, NCCL, GPUDirect, gdrcopy). MAPPED
 * comes before the allocator returns any address in the memory; LEAVING comes before the memory is
 * unmapped or mapped a second time. The callback cannot refuse: pin memory that must stay.
 *
 * - For one address MAPPED and LEAVING alternate. They never run at the same time. If the driver
 *   fails a plan after LEAVING, the plan is undone and the same handle is reported as MAPPED again.
 * - A free maps and unmaps nothing, so it reports nothing. A registration may serve the next block
 *   at the same address, until LEAVING. After LEAVING no caller gets the address before the next
 *   MAPPED.
 * - Work already given to the GPU may still use memory that leaves. That is safe, because the
 *   memory is reused in stream order. Uses that no stream orders (RDMA) must end before the block
 *   is freed.
 *
 * It may free, record streams, pin, query, walk, and allocate what a free block serves. Calls that
 * would map or unmap memory get ERR_BUSY: a larger allocation, a trim, a sleep, a wake, an
 * import. It must not call ductile_destroy, nor ductile_stream_done for the stream of the request.
 * It must not wait for a thread that may put a pool to sleep. While a callback runs for a request,
 * a compaction or a trim, ductile_check checks nothing.
 *
 * Threads:   runs on the thread whose call maps or unmaps: an allocation (also a hit, when it
 *            compacts), a trim, a sleep, a wake, an import, its close or free, or
 *            ductile_destroy. No lock is held. Several threads may run it at once, for different
 *            addresses. Driver calls that a capture would forbid are relaxed
 *            (CU_STREAM_CAPTURE_MODE_RELAXED).
 */
typedef void (*ductile_map_fn)(void *user, ductile_allocator *allocator,
                               const ductile_map_event *event);

/**
 * Registers a callback. Several may be registered; the same one may be registered more than once.
 * The callback does not learn of memory that is mapped already, but may learn that such memory
 * leaves: register it before the first allocation.
 *
 * Arguments: callback: not NULL. user: passed to it. priority: callbacks with smaller numbers get
 *            MAPPED first and LEAVING last; of equal ones, the one registered first counts as
 *            smaller. id: receives a number for ductile_remove_map_callback, never 0; not NULL.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY, ERR_FORKED.
 * On error:  *id is 0.
 * Ownership: unregister with ductile_remove_map_callback; ductile_destroy drops what is left.
 * Threads:   safe, also from inside a callback. A call that is already under way may or may not
 *            report to it.
 * Cost:      the callback is called once for each handle mapped or unmapped; not on a plain hit or
 *            free.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_add_map_callback(ductile_allocator *allocator,
                                                                    ductile_map_fn callback,
                                                                    void *user, int priority,
                                                                    uint64_t *id);

/**
 * Unregisters a callback. Once the call returns, no other thread is inside the callback or will
 * enter it, so `user` may be freed.
 *
 * Arguments: id: from ductile_add_map_callback.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no such id), ERR_FORKED.
 * Threads:   as ductile_remove_oom_callback.
 */
DUCTILE_API ductile_status ductile_remove_map_callback(ductile_allocator *allocator, uint64_t id);

/* ---- Dedicated allocations ---------------------------------------------------------------- */

/**
 * ductile_alloc of a block with an address range and one physical handle of its own, both of the
 * size rounded up to the granule: for registrations that take one handle and not a row of them.
 * The memory never moves while the block is live. Free the block like any other. What was freed
 * serves no request at its old address: once it is proven done, it is unmapped in a later call that
 * no free block serves, and its handle goes to the handle cache. Until then it counts as free.
 *
 * Inside an open pool the block is the pool's. In a pool of a capture, what was freed stays mapped
 * for as long as the pool is held.
 *
 * Arguments, returns, on error, ownership, threads, streams: as ductile_alloc.
 * Cost:      never a hit: the slow path's lock, and driver calls. A cached handle of exactly that
 *            size saves creating one.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_alloc_dedicated(ductile_allocator *allocator,
                                                                   size_t size,
                                                                   ductile_stream stream,
                                                                   ductile_addr *out);

/* ---- Other GPUs --------------------------------------------------------------------------- */

/**
 * Gives another GPU access to all memory of this allocator: to what is mapped now, imports
 * included, and to everything mapped later. cudaDeviceEnablePeerAccess does not give access to this
 * memory.
 *
 * Arguments: device: ordinal of the other GPU.
 * Returns:   DUCTILE_OK, also when it has access already; ERR_UNSUPPORTED (the two GPUs cannot
 *            reach each other, or too many have access), ERR_NO_DEVICE, ERR_INVALID_ARGUMENT (also:
 *            this allocator's own device), ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  the other GPU has access to nothing, as far as the driver allows access to be revoked.
 * Threads:   safe; allocations of other threads that must map memory wait.
 * Streams:   none is passed to the driver. Streams of the other GPU can be given to
 *            ductile_record_stream and ductile_free_ex like those of this one. Allocate memory only
 *            on streams of this GPU.
 * Cost:      one driver call for each run of mapped memory; the driver's time grows with the
 *            handles.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_enable_peer(ductile_allocator *allocator,
                                                               int device);

/**
 * Revokes the access of another GPU. No work of that GPU may still use this allocator's memory.
 *
 * Arguments: device: ordinal of the other GPU.
 * Returns:   DUCTILE_OK, also when it had no access; ERR_INVALID_ARGUMENT (also: this allocator's
 *            own device), ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  the other GPU keeps access to everything.
 * Threads:   safe; allocations of other threads that must map memory wait.
 * Cost:      one driver call for each run of mapped memory; the driver's time grows with the
 *            handles.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_disable_peer(ductile_allocator *allocator,
                                                                int device);

/* ---- To other processes ------------------------------------------------------------------- */

/**
 * Passes a live block to the process at the other end of a UNIX-domain socket, which calls
 * ductile_import. The two calls exchange messages; both return when all memory is mapped there, or
 * when one of them gives up.
 *
 * The memory is pinned until ductile_unexport, whatever the importer does. Keep the block live
 * while the importer uses it: a freed block is reused at its address, and the importer sees the new
 * contents. The importer's mapping stays valid after this process has ended.
 *
 * Arguments: address: the start of a live block. socket: connected and blocking, of any type that
 *            preserves order. Set a time limit (SO_RCVTIMEO, SO_SNDTIMEO) if the other side may not
 *            answer: every message of at most 64 handles, and every answer, has to arrive whole
 *            within it. The caller keeps the socket.
 * Returns:   DUCTILE_OK; ERR_UNSUPPORTED (the option `shareable` is none, or the block is spilled);
 *            ERR_BAD_MESSAGE (the other side hung up, timed out, gave up, or is not
 *            ductile_import); ERR_NO_DESCRIPTORS; ERR_FOREIGN_POINTER, ERR_INTERIOR_POINTER,
 *            ERR_NOT_LIVE; ERR_BUSY (the block is asleep); ERR_INVALID_ARGUMENT,
 *            ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  this call has exported nothing and left no descriptor open. The socket may hold part
 *            of a message: close it.
 * Ownership: end the export with ductile_unexport.
 * Threads:   safe; no lock is held while the socket is used.
 * Streams:   none is passed to the driver. Order the importer's work after what was issued here, by
 *            a synchronisation or an interprocess event.
 * Cost:      one driver call for each handle; with `shareable:fd` at most 64 descriptors at a time.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_export(ductile_allocator *allocator,
                                                          ductile_addr address, int socket);

/**
 * Takes one export back: with the last one the memory is no longer pinned by them. What importers
 * have mapped stays mapped there, and the driver keeps the memory for them, whatever this process
 * does with its own addresses.
 *
 * Returns and on error: as ductile_unpin.
 */
DUCTILE_API ductile_status ductile_unexport(ductile_allocator *allocator, ductile_addr address);

/* ---- From other processes ----------------------------------------------------------------- */

/**
 * Maps a block that another process passes with ductile_export, in a range exactly as large as
 * needed.
 *
 * Arguments: socket: connected and blocking, as for ductile_export. stream: whose work will use the
 *            memory; not cudaStreamPerThread. Order the work of other streams before the close.
 *            address: receives the start of the block; not NULL. size: receives its bytes; NULL to
 *            ignore.
 * Returns:   DUCTILE_OK; ERR_BAD_MESSAGE (the message is truncated, malformed or hostile, or the
 *            other side hung up or timed out); ERR_NO_DESCRIPTORS; ERR_OUT_OF_ADDRESSES; ERR_BUSY
 *            (called from a map callback); ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY,
 *            ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  *address is 0, and of what was received no descriptor stays open, and nothing stays
 *            mapped or reserved. Close the socket.
 * Ownership: release with ductile_import_close or ductile_free. The memory is the exporter's: it
 *            counts only in `imported_bytes`, and not against the limit.
 * Threads:   safe; no lock is held while the socket is used.
 * Streams:   Ductile orders nothing between the two processes; see ductile_export.
 * Cost:      one reservation; an import, a map and a release for each handle; one access call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_import(ductile_allocator *allocator, int socket,
                                                          ductile_stream stream,
                                                          ductile_addr *address, uint64_t *size);

/**
 * Releases an import, ordered after the work already issued to its stream. If that work is done,
 * the call unmaps the addresses at once; otherwise a later close, import or trim does. ductile_free
 * also releases an import, but leaves the unmapping to such a call.
 *
 * Arguments: address: from ductile_import; 0 does nothing.
 * Returns:   DUCTILE_OK; ERR_FOREIGN_POINTER (no import starts there); ERR_CAPTURING (its stream is
 *            being captured, or the call would have to wait for the device during a capture);
 *            ERR_INVALID_ARGUMENT, ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  the import stays, except that after a failed unmap the process loses its addresses.
 * Cost:      one event record; an unmap for each handle. Waits for the device only if
 *            ductile_stream_done could not mark the progress of the import's stream.
 */
DUCTILE_API ductile_status ductile_import_close(ductile_allocator *allocator, ductile_addr address);

#ifdef __cplusplus
}
#endif
#endif
