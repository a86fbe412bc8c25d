/* SPDX-License-Identifier: Apache-2.0 */
/* Spans with waits: a treap by address, and what is done with the spans of a block. */
#include "pool/streams/wait_map.h"

#include "pool/blocks/serve.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"
#include "vmm/capture_mode.h"

enum {
    EQUALS_LOOKED_AT = 16, /* blocks of one size that a hit compares, at most */
    QUERIES_PER_HOLD = 32  /* markers asked about between two holds of the index lock */
};

/* ---- The tree ------------------------------------------------------------------------------ */

/* Mixed, as neighbouring spans follow each other in regular strides. */
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
static dpool_use *find(const ductile_allocator *a, ductile_addr addr) {
    dpool_use *best = NULL;
    for (dpool_use *at = a->waits.root; at != NULL;) {
        bool ends_behind = at->end > addr;
        best = ends_behind ? at : best;
        at = ends_behind ? at->left : at->right;
    }
    return best;
}

/* The first span from addr on that begins before `to`. */
static dpool_use *find_in(const ductile_allocator *a, ductile_addr addr, ductile_addr to) {
    dpool_use *s = find(a, addr);
    return s != NULL && s->addr < to ? s : NULL;
}

static void add(ductile_allocator *a, dpool_use *s) {
    insert(&a->waits.root, s);
    atomic_fetch_add_explicit(&a->waits.n, 1, memory_order_relaxed);
}

static void take_out(ductile_allocator *a, const dpool_use *s) {
    unlink(&a->waits.root, s);
    atomic_fetch_sub_explicit(&a->waits.n, 1, memory_order_relaxed);
}

/* ---- Adding -------------------------------------------------------------------------------- */

bool dpool_wait_is_possible_locked(const ductile_allocator *a, const dpool_use *uses) {
    uint32_t n = 0;
    bool is_possible = !uses->block->region->arena->never_waits;
    for (const dpool_use *use = uses; use != NULL && is_possible; use = use->next) {
        bool is_barred = !use->is_gone && dpool_is_barred_locked(a, use->stream, use->thread);
        is_possible = use->marker != NULL && !is_barred;
        n++;
    }
    return is_possible && n <= DPOOL_MOST_WAITS;
}

void dpool_wait_add_locked(ductile_allocator *a, dpool_use *uses) {
    dpool_block *b = uses->block;
    b->region->arena->pending_bytes -= b->size;
    a->counts.pending -= b->size;
    a->counts.pending_blocks--;
    uses->addr = b->addr;
    uses->end = dpool_end(b);
    add(a, uses);
    (void)dpool_make_free_locked(a, b);
}

/* ---- Looking ------------------------------------------------------------------------------- */

const dpool_use *dpool_wait_find_locked(const ductile_allocator *a, ductile_addr from,
                                        ductile_addr to) {
    return find_in(a, from, to);
}

static bool is_done(const dpool_use *s) {
    while (s != NULL && s->is_done) {
        s = s->next;
    }
    return s == NULL;
}

const dpool_use *dpool_wait_find_due_locked(const ductile_allocator *a, ductile_addr from,
                                            ductile_addr to) {
    const dpool_use *s = find_in(a, from, to);
    while (s != NULL && is_done(s)) {
        s = find_in(a, s->end, to);
    }
    return s;
}

