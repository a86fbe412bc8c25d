/* SPDX-License-Identifier: Apache-2.0 */
/* The public free, and what happens to a freed block. */
#include "pool/free.h"

#include "pool/blocks/address_map.h"
#include "pool/blocks/asleep_blocks.h"
#include "pool/blocks/region.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/give_back.h"
#include "pool/inspect/validate.h"
#include "pool/sharing/import.h"
#include "pool/streams/stream_use.h"

/* Uncommon ways to free, kept out of line. Called with the index lock held; they unlock it. */

static __attribute__((noinline)) ductile_status free_other(ductile_allocator *a,
                                                           ductile_addr addr) {
    ductile_status status = dpool_explain_miss_locked(a, addr);
    dti_lock_release(&a->index_lock);
    return status == DUCTILE_ERR_FOREIGN_POINTER ? dpool_import_leave(a, addr) : status;
}

static __attribute__((noinline)) ductile_status free_asleep(ductile_allocator *a, dpool_block *b) {
    dpool_use *uses = dpool_free_asleep_locked(a, b);
    dti_lock_release(&a->index_lock);
    dpool_uses_drop(a, uses);
    return DUCTILE_OK;
}

static __attribute__((noinline)) ductile_status free_used(ductile_allocator *a, dpool_block *b,
                                                          dpool_use *uses, int *is_pending) {
    dpool_pending_begin_locked(a, b);
    dti_lock_release(&a->index_lock);
    bool pends = dpool_pending_record(a, uses);
    if (is_pending != NULL) {
        *is_pending = pends;
    }
    return DUCTILE_OK;
}

/* is_pending: NULL, or 0, which a block that becomes pending changes. */
static inline __attribute__((always_inline)) ductile_status
free_block(ductile_allocator *a, ductile_addr addr, int *is_pending) {
    dti_lock_acquire(&a->index_lock);
    dpool_block *b = dpool_map_take(&a->map, addr);
    if (__builtin_expect(b == NULL, 0)) {
        return free_other(a, addr);
    }
    if (__builtin_expect(b->state != DPOOL_LIVE, 0)) {
        return free_asleep(a, b);
    }
    dpool_leave_live_locked(a, b);
    dpool_use *uses = b->uses;
    if (uses != NULL) {
        return free_used(a, b, uses, is_pending);
    }
    dpool_free_at_once_locked(a, b);
    dti_lock_release(&a->index_lock);
    return DUCTILE_OK;
}

ductile_status dpool_free(ductile_allocator *a, ductile_addr address) {
    return free_block(a, address, NULL);
}

void dpool_end_frees(ductile_allocator *a) {
    if (a->options.caching_off != 0) {
        (void)dpool_trim(a, 0);
    }
    dpool_audit(a, DPOOL_AUDIT_CALL);
}

/* With options that need more than a plain free. */
static __attribute__((noinline)) ductile_status
free_otherwise(ductile_allocator *a, ductile_addr address, int *is_pending) {
    ductile_status status = free_block(a, address, is_pending);
    if (status == DUCTILE_OK) {
        dpool_end_frees(a);
    }
    return status;
}

__attribute__((flatten)) ductile_status ductile_free(ductile_allocator *a, ductile_addr address) {
    if (__builtin_expect(a == NULL, 0)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (__builtin_expect(address == 0 || !dvmm_is_usable(a->driver), 0)) {
        return dvmm_usable(a->driver);
    }
    return __builtin_expect(a->is_plain, 1) ? free_block(a, address, NULL)
                                            : free_otherwise(a, address, NULL);
}

static ductile_status record_streams(ductile_allocator *a, ductile_addr address,
                                     const ductile_stream *streams, size_t n) {
    ductile_status status = DUCTILE_OK;
    for (size_t i = 0; i < n && status == DUCTILE_OK; i++) {
        status = dpool_use_add(a, address, streams[i]);
    }
    return status;
}

ductile_status ductile_free_ex(ductile_allocator *a, ductile_addr address,
                               const ductile_stream *streams, size_t n_streams, int *is_pending) {
    int pends = 0;
    ductile_status status = a != NULL && (streams != NULL || n_streams == 0)
                                ? dvmm_usable(a->driver)
                                : DUCTILE_ERR_INVALID_ARGUMENT;
    bool frees = status == DUCTILE_OK && address != 0;
    status = frees ? record_streams(a, address, streams, n_streams) : status;
    if (frees && status == DUCTILE_OK) {
        status = free_otherwise(a, address, &pends);
    }
    if (is_pending != NULL) {
        *is_pending = pends;
    }
    return status;
}
