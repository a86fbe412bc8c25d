/* SPDX-License-Identifier: Apache-2.0 */
#include "real.h"

#include "next.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- The table ----------------------------------------------------------------------------- */

typedef struct row {
    const char *symbol;
    const char *name;
    int version;
    int variant;
    size_t offset;      /* of its pointer in dpre_driver */
    void (*ours)(void); /* NULL: only called             */
} row;

static const row rows[] = {
#define PRELOADED_ROW(exported, name, version, variant, parameters)                                \
    {#exported, name, version, variant, offsetof(dpre_driver, exported), (void (*)(void))exported},
#define CALLED_ROW(exported, name, version, variant, parameters)                                   \
    {#exported, name, version, variant, offsetof(dpre_driver, exported), NULL},
    PRELOADED_FUNCTIONS(PRELOADED_ROW) CALLED_FUNCTIONS(CALLED_ROW)
#undef PRELOADED_ROW
#undef CALLED_ROW
};

enum { N_ROWS = sizeof(rows) / sizeof(rows[0]) };

/* The driver's search may name a function by another address than its exported symbol has. */
typedef struct found_driver {
    dpre_driver driver;
    void *by_symbol[N_ROWS];
    void *by_search[N_ROWS];
} found_driver;

/* ---- Finding the driver -------------------------------------------------------------------- */

typedef cu_result (*search_11030)(const char *, void **, int, uint64_t);
typedef cu_result (*search_12000)(const char *, void **, int, uint64_t, int *);

static void *search(void *library, const row *r) {
    search_11030 old_search;
    search_12000 new_search;
    void *found = NULL;
    int answer = 0;
    void *symbol = dpre_dlsym()(library, "cuGetProcAddress_v2");
    memcpy(&new_search, &symbol, sizeof(new_search));
    symbol = dpre_dlsym()(library, "cuGetProcAddress");
    memcpy(&old_search, &symbol, sizeof(old_search));
    cu_result code =
        new_search != NULL ? new_search(r->name, &found, r->version, (uint64_t)r->variant, &answer)
        : old_search != NULL ? old_search(r->name, &found, r->version, (uint64_t)r->variant)
                             : CU_NOT_INITIALIZED;
    return code == CU_SUCCESS && answer == 0 ? found : NULL;
}

static void find_row(found_driver *f, void *library, size_t i) {
    f->by_symbol[i] = dpre_dlsym()(library, rows[i].symbol);
    f->by_search[i] = search(library, &rows[i]);
    void *called = f->by_search[i] != NULL ? f->by_search[i] : f->by_symbol[i];
    memcpy((char *)&f->driver + rows[i].offset, &called, sizeof(called));
}

static found_driver *find_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    found_driver *f = library != NULL ? calloc(1, sizeof(*f)) : NULL;
    for (size_t i = 0; f != NULL && i < N_ROWS; i++) {
        find_row(f, library, i);
    }
    (void)dlerror(); /* of what this driver lacks: a program that has found its function asks */
    return f;
}

/* Without a lock: a thread may be here from a constructor, under the loader's own. Threads that
 * come at once find the same; one of their tables is kept. */
static const found_driver *found(void) {
    static _Atomic(found_driver *) kept;
    found_driver *now = atomic_load_explicit(&kept, memory_order_acquire);
    if (now != NULL) {
        return now;
    }
    found_driver *made = find_driver();
    if (made == NULL || atomic_compare_exchange_strong(&kept, &now, made)) {
        return made;
    }
    free(made);
    return now;
}

const dpre_driver *dpre_real(void) {
    const found_driver *f = found();
    return f != NULL ? &f->driver : NULL;
}

/* ---- Waits --------------------------------------------------------------------------------- */

/* Puts the thread into that mode, and returns the one it was in. */
static int exchange_mode(int mode) {
    (void)REAL(cuThreadExchangeStreamCaptureMode, &mode);
    return mode;
}

cu_result dpre_sync_stream(ductile_stream stream) {
    int before = exchange_mode(CU_CAPTURE_RELAXED);
    cu_result code = dpre_real()->cuStreamSynchronize(stream);
    (void)exchange_mode(before);
    return code;
}

cu_result dpre_sync_context(void) {
    int before = exchange_mode(CU_CAPTURE_RELAXED);
    cu_result code = dpre_real()->cuCtxSynchronize();
    (void)exchange_mode(before);
    return code;
}

/* ---- Replacing ----------------------------------------------------------------------------- */

static void *ours(const row *r) {
    void *function;
    memcpy(&function, &r->ours, sizeof(function));
    return function;
}

static const row *interposed_row(const char *symbol) {
    for (size_t i = 0; i < N_ROWS; i++) {
        if (rows[i].ours != NULL && strcmp(rows[i].symbol, symbol) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

int dpre_is_interposed(const char *symbol) {
    return interposed_row(symbol) != NULL;
}

/* By address: a library that has functions of such names without being the driver keeps them. A
 * search through all libraries finds ours, also where there is no driver, or an older one. */
void *dpre_replace(const char *symbol, void *there) {
    const row *r = there != NULL ? interposed_row(symbol) : NULL;
    const found_driver *f = r != NULL ? found() : NULL;
    void *of_driver = f != NULL ? f->by_symbol[r - rows] : NULL;
    if (r != NULL && there == ours(r)) {
        return of_driver != NULL ? there : NULL;
    }
    return of_driver != NULL && of_driver == there ? ours(r) : there;
}

/* By address too: a later version of the function, with other parameters, stays what it is. */
void *dpre_replace_searched(const char *name, void *there) {
    const found_driver *f = there != NULL ? found() : NULL;
    for (size_t i = 0; f != NULL && i < N_ROWS; i++) {
        bool is_it = f->by_search[i] == there || f->by_symbol[i] == there;
        if (rows[i].ours != NULL && is_it && strcmp(rows[i].name, name) == 0) {
            return ours(&rows[i]);
        }
    }
    return there;
}
