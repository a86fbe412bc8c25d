/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/preload/deferred.h"

#include "pool/preload/device.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef struct kept {
    struct kept *next;
    ductile_addr address;
} kept;

static _Atomic(kept *) all;
static atomic_int n_captures;

bool dpre_is_capture_known(void) {
    return atomic_load(&n_captures) > 0;
}

void dpre_capture_begins(void) {
    atomic_fetch_add(&n_captures, 1);
    ductile_capture_begin();
}

void dpre_capture_ended(void) {
    ductile_capture_end();
    if (atomic_fetch_sub(&n_captures, 1) == 1) {
        dpre_free_deferred();
    }
}

static void put(kept *k) {
    k->next = atomic_load(&all);
    while (!atomic_compare_exchange_weak(&all, &k->next, k)) {
    }
}

bool dpre_defer(ductile_addr address) {
    kept *k = malloc(sizeof(*k));
    if (k != NULL) {
        k->address = address;
        put(k);
    }
    return k != NULL;
}

/* False: the device cannot be waited for now. */
static bool free_one(ductile_addr address) {
    ductile_block_info block;
    dpre_device *d = dpre_enter_owner(address, &block);
    bool is_done = d == NULL || dpre_wait(d) == CU_SUCCESS;
    if (d != NULL && is_done) {
        (void)ductile_free(dpre_allocator(d), address);
    }
    dpre_leave(d);
    return is_done;
}

void dpre_free_deferred(void) {
    kept *rest = atomic_exchange(&all, NULL);
    while (rest != NULL) {
        kept *k = rest;
        rest = k->next;
        if (!dpre_is_capture_known() && free_one(k->address)) {
            free(k);
        } else {
            put(k);
        }
    }
}
