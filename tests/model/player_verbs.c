/* SPDX-License-Identifier: Apache-2.0 */
/* What a scenario may say of blocks, streams, graphs and work. */
#include "tests/model/player.h"
#include "tests/support/command.h"

#include "pool/base/allocator.h"

#include <stdio.h>
#include <string.h>

/* ---- Operands ------------------------------------------------------------------------------ */

/* "0" to "4" are ordinary streams, "t1" and "t2" default streams of threads, "x" is one of another
 * context, "p" one of another GPU. */
static const char *slot_at(const words *w, size_t i, size_t *out) {
    static const struct {
        const char *name;
        size_t slot;
    } slots[] = {{"0", 0},         {"1", 1},        {"2", 2}, {"3", 3}, {"4", 4},
                 {"t1", OWN_SLOT}, {"t2", N_NAMED}, {"x", 6}, {"p", 7}};
    for (size_t k = 0; k < sizeof slots / sizeof *slots; k++) {
        if (strcmp(word_at(w, i), slots[k].name) == 0) {
            *out = slots[k].slot;
            return NULL;
        }
    }
    return complain("no stream is named %s", word_at(w, i));
}

#define SLOT(variable, i)                                                                          \
    size_t variable = 0;                                                                           \
    TRY(slot_at(w, i, &variable))

/* NULL: the name is not known, or no live block is there. */
static model_block *block_at(player *p, const words *w, size_t i) {
    const named *name = names_find(&p->names, word_at(w, i));
    size_t at = name != NULL ? model_find(&p->s.m, name->value) : p->s.m.n;
    return at < p->s.m.n ? &p->s.m.blocks[at] : NULL;
}

/* A step with a block that could not be allocated is left out. */
#define BLOCK(variable, i)                                                                         \
    model_block *variable = block_at(p, w, i);                                                     \
    if (variable == NULL) {                                                                        \
        return p->how.is_lenient ? NULL : complain("no live block is named %s", word_at(w, i));    \
    }

const char *player_name(player *p, const char *name, ductile_addr address) {
    return name != NULL ? names_set(&p->names, name, address) : NULL;
}

