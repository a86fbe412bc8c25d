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

/* The head of a row's function. */
#define EXPERIMENT(name)                                                                           \
    static void name(lab *l, const conformance_row *row __attribute__((unused)))

/* A row that does one thing. */
#define EXPERIMENT_OF(name, ...)                                                                   \
    EXPERIMENT(name) {                                                                             \
        __VA_ARGS__;                                                                               \
    }

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

extern const conformance_row memory_rows[];
extern const size_t n_memory_rows;
extern const conformance_row alloc_rows[];
extern const size_t n_alloc_rows;
extern const conformance_row share_rows[];
extern const size_t n_share_rows;
extern const conformance_row stream_rows[];
extern const size_t n_stream_rows;
extern const conformance_row context_rows[];
extern const size_t n_context_rows;
extern const conformance_row capture_life_rows[];
extern const size_t n_capture_life_rows;
extern const conformance_row capture_rows[];
extern const size_t n_capture_rows;
extern const conformance_row fault_rows[];
extern const size_t n_fault_rows;

#define ROW(name, what, run)                                                                       \
    { name, what, run, 0, 0, 0 }
#define ROW_IN_OWN_PROCESS(name, what, run)                                                        \
    { name, what, run, ROW_ALONE, 0, 0 }

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
