/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "stacks.h"

#include "recording.h"

#include <dlfcn.h>
#include <stdlib.h>

/* ---- The interpreter ----------------------------------------------------------------------- */

static struct {
    int (*has_lock)(void);           /* PyGILState_Check */
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
    bool all = find_function(&python.has_lock, "PyGILState_Check") &&
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
    slots = find_python() ? calloc(N_SLOTS, sizeof *slots) : NULL;
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

/* Once for each stack. An exception that is under way stays as it is. */
static void write_stack(void *innermost, uint32_t number, stack_write_fn write) {
    described d;
    void *error[3];
    d.n = 0;
    python.fetch(&error[0], &error[1], &error[2]);
    python.keep(innermost);
    void *frame = innermost;
    while (frame != NULL && d.n < RECORDING_MAX_FRAMES) {
        describe(&d, frame);
        frame = step_out(frame);
    }
    if (frame != NULL) {
        python.drop(frame);
    }
    write(number, d.frames, d.n);
    drop_texts(&d);
    python.restore(error[0], error[1], error[2]);
}

static uint32_t find_stack(void *innermost, stack_write_fn write) {
    uint64_t hash = hash_stack(innermost);
    slot *found = find_slot(hash);
    if (found->hash == hash) {
        return found->number;
    }
    if (n_stacks == RECORDING_MAX_STACKS) {
        return STACK_FULL;
    }
    *found = (slot){hash, STACK_FIRST + n_stacks++};
    uint32_t number = found->number;
    write_stack(innermost, number, write);
    return number;
}

/* Frames may be made while they are walked. The collector must not run then: it would free tensors,
 * in the middle of a call of the allocator. */
uint32_t stacks_find(stack_write_fn write) {
    void *innermost = python.has_lock() ? python.current() : NULL;
    if (innermost == NULL) {
        return STACK_NONE;
    }
    bool was_collecting = python.stop_collector != NULL && python.stop_collector() != 0;
    uint32_t number = find_stack(innermost, write);
    if (was_collecting) {
        (void)python.start_collector();
    }
    return number;
}
