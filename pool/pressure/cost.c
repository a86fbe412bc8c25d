/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pressure/cost.h"

dpool_cost dpool_cost_now(ductile_allocator *a) {
    dvmm_counters d;
    dvmm_get_counters(a->driver, &d);
    dvmm_store_totals t = dvmm_store_read(&a->store);
    return (dpool_cost){dvmm_count_host_waits(&d), t.created_bytes - t.held_bytes};
}

void dpool_count_cost(ductile_allocator *a, const dpool_cost *before) {
    dpool_cost now = dpool_cost_now(a);
    uint64_t released = now.released_bytes - before->released_bytes;
    dti_lock_acquire(&a->index_lock);
    a->counts.pressure_waits += now.host_waits > before->host_waits;
    a->counts.pressure_returns += released > 0;
    a->counts.pressure_returned += released;
    dti_lock_release(&a->index_lock);
}
