/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of GAP and of RETIRING blocks. */
#ifndef DUCTILE_POOL_BLOCKS_BLOCK_LIST_H
#define DUCTILE_POOL_BLOCKS_BLOCK_LIST_H

#include "pool/blocks/block.h"

/* Doubly linked through list_prev and list_next. */
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
