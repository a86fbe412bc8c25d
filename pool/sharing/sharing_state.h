/* SPDX-License-Identifier: Apache-2.0 */
/* The state of this room that every allocator embeds. */
#ifndef DUCTILE_POOL_SHARING_SHARING_STATE_H
#define DUCTILE_POOL_SHARING_SHARING_STATE_H

#include <stdint.h>

struct dpool_import;
struct dpool_pin;
struct dpool_tag_export;

/* Pointers, in no order. Changed under both locks. */
typedef struct dpool_imports {
    struct dpool_import **items;
    uint32_t count;
    uint32_t capacity;
} dpool_imports;

/* Sorted by address. Guarded by the grow lock; the counts in handles are changed under both. */
typedef struct dpool_pins {
    struct dpool_pin *items;
    uint32_t count;
    uint32_t capacity;
    struct dpool_tag_export *tags; /* exports of whole tags, newest first */
    uint64_t last_tag_id;
} dpool_pins;

#endif
