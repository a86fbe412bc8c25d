/* SPDX-License-Identifier: Apache-2.0 */
#include "frames.h"

#include "interpreter.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { NOWHERE = -1 };

/* Distances in bytes. */
typedef struct layout {
    int current;  /* in a thread's state: its innermost frame */
    int hop;      /* where that lies in what `current` points to; NOWHERE: it points to the frame */
    int previous; /* in a frame: the one that called it */
    int code;     /* its code object; low bits may be marks */
    int instruction; /* where it is in that */
} layout;

static const struct {
    int minor; /* of Python 3 */
    layout at;
} kKnown[] = {
    {9, {24, NOWHERE, 24, 32, 104}}, /* objects, whose instruction is a number beside the line's */
    {10, {24, NOWHERE, 24, 32, 96}}, /* likewise                                                  */
    {11, {56, 8, 48, 32, 56}},          {12, {56, 0, 8, 0, 56}},
    {13, {NOWHERE, NOWHERE, 8, 0, 56}}, /* `current` is searched for */
    {14, {NOWHERE, NOWHERE, 8, 0, 56}},
};

static layout at;
static uintptr_t
    between; /* the code of frames that stand where C calls Python; 0: there are none */

/* ---- Reading ------------------------------------------------------------------------------- */

static uintptr_t word(const void *object, int distance) {
    uintptr_t found;
    memcpy(&found, (const char *)object + distance, sizeof found);
    return found;
}

static const void *pointer(const void *object, int distance) {
    return (const void *)word(object, distance);
}

static uintptr_t code_of(const void *frame) {
    return word(frame, at.code) & ~(uintptr_t)7;
}

static const void *innermost(const void *state) {
    const void *found = pointer(state, at.current);
    return at.hop == NOWHERE || found == NULL ? found : pointer(found, at.hop);
}

uint64_t frames_hash(void *state, int most) {
    uint64_t hash = 1;
    int depth = 0;
    for (const void *frame = innermost(state); frame != NULL && depth < most;
         frame = pointer(frame, at.previous)) {
        uintptr_t code = code_of(frame);
        if (code != between) {
            uint64_t place = word(frame, at.instruction) * UINT64_C(0xff51afd7ed558ccd);
            hash = frames_mix(hash, code + place);
            depth++;
        }
    }
    return depth == 0 ? 0 : hash + (hash == 0);
}

/* ---- Learning ------------------------------------------------------------------------------ */

static bool can_point(uintptr_t value) {
    return value > 4096 && value % sizeof(void *) == 0;
}

/* A frame object and the thread's state both point to the frame, and to nothing else that is the
 * same. Both are larger than what is read of them. */
static int find_current(const void *state, const void *object) {
    enum { FIRST_IN_OBJECT = 2, LAST_IN_OBJECT = 5, FIRST_IN_STATE = 3, LAST_IN_STATE = 24 };
    int size = (int)sizeof(void *);
    for (int i = FIRST_IN_OBJECT; i <= LAST_IN_OBJECT; i++) {
        uintptr_t frame = word(object, i * size);
        for (int j = FIRST_IN_STATE; can_point(frame) && j <= LAST_IN_STATE; j++) {
            if (word(state, j * size) == frame) {
                return j * size;
            }
        }
    }
    return NOWHERE;
}

static bool look_up_layout(const void *state, const void *object) {
    const char *version = python.version();
    int minor = strncmp(version, "3.", 2) == 0 ? atoi(version + 2) : 0;
    for (size_t i = 0; i < sizeof kKnown / sizeof *kKnown; i++) {
        if (kKnown[i].minor == minor) {
            at = kKnown[i].at;
            at.current = at.current == NOWHERE ? find_current(state, object) : at.current;
            return at.current != NOWHERE;
        }
    }
    return false;
}

/* From 3.11 on an instruction is an address, which lies as far behind its code object in every
 * frame. */
static bool is_instruction(const void *frame, void *object, intptr_t *distance) {
    if (python.instruction == python.line) {
        return true;
    }
    intptr_t offset = (intptr_t)(word(frame, at.instruction) - code_of(frame));
    intptr_t begin = offset - python.instruction(object);
    bool is_same = *distance == 0 ? begin > 0 && begin < 4096 : begin == *distance;
    *distance = begin;
    return is_same;
}

/* Passes frames that stand between, up to that of a code object; 0: up to the end. */
static bool pass_between(const void **frame, uintptr_t code) {
    while (*frame != NULL && code_of(*frame) != code) {
        between = between == 0 ? code_of(*frame) : between;
        uintptr_t caller = word(*frame, at.previous);
        if (code_of(*frame) != between || (caller != 0 && !can_point(caller))) {
            return false;
        }
        *frame = (const void *)caller;
    }
    return (*frame != NULL) == (code != 0);
}

/* Does a frame agree with its object, and each that called it? The object is let go. */
static bool agree(const void *frame, void *object) {
    intptr_t distance = 0;
    while (object != NULL) {
        void *code = python.code(object);
        python.drop(code); /* its frame keeps it */
        bool is_same =
            pass_between(&frame, (uintptr_t)code) && is_instruction(frame, object, &distance);
        void *caller = is_same ? python.back(object) : NULL;
        python.drop(object);
        if (!is_same) {
            return false;
        }
        frame = pointer(frame, at.previous);
        object = caller;
    }
    return pass_between(&frame, 0);
}

bool frames_learn(void *state) {
    void *object = python.current();
    between = 0;
    if (object == NULL || strstr(python.version(), "free-threading") != NULL ||
        !look_up_layout(state, object)) {
        return false;
    }
    const void *frame = innermost(state);
    void *code = python.code(object);
    python.drop(code);
    if (frame == NULL || code_of(frame) != (uintptr_t)code) {
        return false;
    }
    python.keep(object);
    return agree(frame, object);
}
