/* SPDX-License-Identifier: Apache-2.0 */
/* How the words of conformance rows are defined. */
#ifndef TESTS_SUPPORT_CONFORMANCE_WORDS_H
#define TESTS_SUPPORT_CONFORMANCE_WORDS_H

#include "tests/conformance/conformance_session.h"

typedef int (*call_fn)(session *s, const words *w, uint64_t *out);

typedef enum tone { SAID, PREPARES, SILENT } tone;

typedef struct call_word {
    const char *word;
    call_fn call;
    tone tone;
    resource_kind makes; /* what it gives, to be undone            */
    resource_kind ends;  /* what its first operand is not any more */
    const char *as;      /* what a failed preparation is           */
} call_word;

void session_add_word(call_word it);

/* Of the i-th word; 0 where there are fewer. */
uint64_t session_value(const session *s, const words *w, size_t i);

#define N(i) session_value(s, w, i)
#define P(i) ((void *)(uintptr_t)session_value(s, w, i))

#define HEAD(type, name)                                                                           \
    static type name(session *s __attribute__((unused)), const words *w __attribute__((unused)),   \
                     uint64_t *out __attribute__((unused)))
#define ADD_WORD(name, ...)                                                                        \
    HEAD(int, call_##name);                                                                        \
    __attribute__((constructor)) static void add_##name(void) {                                    \
        session_add_word((call_word){#name, call_##name, __VA_ARGS__});                            \
    }                                                                                              \
    HEAD(int, call_##name)

/* The heads of words: of a call whose code is said, that makes something, that ends something; and
 * of one that has no code. */
#define SAYS(name) ADD_WORD(name, SAID, NO_RESOURCE, NO_RESOURCE, #name)
#define MAKES(name, kind) ADD_WORD(name, SAID, kind, NO_RESOURCE, #name)
#define ENDS(name, kind) ADD_WORD(name, SAID, NO_RESOURCE, kind, #name)
#define DOES(name)                                                                                 \
    HEAD(void, do_##name);                                                                         \
    ADD_WORD(name, SILENT, NO_RESOURCE, NO_RESOURCE, #name) {                                      \
        do_##name(s, w, out);                                                                      \
        return s->code;                                                                            \
    }                                                                                              \
    HEAD(void, do_##name)

/* One call as it stands; one that gives something. `table` is CALL or BENCH_CALL. */
#define PLAIN_OF(table, head, name, ...)                                                           \
    head {                                                                                         \
        return table(s, name, __VA_ARGS__);                                                        \
    }
#define GIVES_OF(table, head, name, type, ...)                                                     \
    head {                                                                                         \
        type made = 0;                                                                             \
        int code = table(s, name, __VA_ARGS__);                                                    \
        *out = (uint64_t)(uintptr_t)made;                                                          \
        return code;                                                                               \
    }
#define PLAIN(...) PLAIN_OF(CALL, __VA_ARGS__)
#define GIVES(...) GIVES_OF(CALL, __VA_ARGS__)
#define BENCH_PLAIN(...) PLAIN_OF(BENCH_CALL, __VA_ARGS__)
#define BENCH_GIVES(...) GIVES_OF(BENCH_CALL, __VA_ARGS__)

#endif
