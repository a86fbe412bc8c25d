/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/use_store.h"

#include "pool/base/allocator.h"

#include <stdlib.h>

ductile_status dpool_uses_make_spare(ductile_allocator *a) {
    dpool_use *use = malloc(sizeof *use);
    if (use == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_acquire(&a->index_lock);
    use->next = a->spare_uses;
    a->spare_uses = use;
    a->counts.use_host_bytes += sizeof *use;
    dti_lock_release(&a->index_lock);
    return DUCTILE_OK;
}

dpool_use *dpool_use_take_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_use *use = a->spare_uses;
    if (use != NULL) {
        a->spare_uses = use->next;
    }
    return use;
}

void dpool_uses_drop_locked(ductile_allocator *a, dpool_use *uses) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_use *last = uses;
    for (dpool_use *use = uses; use != NULL; use = use->next) {
        dvmm_marker_drop(&a->markers, use->marker);
        last = use;
    }
    last->next = a->spare_uses;
    a->spare_uses = uses;
}

void dpool_uses_drop(ductile_allocator *a, dpool_use *uses) {
    if (uses != NULL) {
        dti_lock_acquire(&a->index_lock);
        dpool_uses_drop_locked(a, uses);
        dti_lock_release(&a->index_lock);
    }
}

void dpool_spare_uses_free(ductile_allocator *a) {
    while (a->spare_uses != NULL) {
        dpool_use *use = a->spare_uses;
        a->spare_uses = use->next;
        free(use);
    }
}
