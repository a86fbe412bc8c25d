/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/handle.h"

#include "vmm/base/align.h"
#include "vmm/host_pages.h"

#include <stdlib.h>

enum { HANDLES_PER_CHUNK = 1024 };

typedef struct dvmm_handle_chunk {
    struct dvmm_handle_chunk *next;
    dvmm_handle nodes[HANDLES_PER_CHUNK];
} dvmm_handle_chunk;

void dvmm_store_init(dvmm_handle_store *store, dvmm_driver *driver, uint64_t granule_bytes,
                     uint64_t limit_bytes, dvmm_phys_props props) {
    *store = (dvmm_handle_store){.driver = driver,
                                 .props = props,
                                 .granule_bytes = granule_bytes,
                                 .limit_bytes = limit_bytes,
                                 .devices = {dvmm_get_caps(driver)->ordinal},
                                 .n_devices = 1};
    dti_lock_init(&store->totals_lock, DTI_RANK_LEAF);
}

void dvmm_store_fini(dvmm_handle_store *store) {
    (void)dvmm_store_release_cached(store, 0);
    (void)dvmm_store_shrink_host(store, 0);
    while (store->chunks != NULL) {
        dvmm_handle_chunk *chunk = store->chunks;
        store->chunks = chunk->next;
        free(chunk);
    }
    store->spare = NULL;
}

/* ---- Totals -------------------------------------------------------------------------------- */

dvmm_store_totals dvmm_store_read(dvmm_handle_store *store) {
    dti_lock_acquire(&store->totals_lock);
    dvmm_store_totals totals = store->totals;
    dti_lock_release(&store->totals_lock);
    return totals;
}

void dvmm_store_reset_peak(dvmm_handle_store *store) {
    dti_lock_acquire(&store->totals_lock);
    store->totals.held_peak_bytes = store->totals.held_bytes;
    store->totals.spilled_peak_bytes = store->totals.spilled_bytes;
    dti_lock_release(&store->totals_lock);
}

/* Adds to each total; a negated value subtracts. */
static void change(dvmm_handle_store *store, dvmm_store_totals by) {
    dti_lock_acquire(&store->totals_lock);
    dvmm_store_totals *t = &store->totals;
    t->held_bytes += by.held_bytes;
    t->held_peak_bytes = dti_max(t->held_peak_bytes, t->held_bytes);
    t->created_bytes += by.created_bytes;
    t->cached_bytes += by.cached_bytes;
    t->lost_bytes += by.lost_bytes;
    t->n_handles += by.n_handles;
    t->host_bytes += by.host_bytes;
    t->spill_bytes += by.spill_bytes;
    t->spill_cached_bytes += by.spill_cached_bytes;
    t->spill_lost_bytes += by.spill_lost_bytes;
    t->spill_making_bytes += by.spill_making_bytes;
    t->spilled_bytes =
        t->spill_bytes - t->spill_cached_bytes - t->spill_lost_bytes - t->spill_making_bytes;
    t->spilled_peak_bytes = dti_max(t->spilled_peak_bytes, t->spilled_bytes);
    dti_lock_release(&store->totals_lock);
}

/* ---- Nodes --------------------------------------------------------------------------------- */

static bool add_spare_nodes(dvmm_handle_store *store) {
    dvmm_handle_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL) {
        return false;
    }
    chunk->next = store->chunks;
    store->chunks = chunk;
    change(store, (dvmm_store_totals){.host_bytes = sizeof *chunk});
    for (int i = HANDLES_PER_CHUNK - 1; i >= 0; i--) {
        chunk->nodes[i].next = store->spare;
        store->spare = &chunk->nodes[i];
    }
    return true;
}

static dvmm_handle *take_node(dvmm_handle_store *store) {
    if (store->spare == NULL && !add_spare_nodes(store)) {
        return NULL;
    }
    dvmm_handle *node = store->spare;
    store->spare = node->next;
    return node;
}

static void give_node(dvmm_handle_store *store, dvmm_handle *node) {
    *node = (dvmm_handle){.next = store->spare};
    store->spare = node;
}

/* ---- Create and release -------------------------------------------------------------------- */

/* Where the driver does not say, the create decides. */
static bool leaves_margin(dvmm_handle_store *store, uint64_t bytes) {
    uint64_t free_bytes = 0;
    uint64_t total = 0;
    bool is_known =
        store->margin_bytes > 0 && dvmm_mem_info(store->driver, &free_bytes, &total) == DUCTILE_OK;
    return !is_known || (free_bytes >= bytes && free_bytes - bytes >= store->margin_bytes);
}

