/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/free_index.h"

#include "vmm/base/check.h"

/* ---- Treap of one bin ---------------------------------------------------------------------- */

/* Mixes the address: equal blocks lie in regular strides, and a hash that keeps the order of a
 * stride would turn the tree into a list. The block stores the result, since a descent compares it
 * at every step. */
static inline uint64_t choose_priority(const dpool_block *b) {
    uint64_t h = b->addr / DPOOL_UNIT;
    h = (h ^ (h >> 15)) * UINT64_C(0xD6E8FEB86659FD93);
    h = (h ^ (h >> 32)) * UINT64_C(0x9E3779B97F4A7C15);
    return h >> 48;
}

/* Puts b at the top of the subtree *at, dividing what was there. */
static void put_above(dpool_block **at, dpool_block *b) {
    dpool_block *rest = *at;
    dpool_block **left = &b->left;
    dpool_block **right = &b->right;
    *at = b;
    while (rest != NULL) {
        if (dpool_comes_before(rest, b)) {
            *left = rest;
            left = &rest->right;
        } else {
            *right = rest;
            right = &rest->left;
        }
        rest = dpool_comes_before(rest, b) ? rest->right : rest->left;
    }
    *left = NULL;
    *right = NULL;
}

static void tree_insert(dpool_block **root, dpool_block *b) {
    uint64_t mine = b->priority;
    dpool_block **at = root;
    while (*at != NULL && (*at)->priority >= mine) {
        at = dpool_comes_before(*at, b) ? &(*at)->right : &(*at)->left;
    }
    put_above(at, b);
}

/* Joins the two subtrees of a removed node; all of left comes before all of right. */
static void join_at(dpool_block **at, dpool_block *left, dpool_block *right) {
    while (left != NULL && right != NULL) {
        if (left->priority > right->priority) {
            *at = left;
            at = &left->right;
            left = left->right;
        } else {
            *at = right;
            at = &right->left;
            right = right->left;
        }
    }
    *at = left != NULL ? left : right;
}

/* b had `size` bytes when it was inserted. */
static dpool_block **link_of(dpool_block **root, const dpool_block *b, uint64_t size) {
    dpool_block **at = root;
    while (*at != b) {
        DTI_ASSERT(*at != NULL);
        bool is_before = (*at)->size != size ? (*at)->size < size : (*at)->addr < b->addr;
        at = is_before ? &(*at)->right : &(*at)->left;
    }
    return at;
}

static dpool_block *first_of(dpool_block *root) {
    while (root->left != NULL) {
        root = root->left;
    }
    return root;
}

static dpool_block *last_of(dpool_block *root) {
    while (root->right != NULL) {
        root = root->right;
    }
    return root;
}

/* The first block of at least `size`; NULL when there is none. */
static dpool_block *fit_of(dpool_block *root, uint64_t size) {
    dpool_block *best = NULL;
    while (root != NULL) {
        bool fits = root->size >= size;
        best = fits ? root : best;
        root = fits ? root->left : root->right;
    }
    return best;
}

static dpool_block *last_below(dpool_block *root, const dpool_block *bound) {
    dpool_block *best = NULL;
    while (root != NULL) {
        if (dpool_comes_before(root, bound)) {
            best = root;
            root = root->right;
        } else {
            root = root->left;
        }
    }
    return best;
}

/* ---- Bins ---------------------------------------------------------------------------------- */

static inline void mark_bin(dpool_free_index *index, unsigned bin) {
    index->words[bin / 64] |= (uint64_t)1 << (bin % 64);
    index->summary |= (uint64_t)1 << (bin / 64);
}

static inline void unmark_bin(dpool_free_index *index, unsigned bin) {
    uint64_t *word = &index->words[bin / 64];
    *word &= ~((uint64_t)1 << (bin % 64));
    if (*word == 0) {
        index->summary &= ~((uint64_t)1 << (bin / 64));
    }
}

static inline uint64_t bits_from(unsigned bit) {
    return bit < 64 ? ~(uint64_t)0 << bit : 0;
}

/* The last bin up to and including `bin` that holds a block; DPOOL_BINS when there is none. */
static unsigned previous_bin(const dpool_free_index *index, unsigned bin) {
    unsigned w = bin / 64;
    uint64_t word = index->words[w] & ~bits_from(bin % 64 + 1);
    if (word == 0) {
        uint64_t earlier = index->summary & ~bits_from(w);
        if (earlier == 0) {
            return DPOOL_BINS;
        }
        w = 63u - (unsigned)__builtin_clzll(earlier);
        word = index->words[w];
    }
    return w * 64 + 63u - (unsigned)__builtin_clzll(word);
}

static void bin_insert(dpool_free_index *index, dpool_block *b) {
    unsigned bin = dpool_bin(b->size);
    dpool_block **root = &index->bins[bin];
    b->priority = choose_priority(b) & 0xFFFF;
    if (*root == NULL) {
        mark_bin(index, bin);
        b->left = NULL;
        b->right = NULL;
        *root = b;
    } else {
        tree_insert(root, b);
    }
}

static inline void bin_remove_at(dpool_free_index *index, unsigned bin, dpool_block **at) {
    join_at(at, (*at)->left, (*at)->right);
    if (index->bins[bin] == NULL) {
        unmark_bin(index, bin);
    }
}

__attribute__((noinline)) void dpool_bins_insert(dpool_free_index *index, dpool_block *b) {
    bin_insert(index, b);
    index->n_binned++;
}

