/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pools/asleep.h"

#include "pool/base/guards.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"

#include <string.h>

/* ---- Tags ---------------------------------------------------------------------------------- */

static ductile_status set_tag_locked(ductile_allocator *a, ductile_pool_id id, const char *tag,
                                     ductile_contents contents) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    if (pool == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    DTI_TRY(dpool_need_awake(pool));
    memset(pool->tag, 0, sizeof pool->tag);
    memcpy(pool->tag, tag, strlen(tag));
    pool->policy = contents;
    return DUCTILE_OK;
}

ductile_status ductile_pool_set_tag(ductile_allocator *a, ductile_pool_id id, const char *tag,
                                    ductile_contents contents) {
    tag = tag != NULL ? tag : "";
    if (a == NULL || !dpool_is_contents(contents) ||
        strnlen(tag, DUCTILE_TAG_BYTES) == DUCTILE_TAG_BYTES) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dvmm_usable(a->driver);
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        status = set_tag_locked(a, id, tag, contents);
        dti_lock_release(&a->index_lock);
    }
    return status;
}

/* ---- Refusals ------------------------------------------------------------------------------ */

static _Thread_local struct {
    uint64_t instance_id; /* 0: none */
    ductile_refusal what;
} latest_refusal;

static void note_refusal_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                                uint64_t bytes) {
    DTI_ASSERT_HELD(&a->index_lock);
    latest_refusal.instance_id = a->instance_id;
    latest_refusal.what = (ductile_refusal){.pool = pool->id, .bytes = bytes};
    memcpy(latest_refusal.what.tag, pool->tag, sizeof pool->tag);
}

ductile_status dpool_admit_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                                  uint64_t bytes) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (dpool_need_awake(pool) == DUCTILE_OK) {
        return DUCTILE_OK;
    }
    note_refusal_locked(a, pool, bytes);
    return DUCTILE_ERR_ASLEEP;
}

ductile_status ductile_sleep_refusal(ductile_allocator *a, ductile_refusal *out) {
    ductile_status status = dpool_may_fill(a, out, sizeof *out);
    if (status == DUCTILE_OK && latest_refusal.instance_id != a->instance_id) {
        status = DUCTILE_ERR_NOT_LIVE;
    }
    if (status == DUCTILE_OK) {
        ductile_refusal what = latest_refusal.what;
        what.struct_size = out->struct_size;
        memcpy(out, &what, out->struct_size);
    }
    return status;
}

/* ---- Kept contents ------------------------------------------------------------------------- */

/* Where no call that puts the pool to sleep or wakes it is under way, its host copy does not
 * change. */
static ductile_status find_kept_locked(const ductile_allocator *a, const dpool_block *b,
                                       ductile_addr address, void **host, uint64_t *bytes) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_private_pool *pool = b->region->arena->pool;
    if (dpool_need_awake(pool) == DUCTILE_ERR_BUSY) {
        return DUCTILE_ERR_NOT_READY;
    }
    if (b->state != DPOOL_ASLEEP && (!pool->retains || b->age == 0)) {
        return DUCTILE_ERR_AWAKE;
    }
    *host = dvmm_host_copy_find(&pool->host_copy, address, bytes);
    return *host != NULL ? DUCTILE_OK : DUCTILE_ERR_UNSUPPORTED;
}

/* The live or sleeping block that holds the address; found at once where it begins there. */
static ductile_status find_block_locked(const ductile_allocator *a, ductile_addr address,
                                        const dpool_block **out) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_block *b = dpool_map_find(&a->map, address);
    b = b != NULL ? b : dpool_block_at_locked(a, address);
    *out = b;
    if (b == NULL) {
        return DUCTILE_ERR_FOREIGN_POINTER;
    }
    return dpool_is_in_use(b) ? DUCTILE_OK : DUCTILE_ERR_NOT_LIVE;
}

ductile_status ductile_kept_contents(ductile_allocator *a, ductile_addr address, void **host,
                                     uint64_t *bytes) {
    uint64_t ignored = 0;
    bytes = bytes != NULL ? bytes : &ignored;
    *bytes = 0;
    if (host == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *host = NULL;
    DTI_TRY(dpool_may_read(a));
    const dpool_block *b = NULL;
    dti_lock_acquire(&a->index_lock);
    ductile_status status = find_block_locked(a, address, &b);
    if (status == DUCTILE_OK) {
        status = find_kept_locked(a, b, address, host, bytes);
    }
    dti_lock_release(&a->index_lock);
    *bytes = status == DUCTILE_OK ? *bytes : 0;
    return status;
}
