/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/torch_set.h"

#include <stdbool.h>
#include <stddef.h>

enum { LEFT = 0, RIGHT = 1 };

/* Any sequence balances the tree as long as it does not follow the keys; a fixed start keeps
 * runs alike. */
static uint32_t next_priority(torch_set *set) {
    uint32_t x = set->random != 0 ? set->random : 0x9e3779b9u;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    set->random = x;
    return x;
}

static bool is_below(const torch_node *node, uint64_t major, uint64_t minor) {
    return node->major < major || (node->major == major && node->minor < minor);
}

static int side_of(const torch_node *node) {
    return node->parent->child[RIGHT] == node ? RIGHT : LEFT;
}

/* Puts `node` (or nothing) where `old` hangs. */
static void replace(torch_set *set, const torch_node *old, torch_node *node) {
    if (old->parent == NULL) {
        set->root = node;
    } else {
        old->parent->child[side_of(old)] = node;
    }
    if (node != NULL) {
        node->parent = old->parent;
    }
}

/* Turns the edge between a node and its parent, which becomes its child. */
static void rotate_up(torch_set *set, torch_node *node) {
    torch_node *parent = node->parent;
    int side = side_of(node);
    torch_node *inner = node->child[1 - side];
    replace(set, parent, node);
    node->child[1 - side] = parent;
    parent->parent = node;
    parent->child[side] = inner;
    if (inner != NULL) {
        inner->parent = parent;
    }
}

void torch_set_insert(torch_set *set, torch_node *node, uint64_t major, uint64_t minor) {
    torch_node *parent = NULL;
    torch_node **link = &set->root;
    while (*link != NULL) {
        parent = *link;
        link = &parent->child[is_below(parent, major, minor) ? RIGHT : LEFT];
    }
    *node = (torch_node){
        .major = major, .minor = minor, .parent = parent, .priority = next_priority(set)};
    *link = node;
    while (node->parent != NULL && node->parent->priority < node->priority) {
        rotate_up(set, node);
    }
}

/* The child that must become the parent of the other; NULL when there is at most one. */
static torch_node *find_heavier_child(const torch_node *node) {
    torch_node *left = node->child[LEFT];
    torch_node *right = node->child[RIGHT];
    if (left == NULL || right == NULL) {
        return NULL;
    }
    return left->priority > right->priority ? left : right;
}

void torch_set_remove(torch_set *set, torch_node *node) {
    for (torch_node *up = find_heavier_child(node); up != NULL; up = find_heavier_child(node)) {
        rotate_up(set, up);
    }
    replace(set, node, node->child[LEFT] != NULL ? node->child[LEFT] : node->child[RIGHT]);
}

torch_node *torch_set_find_at_least(const torch_set *set, uint64_t major, uint64_t minor) {
    torch_node *best = NULL;
    for (torch_node *node = set->root; node != NULL;) {
        if (is_below(node, major, minor)) {
            node = node->child[RIGHT];
        } else {
            best = node;
            node = node->child[LEFT];
        }
    }
    return best;
}

static torch_node *find_leftmost(torch_node *node) {
    while (node != NULL && node->child[LEFT] != NULL) {
        node = node->child[LEFT];
    }
    return node;
}

torch_node *torch_set_find_first(const torch_set *set) {
    return find_leftmost(set->root);
}

torch_node *torch_set_find_next(const torch_node *node) {
    if (node->child[RIGHT] != NULL) {
        return find_leftmost(node->child[RIGHT]);
    }
    while (node->parent != NULL && side_of(node) == RIGHT) {
        node = node->parent;
    }
    return node->parent;
}
