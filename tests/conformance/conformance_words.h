/* SPDX-License-Identifier: Apache-2.0 */
/* How the words of conformance rows are defined. */
#ifndef TESTS_SUPPORT_CONFORMANCE_WORDS_H
#define TESTS_SUPPORT_CONFORMANCE_WORDS_H

#include "tests/conformance/conformance_lab.h"

typedef int (*call_fn)(lab *l, const words *w, uint64_t *out);

typedef enum tone { SAID, PREPARES, SILENT } tone;

typedef struct call_word {
    const char *word;
    call_fn call;
    tone tone;
    thing_kind makes; /* what it gives, to be undone            */
    thing_kind ends;  /* what its first operand is not any more */
    const char *as;   /* what a failed preparation is           */
} call_word;

void lab_add_word(call_word it);

/* Of the i-th word; 0 where there are fewer. */
uint64_t lab_value(const lab *l, const words *w, size_t i);

#define N(i) lab_value(l, w, i)
#define P(i) ((void *)(uintptr_t)lab_value(l, w, i))

#define HEAD(type, name)                                                                           \
    static type name(lab *l __attribute__((unused)), const words *w __attribute__((unused)),       \
                     uint64_t *out __attribute__((unused)))
#define ADD_WORD(name, ...)                                                                        \
    HEAD(int, call_##name);                                                                        \
    __attribute__((constructor)) static void add_##name(void) {                                    \
        lab_add_word((call_word){#name, call_##name, __VA_ARGS__});                                \
    }                                                                                              \
    HEAD(int, call_##name)

/* The heads of words: of a call whose code is said, that makes something, that ends something; and
 * of one that has no code. */
#define SAYS(name) ADD_WORD(name, SAID, NO_THING, NO_THING, #name)
#define MAKES(name, kind) ADD_WORD(name, SAID, kind, NO_THING, #name)
#define ENDS(name, kind) ADD_WORD(name, SAID, NO_THING, kind, #name)
#define DOES(name)                                                                                 \
    HEAD(void, do_##name);                                                                         \
    ADD_WORD(name, SILENT, NO_THING, NO_THING, #name) {                                            \
        do_##name(l, w, out);                                                                      \
        return l->code;                                                                            \
    }                                                                                              \
    HEAD(void, do_##name)

/* One call as it stands; one that gives something. */
#define PLAIN(head, name, ...)                                                                     \
    head {                                                                                         \
        return CALL(l, name, __VA_ARGS__);                                                         \
    }
#define GIVES(head, name, type, ...)                                                               \
    head {                                                                                         \
        type made = 0;                                                                             \
        int code = CALL(l, name, __VA_ARGS__);                                                     \
        *out = (uint64_t)(uintptr_t)made;                                                          \
        return code;                                                                               \
    }

#endif
