/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/nvtx/attach.h"

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

static nvtx_heap no_heap(nvtx_domain domain, const nvtx_heap_description *heap) {
    (void)domain;
    (void)heap;
    return NVTX_NO_HEAP;
}

static void no_heap_end(nvtx_domain domain, nvtx_heap heap) {
    (void)domain;
    (void)heap;
}

static void no_regions(nvtx_domain domain, const nvtx_register_batch *batch) {
    (void)domain;
    (void)batch;
}

static void no_regions_end(nvtx_domain domain, const nvtx_unregister_batch *batch) {
    (void)domain;
    (void)batch;
}

static void no_names(nvtx_domain domain, const nvtx_name_batch *batch) {
    (void)domain;
    (void)batch;
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
 * the addresses. Written by make_tables and by the tool. */
static nvtx_function slots[NVTX_N_TABLES][MOST_SLOTS];
static nvtx_function *tables[NVTX_N_TABLES][MOST_SLOTS + 1];
static intptr_t memory_slots[NVTX_MEMORY_SLOTS];

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

static void take_ranges(nvtx_tool *tool) {
    nvtx_function create = slots[NVTX_TABLE_CORE2][NVTX_SLOT_DOMAIN_CREATE];
    tool->domain = create != NULL ? ((nvtx_domain_create)create)("ductile") : NULL;
    tool->heap_register = no_heap;
    tool->heap_unregister = no_heap_end;
    tool->regions_register = no_regions;
    tool->regions_unregister = no_regions_end;
    tool->regions_name = no_names;
}

void dvmm_nvtx_tool_push(const nvtx_tool *tool, const nvtx_event *event) {
    nvtx_push push = (nvtx_push)slots[NVTX_TABLE_CORE2][NVTX_SLOT_PUSH];
    if (push != NULL) {
        (void)push(tool->domain, event);
    }
}

void dvmm_nvtx_tool_pop(const nvtx_tool *tool) {
    nvtx_pop pop = (nvtx_pop)slots[NVTX_TABLE_CORE2][NVTX_SLOT_POP];
    if (pop != NULL) {
        (void)pop(tool->domain);
    }
}

static bool is_filled(int slot) {
    return memory_slots[slot] != 0;
}

/* Names are a convenience; without one of the others blocks cannot be followed. */
static bool take_memory(nvtx_tool *tool) {
    if (!is_filled(NVTX_SLOT_HEAP_REGISTER) || !is_filled(NVTX_SLOT_HEAP_UNREGISTER) ||
        !is_filled(NVTX_SLOT_REGIONS_REGISTER) || !is_filled(NVTX_SLOT_REGIONS_UNREGISTER)) {
        return false;
    }
    tool->heap_register = (nvtx_heap_register)memory_slots[NVTX_SLOT_HEAP_REGISTER];
    tool->heap_unregister = (nvtx_heap_unregister)memory_slots[NVTX_SLOT_HEAP_UNREGISTER];
    tool->regions_register = (nvtx_regions_register)memory_slots[NVTX_SLOT_REGIONS_REGISTER];
    tool->regions_unregister = (nvtx_regions_unregister)memory_slots[NVTX_SLOT_REGIONS_UNREGISTER];
    if (is_filled(NVTX_SLOT_REGIONS_NAME)) {
        tool->regions_name = (nvtx_regions_name)memory_slots[NVTX_SLOT_REGIONS_NAME];
    }
    return true;
}

static void ask_for_memory(void *library, nvtx_tool *tool) {
    nvtx_extension_entry entry = NULL;
    store_function(&entry, dlsym(library, NVTX_EXTENSION_ENTRY));
    nvtx_segment segment = {1, NVTX_MEMORY_SLOTS, memory_slots};
    nvtx_module module = {.version = NVTX_INTERFACE_VERSION,
                          .struct_size = sizeof module,
                          .id = NVTX_MEMORY_MODULE,
                          .compat_id = NVTX_MEMORY_COMPAT,
                          .n_segments = 1,
                          .segments = &segment};
    tool->has_memory = entry != NULL && entry(&module) != 0 && take_memory(tool);
}

/* ---- Once per process ------------------------------------------------------------------------ */

/* Guarded by `lock`; a tool that was returned changes no more, but for what is asked for later,
 * which has a copy of its own. */
typedef struct attached {
    void *library; /* NULL: nothing is attached */
    nvtx_tool ranges;
    nvtx_tool memory; /* valid once asked_for_memory */
    bool asked_for_memory;
} attached;

static const nvtx_tool *attach(attached *it, const char *path, sentence why) {
    make_tables();
    it->library = load_tool(path, why);
    if (it->library == NULL) {
        return NULL;
    }
    take_ranges(&it->ranges);
    return &it->ranges;
}

static const nvtx_tool *with_memory(attached *it, sentence why) {
    if (!it->asked_for_memory) {
        it->memory = it->ranges;
        ask_for_memory(it->library, &it->memory);
        it->asked_for_memory = true;
    }
    if (!it->memory.has_memory) {
        say(why, "the NVTX tool takes no registration of memory: it will see ranges, not blocks");
    }
    return &it->memory;
}

/* A failure is not kept, because the caller may remove its cause. */
const nvtx_tool *dvmm_nvtx_attach(bool wants_memory, char *message, size_t size) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static attached it;

    message[0] = '\0';
    sentence why = {message, size};
    const char *path = getenv(NVTX_TOOL_VARIABLE);
    pthread_mutex_lock(&lock);
    const nvtx_tool *tool = it.library != NULL ? &it.ranges : NULL;
    if (tool == NULL && path != NULL && path[0] != '\0') {
        tool = attach(&it, path, why);
    }
    if (tool != NULL && wants_memory) {
        tool = with_memory(&it, why);
    }
    pthread_mutex_unlock(&lock);
    return tool;
}
