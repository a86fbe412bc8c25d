/* SPDX-License-Identifier: Apache-2.0 */
/* What the room of growth keeps in the allocator. */
#ifndef DUCTILE_POOL_GROWTH_GROWTH_STATE_H
#define DUCTILE_POOL_GROWTH_GROWTH_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* How large handles are made: sizes.h. Guarded by the grow lock. */
typedef struct dpool_sizes {
    uint32_t most_granules;    /* constant: of a handle but dedicated or tagged ones */
    uint32_t calls_until_look; /* at the memory that the device has left           */
    uint64_t room_bytes;       /* that may be held in all, as last seen            */
    uint64_t most_held;        /* ever, in bytes                                   */
    uint32_t stamp;            /* the latest number of a walk: homes.h; index lock */
    uint64_t most_in_use;      /* its peak since it was last forgotten; index lock */
    /* written under the grow lock, read at any time */
    _Atomic bool has_large; /* handles of several granules may have been made */
    _Atomic bool is_tight;  /* close to the room is held                       */
} dpool_sizes;

#endif
