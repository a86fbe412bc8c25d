/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/broken/steps.h"

#include <ductile_share.h>

enum {
    HIT_BYTES = 256 << 10, /* 64 of them make a marker due */
    MOST_HITS = 200
};

void need(const play *p, bool is_so, const char *what) {
    if (!is_so) {
        give_up(p, what);
    }
}

/* ---- Blocks -------------------------------------------------------------------------------- */

block take(play *p, unsigned slot, uint64_t size) {
    block b;
    need(p, get_block(p, slot, size, &b), "no memory");
    return b;
}

block take_dedicated(play *p, uint64_t size) {
    block b = {.size = size, .slot = OWNER};
    ductile_stream stream = p->f.streams[OWNER];
    need(p, ductile_alloc_dedicated(p->f.allocator, size, stream, &b.address) == DUCTILE_OK,
         "no dedicated memory");
    ductile_virtual_block_begin(p->f.gpu, b.address, size);
    return b;
}

void leave(play *p, unsigned slot, uint64_t size) {
    block b = take(p, slot, size);
    ductile_virtual_block_end(p->f.gpu, b.address);
}

void give_on(play *p, unsigned thread, const block *b) {
    ductile_virtual_block_end(p->f.gpu, b->address);
    need(p, give_from(p, thread, b), "free");
}

void give(play *p, const block *b) {
    give_on(p, OWNER, b);
}

void give_all(play *p, const block *blocks, size_t n) {
    for (size_t i = 0; i < n; i++) {
        give(p, &blocks[i]);
    }
}

/* ---- Work ---------------------------------------------------------------------------------- */

void be_eager(play *p) {
    p->schedule = DUCTILE_SCHEDULE_EAGER;
    ductile_virtual_set_schedule(p->f.gpu, p->schedule, p->lag);
}

void use_long(play *p, unsigned slot, const block *b, int writes) {
    ductile_virtual_set_schedule(p->f.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    launch_use(p, slot, b, writes);
    ductile_virtual_set_schedule(p->f.gpu, p->schedule, p->lag);
}

void share_long(play *p, block *b, unsigned user) {
    need(p, order_slots(p, b->slot, user), "order");
    use_long(p, user, b, 0);
    need(p, record(p, b, user), "record");
}

ductile_stream use_elsewhere(play *p, const block *b) {
    const ductile_virtual_use use = {b->address, b->size, 1};
    ductile_stream theirs = NULL;
    fixture *f = &p->f;
    need(p, ductile_enable_peer(f->allocator, 1) == DUCTILE_OK, "peer");
    need(p, ductile_virtual_stream_create_on(f->gpu, 1, &theirs) == DUCTILE_OK, "stream");
    need(p, ductile_virtual_stream_wait(f->gpu, theirs, stream_of(p, b->slot)) == DUCTILE_OK,
         "order");
    ductile_virtual_set_schedule(f->gpu, DUCTILE_SCHEDULE_LAZY, 0);
    need(p, ductile_virtual_launch(f->gpu, theirs, &use, 1) == DUCTILE_OK, "launch");
    ductile_virtual_set_schedule(f->gpu, p->schedule, p->lag);
    need(p, ductile_record_stream(f->allocator, b->address, theirs) == DUCTILE_OK, "record");
    return theirs;
}

void renew_stream(play *p, unsigned slot) {
    ductile_stream old = p->f.streams[slot];
    need(p, ductile_stream_done(p->f.allocator, old) == DUCTILE_OK, "done");
    need(p, ductile_virtual_stream_destroy(p->f.gpu, old) == DUCTILE_OK, "destroy");
    need(p, ductile_virtual_stream_create(p->f.gpu, &p->f.streams[slot]) == DUCTILE_OK, "create");
    need(p, p->f.streams[slot] == old, "the device has stopped to use handles again");
}

/* ---- Markers ------------------------------------------------------------------------------- */

static uint64_t count_marks(const play *p) {
    return ductile_virtual_count(p->f.gpu, "context_record") +
           ductile_virtual_count(p->f.gpu, "event_record");
}

void come_to_mark(play *p, unsigned slot) {
    uint64_t before = count_marks(p);
    for (int i = 0; i < MOST_HITS && count_marks(p) == before; i++) {
        block b = take(p, slot, HIT_BYTES);
        give(p, &b);
    }
    if (count_marks(p) == before) { /* no other stream has memory: then hits record none */
        block slow = take_dedicated(p, FIXTURE_GRANULE);
        give(p, &slow);
    }
    need(p, count_marks(p) > before, "no marker comes");
}

/* A slow call reads it. */
void come_to_proof(play *p, unsigned slot) {
    come_to_mark(p, slot);
    block look = take_dedicated(p, FIXTURE_GRANULE);
    give(p, &look);
}
