/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorded uses: their nodes and the spare nodes. Nodes and idle markers are kept, so that a free
 * allocates neither.
 */
#ifndef DUCTILE_POOL_BLOCKS_USE_STORE_H
#define DUCTILE_POOL_BLOCKS_USE_STORE_H

#include "pool/base/allocator.h"
#include "pool/blocks/block.h"

/* A use: a stream besides its own that uses a block. Owned by the block. PENDING: the marker
 * recorded at the free, or NULL when recording failed, which never means "done". */
typedef struct dpool_use {
    ductile_stream stream;
    uint64_t thread; /* per-thread default stream: its thread; else 0; gone: a number of its own */
    bool is_gone;    /* ductile_stream_done was called: the marker was recorded then,
                      * or never will be */
    bool is_foreign; /* it has no marker, and a context marker does not cover its stream */
    bool is_done;    /* in a span with waits: the host knows it, and the marker is gone   */
    uint32_t priority; /* first use of a span, see below */
    dvmm_marker *marker;
    struct dpool_use *next;
    union {
        struct { /* first use of a PENDING block: */
            dpool_block *block;
            struct dpool_use *pending_next;     /* the arena's pending list; itself: in none yet */
            uint64_t number;                    /* each use that has a marker: see stream_use.h  */
            struct dpool_per_stream *of_stream; /* each use that a poll reads: see pending.c */
        };
        struct { /* first use of a span with waits (wait_spans.h): */
            ductile_addr addr;
            ductile_addr end;
            struct dpool_use *left;
            struct dpool_use *right;
        };
    };
} dpool_use;

/* Pending blocks, each represented by its first use, linked by pending_next. */
typedef struct dpool_pending_list {
    dpool_use *first;
    dpool_use *last;
} dpool_pending_list;

/* Appends a block, and appends a whole list. */
static inline void dpool_pending_push(dpool_pending_list *list, dpool_use *uses) {
    uses->pending_next = NULL;
    *(list->last != NULL ? &list->last->pending_next : &list->first) = uses;
    list->last = uses;
}

static inline void dpool_pending_join(dpool_pending_list *list, dpool_pending_list more) {
    if (more.first != NULL) {
        *(list->last != NULL ? &list->last->pending_next : &list->first) = more.first;
        list->last = more.last;
    }
}

/* Adds a spare node. Index lock not held. ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_uses_make_spare(ductile_allocator *a);

/* Takes a spare node; NULL when there is none. */
dpool_use *dpool_use_take_locked(ductile_allocator *a);

/* Drops the markers of a list of uses that no other thread can reach, and makes the nodes spare. */
void dpool_uses_drop_locked(ductile_allocator *a, dpool_use *uses);

/* Drops a list of uses that no other thread can reach: markers and nodes. NULL: does nothing. Index
 * lock not held. */
void dpool_uses_drop(ductile_allocator *a, dpool_use *uses);

/* Frees the spare nodes, and gives the spare markers to the marker pool. Destroying only. */
void dpool_spare_uses_free(ductile_allocator *a);

#endif
