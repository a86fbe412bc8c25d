/* SPDX-License-Identifier: Apache-2.0 */
#include "stacks.h"

#include "frames.h"
#include "interpreter.h"
#include "recording.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- The table ----------------------------------------------------------------------------- */

/* Half full at most. The hash stands for the stack: of 2^18 stacks, two have the same one of 64
 * bits with a chance of 2^-29. */
enum { N_SLOTS = 2 * RECORDING_MAX_STACKS };

typedef struct slot {
    _Atomic uint64_t hash; /* 0: empty. Written after the number */
    uint32_t number;
} slot;

static _Atomic(slot *) slots;
static atomic_uint n_stacks;
static atomic_uint n_readers; /* threads that read the table without the mutex */
static atomic_bool can_read_frames;

bool stacks_init(void) {
    slot *made = interpreter_find() ? calloc(N_SLOTS, sizeof *made) : NULL;
    atomic_store(&n_stacks, 0);
    atomic_store(&slots, made);
    return made != NULL;
}

/* A reader is done in less than a microsecond: it waits for nothing. */
void stacks_fini(void) {
    slot *old = atomic_exchange(&slots, NULL);
    while (atomic_load(&n_readers) != 0) {
        (void)sched_yield();
    }
    free(old);
}

void stacks_forget_readers(void) {
    atomic_store(&n_readers, 0);
}

uint64_t stacks_count(void) {
    return atomic_load(&n_stacks);
}

/* Where a stack is, or its place. Pre: no thread enters one meanwhile, or its hash is read again.
 */
static slot *find_slot(slot *table, uint64_t hash) {
    for (uint64_t i = hash % N_SLOTS;; i = (i + 1) % N_SLOTS) {
        uint64_t found = atomic_load_explicit(&table[i].hash, memory_order_acquire);
        if (found == hash || found == 0) {
            return &table[i];
        }
    }
}

/* The number of a stack; STACK_NONE: not known yet. */
static uint32_t look_up(slot *table, uint64_t hash) {
    slot *found = find_slot(table, hash);
    if (atomic_load_explicit(&found->hash, memory_order_acquire) == hash) {
        return found->number;
    }
    return atomic_load(&n_stacks) == RECORDING_MAX_STACKS ? STACK_FULL : STACK_NONE;
}

/* The table, which is not freed before end_reading; NULL: the recording has ended. */
static slot *begin_reading(void) {
    (void)atomic_fetch_add(&n_readers, 1);
    return atomic_load(&slots);
}

static void end_reading(void) {
    (void)atomic_fetch_sub(&n_readers, 1);
}

static uint32_t find_known(uint64_t hash) {
    slot *table = begin_reading();
    uint32_t number = table != NULL ? look_up(table, hash) : STACK_NONE;
    end_reading();
    return number;
}

/* ---- Walking ------------------------------------------------------------------------------- */

/* Calls `see` with each frame, from the innermost on. */
static void each_frame(void *innermost, void (*see)(void *frame, void *to), void *to) {
    void *frame = innermost;
    python.keep(frame);
    for (int depth = 0; frame != NULL && depth < RECORDING_MAX_FRAMES; depth++) {
        see(frame, to);
        void *caller = python.back(frame);
        python.drop(frame);
        frame = caller;
    }
    if (frame != NULL) {
        python.drop(frame);
    }
}

/* Which code stands where. A code object of a known stack is kept, so that no other one gets its
 * address. */
static void mix_in(void *frame, void *to) {
    uint64_t *hash = to;
    void *code = python.code(frame);
    *hash = frames_mix(*hash, (uint64_t)(uintptr_t)code);
    *hash = frames_mix(*hash, (uint64_t)python.instruction(frame));
    python.drop(code); /* its frame keeps it */
}

static uint64_t hash_stack(void *innermost) {
    uint64_t hash = 1;
    each_frame(innermost, mix_in, &hash);
    return hash != 0 ? hash : 1;
}

static const char *text_of(void *code, const char *attribute, void **owner, size_t *length) {
    intptr_t size = 0;
    *owner = python.attribute(code, attribute);
    const char *text = *owner != NULL ? python.text(*owner, &size) : NULL;
    *length = text != NULL ? (size_t)size : 1;
    return text != NULL ? text : "?";
}

