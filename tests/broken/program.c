/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/broken/program.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Threads ------------------------------------------------------------------------------- */

static void *work(void *user) {
    worker *w = user;
    for (;;) {
        (void)sem_wait(&w->begin);
        if (w->job == NULL) {
            return NULL;
        }
        w->job(w->user);
        (void)sem_post(&w->end);
    }
}

void start_worker(worker *w) {
    (void)sem_init(&w->begin, 0, 0);
    (void)sem_init(&w->end, 0, 0);
    if (pthread_create(&w->thread, NULL, work, w) != 0) {
        (void)fputs("workload: a thread cannot be made\n", stderr);
        exit(2);
    }
}

void stop_worker(worker *w) {
    w->job = NULL;
    (void)sem_post(&w->begin);
    (void)pthread_join(w->thread, NULL);
}

bool is_threads(unsigned slot) {
    return slot >= N_OWN;
}

/* Runs the job where the slot's stream can be named. */
void run_for(play *p, unsigned slot, void (*job)(void *user), void *user) {
    if (!is_threads(slot)) {
        job(user);
        return;
    }
    worker *w = &p->workers[slot - N_OWN];
    w->job = job;
    w->user = user;
    (void)sem_post(&w->begin);
    (void)sem_wait(&w->end);
}

ductile_stream stream_of(const play *p, unsigned slot) {
    return is_threads(slot) ? PER_THREAD : p->f.streams[slot];
}

unsigned any_slot(play *p) {
    return (unsigned)rng_below(&p->r, N_SLOTS);
}

unsigned any_threads_slot(play *p) {
    return N_OWN + (unsigned)rng_below(&p->r, N_THREADS);
}

/* ---- What a program does on one stream ----------------------------------------------------- */

static void do_alloc(void *user) {
    request *q = user;
    q->status = ductile_alloc(q->p->f.allocator, q->size, stream_of(q->p, q->slot), &q->address);
}

static void do_launch(void *user) {
    request *q = user;
    ductile_virtual_use use = {.address = q->address, .size = q->size, .writes = q->writes};
    q->status = ductile_virtual_launch(q->p->f.gpu, stream_of(q->p, q->slot), &use, 1);
}

static void do_record(void *user) {
    request *q = user;
    q->status = ductile_record_stream(q->p->f.allocator, q->address, stream_of(q->p, q->slot));
}

static void do_free(void *user) {
    request *q = user;
    q->status = ductile_free(q->p->f.allocator, q->address);
}

static void do_sync(void *user) {
    request *q = user;
    q->status = ductile_virtual_stream_sync(q->p->f.gpu, stream_of(q->p, q->slot));
}

static void do_wait(void *user) {
    request *q = user;
    q->status = ductile_virtual_stream_wait(q->p->f.gpu, stream_of(q->p, q->slot),
                                            stream_of(q->p, q->other));
}

void do_done(void *user) {
    request *q = user;
    q->status = ductile_stream_done(q->p->f.allocator, stream_of(q->p, q->slot));
}

void launch_use(play *p, unsigned slot, const block *b, int writes) {
    request q = {.p = p, .slot = slot, .address = b->address, .size = b->size, .writes = writes};
    run_for(p, slot, do_launch, &q);
}

/* False: no thread can name both. */
bool order_slots(play *p, unsigned first, unsigned then) {
    request q = {.p = p, .slot = then, .other = first};
    if (first != then && is_threads(first) && is_threads(then)) {
        return false;
    }
    run_for(p, is_threads(first) ? first : then, do_wait, &q);
    return q.status == DUCTILE_OK;
}

void sync_slot(play *p, unsigned slot) {
    request q = {.p = p, .slot = slot};
    run_for(p, slot, do_sync, &q);
}

/* ---- Blocks -------------------------------------------------------------------------------- */

uint64_t any_size(play *p) {
    if (rng_percent(&p->r, 30)) {
        return rng_between(&p->r, 1, 64 << 10);
    }
    return rng_between(&p->r, p->typical_size / 4, 2 * p->typical_size);
}

