/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/services/profiling/nvtx.h"

#include "pool/base/allocator.h"
#include "pool/base/log.h"
#include "pool/services/profiling/interface.h"

#include "vmm/base/lock.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The sentence ---------------------------------------------------------------------------- */

typedef struct sentence {
    char *text;
    size_t size;
} sentence;

__attribute__((format(printf, 2, 3))) static void say(sentence why, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(why.text, why.size, format, args);
    va_end(args);
}

/* ---- Functions that no tool serves ----------------------------------------------------------- */

static nvtx_domain no_domain(const char *name) {
    (void)name;
    return NULL;
}

static int no_push(nvtx_domain domain, const nvtx_event *event) {
    (void)domain;
    (void)event;
    return 0;
}

static int no_pop(nvtx_domain domain) {
    (void)domain;
    return 0;
}

static void never_called(void) {
}

/* ---- Tables for the tool --------------------------------------------------------------------- */

enum { MOST_SLOTS = NVTX_CORE_SLOTS };

static const unsigned table_sizes[NVTX_N_TABLES] = {
    [NVTX_TABLE_CORE] = NVTX_CORE_SLOTS,     [NVTX_TABLE_CUDA] = NVTX_CUDA_SLOTS,
    [NVTX_TABLE_OPENCL] = NVTX_OPENCL_SLOTS, [NVTX_TABLE_CUDART] = NVTX_CUDART_SLOTS,
    [NVTX_TABLE_CORE2] = NVTX_CORE2_SLOTS,   [NVTX_TABLE_SYNC] = NVTX_SYNC_SLOTS,
};

/* A tool fills slots of every table; only three of them are ever called. Static, because tools keep
 * the addresses. Written by make_tables and by the tool, which may take and leave the slots of
 * ranges at any time: NULL in one means that it does not listen now. */
static nvtx_function slots[NVTX_N_TABLES][MOST_SLOTS];
static nvtx_function *tables[NVTX_N_TABLES][MOST_SLOTS + 1];

static void make_tables(void) {
    for (int t = 0; t < NVTX_N_TABLES; t++) {
        for (unsigned i = 1; i < table_sizes[t]; i++) {
            slots[t][i] = never_called;
            tables[t][i] = &slots[t][i];
        }
    }
    slots[NVTX_TABLE_CORE2][NVTX_SLOT_DOMAIN_CREATE] = (nvtx_function)no_domain;
    slots[NVTX_TABLE_CORE2][NVTX_SLOT_PUSH] = (nvtx_function)no_push;
    slots[NVTX_TABLE_CORE2][NVTX_SLOT_POP] = (nvtx_function)no_pop;
}

static int get_table(int table, nvtx_function ***out, unsigned *n_slots) {
    if (table <= 0 || table >= NVTX_N_TABLES) {
        return 0;
    }
    if (out != NULL) {
        *out = tables[table];
    }
    if (n_slots != NULL) {
        *n_slots = table_sizes[table];
    }
    return 1;
}

static void ignore_tool_version(uint32_t version) {
    (void)version;
}

static const void *get_export(uint32_t export_id) {
    static const nvtx_export_callbacks callbacks = {sizeof callbacks, get_table};
    static const nvtx_export_version version = {sizeof version, NVTX_INTERFACE_VERSION, 0,
                                                ignore_tool_version};
    switch (export_id) {
    case NVTX_EXPORT_CALLBACKS:
        return &callbacks;
    case NVTX_EXPORT_VERSION:
        return &version;
    default:
        return NULL;
    }
}

/* ---- Asking the tool ------------------------------------------------------------------------- */

/* ISO C has no conversion from an object pointer to a function pointer; POSIX promises that the
 * bytes are the same. */
static void store_function(void *slot, void *found) {
    memcpy(slot, &found, sizeof(found));
}

/* Returns the library, which fills the slots of ranges. NULL: why says what is wrong. */
static void *load_tool(const char *path, sentence why) {
    void *library = dlopen(path, RTLD_LAZY);
    if (library == NULL) {
        const char *cause = dlerror();
        say(why, "the NVTX tool cannot be loaded (%s)", cause != NULL ? cause : path);
        return NULL;
    }
    nvtx_entry entry = NULL;
    store_function(&entry, dlsym(library, NVTX_ENTRY));
    if (entry == NULL || entry(get_export) == 0) {
        say(why,
            entry == NULL ? "%s is no NVTX tool: it has no " NVTX_ENTRY
                          : "the NVTX tool %s does not want to attach to this process",
            path);
        (void)dlclose(library);
        return NULL;
    }
    return library;
}

/* ---- Once per process ------------------------------------------------------------------------ */

/* Guarded by the lock of dpool_nvtx_attach until that returns a tool; constant after that. */
static void *library; /* stays loaded; NULL: nothing is attached */
static nvtx_domain domain;

static bool attach(const char *path, sentence why) {
    make_tables();
    library = load_tool(path, why);
    if (library == NULL) {
        return false;
    }
    nvtx_function create = slots[NVTX_TABLE_CORE2][NVTX_SLOT_DOMAIN_CREATE];
    domain = create != NULL ? ((nvtx_domain_create)create)("ductile") : NULL;
    return true;
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

static void begin(const char *what, uint64_t bytes) {
    DTI_ASSERT_MAY_CALL_DRIVER();
    const nvtx_event event = {.version = NVTX_INTERFACE_VERSION,
                              .size = sizeof event,
                              .payload_type = bytes != 0 ? NVTX_PAYLOAD_UINT64 : 0,
                              .payload = bytes,
                              .message_type = NVTX_MESSAGE_ASCII,
                              .message.ascii = what};
    nvtx_push push = (nvtx_push)slots[NVTX_TABLE_CORE2][NVTX_SLOT_PUSH];
    if (push != NULL) {
        (void)push(domain, &event);
    }
}

static void end(void) {
    DTI_ASSERT_MAY_CALL_DRIVER();
    nvtx_pop pop = (nvtx_pop)slots[NVTX_TABLE_CORE2][NVTX_SLOT_POP];
    if (pop != NULL) {
        (void)pop(domain);
    }
}

/* ---- The service --------------------------------------------------------------------------- */

/* A failure is not kept, because the caller may remove its cause. */
const dvmm_sections *dpool_nvtx_attach(char *message, size_t size) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const dvmm_sections ranges = {begin, end};

    message[0] = '\0';
    const char *path = secure_getenv(NVTX_TOOL_VARIABLE);
    pthread_mutex_lock(&lock);
    bool is_named = path != NULL && path[0] != '\0';
    bool is_attached = library != NULL || (is_named && attach(path, (sentence){message, size}));
    pthread_mutex_unlock(&lock);
    return is_attached ? &ranges : NULL;
}

/* What is wrong with the tool is no reason to refuse: the program runs as it does without one. */
ductile_status dpool_nvtx_begin(ductile_allocator *a) {
    char message[512];
    dvmm_set_sections(a->driver, dpool_nvtx_attach(message, sizeof message));
    if (message[0] != '\0') {
        dpool_log(a, DUCTILE_LOG_WARNING, "%s", message);
    }
    return DUCTILE_OK;
}
