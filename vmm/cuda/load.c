/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the driver's functions in libcuda.so.1. */
#include "vmm/cuda/load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* ---- What to find -------------------------------------------------------------------------- */

static const cu_wanted wanted_functions[] = {
#define WANT_REQUIRED(name, exported, version, parameters)                                         \
    CU_WANTED(cu_api, name, exported, version, true),
#define WANT_OPTIONAL(name, exported, version, parameters)                                         \
    CU_WANTED(cu_api, name, exported, version, false),
    CU_REQUIRED_FUNCTIONS(WANT_REQUIRED) CU_OPTIONAL_FUNCTIONS(WANT_OPTIONAL)
#undef WANT_REQUIRED
#undef WANT_OPTIONAL
};

/* The library and the driver's own search, of which at most one form is not NULL. */
typedef struct finder {
    void *library;
    cu_find_12000 find_12000;
    cu_find_11030 find_11030;
} finder;

/* ---- Finding ------------------------------------------------------------------------------- */

/* ISO C has no conversion from an object pointer to a function pointer; POSIX promises that the
 * bytes are the same. */
static void store_function(void *slot, void *found) {
    memcpy(slot, &found, sizeof(found));
}

static finder make_finder(void *library) {
    finder f = {.library = library};
    store_function(&f.find_12000, dlsym(library, "cuGetProcAddress_v2"));
    if (f.find_12000 == NULL) {
        store_function(&f.find_11030, dlsym(library, "cuGetProcAddress"));
    }
    return f;
}

/* The search may report success and still find nothing, so the pointer decides. */
static void *ask_driver(const finder *f, const cu_wanted *w) {
    void *found = NULL;
    int answer = CU_FIND_SUCCESS;
    int code = DVMM_NOT_FOUND;
    if (f->find_12000 != NULL) {
        code = f->find_12000(w->name, &found, w->version, CU_FIND_LEGACY_STREAM, &answer);
    } else if (f->find_11030 != NULL) {
        code = f->find_11030(w->name, &found, w->version, CU_FIND_LEGACY_STREAM);
    }
    return code == DVMM_SUCCESS && answer == CU_FIND_SUCCESS ? found : NULL;
}

/* The exported symbol carries the version in its name, so it has the same parameters. */
static void *find_function(const finder *f, const cu_wanted *w) {
    void *found = ask_driver(f, w);
    return found != NULL ? found : dlsym(f->library, w->exported);
}

/* Returns the first required function that is missing, or NULL. */
static const cu_wanted *find_all(const finder *f, const cu_wanted *wanted, size_t n, void *api) {
    for (size_t i = 0; i < n; i++) {
        const cu_wanted *w = &wanted[i];
        void *found = find_function(f, w);
        if (found == NULL && w->is_required) {
            return w;
        }
        store_function((char *)api + w->offset, found);
    }
    return NULL;
}

/* The library is never closed: the driver keeps threads and exit handlers of its own. */
ductile_status dvmm_cuda_find(const cu_wanted *wanted, size_t n, void *api, dvmm_reason why) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *cause = dlerror();
        return dvmm_refuse(DUCTILE_ERR_NO_LIBRARY, why,
                           "no NVIDIA driver is installed: libcuda.so.1 cannot be opened (%s)",
                           cause != NULL ? cause : "no reason given");
    }
    finder f = make_finder(library);
    const cu_wanted *missing = find_all(&f, wanted, n, api);
    if (missing != NULL) {
        return dvmm_refuse(DUCTILE_ERR_DRIVER_TOO_OLD, why,
                           "the driver is too old: libcuda.so.1 has no %s (CUDA 11.2 or newer "
                           "is needed)",
                           missing->exported);
    }
    return DUCTILE_OK;
}

/* ---- Once per process ---------------------------------------------------------------------- */

/* A plain mutex: opening is rare, and the driver may be slow. A failure is not kept, because the
 * caller may remove its cause. */
ductile_status dvmm_cuda_load(const cu_api **out, dvmm_reason why) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static cu_api loaded_api;
    static bool is_loaded;

    *out = NULL;
    ductile_status status = DUCTILE_OK;
    pthread_mutex_lock(&lock);
    if (!is_loaded) {
        size_t n = sizeof(wanted_functions) / sizeof(wanted_functions[0]);
        status = dvmm_cuda_find(wanted_functions, n, &loaded_api, why);
        is_loaded = status == DUCTILE_OK;
    }
    pthread_mutex_unlock(&lock);
    if (status == DUCTILE_OK) {
        *out = &loaded_api;
    }
    return status;
}
