/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workbench of a conformance row: the raw table, what the row has to say, and everything it
 * made, which is cleaned up after it. Helpers that prepare an experiment note their own failure in
 * the row's state, so that rows need not branch on it and a broken preparation is seen.
 */
#ifndef TESTS_SUPPORT_CONFORMANCE_LAB_H
#define TESTS_SUPPORT_CONFORMANCE_LAB_H

#include "tests/conformance/conformance.h"

enum { LAB_MOST = 64, LAB_TEXT = 480 };

typedef struct lab_range {
    ductile_addr addr;
    uint64_t size;
} lab_range;

struct lab {
    const dvmm_driver_ops *ops;
    void *ctx;
    uint64_t granule;
    uint64_t total; /* the device's memory */
    bool has_async_pool;
    bool is_virtual; /* only to choose a way to prepare, never what to expect */
    int ordinal;

    char codes[LAB_TEXT];
    char state[LAB_TEXT];

    lab_range ranges[LAB_MOST];
    size_t n_ranges;
    dvmm_phys handles[LAB_MOST];
    size_t n_handles;
    ductile_stream streams[LAB_MOST];
    size_t n_streams;
    dvmm_event events[LAB_MOST];
    size_t n_events;
    void *host[LAB_MOST];
    size_t n_host;
};

void lab_init(lab *l, dvmm_driver *driver);
void lab_clean(lab *l);

/* One call of the raw table. */
#define CALL(l, name, ...) ((l)->ops->name((l)->ctx, __VA_ARGS__))

/* ---- What the row says --------------------------------------------------------------------- */

/* Adds the code of a call under test, and returns it. */
int say(lab *l, int code);

/* Adds a word to the state. */
__attribute__((format(printf, 2, 3))) void note(lab *l, const char *format, ...);

/* Notes the access at an address: "name=0", "=1", "=3", or "=!CODE" when asking fails. */
void note_access(lab *l, const char *name, ductile_addr addr);

/* Notes "setup CALL=CODE" when a preparation failed. */
void need(lab *l, const char *call, int code);

/* "none", "active" or "broken". */
const char *capture_word(dvmm_capture_status status);

/* ---- Preparing ----------------------------------------------------------------------------- */

/* All sizes in granules. What these make is undone by lab_clean. */
ductile_addr reserve(lab *l, uint64_t n_granules);
dvmm_phys create(lab *l, uint64_t n_granules);
void map(lab *l, ductile_addr addr, uint64_t n_granules, dvmm_phys phys);
void open_access(lab *l, ductile_addr addr, uint64_t n_granules);

/* reserve, create, map and open, in one: a buffer ready for use. */
ductile_addr mapped(lab *l, uint64_t n_granules, dvmm_phys *phys);

/* n handles of one granule each, mapped side by side and open, in a range of n + extra. */
ductile_addr mapped_row(lab *l, uint64_t n_handles, uint64_t extra);

ductile_stream new_stream(lab *l);
dvmm_event new_event(lab *l);
uint64_t *new_host_word(lab *l);

/* A stream that was made in another way, undone like others. */
void keep_stream(lab *l, ductile_stream stream);

/* The row itself has done what lab_clean would do, or made it impossible. */
void forget_handle(lab *l, dvmm_phys phys);
void forget_range(lab *l, ductile_addr addr);
void forget_stream(lab *l, ductile_stream stream);
void forget_event(lab *l, dvmm_event event);
void forget_host(lab *l, void *memory);

/* Runs work on a new thread, which has no current context, and waits for it. */
void on_other_thread(lab *l, void (*work)(void *argument), void *argument);

/* ---- The rows, by topic -------------------------------------------------------------------- */

enum { LAB_MOST_ROWS = 160 };

/* Those of a file, in the order in which they stand there. The file says #define ROWS. */
typedef struct lab_rows {
    conformance_row all[LAB_MOST_ROWS];
    size_t n;
} lab_rows;

extern lab_rows memory_rows, share_rows, alloc_rows, stream_rows, context_rows, capture_life_rows,
    capture_rows, fault_rows;

void add_row(lab_rows *rows, conformance_row row);

#define LAB_JOINED(a, b) a##b
#define LAB_NAME(a, b) LAB_JOINED(a, b)

/* Rows that share a function. */
#define ADD_ROW(name, what, run, flags, subject, mode)                                             \
    __attribute__((constructor)) static void LAB_NAME(add_row_, __LINE__)(void) {                  \
        add_row(&ROWS, (conformance_row){name, what, run, flags, subject, mode});                  \
    }

#define LAB_ROW(name, what, flags)                                                                 \
    static void LAB_NAME(row_, __LINE__)(lab * l, const conformance_row *row);                     \
    ADD_ROW(name, what, LAB_NAME(row_, __LINE__), flags, 0, 0)                                     \
    static void LAB_NAME(row_, __LINE__)(lab * l,                                                  \
                                         const conformance_row *row __attribute__((unused)))

/* The head of a row, and of one that may lose the context; rows that do one thing. */
#define ROW(name, what) LAB_ROW(name, what, 0)
#define ROW_IN_OWN_PROCESS(name, what) LAB_ROW(name, what, ROW_ALONE)
#define ROW_OF(name, what, ...)                                                                    \
    ROW(name, what) {                                                                              \
        __VA_ARGS__;                                                                               \
    }
#define ROW_IN_OWN_PROCESS_OF(name, what, ...)                                                     \
    ROW_IN_OWN_PROCESS(name, what) {                                                               \
        __VA_ARGS__;                                                                               \
    }

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
