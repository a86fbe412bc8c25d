/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row of the conformance table under way: the raw tables of the driver, what the row has to
 * say, and everything it made, which is undone after it. Preparations note their own failure in the
 * row's state, so that rows need not branch on it and a broken preparation is seen.
 */
#ifndef TESTS_SUPPORT_CONFORMANCE_SESSION_H
#define TESTS_SUPPORT_CONFORMANCE_SESSION_H

#include "tests/conformance/conformance.h"
#include "tests/support/resources.h"
#include "tests/support/words.h"

enum { SESSION_TEXT = 480, SESSION_BYTES = 64, SESSION_LINE = 512 };

/* A context of the device that is not the primary one: of its own, or green. */
typedef struct elsewhere {
    ductile_stream stream; /* of that context; NULL: it could not be made */
    void *context;
    void *green; /* NULL: a context of its own */
} elsewhere;

struct session {
    const dvmm_driver_ops *ops;
    const dvmm_bench_ops *bench;
    void *ctx; /* of both tables */
    uint64_t granule;
    bool is_virtual; /* only to choose a way to prepare, never what to expect */
    int ordinal;

    char codes[SESSION_TEXT];
    char state[SESSION_TEXT];
    int code;      /* the latest */
    bool is_quiet; /* the latest code is said later */

    names names;
    uint8_t bytes[SESSION_BYTES];
    resources made; /* and undone after the row */
    elsewhere elsewhere;
};

void session_init(session *s, dvmm_driver *driver);
void session_clean(session *s);
/* The other context ends, if there is one. Pre: its stream is done. */
void session_leave_elsewhere(session *s);

/* One call of a raw table: the library's, and the bench's. */
#define CALL(s, name, ...) ((s)->ops->name((s)->ctx, __VA_ARGS__))
#define BENCH_CALL(s, name, ...) ((s)->bench->name((s)->ctx, __VA_ARGS__))

/* ---- What the row says --------------------------------------------------------------------- */

/* Adds the code of a call under test. */
void say(session *s, int code);

/* Adds a word to the state. */
__attribute__((format(printf, 2, 3))) void note(session *s, const char *format, ...);

/* Notes "setup CALL=CODE" when a preparation failed. */
void need(session *s, const char *call, int code);

/* "none", "active" or "broken"; or the name of the code with which asking failed. */
const char *capture_word(session *s, ductile_stream stream);

/* It is to be undone; or the row itself has undone it, or made that impossible. */
void remember(session *s, resource_kind kind, uint64_t it, uint64_t beside);
void forget(session *s, resource_kind kind, uint64_t it);

/* Runs work on a new thread, which has no current context, and waits for it. */
void on_other_thread(session *s, void (*work)(void *argument), void *argument);

/* ---- Rows as text (conformance_rows.c, conformance_calls.c) --------------------------------- */

void session_run_row(session *s, const conformance_row *row);
/* Lines of operations; `arguments` are in place of $1 and the others. */
void session_run_text(session *s, const char *text, const words *arguments);
/* The text of the operations that have a name, or NULL. */
const char *session_find_sub(const char *name);
/* One operation that is none of these. */
void session_make_call(session *s, const words *w);
/* The rows' text has a mistake: says so, and ends the process. */
_Noreturn void session_refuse(const char *why, const char *where);

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
