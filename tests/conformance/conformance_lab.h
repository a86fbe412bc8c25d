/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workbench of a conformance row: the raw table, what the row has to say, and everything it
 * made, which is undone after it. Preparations note their own failure in the row's state, so that
 * rows need not branch on it and a broken preparation is seen.
 */
#ifndef TESTS_SUPPORT_CONFORMANCE_LAB_H
#define TESTS_SUPPORT_CONFORMANCE_LAB_H

#include "tests/conformance/conformance.h"
#include "tests/support/things.h"
#include "tests/support/words.h"

enum { LAB_TEXT = 480, LAB_BYTES = 64, LAB_LINE = 512 };

/* A context of the device that is not the primary one: of its own, or green. */
typedef struct elsewhere {
    ductile_stream stream; /* of that context; NULL: it could not be made */
    void *context;
    void *green; /* NULL: a context of its own */
} elsewhere;

struct lab {
    const dvmm_driver_ops *ops;
    void *ctx;
    uint64_t granule;
    bool is_virtual; /* only to choose a way to prepare, never what to expect */
    int ordinal;

    char codes[LAB_TEXT];
    char state[LAB_TEXT];
    int code;      /* the latest */
    bool is_quiet; /* the latest code is said later */

    names names;
    uint8_t bytes[LAB_BYTES];
    things made; /* and undone after the row */
    elsewhere elsewhere;
};

void lab_init(lab *l, dvmm_driver *driver);
void lab_clean(lab *l);
/* The other context ends, if there is one. Pre: its stream is done. */
void lab_leave_elsewhere(lab *l);

/* One call of the raw table. */
#define CALL(l, name, ...) ((l)->ops->name((l)->ctx, __VA_ARGS__))

/* ---- What the row says --------------------------------------------------------------------- */

/* Adds the code of a call under test. */
void say(lab *l, int code);

/* Adds a word to the state. */
__attribute__((format(printf, 2, 3))) void note(lab *l, const char *format, ...);

/* Notes "setup CALL=CODE" when a preparation failed. */
void need(lab *l, const char *call, int code);

/* "none", "active" or "broken"; or the name of the code with which asking failed. */
const char *capture_word(lab *l, ductile_stream stream);

/* It is to be undone; or the row itself has undone it, or made that impossible. */
void remember(lab *l, thing_kind kind, uint64_t it, uint64_t beside);
void forget(lab *l, thing_kind kind, uint64_t it);

/* Runs work on a new thread, which has no current context, and waits for it. */
void on_other_thread(lab *l, void (*work)(void *argument), void *argument);

/* ---- Rows as text (conformance_rows.c, conformance_calls.c) --------------------------------- */

void lab_run_row(lab *l, const conformance_row *row);
/* Lines of operations; `arguments` are in place of $1 and the others. */
void lab_run_text(lab *l, const char *text, const words *arguments);
/* The text of the operations that have a name, or NULL. */
const char *lab_find_sub(const char *name);
/* One operation that is none of these. */
void lab_make_call(lab *l, const words *w);
/* The rows' text has a mistake: says so, and ends the process. */
_Noreturn void lab_refuse(const char *why, const char *where);

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