__attribute__((noinline)) void dpool_bins_remove(dpool_free_index *index, const dpool_block *b,
                                                 uint64_t size) {
    unsigned bin = dpool_bin(size);
    bin_remove_at(index, bin, link_of(&index->bins[bin], b, size));
    index->n_binned--;
}

__attribute__((noinline)) unsigned dpool_index_make_slot(dpool_free_index *index) {
    dpool_bins_insert(index, dpool_front_evict(&index->front));
    return dpool_front_take(&index->front);
}

/* The best fit of `bin`, the first from the size's own on that holds a block, or of the next. */
static dpool_block *best_from(const dpool_free_index *index, unsigned bin, uint64_t size) {
    dpool_block *b = fit_of(index->bins[bin], size);
    if (b == NULL) { /* in the bin of the size, all blocks are smaller */
        bin = dpool_bins_next(index, bin + 1);
        b = bin == DPOOL_BINS ? NULL : first_of(index->bins[bin]);
    }
    return b;
}

__attribute__((noinline)) dpool_block *dpool_bins_best(const dpool_free_index *index, uint64_t size,
                                                       dpool_block *other) {
    unsigned bin = dpool_bins_next(index, dpool_bin(size));
    dpool_block *b = bin == DPOOL_BINS ? NULL : best_from(index, bin, size);
    return b == NULL || (other != NULL && dpool_comes_before(other, b)) ? other : b;
}

/* The largest block of the bins below `before`. */
static dpool_block *bins_below(const dpool_free_index *index, const dpool_block *before) {
    unsigned bin = DPOOL_BINS - 1;
    if (before != NULL) {
        bin = dpool_bin(before->size);
        dpool_block *b = last_below(index->bins[bin], before);
        if (b != NULL) {
            return b;
        }
        if (bin == 0) {
            return NULL;
        }
        bin--;
    }
    bin = previous_bin(index, bin);
    return bin == DPOOL_BINS ? NULL : last_of(index->bins[bin]);
}

dpool_block *dpool_index_below(const dpool_free_index *index, const dpool_block *before) {
    dpool_block *best = bins_below(index, before);
    for (uint32_t left = index->front.used; left != 0; left &= left - 1) {
        dpool_block *b = index->front.blocks[__builtin_ctz(left)];
        bool is_below = before == NULL || dpool_comes_before(b, before);
        best = is_below && (best == NULL || dpool_comes_before(best, b)) ? b : best;
    }
    return best;
}

bool dpool_index_holds(const dpool_free_index *index, const dpool_block *b) {
    const dpool_block *at = index->bins[dpool_bin(b->size)];
    if (dpool_front_slot(&index->front, b) != DPOOL_NO_SLOT) {
        return true;
    }
    while (at != NULL && at != b) {
        at = dpool_comes_before(at, b) ? at->right : at->left;
    }
    return at == b;
}

/* ---- Check --------------------------------------------------------------------------------- */

typedef struct tree_walk {
    const dpool_block *before; /* the block visited last */
    uint64_t left;             /* blocks that the index may still hold: ends a cycle */
} tree_walk;

static bool is_heaped(const dpool_block *b, const dpool_block *child) {
    return child == NULL || child->priority <= b->priority;
}

static bool visit(tree_walk *w, const dpool_block *b, unsigned bin) {
    bool in_order = w->before == NULL || dpool_comes_before(w->before, b);
    w->before = b;
    return in_order && b->state == DPOOL_FREE && dpool_bin(b->size) == bin;
}

/* Recurses to the left only, as deep as the tree, and checks the priorities on the way. */
static bool tree_check(tree_walk *w, const dpool_block *b, unsigned bin) {
    for (; b != NULL; b = b->right) {
        if (w->left == 0 || !is_heaped(b, b->left) || !is_heaped(b, b->right)) {
            return false;
        }
        w->left--;
        if (!tree_check(w, b->left, bin) || !visit(w, b, bin)) {
            return false;
        }
    }
    return true;
}

static bool word_check(const dpool_free_index *index, unsigned w, uint64_t *left) {
    for (uint64_t word = index->words[w]; word != 0; word &= word - 1) {
        unsigned bin = w * 64 + (unsigned)__builtin_ctzll(word);
        tree_walk walk = {NULL, *left};
        if (bin >= DPOOL_BINS || index->bins[bin] == NULL ||
            !tree_check(&walk, index->bins[bin], bin)) {
            return false;
        }
        *left = walk.left;
    }
    return true;
}

static bool slot_check(const dpool_front *front, unsigned slot) {
    const dpool_block *b = front->blocks[slot];
    bool is_used = (front->used >> slot & 1u) != 0;
    if (!is_used) {
        return b == NULL && front->classes[slot] == 0;
    }
    return b != NULL && b->slot == slot && b->state == DPOOL_FREE &&
           b->size == front->sizes[slot] && b->addr == front->addrs[slot] &&
           dpool_class(b->size) == front->classes[slot];
}

static bool front_check(const dpool_front *front) {
    bool good = front->hand < DPOOL_FRONT_SLOTS;
    for (unsigned slot = 0; good && slot < DPOOL_FRONT_SLOTS; slot++) {
        good = slot_check(front, slot);
    }
    return good;
}

bool dpool_index_check(const dpool_free_index *index) {
    uint64_t left = index->n_binned;
    uint64_t summary = 0;
    if (!front_check(&index->front)) {
        return false;
    }
    for (unsigned w = 0; w < DPOOL_BIN_WORDS; w++) {
        summary |= (uint64_t)(index->words[w] != 0) << w;
        if (!word_check(index, w, &left)) {
            return false;
        }
    }
    return summary == index->summary &&
           left == 0; /* a bin without its bit leaves blocks uncounted */
}
