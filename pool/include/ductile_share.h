/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that others know of: pinned for a registration (NCCL, RDMA), open to other GPUs of the
 * machine, passed to other processes and taken from them. Included by ductile.h.
 *
 * One allocator is one tenant and one property class: whatever it maps has the same kind of handle
 * (options `shareable`, `rdma`) and is open to the same devices. Memory for another tenant comes
 * from another allocator, and moves between two of them only through the driver.
 *
 * Passing a block means passing the whole granules it lies in. The other process can read and write
 * what its neighbours there hold: share with those you trust, or give such a block granules of its
 * own (ductile_alloc_one_handle).
 *
 * Whoever registers an address with a library that keeps it (UCX, NCCL, NVSHMEM) pins the block for
 * that time, or is told before memory moves (ductile_add_map_callback).
 */
#ifndef DUCTILE_SHARE_H
#define DUCTILE_SHARE_H

#include "ductile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Pins --------------------------------------------------------------------------------- */

/**
 * Pins the memory behind a live block: until as many unpins, it is not moved, healed, given back
 * or unmapped, also after the block was freed. Free memory that is pinned is reused at its own
 * address, by its own stream only.
 *
 * Arguments: address: the start of a live block.
 * Returns:   DUCTILE_OK; the pointer errors of ductile_free; ERR_INVALID_ARGUMENT,
 *            ERR_OUT_OF_HOST_MEMORY, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  nothing has changed.
 * Ownership: a pin belongs to the address: give it back with ductile_unpin(address), before or
 *            after the free. Where the block that starts there is freed and a larger one pinned,
 *            all that was pinned by that address stays so until its last unpin.
 *            ductile_destroy ends all pins.
 * Threads:   safe; waits while another thread maps memory.
 * Cost:      no driver call; linear in the granules of the block.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_pin(ductile_allocator *allocator,
                                                       ductile_addr address);

/**
 * Takes one pin back.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (a live block without a pin); the pointer errors of
 *            ductile_free; ERR_EXITING, ERR_FORKED.
 * On error:  nothing has changed.
 * Threads, cost: as ductile_pin.
 */
DUCTILE_API ductile_status ductile_unpin(ductile_allocator *allocator, ductile_addr address);

/* ---- Callbacks that are told where memory is ----------------------------------------------- */

/** What happens to a mapping. */
typedef enum ductile_map_change {
    DUCTILE_MAP_MAPPED = 0, /**< there is memory at the address, open to all devices it should be */
    DUCTILE_MAP_LEAVING = 1 /**< it is about to be unmapped, or to serve at another address       */
} ductile_map_change;

/** One physical handle at one address; of an import, all of it. */
typedef struct ductile_map_event {
    size_t struct_size;
    ductile_map_change change;
    int device;            /**< this allocator's                                               */
    ductile_addr address;  /**< of the mapping, a multiple of the granule                      */
    uint64_t size;         /**< bytes                                                          */
    uint64_t handle;       /**< the driver's handle, to compare, not to release; 0: imported   */
    ductile_stream stream; /**< whose memory it is; of an import, the one it was imported for  */
    ductile_pool_id pool;  /**< in which private pool; {0,0}: none                             */
} ductile_map_event;

