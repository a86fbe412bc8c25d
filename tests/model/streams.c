/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that work, end and are captured; graphs; other GPUs. */
#include "tests/model/subject.h"

/* ---- Work and order ------------------------------------------------------------------------ */

const char *do_advance(subject *s, const record *r) {
    say(s, "advance %u", 1 + r->d % 40);
    ductile_virtual_advance(s->f.gpu, 1 + r->d % 40);
    return NULL;
}

const char *do_sync(subject *s, const record *r) {
    size_t slot = user_slot(s, r->a);
    if (is_capturing(s)) {
        return NULL;
    }
    say(s, "sync %zu", slot);
    NEED_OK(ductile_virtual_stream_sync(s->f.gpu, s->slots[slot].stream));
    return NULL;
}

const char *do_order(subject *s, const record *r) {
    size_t first = user_slot(s, r->a);
    size_t then = user_slot(s, r->b);
    if (first == then || is_captured(s, first) || is_captured(s, then)) {
        return NULL;
    }
    say(s, "%zu waits for %zu", then, first);
    return order_slots(s, first, then);
}

/* ---- Streams that end ---------------------------------------------------------------------- */

const char *free_recorded(subject *s, size_t slot) {
    for (size_t i = s->m.n; i-- > 0;) {
        if (i < s->m.n && (s->m.blocks[i].recorded >> slot & 1) != 0) {
            TRY(free_block(s, i, 0));
        }
    }
    return NULL;
}

const char *leave_blocks(subject *s, size_t slot, bool they_stay) {
    if (they_stay) {
        NEED_OK(ductile_virtual_stream_sync(s->f.gpu, s->slots[slot].stream));
    }
    for (size_t i = s->m.n; i-- > 0;) {
        if (i < s->m.n && s->m.blocks[i].stream == slot) {
            if (they_stay) {
                s->m.blocks[i].stream = GONE;
            } else {
                TRY(free_block(s, i, 0));
            }
        }
    }
    return NULL;
}

/* Without a word to the allocator a stream may end where only context markers prove anything. */
static bool may_end_untold(const subject *s, size_t slot) {
    return s->slots[slot].kind == ORDINARY_STREAM && s->has_context_events &&
           s->captures != DUCTILE_CAPTURES_UNANNOUNCED && !is_capturing(s) && s->n_routes == 0 &&
           s->ends.importer == NULL && !s->is_faulty && !s->has_peer;
}

const char *tell(subject *s, size_t slot) {
    leave_ranges(s, slot);
    ductile_status status = ductile_stream_done(s->f.allocator, s->slots[slot].stream);
    TRY(may_be(s, "stream_done", status, status == DUCTILE_OK));
    if (s->ends.importer != NULL) {
        status = ductile_stream_done(s->ends.importer, s->slots[slot].stream);
        TRY(may_be(s, "stream_done of the importer", status, status == DUCTILE_OK));
    }
    return NULL;
}

static const char *sync_peers(subject *s) {
    for (size_t i = 0; i < s->n_slots; i++) {
        if (s->slots[i].kind == PEER_STREAM && !s->slots[i].is_gone) {
            NEED_OK(ductile_virtual_stream_sync(s->f.gpu, s->slots[i].stream));
        }
    }
    return NULL;
}

bool has_graph(const subject *s) {
    for (size_t i = 0; i < N_GRAPHS; i++) {
        if (s->graphs[i].graph != NULL) {
            return true;
        }
    }
    return false;
}

/* No thread can wait for a stream that is under capture or gone; the launch of a graph has to come
 * after what it did before. */
const char *join_all_with(subject *s, size_t slot) {
    for (size_t i = 0; i < s->n_slots; i++) {
        if (i != slot && !is_captured(s, i)) {
            TRY(order_slots(s, slot, i));
        }
    }
    return NULL;
}

