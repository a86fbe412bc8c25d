/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical handles and their store. A handle is one physical allocation, indivisible: it is
 * mapped whole or not at all. It may be mapped at several addresses at once, of which all but one
 * are retiring. The store owns every handle of one allocator, keeps those mapped nowhere (the
 * handle cache) by size, and is the one place that creates and releases, so the limit holds.
 *
 *   held = mapped handles + cached + lost           held <= limit, checked before creating
 *   host = mapped + cached + lost + being made      host <= its limit, likewise
 *
 * A handle lies in device memory or in the host's (spilling). The two have totals, limits and
 * caches of their own; where nothing else is said, a total or a call means device memory.
 *
 * Guarded by the grow lock of the allocator. The totals have a lock of their own besides, so that
 * dvmm_store_read gives numbers of one moment to a thread that holds neither lock: writers of the
 * totals hold both, and the holder of the grow lock reads them directly. Driver calls: create and
 * release only.
 */
#ifndef DUCTILE_VMM_HANDLE_H
#define DUCTILE_VMM_HANDLE_H

#include "vmm/base/lock.h"
#include "vmm/driver/driver.h"

enum { DVMM_HANDLE_SIZES = 48 }; /* cache lists, by the power of two of the granule count */

typedef struct dvmm_handle {
    dvmm_phys phys;
    uint32_t n_granules;
    uint32_t n_mappings;      /* addresses mapping it, retiring and quarantined ones included */
    uint32_t n_pins;          /* reasons to stay where it is: not moved, not unmapped         */
    uint32_t n_exports;       /* of them, for memory that another process was given           */
    bool is_host;             /* in page-locked memory of the host                            */
    uint32_t stamp;           /* of the last walk that found it free (pool/growth/homes.h)    */
    uint64_t place;           /* where that walk found it                                     */
    uint64_t home;            /* the address that it goes back to; 0: where it is found next  */
    struct dvmm_handle *next; /* cached: its list; a spare node: the list of spare nodes      */
} dvmm_handle;

/* All in bytes, but for the number of handles. */
typedef struct dvmm_store_totals {
    uint64_t held_bytes;
    uint64_t held_peak_bytes;
    uint64_t created_bytes; /* of all handles ever created */
    uint64_t cached_bytes;
    uint64_t lost_bytes;     /* physical memory the driver would not take back */
    uint64_t n_handles;      /* cached or mapped */
    uint64_t host_bytes;     /* of handle nodes */
    uint64_t pinned_bytes;   /* of handles with pins    */
    uint64_t exported_bytes; /* of handles with exports */
    uint64_t spill_bytes;    /* of the host, in handles: mapped, cached, lost or being made */
    uint64_t spill_cached_bytes;
    uint64_t spill_lost_bytes;
    uint64_t spill_making_bytes;
    uint64_t spilled_bytes; /* of them, mapped */
    uint64_t spilled_peak_bytes;
} dvmm_store_totals;

typedef struct dvmm_handle_store {
    dvmm_driver *driver;        /* constant */
    dvmm_phys_props props;      /* constant */
    uint64_t granule_bytes;     /* constant; bytes of one granule of ours */
    uint64_t limit_bytes;       /* cap on held_bytes */
    uint64_t margin_bytes;      /* of the device, to be left free when a handle is created */
    uint64_t spill_limit_bytes; /* cap on spill_bytes; 0: none is made */
    dvmm_store_totals totals;
    dti_lock totals_lock;
    int devices[DVMM_MAX_DEVICES]; /* that get access to all that is mapped: our own first */
    size_t n_devices;
    dvmm_handle *cached[DVMM_HANDLE_SIZES];
    dvmm_handle *cached_host[DVMM_HANDLE_SIZES];
    dvmm_handle *spare;
    struct dvmm_handle_chunk *chunks;
} dvmm_handle_store;

void dvmm_store_init(dvmm_handle_store *store, dvmm_driver *driver, uint64_t granule_bytes,
                     uint64_t limit_bytes, dvmm_phys_props props);

/* The totals of one moment. Needs no lock. */
dvmm_store_totals dvmm_store_read(dvmm_handle_store *store);

/* Lowers the peak of held bytes to what is held now. */
void dvmm_store_reset_peak(dvmm_handle_store *store);

/* Releases the cached handles and frees the nodes. Handles still mapped are forgotten. */
void dvmm_store_fini(dvmm_handle_store *store);