/**
 * Is told that memory was mapped, before any address in it is returned, and that it leaves, before
 * it is unmapped or mapped a second time; for caches of registrations (UCX, NCCL, GPUDirect,
 * gdrcopy). It cannot refuse: memory that must stay is pinned.
 *
 * - Of one address it is told MAPPED and LEAVING in turn, each once, never at the same time. A plan
 *   that the driver fails after LEAVING is told is undone: MAPPED again, the same handle.
 * - A free changes nothing that is mapped, so that nothing is told: a registration may stay for the
 *   next block there, until LEAVING. After LEAVING nobody is given the address before the next
 * MAPPED.
 * - Work that the GPU was given on memory that leaves may still be under way: the memory goes on in
 *   the order of its stream. What others than streams do with it (RDMA) must have ended before the
 *   block was freed.
 *
 * It runs on the thread whose call maps or unmaps: an allocation (also a hit, which may heal), a
 * trim, a pause or resume, an import or its close or free, ductile_destroy; without any lock held;
 * driver calls that a capture forbids are relaxed (CU_STREAM_CAPTURE_MODE_RELAXED). Several threads
 * may run it at once, for different addresses. It may free, record, pin, query, walk and allocate
 * what a free block serves; what would map or unmap memory (a larger allocation, a trim, a pause,
 * an import) gets ERR_BUSY. ductile_check looks at nothing while one runs for a request, a hit that
 * heals or a trim. Not ductile_destroy, nor ductile_stream_done of the stream that is allocated
 * for. Do not wait in it for a thread that may be pausing a pool.
 */
typedef void (*ductile_map_fn)(void *user, ductile_allocator *allocator,
                               const ductile_map_event *event);

/**
 * Registers a callback. Several may be registered, also the same one more than once. What is mapped
 * already is not told to it, only, perhaps, that it leaves: register before the first allocation.
 *
 * Arguments: priority: the smaller is told first that memory was mapped, and last that it leaves;
 *            among equals the one registered first. id: receives what ductile_remove_map_callback
 *            takes; not 0.
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (callback or id is NULL), ERR_OUT_OF_HOST_MEMORY,
 *            ERR_FORKED.
 * On error:  *id is 0.
 * Threads:   safe, also from inside a callback. A call under way may or may not tell it.
 * Cost:      of the callbacks: one call for each handle mapped or unmapped, none on a hit or a
 * free. Without any: one test where memory is mapped.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_add_map_callback(ductile_allocator *allocator,
                                                                    ductile_map_fn callback,
                                                                    void *user, int priority,
                                                                    uint64_t *id);

/**
 * Unregisters a callback: it is not entered any more, and once this returns no other thread is
 * inside it, so `user` may be freed. Called from inside the callback itself it does not wait for
 * its own thread.
 *
 * Returns:   DUCTILE_OK; ERR_INVALID_ARGUMENT (no such id), ERR_FORKED.
 * Threads:   safe. Waits for threads inside the callback: hold no lock that the callback takes.
 *            Two callbacks that remove each other from inside at the same time wait for ever.
 */
DUCTILE_API ductile_status ductile_remove_map_callback(ductile_allocator *allocator, uint64_t id);

/* ---- One handle --------------------------------------------------------------------------- */

/**
 * ductile_alloc of memory that is one physical handle of its own, rounded up to the granule: for
 * registrations that take one handle and not a row of them. Free it like any other block; the
 * memory then serves any request, and moves only as a whole.
 *
 * Arguments, returns, on error, ownership, threads, streams: as ductile_alloc.
 * Cost:      never a hit: the slow path's lock, and driver calls unless a free handle of just that
 *            size is found.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_alloc_one_handle(ductile_allocator *allocator,
                                                                    size_t size,
                                                                    ductile_stream stream,
                                                                    ductile_addr *out);

/* ---- Other GPUs --------------------------------------------------------------------------- */

/**
 * Gives another GPU access to all memory of this allocator: to what is mapped now, imports
 * included, and to whatever is mapped later. cudaDeviceEnablePeerAccess does not do that.
 *
 * Arguments: device: its ordinal.
 * Returns:   DUCTILE_OK, also when it has access already; ERR_UNSUPPORTED (the two GPUs cannot
 *            reach each other), ERR_NO_DEVICE, ERR_INVALID_ARGUMENT (this allocator's own device),
 *            ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  it has access to nothing, as far as the driver lets access be taken back.
 * Threads:   safe; other threads' allocations that must map wait.
 * Streams:   none is named. Streams of that GPU can be given to ductile_record_stream and
 *            ductile_free_on like those of this one; memory is allocated on streams of this device.
 * Cost:      one driver call for each run of mapped memory; its price is by handle.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_enable_peer(ductile_allocator *allocator,
                                                               int device);

/**
 * Takes the access away again. No work of that GPU may still use this allocator's memory.
 *
 * Returns:   as ductile_enable_peer; DUCTILE_OK also when it had no access.
 * On error:  it keeps access to everything.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_disable_peer(ductile_allocator *allocator,
                                                                int device);

/* ---- To other processes ------------------------------------------------------------------- */

