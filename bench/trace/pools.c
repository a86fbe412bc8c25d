/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/pools.h"

#include "bench/base/array.h"

#include <stdlib.h>

static bool are_same(ductile_pool_id a, ductile_pool_id b) {
    return a.first == b.first && a.second == b.second;
}

/* Two pools may have the same: the second one then has the next that is free. */
static uint64_t first_key(ductile_pool_id id) {
    return id.first * UINT64_C(0x9e3779b97f4a7c15) + id.second;
}

/* Where the pool stands, or would. */
static uint64_t key_of(const trace_pools *p, ductile_pool_id id, uintptr_t *number) {
    uint64_t key = first_key(id);
    *number = hash_map_find(&p->numbers, key);
    while (*number != 0 && !are_same(p->ids[*number - 1], id)) {
        *number = hash_map_find(&p->numbers, ++key);
    }
    return key;
}

uint16_t trace_pools_find(const trace_pools *p, ductile_pool_id id) {
    uintptr_t number = 0;
    if (p->n > 0 && !trace_pool_is_none(id)) {
        (void)key_of(p, id, &number);
    }
    return (uint16_t)number;
}

const char *trace_pools_add(trace_pools *p, ductile_pool_id id, uint16_t *number) {
    uintptr_t found = 0;
    *number = 0;
    if (trace_pool_is_none(id)) {
        return NULL;
    }
    uint64_t key = key_of(p, id, &found);
    if (found == 0) {
        if (p->n == TRACE_MAX_POOLS) {
            return "more than 65534 pools";
        }
        if (!hash_map_put(&p->numbers, key, p->n + 1) ||
            !array_add(&p->ids, sizeof id, &p->capacity, &p->n, &id)) {
            return "the host has no memory left";
        }
        found = p->n;
    }
    *number = (uint16_t)found;
    return NULL;
}

const char *trace_pools_copy(trace_pools *to, const trace_pools *from) {
    const char *reason = NULL;
    uint16_t number;
    *to = (trace_pools){0};
    for (size_t i = 0; reason == NULL && i < from->n; i++) {
        reason = trace_pools_add(to, from->ids[i], &number);
    }
    return reason;
}

void trace_pools_drop(trace_pools *p) {
    free(p->ids);
    hash_map_drop(&p->numbers);
    *p = (trace_pools){0};
}