typedef struct described {
    stack_frame frames[RECORDING_MAX_FRAMES];
    void *owners[2 * RECORDING_MAX_FRAMES]; /* of their texts; may be NULL */
    int n;
} described;

/* A code object lives as long as the process from here on, because stacks are known by it. */
static void describe(void *frame, void *to) {
    described *d = to;
    stack_frame *out = &d->frames[d->n];
    void *code = python.code(frame);
    out->name = text_of(code, "co_name", &d->owners[2 * d->n], &out->name_length);
    out->filename = text_of(code, "co_filename", &d->owners[2 * d->n + 1], &out->filename_length);
    out->line = python.line(frame);
    d->n++;
}

static void drop_texts(described *d) {
    for (int i = 0; i < 2 * d->n; i++) {
        if (d->owners[i] != NULL) {
            python.drop(d->owners[i]);
        }
    }
}

/* Another thread may have come first, and the recording may have ended. */
static uint32_t enter(pthread_mutex_t *mutex, uint64_t hash, const described *d,
                      stack_write_fn write) {
    (void)pthread_mutex_lock(mutex);
    slot *table = atomic_load(&slots);
    uint32_t number = table != NULL ? look_up(table, hash) : STACK_FULL;
    if (number == STACK_NONE) {
        slot *place = find_slot(table, hash);
        number = STACK_FIRST + atomic_fetch_add(&n_stacks, 1);
        place->number = number;
        atomic_store_explicit(&place->hash, hash, memory_order_release);
        write(number, d->frames, d->n);
    }
    (void)pthread_mutex_unlock(mutex);
    return table != NULL ? number : STACK_NONE;
}

/* Python is asked with no lock but its own. An exception that is under way stays as it is. */
static uint32_t add_stack(void *frame, uint64_t hash, pthread_mutex_t *mutex,
                          stack_write_fn write) {
    described d;
    void *error[3];
    python.fetch(&error[0], &error[1], &error[2]);
    d.n = 0;
    each_frame(frame, describe, &d);
    uint32_t number = enter(mutex, hash, &d, write);
    drop_texts(&d);
    python.restore(error[0], error[1], error[2]);
    return number;
}

/* ---- Finding ------------------------------------------------------------------------------- */

/* Frames may be made while they are walked. The collector must not run then: it would free tensors,
 * in the middle of a call of the allocator. */
static bool stop_collector(void) {
    return python.stop_collector != NULL && python.stop_collector() != 0;
}

/* `hash` is 0 where frames cannot be read without Python's lock, which this waits for. */
static uint32_t find_locked(uint64_t hash, pthread_mutex_t *mutex, stack_write_fn write) {
    int before = python.lock();
    bool was_collecting = stop_collector();
    void *innermost = python.current();
    uint32_t number = STACK_NONE;
    if (innermost != NULL) {
        bool is_new = hash != 0;
        hash = is_new ? hash : hash_stack(innermost);
        number = is_new ? STACK_NONE : find_known(hash);
        number = number == STACK_NONE ? add_stack(innermost, hash, mutex, write) : number;
    }
    if (was_collecting) {
        (void)python.start_collector();
    }
    python.unlock(before);
    return number;
}

/* Threads that end with the interpreter would never get its lock. */
static void *own_state(void) {
    bool runs = python.is_alive() && (python.is_ending == NULL || !python.is_ending());
    return runs ? python.own_state() : NULL;
}

bool stacks_learn(void) {
    if (!interpreter_find()) {
        return false;
    }
    if (!atomic_load(&can_read_frames) && own_state() != NULL) {
        int before = python.lock();
        atomic_store(&can_read_frames, frames_learn(python.own_state()));
        python.unlock(before);
    }
    return true;
}

uint32_t stacks_find(pthread_mutex_t *mutex, stack_write_fn write) {
    if (!atomic_load_explicit(&can_read_frames, memory_order_relaxed)) {
        return own_state() != NULL ? find_locked(0, mutex, write) : STACK_NONE;
    }
    slot *table = begin_reading();
    void *state = table != NULL ? own_state() : NULL;
    uint64_t hash = state != NULL ? frames_hash(state, RECORDING_MAX_FRAMES) : 0;
    uint32_t number = hash != 0 ? look_up(table, hash) : STACK_NONE;
    end_reading();
    bool is_new = hash != 0 && number == STACK_NONE;
    return is_new ? find_locked(hash, mutex, write) : number;
}
