/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's threads, of which one runs at a time. So that the model knows the order of all
 * calls, a thread acts only when another one waits for it; but captures, open pools and the handle
 * of the default stream of a thread mean its own in each.
 */
#include "tests/model/subject.h"

#include <string.h>

/* ---- Threads that wait to act --------------------------------------------------------------- */

static void *act_until_told(void *argument) {
    thread_state *t = argument;
    crew *c = &t->s->crew;
    (void)pthread_mutex_lock(&c->lock);
    while (!t->ends) {
        if (t->act != NULL) {
            (void)pthread_mutex_unlock(&c->lock);
            t->why = t->act(t->s, t->argument);
            (void)pthread_mutex_lock(&c->lock);
            t->act = NULL;
            (void)pthread_cond_broadcast(&c->turn);
        } else {
            (void)pthread_cond_wait(&c->turn, &c->lock);
        }
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

static const char *start_thread(subject *s, size_t thread) {
    thread_state *t = &s->crew.all[thread];
    *t = (thread_state){.s = s};
    NEED(pthread_create(&t->id, NULL, act_until_told, t) == 0, "no thread");
    return NULL;
}

static void join_thread(subject *s, size_t thread) {
    thread_state *t = &s->crew.all[thread];
    (void)pthread_mutex_lock(&s->crew.lock);
    t->ends = true;
    (void)pthread_cond_broadcast(&s->crew.turn);
    (void)pthread_mutex_unlock(&s->crew.lock);
    (void)pthread_join(t->id, NULL);
}

const char *start_threads(subject *s) {
    (void)pthread_mutex_init(&s->crew.lock, NULL);
    (void)pthread_cond_init(&s->crew.turn, NULL);
    for (size_t i = 1; i <= s->crew.n; i++) {
        TRY(start_thread(s, i));
    }
    s->crew.next = s->crew.n > 0 ? 1 : 0;
    return NULL;
}

void end_threads(subject *s) {
    for (; s->crew.n > 0; s->crew.n--) {
        join_thread(s, s->crew.n);
    }
}

const char *on_thread(subject *s, size_t thread, thread_act act, void *argument) {
    crew *c = &s->crew;
    size_t here = c->here;
    if (thread == here) {
        return act(s, argument);
    }
    thread_state *t = &c->all[thread];
    (void)pthread_mutex_lock(&c->lock);
    c->here = thread;
    t->argument = argument;
    t->act = act;
    (void)pthread_cond_broadcast(&c->turn);
    while (t->act != NULL) {
        (void)pthread_cond_wait(&c->turn, &c->lock);
    }
    c->here = here;
    (void)pthread_mutex_unlock(&c->lock);
    return t->why;
}

/* ---- Streams of threads --------------------------------------------------------------------- */

size_t thread_slot(const subject *s) {
    return s->crew.here > 1 ? N_NAMED + s->crew.here - 2 : OWN_SLOT;
}

static bool is_of_thread(const subject *s, size_t slot) {
    return s->slots[slot].kind == THREAD_STREAM && s->crew.n > 0;
}

/* Where the slot's handle means its stream. */
static size_t thread_of(const subject *s, size_t slot) {
    size_t own = slot == OWN_SLOT ? 1 : slot - N_NAMED + 2;
    return is_of_thread(s, slot) ? own : s->crew.here;
}

const char *with_stream(subject *s, size_t slot, thread_act act, void *argument) {
    return on_thread(s, thread_of(s, slot), act, argument);
}

typedef struct order {
    ductile_stream then, first;
} order;

static const char *wait_here(subject *s, void *argument) {
    const order *o = argument;
    NEED_OK(ductile_virtual_stream_wait(s->f.gpu, o->then, o->first));
    return NULL;
}

const char *wait_for(subject *s, size_t slot, ductile_stream first) {
    order o = {s->slots[slot].stream, first};
    return with_stream(s, slot, wait_here, &o);
}

const char *follow(subject *s, ductile_stream then, size_t slot) {
    order o = {then, s->slots[slot].stream};
    return with_stream(s, slot, wait_here, &o);
}

/* Where no thread can name both streams, something in between does what an event would. */
const char *order_slots(subject *s, size_t first, size_t then) {
    if (first == GONE || first == then) {
        return NULL; /* its work was waited for */
    }
    if (!is_of_thread(s, first)) {
        return wait_for(s, then, s->slots[first].stream);
    }
    if (!is_of_thread(s, then)) {
        return follow(s, s->slots[then].stream, first);
    }
    ductile_stream between = NULL;
    NEED_OK(ductile_virtual_stream_create(s->f.gpu, &between));
    TRY(follow(s, between, first));
    TRY(wait_for(s, then, between));
    NEED_OK(ductile_virtual_stream_destroy(s->f.gpu, between));
    return NULL;
}

static const char *sync_here(subject *s, void *argument) {
    const slot_state *slot = argument;
    NEED_OK(ductile_virtual_stream_sync(s->f.gpu, slot->stream));
    return NULL;
}

const char *sync_slot(subject *s, size_t slot) {
    return with_stream(s, slot, sync_here, &s->slots[slot]);
}

/* ---- Threads that go on, and end ------------------------------------------------------------ */

const char *do_thread(subject *s, const record *r) {
    if (s->crew.n == 0) {
        return NULL;
    }
    s->crew.next = 1 + r->a % s->crew.n;
    say(s, "thread %zu goes on", s->crew.next);
    return NULL;
}

static bool is_capturing_on(const subject *s, size_t thread) {
    for (size_t i = 0; i < N_GRAPHS; i++) {
        if (s->graphs[i].is_capturing && s->graphs[i].thread == thread) {
            return true;
        }
    }
    return false;
}

typedef struct leaving {
    size_t slot;
    bool is_told, blocks_stay;
} leaving;

static const char *leave_here(subject *s, void *argument) {
    const leaving *l = argument;
    TRY(l->is_told ? free_recorded(s, l->slot) : NULL);
    TRY(leave_blocks(s, l->slot, l->blocks_stay));
    leave_ranges(s, l->slot); /* another thread's default stream is another stream */
    return l->is_told ? tell(s, l->slot) : NULL;
}

static void forget_thread(subject *s, size_t thread, size_t slot) {
    for (size_t i = 0; i < s->n_routes; i++) {
        if (s->routes[i].opener == thread) {
            s->routes[i].opener = MOST_THREADS + 1;
        }
    }
    for (size_t i = 0; i < s->m.n; i++) {
        model_block *b = &s->m.blocks[i];
        b->is_unmarkable |= (b->recorded >> slot & 1) != 0;
        b->recorded &= ~(1u << slot);
    }
}

/* A thread ends, mostly without a word, and so does its default stream. Another one begins. */
const char *do_end_thread(subject *s, const record *r) {
    size_t thread = s->crew.n > 0 ? 1 + r->a % s->crew.n : 0;
    if (thread == s->crew.here || is_capturing_on(s, thread) || is_capturing(s)) {
        return NULL;
    }
    leaving l = {.slot = thread == 1 ? OWN_SLOT : N_NAMED + thread - 2,
                 .is_told = r->b % 4 == 0,
                 .blocks_stay = r->c % 2 == 0};
    say(s, "thread %zu ends, its stream %s", thread, l.is_told ? "told" : "untold");
    TRY(has_graph(s) ? join_all_with(s, l.slot) : NULL);
    TRY(on_thread(s, thread, leave_here, &l));
    NEED(s->wrong == NULL, "%s", s->wrong); /* in memory of the thread */
    TRY(forgive(s, l.slot));
    forget_thread(s, thread, l.slot);
    join_thread(s, thread);
    TRY(start_thread(s, thread));
    return make_stream(s, l.slot, THREAD_STREAM);
}
