/* SPDX-License-Identifier: Apache-2.0 */
/* FAKE_KIND says what it takes; the build makes one library of each. */
#include "tests/fake_nvtx/fake_nvtx.h"

#include "pool/services/profiling/interface.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

enum { WHOLE, UNWILLING }; /* FAKE_KIND */

enum { MOST_NAMES = 64 };

typedef struct range_count {
    char name[FAKE_NVTX_MAX_NAME];
    uint64_t n;
    uint64_t bytes;
} range_count;

/* All guarded by `lock`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static range_count counts[MOST_NAMES];

static int the_domain; /* its address */
static _Thread_local int depth;

static uint64_t count_named(const char *name, uint64_t *bytes);
static void listen(bool listens);

EXPORTED fake_nvtx_control fake_nvtx = {.count = count_named, .listen = listen};

/* ---- Mistakes -------------------------------------------------------------------------------- */

static void need(bool holds, const char *what, uint64_t addr) {
    if (!holds) {
        (void)fprintf(stderr, "fake_nvtx: Assertion Failed: %s (%#llx)\n", what,
                      (unsigned long long)addr);
        abort();
    }
}

static void enter(nvtx_domain domain) {
    pthread_mutex_lock(&lock);
    need(domain == (nvtx_domain)(void *)&the_domain, "the domain is ours", 0);
    fake_nvtx.n_calls++;
}

static void leave(void) {
    pthread_mutex_unlock(&lock);
}

/* ---- Looking --------------------------------------------------------------------------------- */

static range_count *find_count(const char *name) {
    range_count *c = counts;
    while (c->name[0] != '\0' && strcmp(c->name, name) != 0) {
        c++;
        need(c < counts + MOST_NAMES - 1, "there are few names of ranges", 0);
    }
    return c;
}

static uint64_t count_named(const char *name, uint64_t *bytes) {
    const range_count *c = find_count(name);
    if (bytes != NULL) {
        *bytes = c->bytes;
    }
    return c->n;
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

static nvtx_domain create_domain(const char *name) {
    need(strcmp(name, "ductile") == 0, "the domain's name", 0);
    return (nvtx_domain)(void *)&the_domain;
}

static int push(nvtx_domain domain, const nvtx_event *event) {
    enter(domain);
    need(event->version == NVTX_INTERFACE_VERSION && event->size == sizeof *event, "an event", 0);
    need(event->message_type == NVTX_MESSAGE_ASCII, "the text of an event", 0);
    need(event->message.ascii != NULL && strlen(event->message.ascii) < FAKE_NVTX_MAX_NAME,
         "the length of a text", 0);
    range_count *c = find_count(event->message.ascii);
    strcpy(c->name, event->message.ascii);
    c->n++;
    c->bytes += event->payload_type == NVTX_PAYLOAD_UINT64 ? event->payload : 0;
    fake_nvtx.n_pushed++;
    leave();
    return depth++;
}

static int pop(nvtx_domain domain) {
    enter(domain);
    need(depth > 0, "this thread has a range to end", 0);
    fake_nvtx.n_popped++;
    leave();
    return --depth;
}

/* Of a program that ends as it should. */
__attribute__((destructor)) static void check_balance(void) {
    need(fake_nvtx.n_pushed == fake_nvtx.n_popped, "every range has ended", fake_nvtx.n_pushed);
}

/* ---- Attaching ------------------------------------------------------------------------------- */

static nvtx_function **core2; /* valid once it is attached */

static void take_slot(int slot, nvtx_function function) {
    need(core2[slot] != NULL && *core2[slot] != NULL, "a slot", (uint64_t)slot);
    *core2[slot] = function;
}

static void listen(bool listens) {
    *core2[NVTX_SLOT_PUSH] = listens ? (nvtx_function)push : NULL;
    *core2[NVTX_SLOT_POP] = listens ? (nvtx_function)pop : NULL;
}

static void check_tables(const nvtx_export_callbacks *e) {
    static const unsigned sizes[] = {0,
                                     NVTX_CORE_SLOTS,
                                     NVTX_CUDA_SLOTS,
                                     NVTX_OPENCL_SLOTS,
                                     NVTX_CUDART_SLOTS,
                                     NVTX_CORE2_SLOTS,
                                     NVTX_SYNC_SLOTS};
    need(e->struct_size >= sizeof *e, "the export table", e->struct_size);
    need(e->get_table(0, NULL, NULL) == 0 && e->get_table(NVTX_N_TABLES, NULL, NULL) == 0,
         "there are no other tables", 0);
    for (int t = 1; t < NVTX_N_TABLES; t++) {
        nvtx_function **slots = NULL;
        unsigned n = 0;
        need(e->get_table(t, &slots, &n) != 0 && n == sizes[t], "the size of a table", (uint64_t)t);
        need(slots[0] == NULL && slots[n] == NULL, "the ends of a table", (uint64_t)t);
        for (unsigned i = 1; i < n; i++) {
            need(slots[i] != NULL && *slots[i] != NULL, "the slots of a table", (uint64_t)t);
        }
    }
}

EXPORTED int InitializeInjectionNvtx2(nvtx_get_export get);

int InitializeInjectionNvtx2(nvtx_get_export get) {
    if (FAKE_KIND == UNWILLING) {
        return 0;
    }
    const nvtx_export_version *version = get(NVTX_EXPORT_VERSION);
    const nvtx_export_callbacks *callbacks = get(NVTX_EXPORT_CALLBACKS);
    need(version->struct_size == sizeof *version && version->version == NVTX_INTERFACE_VERSION,
         "the version", version->version);
    need(get(2) == NULL, "there is no other export", 2);
    version->set_tool_version(NVTX_INTERFACE_VERSION);
    check_tables(callbacks);
    (void)callbacks->get_table(NVTX_TABLE_CORE2, &core2, NULL);
    take_slot(NVTX_SLOT_PUSH, (nvtx_function)push);
    take_slot(NVTX_SLOT_POP, (nvtx_function)pop);
    take_slot(NVTX_SLOT_DOMAIN_CREATE, (nvtx_function)create_domain);
    need(!fake_nvtx.is_attached, "it is attached once", 0);
    fake_nvtx.is_attached = true;
    return 1;
}