/**
 * Passes a live block to the process at the other end of a UNIX-domain socket, which calls
 * ductile_import. The two calls talk to each other: both return when all is mapped there, or when
 * one of them gave up.
 *
 * The memory is pinned until ductile_unexport, whatever becomes of the importer. While it uses the
 * block, keep it live: a block that is freed is reused at its address, and the importer sees that.
 * When this process ends first, the importer's mapping stays valid.
 *
 * Arguments: address: the start of a live block. socket: connected, of any type that keeps order;
 *            blocking, with a time limit (SO_RCVTIMEO, SO_SNDTIMEO) if the other side is not
 *            trusted to answer. It stays the caller's.
 * Returns:   DUCTILE_OK; ERR_UNSUPPORTED (the option `shareable` is none); ERR_BAD_MESSAGE (the
 *            other side closed, timed out, gave up, or is not ductile_import); ERR_NO_DESCRIPTORS;
 *            the pointer errors of ductile_free; ERR_INVALID_ARGUMENT, ERR_OUT_OF_HOST_MEMORY,
 *            ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  the block is not exported by this call, no descriptor is left open. The socket may
 *            hold part of a message: close it.
 * Threads:   safe; no lock is held while the socket is used.
 * Streams:   none is named. Order the importer's work after what was issued here, by a
 *            synchronisation or an interprocess event.
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
 * Maps a block that another process passes with ductile_export, in a range just large enough.
 *
 * Arguments: socket: as of ductile_export. stream: whose work will use the memory, not
 *            cudaStreamPerThread; work of other streams has to be ordered before the close.
 *            address: receives the start of the block; not NULL. size: its bytes; NULL to ignore.
 * Returns:   DUCTILE_OK; ERR_BAD_MESSAGE (truncated, malformed or hostile; closed or timed out);
 *            ERR_NO_DESCRIPTORS; ERR_OUT_OF_ADDRESSES; ERR_INVALID_ARGUMENT,
 *            ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  *address is 0; every descriptor received is closed, nothing stays mapped or reserved.
 *            Close the socket.
 * Ownership: release with ductile_import_close or ductile_free. The memory is the exporter's: it
 *            counts in `imported_bytes` only, not against the limit.
 * Threads:   safe; no lock is held while the socket is used.
 * Cost:      a reservation; an import, a map and a release for each handle, one access call.
 */
DUCTILE_API DUCTILE_CHECKED ductile_status ductile_import(ductile_allocator *allocator, int socket,
                                                          ductile_stream stream,
                                                          ductile_addr *address, uint64_t *size);

/**
 * Gives an import back, ordered after the work already issued to its stream: the addresses are
 * unmapped at once when that work is done, otherwise by a later call of this kind, an import or a
 * trim. ductile_free does the same without unmapping.
 *
 * Arguments: address: as ductile_import gave it; 0 does nothing.
 * Returns:   DUCTILE_OK; ERR_FOREIGN_POINTER (no import starts there); ERR_CAPTURING (its stream is
 *            being captured, or the device would have to be waited for beside a capture);
 *            ERR_DRIVER, ERR_DEVICE_LOST, ERR_EXITING, ERR_FORKED.
 * On error:  the import is still there, except that after a failed unmap its addresses are lost to
 *            the process.
 * Threads:   safe.
 * Cost:      one event record; an unmap for each handle. Waits for the device only if the stream
 *            was named done (ductile_stream_done) at a time when its progress could not be marked.
 */
DUCTILE_API ductile_status ductile_import_close(ductile_allocator *allocator, ductile_addr address);

#ifdef __cplusplus
}
#endif
#endif