const char *do_replace_stream(subject *s, const record *r) {
    size_t slot = r->a % N_NAMED;
    stream_kind kind = s->slots[slot].kind;
    bool is_default = kind == LEGACY_STREAM || kind == THREAD_STREAM;
    bool is_untold = r->b % 4 == 0 && may_end_untold(s, slot);
    /* Rule 4 of the contract: who records a stream of another context waits for it. */
    bool is_waited_for = kind == FOREIGN_STREAM && s->slots[slot].is_recorded;
    bool needs_wait = kind == PEER_STREAM || is_waited_for || r->c % 2 == 0;
    if (is_default || is_captured(s, slot) || (is_capturing(s) && needs_wait)) {
        return NULL;
    }
    say(s, "stream %zu ends, %s", slot, is_untold ? "untold" : "told");
    TRY(has_graph(s) ? join_all_with(s, slot) : NULL);
    TRY(free_recorded(s, slot));
    if (is_waited_for) {
        NEED_OK(ductile_virtual_stream_sync(s->f.gpu, s->slots[slot].stream));
    }
    TRY(kind == PEER_STREAM ? sync_peers(s) : NULL); /* its work would go on when access ends */
    TRY(is_untold ? end_ranges(s, slot)
                  : NULL); /* the next one with its handle has no part in them */
    TRY(leave_blocks(s, slot, is_untold || r->c % 2 == 0));
    if (is_untold) {
        TRY(pay(s, slot)); /* the next stream may get its handle, and its memory */
        NEED_OK(ductile_virtual_stream_sync(s->f.gpu, s->slots[slot].stream));
        s->has_silent_memory = true;
    } else {
        TRY(tell(s, slot));
        TRY(forgive(s, slot)); /* what never allocates again owes nothing */
    }
    NEED_OK(ductile_virtual_stream_destroy(s->f.gpu, s->slots[slot].stream));
    bool may_change = kind == ORDINARY_STREAM || kind == BLOCKING_STREAM;
    kind = may_change ? (stream_kind)(r->d % 2) : kind;
    return make_stream(s, slot, slot == 0 ? ORDINARY_STREAM : kind);
}

/* ---- Another GPU --------------------------------------------------------------------------- */

const char *do_peer(subject *s, const record *r) {
    (void)r;
    if (!has(s, PEERS) || is_capturing(s)) {
        return NULL;
    }
    say(s, "another GPU %s access", s->has_peer ? "loses" : "gets");
    TRY(s->has_peer ? sync_peers(s) : NULL);
    ductile_status status = s->has_peer ? ductile_disable_peer(s->f.allocator, 1)
                                        : ductile_enable_peer(s->f.allocator, 1);
    TRY(may_be(s, "peer", status, status == DUCTILE_OK));
    s->has_peer ^= status == DUCTILE_OK;
    return NULL;
}

/* ---- Captures ------------------------------------------------------------------------------ */

static unsigned pool_of_graph(size_t graph) {
    return N_PLAIN_POOLS + 1 + (unsigned)graph;
}

static size_t find_graph(const subject *s, bool is_capturing) {
    for (size_t i = 0; i < N_GRAPHS; i++) {
        const graph_state *g = &s->graphs[i];
        if (is_capturing ? g->is_capturing : !g->is_capturing && g->graph == NULL) {
            return i;
        }
    }
    return NO_GRAPH;
}

static void announce(graph_state *g, bool begins) {
    if (g->is_announced && begins) {
        ductile_capture_begin();
    } else if (g->is_announced) {
        ductile_capture_end();
    }
}

/* The capture of a library that allocates nothing here, and says when it captures. */
static const char *capture_bare(subject *s, size_t i, size_t slot, const record *r) {
    say(s, "announced capture on %zu", slot);
    TRY(join_all_with(s, slot)); /* as below */
    s->graphs[i] =
        (graph_state){.slot = slot, .thread = s->crew.here, .is_announced = true, .is_bare = true};
    announce(&s->graphs[i], true);
    NEED_OK(ductile_virtual_capture_begin(s->f.gpu, s->slots[slot].stream,
                                          (ductile_capture_mode)(r->b % 3)));
    s->graphs[i].is_capturing = true;
    return NULL;
}

const char *do_capture_begin(subject *s, const record *r) {
    size_t i = find_graph(s, false);
    size_t slot = r->a % 3; /* ordinary ones, or what took their place */
    if (!has(s, CAPTURES) || i == NO_GRAPH || is_captured(s, slot) ||
        s->slots[slot].kind != ORDINARY_STREAM || s->n_routes == MOST_ROUTES) {
        return NULL;
    }
    if (r->d / 2 % 4 == 0) {
        return capture_bare(s, i, slot, r);
    }
    unsigned pool = pool_of_graph(i);
    if (pool_exists(s, pool)) {
        return NULL; /* blocks of an earlier graph could not be freed */
    }
    say(s, "capture on %zu", slot);
    TRY(r->d % 2 == 0 ? pay(s, slot) : NULL);
    TRY(join_all_with(s, slot));
    s->has_left_asleep |= s->is_faulty && s->pools[pool].may_be_asleep;
    s->pools[pool] = (pool_state){.id = {++s->n_captures, 1}};
    TRY(open_pool(s, pool, slot));
    if (s->status != DUCTILE_OK) {
        return NULL;
    }
    graph_state *g = &s->graphs[i];
    *g = (graph_state){.slot = slot,
                       .thread = s->crew.here,
                       .is_announced = s->captures == DUCTILE_CAPTURES_ANNOUNCED || r->c % 2 == 0};
    announce(g, true);
    NEED_OK(ductile_virtual_capture_begin(s->f.gpu, s->slots[slot].stream,
                                          (ductile_capture_mode)(r->b % 3)));
    g->is_capturing = true;
    return NULL;
}

