/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/wait_spans.h"

#include "pool/blocks/size_class.h"

#include "vmm/base/check.h"

enum { EQUALS_LOOKED_AT = 16 }; /* blocks of one size that a hit compares, at most */

/* ---- The tree ------------------------------------------------------------------------------ */

/* Mixes the address, because neighbouring spans follow each other in regular strides. */
static uint32_t choose_priority(ductile_addr addr) {
    uint64_t h = addr / DPOOL_UNIT * UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ (h >> 32)) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(h >> 32);
}

static void insert(dpool_use **at, dpool_use *s) {
    s->priority = choose_priority(s->addr);
    while (*at != NULL && (*at)->priority >= s->priority) {
        at = s->addr < (*at)->addr ? &(*at)->left : &(*at)->right;
    }
    dpool_use *rest = *at;
    dpool_use **left = &s->left;
    dpool_use **right = &s->right;
    *at = s;
    while (rest != NULL) {
        bool is_left = rest->addr < s->addr;
        dpool_use ***side = is_left ? &left : &right;
        **side = rest;
        *side = is_left ? &rest->right : &rest->left;
        rest = **side;
    }
    *left = *right = NULL;
}

static void unlink(dpool_use **at, const dpool_use *s) {
    while (*at != s) {
        DTI_ASSERT(*at != NULL);
        at = s->addr < (*at)->addr ? &(*at)->left : &(*at)->right;
    }
    dpool_use *left = s->left;
    dpool_use *right = s->right;
    while (left != NULL && right != NULL) {
        bool is_left = left->priority > right->priority;
        *at = is_left ? left : right;
        at = is_left ? &left->right : &right->left;
        *(is_left ? &left : &right) = *at;
    }
    *at = left != NULL ? left : right;
}

/* Spans are apart, so the order of their ends is the order of their starts. */
dpool_use *dpool_span_find_locked(const ductile_allocator *a, ductile_addr addr) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_use *best = NULL;
    for (dpool_use *at = a->waits.root; at != NULL;) {
        bool ends_behind = at->end > addr;
        best = ends_behind ? at : best;
        at = ends_behind ? at->left : at->right;
    }
    return best;
}

dpool_use *dpool_span_find_in_locked(const ductile_allocator *a, ductile_addr addr,
                                     ductile_addr to) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_use *s = dpool_span_find_locked(a, addr);
    return s != NULL && s->addr < to ? s : NULL;
}

void dpool_span_add_locked(ductile_allocator *a, dpool_use *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    insert(&a->waits.root, s);
    atomic_fetch_add_explicit(&a->waits.n, 1, memory_order_relaxed);
}

void dpool_span_take_out_locked(ductile_allocator *a, const dpool_use *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    unlink(&a->waits.root, s);
    atomic_fetch_sub_explicit(&a->waits.n, 1, memory_order_relaxed);
}

/* ---- Looking ------------------------------------------------------------------------------- */

static bool is_done(const dpool_use *s) {
    while (s != NULL && s->is_done) {
        s = s->next;
    }
    return s == NULL;
}

const dpool_use *dpool_wait_find_due_locked(const ductile_allocator *a, ductile_addr from,
                                            ductile_addr to) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_use *s = dpool_span_find_in_locked(a, from, to);
    while (s != NULL && is_done(s)) {
        s = dpool_span_find_in_locked(a, s->end, to);
    }
    return s;
}

dpool_block *dpool_wait_prefer_locked(const ductile_allocator *a, const dpool_free_index *index,
                                      dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (!dpool_wait_covers_locked(a, b->addr, dpool_end(b))) {
        return b;
    }
    dpool_block above_equals = {.addr = UINT64_MAX, .size = b->size};
    dpool_block *c = dpool_index_below(index, &above_equals);
    for (int i = 0; i < EQUALS_LOOKED_AT && c != NULL && c->size == b->size; i++) {
        if (!dpool_wait_covers_locked(a, c->addr, dpool_end(c))) {
            return c;
        }
        c = dpool_index_below(index, c);
    }
    return b;
}

void dpool_wait_forget_done_locked(ductile_allocator *a, ductile_addr from, ductile_addr to) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (dpool_use *s = dpool_span_find_in_locked(a, from, to); s != NULL;
         s = dpool_span_find_in_locked(a, from, to)) {
        DTI_ASSERT(is_done(s));
        dpool_span_take_out_locked(a, s);
        dpool_use *last = s;
        while (last->next != NULL) {
            last = last->next;
        }
        last->next = a->spare_uses;
        a->spare_uses = s;
    }
}

/* ---- The check ----------------------------------------------------------------------------- */

static bool check_span(const dpool_use *s, ductile_addr *end) {
    bool in_order = s->addr >= *end && s->end > s->addr;
    *end = s->end;
    while (in_order && s != NULL && s->is_done == (s->marker == NULL)) {
        s = s->next;
    }
    return in_order && s == NULL;
}

static bool is_heaped(const dpool_use *s, const dpool_use *child) {
    return child == NULL || child->priority <= s->priority;
}

/* Recurses to the left only; *left: how many spans may still follow. */
static bool check_tree(const dpool_use *s, ductile_addr *end, uint64_t *left) {
    for (; s != NULL; s = s->right) {
        if (*left == 0 || !is_heaped(s, s->left) || !is_heaped(s, s->right)) {
            return false;
        }
        (*left)--;
        if (!check_tree(s->left, end, left) || !check_span(s, end)) {
            return false;
        }
    }
    return true;
}

bool dpool_wait_check_locked(const ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    ductile_addr end = 0;
    uint64_t left = atomic_load_explicit(&a->waits.n, memory_order_relaxed);
    return check_tree(a->waits.root, &end, &left) && left == 0;
}