ductile_status dvmm_store_create(dvmm_handle_store *store, uint32_t n_granules, uint64_t max_held,
                                 dvmm_handle **out) {
    *out = NULL;
    uint64_t bytes = n_granules * store->granule_bytes;
    uint64_t most = dti_min(max_held, store->limit_bytes);
    if (bytes > most || store->totals.held_bytes > most - bytes) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    if (!leaves_margin(store, bytes)) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    dvmm_handle *h = take_node(store);
    if (h == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dvmm_phys phys = 0;
    ductile_status status = dvmm_phys_create(store->driver, bytes, &store->props, &phys);
    if (status != DUCTILE_OK) {
        give_node(store, h);
        return status;
    }
    *h = (dvmm_handle){.phys = phys, .n_granules = n_granules};
    change(store, (dvmm_store_totals){.held_bytes = bytes, .created_bytes = bytes, .n_handles = 1});
    *out = h;
    return DUCTILE_OK;
}

/* What has left, or is lost. */
static dvmm_store_totals gone(const dvmm_handle *h, uint64_t bytes, bool is_lost) {
    dvmm_store_totals by = {.n_handles = -UINT64_C(1)};
    *(h->is_host ? &by.spill_lost_bytes : &by.lost_bytes) = is_lost ? bytes : 0;
    *(h->is_host ? &by.spill_bytes : &by.held_bytes) = is_lost ? 0 : -bytes;
    return by;
}

static ductile_status release(dvmm_handle_store *store, dvmm_handle *h) {
    if (h->n_mappings != 0) {
        dvmm_store_lose(store, h); /* stuck at a quarantined address: its memory cannot go back */
        return DUCTILE_ERR_DRIVER;
    }
    uint64_t bytes = dvmm_handle_bytes(store, h);
    ductile_status status = dvmm_phys_release(store->driver, h->phys);
    bool is_lost = status != DUCTILE_OK; /* releasing twice is undefined: never tried again */
    change(store, gone(h, bytes, is_lost));
    give_node(store, h);
    return status;
}

void dvmm_store_lose(dvmm_handle_store *store, dvmm_handle *h) {
    change(store, gone(h, dvmm_handle_bytes(store, h), true));
    give_node(store, h);
}

/* ---- The cache ----------------------------------------------------------------------------- */

static unsigned list_of(uint32_t n_granules) {
    return 31u - (unsigned)__builtin_clz(n_granules);
}

static void count_cached(dvmm_handle_store *store, const dvmm_handle *h, uint64_t bytes) {
    change(store, h->is_host ? (dvmm_store_totals){.spill_cached_bytes = bytes}
                             : (dvmm_store_totals){.cached_bytes = bytes});
}

static void link_cached(dvmm_handle_store *store, dvmm_handle *h) {
    dvmm_handle **lists = h->is_host ? store->cached_host : store->cached;
    dvmm_handle **list = &lists[list_of(h->n_granules)];
    h->next = *list;
    *list = h;
}

void dvmm_store_put(dvmm_handle_store *store, dvmm_handle *h) {
    link_cached(store, h);
    count_cached(store, h, dvmm_handle_bytes(store, h));
}

static dvmm_handle *unlink_cached(dvmm_handle_store *store, dvmm_handle **link) {
    dvmm_handle *h = *link;
    *link = h->next;
    h->next = NULL;
    count_cached(store, h, -dvmm_handle_bytes(store, h));
    return h;
}

static dvmm_handle *take(dvmm_handle_store *store, dvmm_handle **lists, uint32_t max_granules) {
    for (unsigned i = list_of(max_granules) + 1; i-- > 0;) {
        for (dvmm_handle **link = &lists[i]; *link != NULL; link = &(*link)->next) {
            if ((*link)->n_granules <= max_granules) {
                return unlink_cached(store, link);
            }
        }
    }
    return NULL;
}

dvmm_handle *dvmm_store_take(dvmm_handle_store *store, uint32_t max_granules) {
    return take(store, store->cached, max_granules);
}

dvmm_handle *dvmm_store_take_exact(dvmm_handle_store *store, uint32_t n_granules) {
    dvmm_handle **link = &store->cached[list_of(n_granules)];
    while (*link != NULL && (*link)->n_granules != n_granules) {
        link = &(*link)->next;
    }
    return *link != NULL ? unlink_cached(store, link) : NULL;
}

ductile_status dvmm_store_shrink_cache(dvmm_handle_store *store, uint64_t keep_cached_bytes) {
    ductile_status first = DUCTILE_OK;
    while (store->totals.cached_bytes > keep_cached_bytes) {
        first = dti_first_error(first, release(store, dvmm_store_take(store, UINT32_MAX)));
    }
    return first;
}

ductile_status dvmm_store_release_cached(dvmm_handle_store *store, uint64_t keep_held_bytes) {
    const dvmm_store_totals *t = &store->totals;
    uint64_t held = t->held_bytes - t->lost_bytes;
    uint64_t excess = held > keep_held_bytes ? held - keep_held_bytes : 0;
    return dvmm_store_shrink_cache(store, t->cached_bytes - dti_min(t->cached_bytes, excess));
}

/* ---- Memory of the host -------------------------------------------------------------------- */

uint64_t dvmm_store_host_total(const dvmm_handle_store *store) {
    uint64_t modelled = dvmm_get_caps(store->driver)->host_bytes;
    return modelled != 0 ? modelled : dvmm_host_pages_total();
}

static uint64_t spill_room(const dvmm_handle_store *store) {
    return store->spill_limit_bytes - dti_min(store->spill_limit_bytes, store->totals.spill_bytes);
}

ductile_status dvmm_store_begin_host(dvmm_handle_store *store, uint32_t n_granules,
                                     dvmm_handle **out) {
    uint64_t bytes = n_granules * store->granule_bytes;
    *out = NULL;
    if (bytes > spill_room(store)) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    dvmm_handle *h = take_node(store);
    if (h == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    *h = (dvmm_handle){.n_granules = n_granules, .is_host = true};
    change(store, (dvmm_store_totals){.spill_bytes = bytes, .spill_making_bytes = bytes});
    *out = h;
    return DUCTILE_OK;
}

ductile_status dvmm_store_make_host(dvmm_handle_store *store, dvmm_handle *h,
                                    uint64_t locked_before) {
    const dvmm_phys_props props = {.is_host = true};
    bool is_modelled = dvmm_get_caps(store->driver)->host_bytes != 0;
    if (!is_modelled && !dvmm_host_pages_may_lock(dvmm_handle_bytes(store, h), locked_before)) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    return dvmm_phys_create(store->driver, dvmm_handle_bytes(store, h), &props, &h->phys);
}

void dvmm_store_end_host(dvmm_handle_store *store, dvmm_handle *h, ductile_status made) {
    uint64_t bytes = dvmm_handle_bytes(store, h);
    bool is_made = made == DUCTILE_OK;
    change(store, (dvmm_store_totals){.spill_bytes = is_made ? 0 : -bytes,
                                      .spill_cached_bytes = is_made ? bytes : 0,
                                      .spill_making_bytes = -bytes,
                                      .n_handles = is_made ? 1 : 0});
    if (is_made) {
        link_cached(store, h);
    } else {
        give_node(store, h);
    }
}

dvmm_handle *dvmm_store_take_host(dvmm_handle_store *store, uint32_t max_granules) {
    return take(store, store->cached_host, max_granules);
}

ductile_status dvmm_store_shrink_host(dvmm_handle_store *store, uint64_t keep_cached_bytes) {
    ductile_status first = DUCTILE_OK;
    while (store->totals.spill_cached_bytes > keep_cached_bytes) {
        first = dti_first_error(first, release(store, dvmm_store_take_host(store, UINT32_MAX)));
    }
    return first;
}

/* ---- The device ---------------------------------------------------------------------------- */

ductile_status dvmm_store_device_memory(dvmm_handle_store *store, uint64_t *free_bytes,
                                        uint64_t *total_bytes) {
    return dvmm_mem_info(store->driver, free_bytes, total_bytes);
}

/* ---- Access, pins, exports ----------------------------------------------------------------- */

ductile_status dvmm_can_reach(dvmm_handle_store *store, int device, bool *out) {
    return dvmm_can_access_peer(store->driver, device, out);
}

ductile_status dvmm_store_grant(dvmm_handle_store *store, ductile_addr addr, uint64_t size,
                                dvmm_access access) {
    if (store->n_devices == 1) {
        return dvmm_set_access(store->driver, addr, size, access);
    }
    return dvmm_set_access_for(store->driver, addr, size, access, store->devices, store->n_devices);
}

/* Totals of pins and exports are written by these alone: a caller that holds the lock under which
 * pins change reads them without the lock of the totals. */
static void add_to(dvmm_handle_store *store, uint64_t *total, uint64_t bytes) {
    dti_lock_acquire(&store->totals_lock);
    *total += bytes;
    dti_lock_release(&store->totals_lock);
}

void dvmm_handle_pin(dvmm_handle_store *store, dvmm_handle *h) {
    if (h->n_pins++ == 0) {
        add_to(store, &store->totals.pinned_bytes, dvmm_handle_bytes(store, h));
    }
}

void dvmm_handle_unpin(dvmm_handle_store *store, dvmm_handle *h) {
    if (--h->n_pins == 0) {
        add_to(store, &store->totals.pinned_bytes, -dvmm_handle_bytes(store, h));
    }
}

void dvmm_handle_add_export(dvmm_handle_store *store, dvmm_handle *h) {
    if (h->n_exports++ == 0) {
        add_to(store, &store->totals.exported_bytes, dvmm_handle_bytes(store, h));
    }
}

void dvmm_handle_drop_export(dvmm_handle_store *store, dvmm_handle *h) {
    if (--h->n_exports == 0) {
        add_to(store, &store->totals.exported_bytes, -dvmm_handle_bytes(store, h));
    }
}

ductile_status dvmm_share_out(dvmm_handle_store *store, dvmm_phys phys, dvmm_shared *out) {
    dvmm_share_type type = (dvmm_share_type)store->props.handle_types;
    *out = (dvmm_shared){.type = type, .fd = -1};
    if (type == DVMM_SHARE_NONE) {
        return DUCTILE_ERR_UNSUPPORTED;
    }
    return dvmm_phys_export(store->driver, phys, type, out);
}