/* Work that does not come to an end until a thread waits for it. */
static void be_late(player *p, const words *w) {
    if (has_word(w, "late")) {
        ductile_virtual_set_schedule(p->s.f.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    }
}

static void be_usual(player *p) {
    ductile_virtual_set_schedule(p->s.f.gpu, p->schedule, p->lag);
}

/* ---- Blocks -------------------------------------------------------------------------------- */

/* A call of the allocator, by a thread in which the slot's handle means its stream. */
typedef struct request {
    size_t slot;
    uint64_t size;
    ductile_addr address;
    ductile_status status;
    bool is_dedicated;
} request;

static const char *alloc_here(subject *s, void *argument) {
    request *q = argument;
    ductile_stream stream = s->slots[q->slot].stream;
    q->status = q->is_dedicated
                    ? ductile_alloc_dedicated(s->f.allocator, q->size, stream, &q->address)
                    : ductile_alloc(s->f.allocator, q->size, stream, &q->address);
    return NULL;
}

static const char *admit(player *p, const words *w, const request *q) {
    subject *s = &p->s;
    model_block b = {.address = q->address,
                     .requested = q->size,
                     .stream = q->slot,
                     .pool = pool_for(s, q->slot),
                     .is_dedicated = q->is_dedicated || s->is_guarded};
    b.pool = b.pool == 0 && s->pools[0].is_asleep ? s->bypass : b.pool;
    TRY(player_name(p, w->target, q->address));
    be_late(p, w);
    const char *why = has_word(w, "blank") ? admit_blank(s, &b) : admit_block(s, &b);
    be_usual(p);
    return why;
}

static const char *get(player *p, const words *w, bool is_dedicated) {
    request q = {.is_dedicated = is_dedicated, .address = 1};
    TRY(names_value(&p->names, word_at(w, 1), &q.size));
    TRY(slot_at(w, 2, &q.slot));
    TRY(with_stream(&p->s, q.slot, alloc_here, &q));
    if (q.status != DUCTILE_OK) {
        NEED(q.address == 0, "a refused request wrote %llx", q.address);
        TRY(q.status == DUCTILE_ERR_OUT_OF_MEMORY && !p->s.is_faulty
                ? lacks_memory(&p->s, q.size, q.size)
                : NULL);
        return answers(p, w, q.status);
    }
    TRY(answers(p, w, q.status));
    return admit(p, w, &q);
}

/* "a = alloc 4M 0": written by its stream, unless it is "blank". */
VERB(alloc, "alloc") {
    return get(p, w, false);
}

VERB(dedicated, "dedicated") {
    return get(p, w, true);
}

/* "try 64M 3": a block that is freed at once; or none, where there is no memory. */
VERB(try_it, "try") {
    words each = *w;
    request q = {.address = 1};
    TRY(names_value(&p->names, word_at(w, 1), &q.size));
    TRY(slot_at(w, 2, &q.slot));
    TRY(with_stream(&p->s, q.slot, alloc_here, &q));
    NEED(q.status == DUCTILE_OK || q.status == DUCTILE_ERR_OUT_OF_MEMORY || p->how.is_lenient, "%s",
         ductile_status_name(q.status));
    if (q.status != DUCTILE_OK) {
        return NULL;
    }
    each.target = "(tried)";
    TRY(admit(p, &each, &q));
    return player_do(p, "free (tried)");
}

/* "free a": by the thread whose turn it is.
 * "pending": it is reported as pending; "done": as not. */
VERB(give, "free") {
    BLOCK(b, 1);
    TRY(free_block(&p->s, (size_t)(b - p->s.m.blocks), w->n > 2));
    TRY(answers(p, w, p->s.status));
    bool is_as_said = w->n == 2 || p->s.is_pending == has_word(w, "pending");
    NEED(p->how.is_lenient || is_as_said, "pending: %d", p->s.is_pending);
    return NULL;
}

/* "bad_free a+512 -> INTERIOR_POINTER": no live block starts there. */
VERB(bad_free, "bad_free") {
    ADDRESS(address);
    return p->how.is_lenient ? NULL : answers(p, w, ductile_free(p->s.f.allocator, address));
}

VERB(free_on, "free_on") {
    BLOCK(b, 1);
    SLOT(slot, 2);
    TRY(free_block_on(&p->s, b, slot));
    return answers(p, w, p->s.status);
}

/* "at a 5M 1": pool 1 hands out the address that was a's again. */
VERB(alloc_at, "at") {
    subject *s = &p->s;
    ADDRESS(address);
    model_block b = {.address = address, .stream = GONE};
    TRY(names_value(&p->names, word_at(w, 2), &b.requested));
    TRY(pool_or_default_at(w, 3, &b.pool));
    ductile_status status =
        ductile_pool_alloc_at(s->f.allocator, s->pools[b.pool].id, b.address, b.requested);
    TRY(answers(p, w, status));
    return status == DUCTILE_OK ? admit_blank(s, &b) : NULL;
}

VERB(verify, "verify") {
    BLOCK(b, 1);
    for (size_t i = 0; p->how.is_lenient && i < p->s.n_slots && !is_capturing(&p->s); i++) {
        TRY(p->s.slots[i].is_gone
                ? NULL
                : sync_slot(&p->s, i)); /* the one that was to wait may not have */
    }
    return verify_block(&p->s, b);
}

/* ---- Work ---------------------------------------------------------------------------------- */

static const char *launch_here(subject *s, void *argument) {
    const request *q = argument;
    const ductile_virtual_use use = {.address = q->address, .size = q->size};
    NEED_OK(ductile_virtual_launch(s->f.gpu, s->slots[q->slot].stream, &use, 1));
    return NULL;
}

/* Behind what the block's own stream has done. */
static const char *work(player *p, const words *w, bool writes) {
    BLOCK(b, 1);
    SLOT(slot, 2);
    subject *s = &p->s;
    request q = {.slot = slot, .address = b->address, .size = b->size};
    bool has_access = s->slots[slot].kind != PEER_STREAM || s->has_peer;
    if (b->is_asleep || (p->how.is_lenient && !has_access)) { /* which a failed call may cause */
        return p->how.is_lenient ? NULL : complain("the block is asleep");
    }
    TRY(b->stream != slot ? order_slots(s, b->stream, slot) : NULL);
    be_late(p, w);
    if (writes) {
        b->pattern = ++s->next_pattern;
    }
    const char *why = writes ? fill_block(s, b, slot) : with_stream(s, slot, launch_here, &q);
    be_usual(p);
    return why;
}

VERB(write_it, "write") {
    return work(p, w, true);
}

VERB(read_it, "read") {
    return work(p, w, false);
}

/* "write_pinned a 8M 1": as the owner of a pin on the memory that was a's, and is freed. */
VERB(write_pinned, "write_pinned") {
    uint64_t size = 0;
    SLOT(slot, 3);
    ADDRESS(address);
    TRY(names_value(&p->names, word_at(w, 2), &size));
    const ductile_virtual_use use = {.address = address, .size = size, .writes = 1};
    be_late(p, w);
    ductile_status status = ductile_virtual_launch(p->s.f.gpu, p->s.slots[slot].stream, &use, 1);
    be_usual(p);
    return answers(p, w, status);
}

VERB(record_it, "record") {
    BLOCK(b, 1);
    SLOT(slot, 2);
    TRY(record_use(&p->s, b, slot));
    return answers(p, w, p->s.status);
}

/* "use a 1": stream 1 writes the block, and is recorded.
 * "lend a 1": it is not; 0 joins it later. */
VERB(use, "use") {
    TRY(write_it(p, w));
    return record_it(p, w);
}

VERB(lend, "lend") {
    return write_it(p, w);
}

/* "join 0 1": stream 0 waits for stream 1. */
VERB(join, "join") {
    SLOT(then, 1);
    SLOT(first, 2);
    return order_slots(&p->s, first, then);
}

/* "sync 1"; "sync context", which leaves out other contexts and GPUs; "sync": all work. */
VERB(sync_it, "sync") {
    if (has_word(w, "context")) {
        NEED_OK(dvmm_context_sync(p->s.f.allocator->driver));
        return NULL;
    }
    if (w->n == 1) {
        TRY(fixture_finish_work(&p->s.f));
        return NULL;
    }
    SLOT(slot, 1);
    return sync_slot(&p->s, slot);
}

VERB(advance, "advance") {
    uint64_t n = 0;
    TRY(number_at(w, 1, &n));
    ductile_virtual_advance(p->s.f.gpu, n);
    return NULL;
}

/* "schedule eager": from here on; what is "late" stays late. */
VERB(schedule, "schedule") {
    NEED(schedule_named(word_at(w, 1), &p->schedule), "no schedule has that name");
    be_usual(p);
    return NULL;
}

/* ---- Streams that end ---------------------------------------------------------------------- */

static const char *done_here(subject *s, void *argument) {
    request *q = argument;
    q->status = ductile_stream_done(s->f.allocator, s->slots[q->slot].stream);
    return NULL;
}

VERB(done, "done") {
    SLOT(slot, 1);
    request q = {.slot = slot};
    TRY(with_stream(&p->s, slot, done_here, &q));
    return answers(p, w, q.status);
}

static void orphan_blocks(subject *s, size_t slot) {
    for (size_t i = 0; i < s->m.n; i++) {
        if (s->m.blocks[i].stream == slot) {
            s->m.blocks[i].stream = GONE;
            s->m.blocks[i].is_blank |= s->is_faulty; /* its work may not have been waited for */
        }
    }
}

/* "end 1": destroyed, with or without "done" before. */
VERB(end_stream, "end") {
    SLOT(slot, 1);
    TRY(p->how.fault.nth > 0 ? sync_slot(&p->s, slot) : NULL); /* as in leave() */
    NEED_OK(ductile_virtual_stream_destroy(p->s.f.gpu, p->s.slots[slot].stream));
    p->s.slots[slot].is_gone = true;
    orphan_blocks(&p->s, slot);
    return NULL;
}

/* "renew 1": it is done and destroyed, and the next one has its handle. */
VERB(renew, "renew") {
    SLOT(slot, 1);
    ductile_stream old = p->s.slots[slot].stream;
    TRY(done(p, w));
    TRY(end_stream(p, w));
    TRY(make_stream(&p->s, slot, p->s.slots[slot].kind));
    NEED(p->s.slots[slot].stream == old, "the device has stopped to use handles again");
    return NULL;
}

/* "new 1": a stream in place of the one that has ended. */
VERB(new_stream, "new") {
    SLOT(slot, 1);
    return make_stream(&p->s, slot, p->s.slots[slot].kind);
}

/* "leave 1": it lives on in silence, and another stream takes its place. */
VERB(leave, "leave") {
    SLOT(slot, 1);
    orphan_blocks(&p->s, slot);
    TRY(p->how.fault.nth > 0 ? sync_slot(&p->s, slot)
                             : NULL); /* what follows may not wait for it */
    return make_stream(&p->s, slot, p->s.slots[slot].kind);
}

/* ---- Captures and graphs ------------------------------------------------------------------- */

VERB(announce, "announce") {
    (void)p;
    if (strcmp(word_at(w, 1), "ends") == 0) {
        ductile_capture_end();
    } else {
        ductile_capture_begin();
    }
    return NULL;
}

static ductile_capture_mode mode_of(const words *w) {
    return has_word(w, "global")   ? DUCTILE_CAPTURE_GLOBAL
           : has_word(w, "thread") ? DUCTILE_CAPTURE_THREAD_LOCAL
                                   : DUCTILE_CAPTURE_RELAXED;
}

/* "capture 1 global": by this thread, and the allocator is not told. */
VERB(capture, "capture") {
    SLOT(slot, 1);
    subject *s = &p->s;
    size_t i = s->graphs[0].is_capturing || s->graphs[0].graph != NULL;
    s->graphs[i] = (graph_state){.slot = slot, .thread = s->crew.here};
    NEED_OK(ductile_virtual_capture_begin(s->f.gpu, s->slots[slot].stream, mode_of(w)));
    s->graphs[i].is_capturing = true;
    return NULL;
}

VERB(end_capture, "end_capture") {
    SLOT(slot, 1);
    subject *s = &p->s;
    graph_state *g = &s->graphs[!(s->graphs[0].is_capturing && s->graphs[0].slot == slot)];
    if (!g->is_capturing) {
        return p->how.is_lenient ? NULL : complain("the stream is not captured");
    }
    g->is_capturing = false;
    ductile_status status = ductile_virtual_capture_end(s->f.gpu, s->slots[slot].stream, &g->graph);
    NEED(status == DUCTILE_OK || w->status != NULL, "broken-capture=1 the capture was broken");
    return answers(p, w, status);
}

/* "launch 2": the graph, on stream 2; "launch 2 late". */
VERB(launch, "launch") {
    SLOT(slot, 1);
    ductile_virtual_graph *graph = p->s.graphs[p->s.graphs[0].graph == NULL].graph;
    if (graph == NULL) {
        return p->how.is_lenient ? NULL : complain("there is no graph");
    }
    be_late(p, w);
    ductile_status status = ductile_virtual_graph_launch(graph, p->s.slots[slot].stream);
    be_usual(p);
    for (size_t i = 0; i < p->s.m.n; i++) {
        model_block *b = &p->s.m.blocks[i];
        if (b->captured != 0 && b->stream == slot) {
            b->pattern = b->captured;
            b->is_blank = false;
        }
    }
    return answers(p, w, status);
}

VERB(drop_graph, "drop_graph") {
    graph_state *g = &p->s.graphs[p->s.graphs[0].graph == NULL];
    ductile_virtual_graph_destroy(g->graph);
    g->graph = NULL;
    return NULL;
}

/* ---- Markers ------------------------------------------------------------------------------- */

enum { HIT_BYTES = 256 << 10, MOST_HITS = 200 }; /* 64 of them make a marker due */

static uint64_t count_marks(const player *p) {
    return ductile_virtual_count(p->s.f.gpu, "context_record") +
           ductile_virtual_count(p->s.f.gpu, "event_record");
}

static const char *hit(player *p, const char *slot) {
    char operation[64];
    (void)snprintf(operation, sizeof operation, "(hit) = alloc 256K %s", slot);
    TRY(player_do(p, operation));
    return player_do(p, "free (hit)");
}

static const char *slow(player *p) {
    TRY(player_do(p, "(slow) = dedicated 2M 0 blank"));
    return player_do(p, "free (slow)");
}

/* "mark 1": hits of the stream until one of them records a marker. */
VERB(mark, "mark") {
    uint64_t before = count_marks(p);
    for (int i = 0; i < MOST_HITS && count_marks(p) == before; i++) {
        TRY(hit(p, word_at(w, 1)));
    }
    TRY(count_marks(p) == before ? slow(p) : NULL); /* hits record none where no other has memory */
    NEED(p->how.is_lenient || count_marks(p) > before, "no marker comes");
    return NULL;
}

/* The same until the allocator has read the marker, too. */
VERB(proof, "proof") {
    TRY(mark(p, w));
    return slow(p);
}

/* ---- Threads, and what comes between -------------------------------------------------------- */

VERB(thread, "thread") {
    uint64_t n = 0;
    TRY(number_at(w, 1, &n));
    NEED(n >= 1 && n <= p->s.crew.n, "there is no such thread");
    p->s.crew.next = n;
    return NULL;
}

/* "end_thread 2": without a word; its default stream ends, too. */
VERB(end_thread, "end_thread") {
    uint64_t n = 0;
    TRY(number_at(w, 1, &n));
    return do_end_thread(&p->s, &(record){.a = (uint8_t)(n - 1), .b = 1, .c = 1});
}

/* "between CALL OPERATION , OPERATION": when the driver has made that call for the allocator. */
VERB(between, "between") {
    NEED(p->n_awaited < MOST_AWAITED && w->n > 2, "nothing to do between");
    awaited *a = &p->awaited[p->n_awaited++];
    dvmm_set_trace(p->s.f.allocator->driver, player_come_between, p, true);
    size_t n = 0;
    a->operation[0] = '\0';
    (void)snprintf(a->call, sizeof a->call, "%s", word_at(w, 1));
    for (size_t i = 2; i < w->n && n < sizeof a->operation; i++) {
        n += (size_t)snprintf(a->operation + n, sizeof a->operation - n, "%s ", w->at[i]);
    }
    return NULL;
}
