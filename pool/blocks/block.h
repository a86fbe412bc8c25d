/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: spans of a segment that tile it, in address order.
 *
 *     state        memory behind it           is in
 *     LIVE         yes                        the address map
 *     FREE         yes                        the arena's free index, or its leaving list
 *     PENDING      yes                        the arena's pending list
 *     GAP          no                         the arena's gap list
 *     BUSY         as before it became busy   the plan of the holder of the grow lock
 *     RETIRING     old address of a handle    the arena's retire queue
 *     QUARANTINED  unusable                   nothing
 *     ASLEEP       none now (pools/sleep.h)   the address map
 *
 * GAP, RETIRING and QUARANTINED spans are whole granules; FREE memory may end anywhere.
 * Two neighbours are never both FREE, nor both GAP.
 * Guarded by the index lock. Only the holder of the grow lock changes a BUSY or RETIRING block,
 * except the age of a BUSY one, which a wait may raise (wait_spans.h).
 */
#ifndef DUCTILE_POOL_BLOCKS_BLOCK_H
#define DUCTILE_POOL_BLOCKS_BLOCK_H

#include <ductile.h>

#include <stdbool.h>

typedef enum dpool_state {
    DPOOL_LIVE = DUCTILE_BLOCK_LIVE,
    DPOOL_FREE = DUCTILE_BLOCK_FREE,
    DPOOL_PENDING = DUCTILE_BLOCK_PENDING,
    DPOOL_BUSY = DUCTILE_BLOCK_BUSY,
    DPOOL_GAP = DUCTILE_BLOCK_GAP,
    DPOOL_RETIRING = DUCTILE_BLOCK_RETIRING,
    DPOOL_QUARANTINED = DUCTILE_BLOCK_QUARANTINED,
    DPOOL_ASLEEP = DUCTILE_BLOCK_ASLEEP
} dpool_state;

typedef struct dpool_block {
    ductile_addr addr;
    uint64_t size;            /* bytes, a multiple of 512 */
    struct dpool_block *prev; /* neighbours by address, same segment; NULL at its ends */
    struct dpool_block *next;
    struct dpool_region *region;
    union {
        struct { /* LIVE, PENDING, ASLEEP */
            uint64_t requested;
            struct dpool_use *uses; /* recorded streams; NULL for none */
        };
        struct { /* FREE, in a tree of the index: children */
            struct dpool_block *left;
            struct dpool_block *right;
        };
        uint64_t slot; /* FREE, in the front of the index: its slot */
        struct {       /* leaving FREE, GAP, BUSY, RETIRING: links of the list it is in */
            struct dpool_block *list_prev;
            struct dpool_block *list_next;
        };
    };
    union {
        struct {
            uint64_t age : 43;      /* FREE, BUSY, PENDING, RETIRING: when it was freed, see age.h;
                                       2^43 are two years of 100,000 a second. LIVE: 1 if its host
                                       copy is retained */
            uint64_t is_mixed : 1;  /* FREE, BUSY: parts of it are older, see age.h */
            uint64_t priority : 16; /* FREE, in a tree of the index: its place */
            uint64_t state : 4;     /* dpool_state */
        };
        uint64_t marks; /* all four: reading a field with another width than it was just written
                           stalls */
    };
} dpool_block;

_Static_assert(sizeof(dpool_block) == 64, "a block is one cache line");

/* The marks of a LIVE block, which has no age. */
#define DPOOL_LIVE_MARKS UINT64_C(0)

_Static_assert(DPOOL_LIVE == 0, "the state is one of the marks");

#define DPOOL_AGE_MASK (((uint64_t)1 << 43) - 1)

static inline ductile_addr dpool_end(const dpool_block *b) {
    return b->addr + b->size;
}

/* Does the program hold the block? */
static inline bool dpool_is_in_use(const dpool_block *b) {
    return b->state == DPOOL_LIVE || b->state == DPOOL_ASLEEP;
}

/* Does it serve a request: is it in use, or were its recorded uses not done when it was freed? */
static inline bool dpool_has_request(const dpool_block *b) {
    return dpool_is_in_use(b) || b->state == DPOOL_PENDING;
}

/* The order of best fit. */
static inline bool dpool_comes_before(const dpool_block *a, const dpool_block *b) {
    return a->size != b->size ? a->size < b->size : a->addr < b->addr;
}

/* ---- Lists --------------------------------------------------------------------------------- */

/* Of GAP or of RETIRING blocks, doubly linked through list_prev and list_next. */
typedef struct dpool_list {
    dpool_block *first;
    dpool_block *last;
    uint64_t count;
} dpool_list;

void dpool_list_append(dpool_list *list, dpool_block *b);
void dpool_list_remove(dpool_list *list, dpool_block *b);

/* Inserts behind the last block that is not younger. Fast when ages mostly rise. */
void dpool_list_insert_by_age(dpool_list *list, dpool_block *b);

#endif