bool get_block(play *p, unsigned slot, uint64_t size, block *out) {
    request q = {.p = p, .slot = slot, .size = size};
    run_for(p, q.slot, do_alloc, &q);
    if (q.status != DUCTILE_OK) {
        return false;
    }
    *out = (block){.address = q.address, .size = size, .slot = slot};
    ductile_virtual_block_begin(p->f.gpu, out->address, size);
    launch_use(p, slot, out, 1);
    return true;
}

void make_on(play *p, unsigned slot, uint64_t size) {
    block b;
    if (p->n_blocks < N_BLOCKS_MAX && get_block(p, slot, size, &b)) {
        p->blocks[p->n_blocks++] = b;
        p->live_bytes += size;
    }
}

void make_block(play *p) {
    unsigned slot = rng_percent(&p->r, 60) ? p->busiest : any_slot(p);
    make_on(p, slot, any_size(p));
}

size_t any_block(play *p) {
    return (size_t)rng_below(&p->r, p->n_blocks);
}

bool give_from(play *p, unsigned slot, const block *b) {
    request q = {.p = p, .slot = slot, .address = b->address};
    run_for(p, slot, do_free, &q);
    return q.status == DUCTILE_OK;
}

/* Any thread may free. The last thing a program does with a block before is often to use it. */
void free_at(play *p, size_t i) {
    block b = p->blocks[i];
    unsigned who = rng_percent(&p->r, 40) ? any_threads_slot(p) : any_slot(p);
    if (rng_percent(&p->r, 50)) {
        launch_use(p, b.slot, &b, 1);
    }
    p->blocks[i] = p->blocks[--p->n_blocks];
    p->live_bytes -= b.size;
    ductile_virtual_block_end(p->f.gpu, b.address);
    (void)give_from(p, who, &b);
}

bool record(play *p, block *b, unsigned user) {
    request q = {.p = p, .slot = user, .address = b->address};
    run_for(p, user, do_record, &q);
    b->is_recorded |= q.status == DUCTILE_OK;
    return q.status == DUCTILE_OK;
}

/* Another stream uses the block, ordered after its own; told to the allocator, before or after. */
void share_with(play *p, block *b, unsigned user) {
    bool tells_first = rng_percent(&p->r, 50);
    if (user == b->slot || !order_slots(p, b->slot, user) || (tells_first && !record(p, b, user))) {
        return;
    }
    launch_use(p, user, b, rng_percent(&p->r, 50));
    if (!tells_first && !record(p, b, user)) {
        sync_slot(p, user);
    }
}

/* Some streams at once, and often the block is freed while they are at work. */
void share_block(play *p, size_t i) {
    for (uint64_t n = rng_between(&p->r, 1, 4); n > 0; n--) {
        share_with(p, &p->blocks[i], rng_percent(&p->r, 40) ? any_threads_slot(p) : any_slot(p));
    }
    if (rng_percent(&p->r, 40)) {
        free_at(p, i);
    }
}

/* Without a word to the allocator: the user's work is joined before its memory can be reused, which
 * is at the next allocation of the block's own stream. Until then others go on. */
void share_and_join(play *p, size_t i) {
    block b = p->blocks[i];
    unsigned user = any_slot(p);
    if (user == b.slot || !order_slots(p, b.slot, user)) {
        return;
    }
    launch_use(p, user, &b, 1);
    if (rng_percent(&p->r, 50)) {
        (void)order_slots(p, user, b.slot);
        free_at(p, i);
        return;
    }
    p->waits_for_join[b.slot] = true;
    free_at(p, i);
    unsigned other = (b.slot + 1) % N_OWN;
    if (other != b.slot && rng_percent(&p->r, 50)) {
        make_on(p, other, 2 * p->typical_size);
    }
    (void)order_slots(p, user, b.slot);
    p->waits_for_join[b.slot] = false;
}
