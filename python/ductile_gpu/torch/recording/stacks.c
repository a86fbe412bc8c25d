/* SPDX-License-Identifier: Apache-2.0 */
#include "stacks.h"

#include "interpreter.h"
#include "recording.h"

#include <stdlib.h>

/* ---- The table ----------------------------------------------------------------------------- */

/* Half full at most. The hash stands for the stack: of 2^18 stacks, two have the same one of 64
 * bits with a chance of 2^-29. */
enum { N_SLOTS = 2 * RECORDING_MAX_STACKS };

typedef struct slot {
    uint64_t hash; /* 0: empty */
    uint32_t number;
} slot;

/* Guarded by the mutex that stacks_find is given. */
static slot *slots; /* NULL: no recording is under way */
static uint32_t n_stacks;

bool stacks_init(void) {
    slots = interpreter_find() ? calloc(N_SLOTS, sizeof *slots) : NULL;
    n_stacks = 0;
    return slots != NULL;
}

void stacks_fini(void) {
    free(slots);
    slots = NULL;
}

uint64_t stacks_count(void) {
    return n_stacks;
}

/* Where a stack is, or its place. */
static slot *find_slot(uint64_t hash) {
    uint64_t i = hash % N_SLOTS;
    while (slots[i].hash != hash && slots[i].hash != 0) {
        i = (i + 1) % N_SLOTS;
    }
    return &slots[i];
}

/* The number of a stack; STACK_NONE: not known yet, or the recording has ended. */
static uint32_t look_up(uint64_t hash) {
    if (slots == NULL) {
        return STACK_NONE;
    }
    const slot *found = find_slot(hash);
    if (found->hash == hash) {
        return found->number;
    }
    return n_stacks == RECORDING_MAX_STACKS ? STACK_FULL : STACK_NONE;
}

static uint32_t find_known(pthread_mutex_t *mutex, uint64_t hash) {
    (void)pthread_mutex_lock(mutex);
    uint32_t number = look_up(hash);
    (void)pthread_mutex_unlock(mutex);
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

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 29);
}

/* Which code stands where. A code object of a known stack is kept, so that no other one gets its
 * address. */
static void mix_in(void *frame, void *to) {
    uint64_t *hash = to;
    void *code = python.code(frame);
    *hash = mix(*hash, (uint64_t)(uintptr_t)code);
    *hash = mix(*hash, (uint64_t)python.instruction(frame));
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
    uint32_t number = look_up(hash);
    if (slots != NULL && number == STACK_NONE) {
        number = STACK_FIRST + n_stacks++;
        *find_slot(hash) = (slot){hash, number};
        write(number, d->frames, d->n);
    }
    (void)pthread_mutex_unlock(mutex);
    return number;
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

/* Pre: this thread has Python's lock. */
static uint32_t find_held(pthread_mutex_t *mutex, stack_write_fn write) {
    void *innermost = python.current();
    if (innermost == NULL) {
        return STACK_NONE;
    }
    uint64_t hash = hash_stack(innermost);
    uint32_t number = find_known(mutex, hash);
    return number == STACK_NONE ? add_stack(innermost, hash, mutex, write) : number;
}

/* Threads that end with the interpreter would never get its lock. */
static bool runs_python(void) {
    bool runs = python.is_alive() && (python.is_ending == NULL || !python.is_ending());
    return runs && python.own_state() != NULL;
}

uint32_t stacks_find(pthread_mutex_t *mutex, stack_write_fn write) {
    if (!runs_python()) {
        return STACK_NONE;
    }
    int before = python.lock();
    bool was_collecting = stop_collector();
    uint32_t number = find_held(mutex, write);
    if (was_collecting) {
        (void)python.start_collector();
    }
    python.unlock(before);
    return number;
}
