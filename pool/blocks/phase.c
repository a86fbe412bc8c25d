/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/phase.h"

ductile_status dpool_need_awake(const dpool_private_pool *pool) {
    if (dpool_is_awake(pool)) {
        return DUCTILE_OK;
    }
    return dpool_is_asleep(pool) ? DUCTILE_ERR_ASLEEP : DUCTILE_ERR_BUSY;
}

dpool_readiness dpool_readiness_of(const dpool_private_pool *pool, bool to_sleep) {
    ductile_pool_state from = to_sleep ? DUCTILE_POOL_AWAKE : DUCTILE_POOL_ASLEEP;
    ductile_pool_state already = to_sleep ? DUCTILE_POOL_ASLEEP : DUCTILE_POOL_AWAKE;
    if (pool->phase == already) {
        return DPOOL_ALREADY;
    }
    return pool->phase == from && !pool->is_claimed ? DPOOL_READY : DPOOL_TAKEN;
}

void dpool_claim_locked(ductile_allocator *a, dpool_private_pool *pool, bool to_sleep) {
    DTI_ASSERT_HELD(&a->index_lock);
    pool->phase = to_sleep ? DUCTILE_POOL_FALLING_ASLEEP : DUCTILE_POOL_WAKING;
    pool->is_claimed = true;
    pool->n_users++;
}

dpool_private_pool *dpool_leave_claimed_locked(ductile_allocator *a, dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    pool->is_claimed = false;
    pool->n_users--;
    return dpool_unlink_unused_pool_locked(a, pool);
}

void dpool_set_unbacked(ductile_allocator *a, dpool_private_pool *pool, bool is_unbacked) {
    dti_lock_acquire(&a->index_lock);
    pool->is_unbacked = is_unbacked;
    dti_lock_release(&a->index_lock);
}

void dpool_set_asleep_locked(ductile_allocator *a, dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    pool->phase = DUCTILE_POOL_ASLEEP;
}

void dpool_set_awake_locked(ductile_allocator *a, dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    pool->phase = DUCTILE_POOL_AWAKE;
    pool->is_unbacked = false;
    pool->contents = DUCTILE_CONTENTS_POLICY;
    pool->released_age = a->age;
    a->marks.is_wanted = true;
}

void dpool_phase_check_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                              uint64_t n_asleep, uint64_t n_with_memory, uint64_t where,
                              dti_fault *fault) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_changing = !dpool_is_awake(pool) && !dpool_is_asleep(pool);
    dti_expect(fault, "G4", n_asleep == 0 || !dpool_is_awake(pool),
               "sleeping blocks of a pool that is awake", n_asleep, 0, where);
    dti_expect(fault, "G4", !pool->is_unbacked || n_with_memory == 0,
               "blocks with memory in an unbacked pool", n_with_memory, 0, where);
    dti_expect(fault, "G4", pool->is_unbacked == dpool_is_asleep(pool) || is_changing,
               "an unbacked pool's phase", (uint64_t)pool->phase, DUCTILE_POOL_ASLEEP, where);
}
