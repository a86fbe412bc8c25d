/* SPDX-License-Identifier: Apache-2.0 */
/* The state of this room that every allocator embeds. */
#ifndef DUCTILE_POOL_STREAMS_STREAMS_STATE_H
#define DUCTILE_POOL_STREAMS_STREAMS_STATE_H

#include <stdbool.h>
#include <stdint.h>

enum { DPOOL_MOST_MARKS = 64 };

typedef struct dpool_mark {
    struct dvmm_marker *marker;
    uint64_t age; /* proves, once done, what was freed at an age below */
} dpool_mark;

/* Context markers under way, the oldest first. Guarded by the index lock. */
typedef struct dpool_marks {
    dpool_mark all[DPOOL_MOST_MARKS];
    uint32_t n;
    uint64_t freed_bytes; /* of all frees before the latest one */
    bool is_wanted;       /* more than those frees waits for a proof */
    uint32_t n_own;       /* arenas with a mark of their own under way */
} dpool_marks;

#endif