dpool_block *dpool_wait_prefer_locked(const ductile_allocator *a, const dpool_free_index *index,
                                      dpool_block *b) {
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

/* ---- Settling ------------------------------------------------------------------------------ */

/* What one stream has to wait for: whole spans, up to an address. Holds the markers. */
typedef struct due {
    dvmm_marker *markers[DPOOL_MOST_WAITS];
    uint32_t n;
    bool is_barred; /* one of them must not be waited for */
    ductile_addr upto;
} due;

static uint32_t count_due(const dpool_use *s) {
    uint32_t n = 0;
    for (; s != NULL; s = s->next) {
        n += !s->is_done;
    }
    return n;
}

static void hold_markers(due *d, const dpool_use *s) {
    for (; s != NULL; s = s->next) {
        if (!s->is_done) {
            dvmm_marker_hold(s->marker);
            d->markers[d->n++] = s->marker;
            d->is_barred |= s->is_barred;
        }
    }
}

static bool collect(ductile_allocator *a, const dpool_block *b, due *d) {
    *d = (due){.upto = b->addr};
    dti_lock_take(&a->index_lock);
    const dpool_use *s = find_in(a, b->addr, dpool_end(b));
    bool found = s != NULL;
    d->is_barred = b->region->arena->never_waits;
    while (s != NULL && d->n + count_due(s) <= DPOOL_MOST_WAITS) {
        hold_markers(d, s);
        d->upto = s->end;
        s = find_in(a, s->end, dpool_end(b));
    }
    dti_lock_open(&a->index_lock);
    return found;
}

static ductile_status wait_for_each(ductile_allocator *a, const dpool_arena *arena, const due *d) {
    ductile_status status = DUCTILE_OK;
    for (uint32_t i = 0; i < d->n && status == DUCTILE_OK; i++) {
        dvmm_marker *m = d->markers[i];
        if (!d->is_barred) {
            status = dvmm_marker_wait_on(&a->markers, arena->stream, m);
        } else if (dvmm_marker_query(&a->markers, m) != DUCTILE_OK) {
            status = DUCTILE_ERR_CAPTURING;
        }
    }
    for (uint32_t i = 0; i < d->n; i++) {
        dvmm_marker_drop(&a->markers, d->markers[i]);
    }
    return status;
}

/* The stream has waited just now, so a marker that proves a block with this epoch comes later. */
static void raise_epoch(dpool_block *b) {
    if (b->state == DPOOL_FREE || b->state == DPOOL_BUSY) {
        dpool_set_epoch(b, b->region->arena->alloc_epoch);
    }
}

/* A span may reach over the ends of the block that is handed out. */
static void raise_epochs_around(dpool_block *b, const dpool_use *s) {
    raise_epoch(b);
    for (dpool_block *at = b->next; at != NULL && at->addr < s->end; at = at->next) {
        raise_epoch(at);
    }
    for (dpool_block *at = b->prev; at != NULL && dpool_end(at) > s->addr; at = at->prev) {
        raise_epoch(at);
    }
}

/* Takes the spans of b up to an address out of the map; linked by `left`. */
static dpool_use *take_settled(ductile_allocator *a, dpool_block *b, ductile_addr upto) {
    dpool_use *gone = NULL;
    dti_lock_take(&a->index_lock);
    ductile_addr to = dti_min(upto, dpool_end(b));
    for (dpool_use *s = find_in(a, b->addr, to); s != NULL; s = find_in(a, b->addr, to)) {
        take_out(a, s);
        raise_epochs_around(b, s);
        s->left = gone;
        gone = s;
    }
    dti_lock_open(&a->index_lock);
    return gone;
}

static void drop_spans(ductile_allocator *a, dpool_use *gone) {
    while (gone != NULL) {
        dpool_use *next = gone->left;
        dpool_uses_drop(a, gone);
        gone = next;
    }
}

static ductile_status settle_all(ductile_allocator *a, dpool_block *b) {
    due d;
    while (collect(a, b, &d)) {
        ductile_status status = wait_for_each(a, b->region->arena, &d);
        if (status != DUCTILE_OK) {
            return status;
        }
        drop_spans(a, take_settled(a, b, d.upto));
    }
    return DUCTILE_OK;
}

ductile_status dpool_wait_settle(ductile_allocator *a, dpool_block *b) {
    if (dpool_waits_are_none(a)) {
        return DUCTILE_OK;
    }
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    ductile_status status = settle_all(a, b);
    dvmm_capture_restore(a->driver, mode);
    return status;
}

/* Nobody has had the block. The peaks stay: who read the statistics meanwhile has seen it live. */
static void take_back_uncounted(ductile_allocator *a, const dpool_block *b) {
    uint64_t requested = b->requested;
    uint64_t size = b->size;
    (void)dpool_take_back(a, b->addr);
    dti_lock_take(&a->index_lock);
    a->counts.allocs--;
    a->counts.requested_total -= requested;
    a->counts.allocated_total -= size;
    dti_lock_open(&a->index_lock);
}

dpool_block *dpool_wait_hand_out(ductile_allocator *a, dpool_block *b) {
    if (dpool_waits_are_none(a)) {
        return b;
    }
    ductile_status status = dpool_wait_settle(a, b);
    if (status != DUCTILE_OK) {
        take_back_uncounted(a, b);
    }
    return status == DUCTILE_OK ? b : NULL;
}

static dpool_block *smallest_without_wait(const ductile_allocator *a, const dpool_arena *arena,
                                          uint64_t size) {
    dpool_block *best = NULL;
    dpool_block *b = dpool_index_below(&arena->index, NULL);
    for (; b != NULL && b->size >= size; b = dpool_index_below(&arena->index, b)) {
        best = dpool_wait_is_due_locked(a, b->addr, b->addr + size) ? best : b;
    }
    return best;
}

dpool_block *dpool_wait_serve_around_locked(ductile_allocator *a, dpool_arena *arena, uint64_t size,
                                            uint64_t requested) {
    dpool_block *b = NULL;
    if (a->nodes.n_spare >= 2 && dpool_map_has_room(&a->map)) {
        b = smallest_without_wait(a, arena, size);
    }
    if (b != NULL) {
        b = dpool_carve_free_locked(a, b, b->addr, b->addr + size);
        dpool_wait_forget_done_locked(a, b->addr, dpool_end(b));
        dpool_make_live_locked(a, b, requested);
    }
    return b;
}

/* ---- Progress, as the host sees it --------------------------------------------------------- */

/* Markers to ask about, with the spans they were found in: another thread may settle those. */
typedef struct questions {
    dvmm_marker *markers[QUERIES_PER_HOLD];
    ductile_addr spans[QUERIES_PER_HOLD];
    ductile_stream streams[QUERIES_PER_HOLD];
    uint32_t n;
} questions;

/* Goes on where the last poll ended. False at the end of the map, where the next one begins anew.
 */
static bool ask_some(ductile_allocator *a, questions *q) {
    q->n = 0;
    dti_lock_take(&a->index_lock);
    const dpool_use *s = find(a, a->waits.polled_to);
    for (; s != NULL && q->n + count_due(s) <= QUERIES_PER_HOLD; s = find(a, s->end)) {
        for (const dpool_use *use = s; use != NULL; use = use->next) {
            if (!use->is_done) {
                dvmm_marker_hold(use->marker);
                q->markers[q->n] = use->marker;
                q->streams[q->n] = use->stream;
                q->spans[q->n++] = s->addr;
            }
        }
        a->waits.polled_to = s->end;
    }
    if (s == NULL) {
        a->waits.polled_to = 0;
    }
    dti_lock_open(&a->index_lock);
    return s != NULL;
}

/* The marker goes with the news, so that old spans keep no events. */
static bool note_done_locked(const ductile_allocator *a, ductile_addr addr, const dvmm_marker *m) {
    dpool_use *use = find(a, addr);
    if (use == NULL || use->addr != addr) {
        return false;
    }
    while (use != NULL && (use->is_done || use->marker != m)) {
        use = use->next;
    }
    if (use != NULL) {
        use->is_done = true;
        use->marker = NULL;
    }
    return use != NULL;
}

static void take_answer(ductile_allocator *a, dvmm_marker *m, ductile_addr span) {
    dti_lock_take(&a->index_lock);
    bool noted = note_done_locked(a, span, m);
    dti_lock_open(&a->index_lock);
    if (noted) {
        dvmm_marker_drop(&a->markers, m);
    }
}

/* Asks about each; a stream found at work is not asked about again here. */
static void answer(ductile_allocator *a, const questions *q) {
    ductile_stream at_work[QUERIES_PER_HOLD];
    uint32_t n_at_work = 0;
    for (uint32_t i = 0; i < q->n; i++) {
        bool is_known = false;
        for (uint32_t k = 0; k < n_at_work && !is_known; k++) {
            is_known = at_work[k] == q->streams[i];
        }
        if (!is_known && dvmm_marker_query(&a->markers, q->markers[i]) == DUCTILE_OK) {
            take_answer(a, q->markers[i], q->spans[i]);
        } else if (!is_known) {
            at_work[n_at_work++] = q->streams[i];
        }
        dvmm_marker_drop(&a->markers, q->markers[i]);
    }
}

void dpool_wait_poll(ductile_allocator *a, uint32_t most) {
    questions q;
    bool is_more = !dpool_waits_are_none(a);
    if (most == UINT32_MAX) {
        dti_lock_take(&a->index_lock);
        a->waits.polled_to = 0;
        dti_lock_open(&a->index_lock);
    }
    for (uint32_t n = 0; n < most && is_more; n += QUERIES_PER_HOLD) {
        is_more = ask_some(a, &q);
        answer(a, &q);
    }
}

void dpool_wait_forget_done_locked(ductile_allocator *a, ductile_addr from, ductile_addr to) {
    for (dpool_use *s = find_in(a, from, to); s != NULL; s = find_in(a, from, to)) {
        DTI_ASSERT(is_done(s));
        take_out(a, s);
        dpool_use *last = s;
        while (last->next != NULL) {
            last = last->next;
        }
        last->next = a->spare_uses;
        a->spare_uses = s;
    }
}

/* Holds the first marker of a span with one due; NULL for none. */
static dvmm_marker *hold_first_due(ductile_allocator *a, ductile_addr *from, ductile_addr to) {
    dvmm_marker *m = NULL;
    dti_lock_take(&a->index_lock);
    const dpool_use *use = dpool_wait_find_due_locked(a, *from, to);
    if (use != NULL) {
        *from = use->addr;
        while (use->is_done) {
            use = use->next;
        }
        m = use->marker;
        dvmm_marker_hold(m);
    }
    dti_lock_open(&a->index_lock);
    return m;
}

bool dpool_wait_on_host(ductile_allocator *a, ductile_addr *from, ductile_addr to) {
    dvmm_marker *m = hold_first_due(a, from, to);
    if (m == NULL) {
        return false;
    }
    bool done = dvmm_marker_wait(&a->markers, m) == DUCTILE_OK;
    if (done) {
        take_answer(a, m, *from);
    }
    dvmm_marker_drop(&a->markers, m);
    return done;
}

/* ---- Streams that must not be waited for, the end, the check ------------------------------- */

static void bar_uses(dpool_use *use, ductile_stream stream, uint64_t thread) {
    for (; use != NULL; use = use->next) {
        bool is_same = dpool_canonical_stream(use->stream) == stream && use->thread == thread;
        use->is_barred |= is_same && !use->is_gone;
    }
}

void dpool_wait_bar_locked(ductile_allocator *a, ductile_stream stream, uint64_t thread) {
    for (dpool_use *s = find(a, 0); s != NULL; s = find(a, s->end)) {
        bar_uses(s, stream, thread);
    }
}

void dpool_wait_map_fini(ductile_allocator *a) {
    for (dpool_use *s = a->waits.root; s != NULL; s = a->waits.root) {
        take_out(a, s);
        dpool_uses_drop(a, s);
    }
}

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

/* Recursion to the left alone; *left spans still may come. */
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
    ductile_addr end = 0;
    uint64_t left = atomic_load_explicit(&a->waits.n, memory_order_relaxed);
    return check_tree(a->waits.root, &end, &left) && left == 0;
}
