/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An ordered set of intrusive nodes, keyed (major, minor): a treap, so that the first node at or
 * above a key, its successor, insertion and removal all take logarithmic time, as in the
 * red-black tree that PyTorch's allocator keeps its free blocks in.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_TORCH_SET_H
#define DUCTILE_BENCH_CONTENDERS_TORCH_SET_H

#include <stdint.h>

/* Owned by the struct that embeds it; everything is valid only while the node is in a set. */
typedef struct torch_node {
    uint64_t major; /* the key, fixed while in the set */
    uint64_t minor;
    struct torch_node *parent;
    struct torch_node *child[2];
    uint32_t priority; /* a parent's is at least its children's */
} torch_node;

typedef struct torch_set {
    torch_node *root;
    uint32_t random; /* state of the generator of priorities; 0 starts it */
} torch_set;

/* Pre: no node of the set has this key. */
void torch_set_insert(torch_set *set, torch_node *node, uint64_t major, uint64_t minor);
/* Pre: the node is in the set. */
void torch_set_remove(torch_set *set, torch_node *node);
/* The first node whose key is at or above (major, minor), or NULL. */
torch_node *torch_set_find_at_least(const torch_set *set, uint64_t major, uint64_t minor);
torch_node *torch_set_find_first(const torch_set *set);
/* The next node in key order, or NULL. */
torch_node *torch_set_find_next(const torch_node *node);

#endif
