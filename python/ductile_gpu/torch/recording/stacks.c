/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "stacks.h"

#include "recording.h"

#include <dlfcn.h>
#include <stdlib.h>

/* ---- The interpreter ----------------------------------------------------------------------- */

static struct {
    int (*is_alive)(void);           /* Py_IsInitialized */
    int (*is_ending)(void);          /* Py_IsFinalizing, under one name or the other */
    void *(*own_state)(void);        /* PyGILState_GetThisThreadState */
    int (*lock)(void);               /* PyGILState_Ensure */
    void (*unlock)(int before);      /* PyGILState_Release */
    void *(*current)(void);          /* PyEval_GetFrame: borrowed */
    void *(*back)(void *frame);      /* PyFrame_GetBack: owned */
    void *(*code)(void *frame);      /* PyFrame_GetCode: owned */
    int (*instruction)(void *frame); /* PyFrame_GetLasti, from 3.11 on */
    int (*line)(void *frame);        /* PyFrame_GetLineNumber */
    void (*keep)(void *object);      /* Py_IncRef */
    void (*drop)(void *object);      /* Py_DecRef */
    void *(*attribute)(void *object, const char *name);
    const char *(*text)(void *object, intptr_t *length); /* PyUnicode_AsUTF8AndSize */
    void (*fetch)(void **type, void **value, void **trace);
    void (*restore)(void *type, void *value, void *trace);
    int (*stop_collector)(void);  /* PyGC_Disable, from 3.10 on: returns what it was */
    int (*start_collector)(void); /* PyGC_Enable */
} python;

static bool find_function(void *out, const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    *(void **)out = found;
    return found != NULL;
}

static bool find_python(void) {
    bool all = find_function(&python.is_alive, "Py_IsInitialized") &&
               find_function(&python.own_state, "PyGILState_GetThisThreadState") &&
               find_function(&python.lock, "PyGILState_Ensure") &&
               find_function(&python.unlock, "PyGILState_Release") &&
               find_function(&python.current, "PyEval_GetFrame") &&
               find_function(&python.back, "PyFrame_GetBack") &&
               find_function(&python.code, "PyFrame_GetCode") &&
               find_function(&python.line, "PyFrame_GetLineNumber") &&
               find_function(&python.keep, "Py_IncRef") &&
               find_function(&python.drop, "Py_DecRef") &&
               find_function(&python.attribute, "PyObject_GetAttrString") &&
               find_function(&python.text, "PyUnicode_AsUTF8AndSize") &&
               find_function(&python.fetch, "PyErr_Fetch") &&
               find_function(&python.restore, "PyErr_Restore");
    if (!find_function(&python.is_ending, "Py_IsFinalizing")) {
        (void)find_function(&python.is_ending, "_Py_IsFinalizing");
    }
    if (!find_function(&python.instruction, "PyFrame_GetLasti")) {
        python.instruction = python.line;
    }
    if (!find_function(&python.stop_collector, "PyGC_Disable") ||
        !find_function(&python.start_collector, "PyGC_Enable")) {
        python.stop_collector = NULL;
    }
    return all;
}

/* ---- The table ----------------------------------------------------------------------------- */

/* Half full at most. The hash stands for the stack: of 2^18 stacks, two have the same one of 64
 * bits with a chance of 2^-29. */
enum { N_SLOTS = 2 * RECORDING_MAX_STACKS };

typedef struct slot {
    uint64_t hash; /* 0: empty */
    uint32_t number;
} slot;

static slot *slots;
static uint32_t n_stacks;

bool stacks_init(void) {
    static bool has_python; /* what threads may be calling is not written again */
    has_python = has_python || find_python();
    slots = has_python ? calloc(N_SLOTS, sizeof *slots) : NULL;
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

static slot *find_slot(uint64_t hash) {
    for (uint64_t i = hash % N_SLOTS;; i = (i + 1) % N_SLOTS) {
        if (slots[i].hash == hash || slots[i].hash == 0) {
            return &slots[i];
        }
    }
}

/* ---- Walking ------------------------------------------------------------------------------- */

/* From a frame that is owned to the one that called it; the first is let go. */
static void *step_out(void *frame) {
    void *caller = python.back(frame);
    python.drop(frame);
    return caller;
}

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 29);
}