static inline uint64_t dvmm_handle_bytes(const dvmm_handle_store *store, const dvmm_handle *h) {
    return h->n_granules * store->granule_bytes;
}

/* Creates a handle. ERR_OUT_OF_MEMORY when held_bytes would exceed max_held or the limit, or when
 * the device has no memory; ERR_OUT_OF_HOST_MEMORY. */
ductile_status dvmm_store_create(dvmm_handle_store *store, uint32_t n_granules, uint64_t max_held,
                                 dvmm_handle **out);

/* Takes the largest cached handle of at most `max_granules`; NULL when there is none. */
dvmm_handle *dvmm_store_take(dvmm_handle_store *store, uint32_t max_granules);

/* Takes a cached handle of exactly `n_granules`; NULL when there is none. */
dvmm_handle *dvmm_store_take_exact(dvmm_handle_store *store, uint32_t n_granules);

/* Puts a handle that is mapped nowhere, except at quarantined addresses, into the cache of its
 * kind. */
void dvmm_store_put(dvmm_handle_store *store, dvmm_handle *handle);

/* Releases cached handles, largest first, until held_bytes <= keep or the cache is empty. A handle
 * that the driver refuses to take is counted as lost; the first error is returned. */
ductile_status dvmm_store_release_cached(dvmm_handle_store *store, uint64_t keep_held_bytes);

/* Releases cached handles until cached_bytes <= keep. */
ductile_status dvmm_store_shrink_cache(dvmm_handle_store *store, uint64_t keep_cached_bytes);

/* ---- Memory of the host -------------------------------------------------------------------- */

/* All memory of the host. */
uint64_t dvmm_store_host_total(const dvmm_handle_store *store);

/* Page-locking takes a fifth of a second for each GiB, so it has three steps. A handle that begins
 * counts; no other call knows it. ERR_OUT_OF_MEMORY above the limit; ERR_OUT_OF_HOST_MEMORY. */
ductile_status dvmm_store_begin_host(dvmm_handle_store *store, uint32_t n_granules,
                                     dvmm_handle **out);

/* Asks the driver for its memory. locked_before: the store's. No lock held. ERR_OUT_OF_MEMORY: the
 * host has none to spare. */
ductile_status dvmm_store_make_host(dvmm_handle_store *store, dvmm_handle *handle,
                                    uint64_t locked_before);

/* Puts it into the cache if it was made; otherwise it is gone. */
void dvmm_store_end_host(dvmm_handle_store *store, dvmm_handle *handle, ductile_status made);

/* As dvmm_store_take and dvmm_store_shrink_cache, of the host's memory. A handle that was taken is
 * to be mapped: it counts as spilled until it is put back. */
dvmm_handle *dvmm_store_take_host(dvmm_handle_store *store, uint32_t max_granules);
ductile_status dvmm_store_shrink_host(dvmm_handle_store *store, uint64_t keep_cached_bytes);

/* ---- The device, access, pins -------------------------------------------------------------- */

/* The device's memory, as the driver reports it: other processes change it at any time. On
 * error both are 0. */
ductile_status dvmm_store_device_memory(dvmm_handle_store *store, uint64_t *free_bytes,
                                        uint64_t *total_bytes);

/* Forgets a handle stuck at an address that the driver refused to unmap: it is never used or
 * released again, and stays charged to the limit. */
void dvmm_store_lose(dvmm_handle_store *store, dvmm_handle *handle);

/* DUCTILE_OK when the device can reach the memory of this store. ERR_NO_DEVICE: there is no device
 * with that number. */
ductile_status dvmm_can_reach(dvmm_handle_store *store, int device, bool *out);

/* Gives a span of whole mappings to all devices of the store. */
ductile_status dvmm_store_grant(dvmm_handle_store *store, ductile_addr addr, uint64_t size,
                                dvmm_access access);

/* Add or remove one pin or export. The caller also holds the lock under which they are read. */
void dvmm_handle_pin(dvmm_handle_store *store, dvmm_handle *handle);
void dvmm_handle_unpin(dvmm_handle_store *store, dvmm_handle *handle);
void dvmm_handle_add_export(dvmm_handle_store *store, dvmm_handle *handle);
void dvmm_handle_drop_export(dvmm_handle_store *store, dvmm_handle *handle);

/* Exports a handle. ERR_UNSUPPORTED when it was not created for that type. The caller releases the
 * result with dvmm_shared_drop. */
ductile_status dvmm_share_out(dvmm_handle_store *store, dvmm_phys phys, dvmm_shared *out);

#endif