static const char *release_graph(subject *s, size_t i) {
    graph_state *g = &s->graphs[i];
    unsigned pool = pool_of_graph(i);
    ductile_virtual_graph_destroy(g->graph);
    g->graph = NULL;
    TRY(free_blocks_of_pool(s, pool));
    return s->pools[pool].n_refs > 0 ? release_pool(s, pool) : NULL;
}

static const char *end_here(subject *s, void *argument) {
    graph_state *g = argument;
    size_t i = (size_t)(g - s->graphs);
    ductile_status status = ductile_virtual_capture_end(s->f.gpu, s->slots[g->slot].stream,
                                                        g->is_bare ? NULL : &g->graph);
    g->is_capturing = false;
    TRY(may_be(s, "the end of a capture", status, status == DUCTILE_OK));
    TRY(g->is_bare ? NULL : close_pool(s, pool_of_graph(i)));
    announce(g, false);
    return g->is_bare ? NULL : status == DUCTILE_OK ? NULL : release_graph(s, i);
}

/* By the thread that began it. */
static const char *end_capture(subject *s, size_t i) {
    return on_thread(s, s->graphs[i].thread, end_here, &s->graphs[i]);
}

const char *do_capture_end(subject *s, const record *r) {
    (void)r;
    size_t i = find_graph(s, true);
    if (i == NO_GRAPH) {
        return NULL;
    }
    say(s, "the capture on %zu ends", s->graphs[i].slot);
    return end_capture(s, i);
}

/* Blocks whose stream has ended, so that no thread waits for it. */
static bool has_orphans(const subject *s, unsigned pool) {
    for (size_t i = 0; i < s->m.n; i++) {
        if (s->m.blocks[i].pool == pool && s->m.blocks[i].stream == GONE) {
            return true;
        }
    }
    return false;
}

/* A launch uses the graph's blocks after all that was done with them, and before what comes: on the
 * stream that was captured, or, once that has ended, on any. */
static const char *launch_in_order(subject *s, graph_state *g, size_t slot) {
    for (size_t i = 0; i < s->n_slots; i++) {
        if (i != slot && !is_captured(s, i)) {
            TRY(order_slots(s, i, slot));
        }
    }
    NEED_OK(ductile_virtual_graph_launch(g->graph, s->slots[slot].stream));
    if (has_orphans(s, pool_of_graph((size_t)(g - s->graphs)))) {
        return join_all_with(s, slot);
    }
    return order_slots(s, slot, g->slot);
}

const char *do_launch(subject *s, const record *r) {
    size_t i = r->b % N_GRAPHS;
    size_t slot = r->a % 4;
    graph_state *g = &s->graphs[i];
    if (g->graph == NULL || g->is_stale || s->pools[pool_of_graph(i)].is_asleep ||
        is_captured(s, slot) || is_captured(s, g->slot) || s->slots[slot].kind > BLOCKING_STREAM) {
        return NULL;
    }
    say(s, "launch graph %zu on %zu", i, slot);
    return launch_in_order(s, g, slot);
}

const char *do_destroy_graph(subject *s, const record *r) {
    size_t i = r->a % N_GRAPHS;
    if (s->graphs[i].graph == NULL) {
        return NULL;
    }
    say(s, "graph %zu is destroyed", i);
    return release_graph(s, i);
}

const char *end_graphs(subject *s) {
    for (size_t i = 0; i < N_GRAPHS; i++) {
        TRY(s->graphs[i].is_capturing ? end_capture(s, i) : NULL);
        TRY(s->graphs[i].graph != NULL ? release_graph(s, i) : NULL);
    }
    return NULL;
}

const char *do_set_captures(subject *s, const record *r) {
    if (is_capturing(s)) {
        return NULL; /* as the program promised when it began them */
    }
    say(s, "captures are told by way %u", r->a % 3);
    s->captures = (ductile_captures)(r->a % 3);
    NEED_OK(ductile_set_captures(s->f.allocator, s->captures));
    return NULL;
}