/* Which code stands where, from the innermost frame on. A code object of a known stack is kept, so
 * that no other one gets its address. */
static uint64_t hash_stack(void *innermost) {
    uint64_t hash = 1;
    void *frame = innermost;
    python.keep(frame);
    for (int depth = 0; frame != NULL && depth < RECORDING_MAX_FRAMES; depth++) {
        void *code = python.code(frame);
        hash = mix(hash, (uint64_t)(uintptr_t)code);
        hash = mix(hash, (uint64_t)python.instruction(frame));
        python.drop(code); /* its frame keeps it */
        frame = step_out(frame);
    }
    if (frame != NULL) {
        python.drop(frame);
    }
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
static void describe(described *d, void *frame) {
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

static void describe_all(described *d, void *innermost) {
    d->n = 0;
    python.keep(innermost);
    void *frame = innermost;
    while (frame != NULL && d->n < RECORDING_MAX_FRAMES) {
        describe(d, frame);
        frame = step_out(frame);
    }
    if (frame != NULL) {
        python.drop(frame);
    }
}

/* The number of a stack; STACK_NONE: not known yet. */
static uint32_t look_up(pthread_mutex_t *mutex, uint64_t hash) {
    (void)pthread_mutex_lock(mutex);
    const slot *found = slots != NULL ? find_slot(hash) : NULL;
    uint32_t number = found != NULL && found->hash == hash ? found->number : STACK_NONE;
    if (number == STACK_NONE && n_stacks == RECORDING_MAX_STACKS) {
        number = STACK_FULL;
    }
    (void)pthread_mutex_unlock(mutex);
    return number;
}

/* Another thread may have come first, and the recording may have ended. */
static uint32_t enter(pthread_mutex_t *mutex, uint64_t hash, const described *d,
                      stack_write_fn write) {
    (void)pthread_mutex_lock(mutex);
    slot *place = slots != NULL ? find_slot(hash) : NULL;
    uint32_t number = place == NULL ? STACK_NONE : place->number;
    if (place != NULL && place->hash != hash) {
        number = n_stacks < RECORDING_MAX_STACKS ? STACK_FIRST + n_stacks++ : STACK_FULL;
        if (number != STACK_FULL) {
            *place = (slot){hash, number};
            write(number, d->frames, d->n);
        }
    }
    (void)pthread_mutex_unlock(mutex);
    return number;
}

/* Python is asked between the two, with no lock but its own. An exception that is under way stays
 * as it is. */
static uint32_t find_stack(void *innermost, pthread_mutex_t *mutex, stack_write_fn write) {
    uint64_t hash = hash_stack(innermost);
    uint32_t number = look_up(mutex, hash);
    if (number != STACK_NONE) {
        return number;
    }
    described d;
    void *error[3];
    python.fetch(&error[0], &error[1], &error[2]);
    describe_all(&d, innermost);
    number = enter(mutex, hash, &d, write);
    drop_texts(&d);
    python.restore(error[0], error[1], error[2]);
    return number;
}

/* Frames may be made while they are walked. The collector must not run then: it would free tensors,
 * in the middle of a call of the allocator. */
static uint32_t find_uncollected(pthread_mutex_t *mutex, stack_write_fn write) {
    void *innermost = python.current();
    if (innermost == NULL) {
        return STACK_NONE;
    }
    bool was_collecting = python.stop_collector != NULL && python.stop_collector() != 0;
    uint32_t number = find_stack(innermost, mutex, write);
    if (was_collecting) {
        (void)python.start_collector();
    }
    return number;
}

/* Threads that end with the interpreter would never get its lock. */
static bool runs_python(void) {
    return python.is_alive() && (python.is_ending == NULL || !python.is_ending()) &&
           python.own_state() != NULL;
}

uint32_t stacks_find(pthread_mutex_t *mutex, stack_write_fn write) {
    if (!runs_python()) {
        return STACK_NONE;
    }
    int before = python.lock();
    uint32_t number = find_uncollected(mutex, write);
    python.unlock(before);
    return number;
}
