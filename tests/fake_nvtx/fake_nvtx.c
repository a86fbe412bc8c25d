/* SPDX-License-Identifier: Apache-2.0 */
/* FAKE_KIND says what it takes; the build makes one library of each. */
#include "tests/fake_nvtx/fake_nvtx.h"

#include "vmm/nvtx/interface.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

enum { WHOLE, WITHOUT_MEMORY, UNWILLING }; /* FAKE_KIND */

enum { MOST_HEAPS = 4096, MOST_REGIONS = 1 << 16, MOST_NAMES = 64 };

typedef struct heap {
    uint64_t addr;
    uint64_t size;
    nvtx_heap handle;
} heap;

typedef struct range_count {
    char name[FAKE_NVTX_MAX_NAME];
    uint64_t n;
    uint64_t bytes;
} range_count;

/* All guarded by `lock`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static heap heaps[MOST_HEAPS];
static fake_nvtx_region regions[MOST_REGIONS]; /* sorted by address */
static range_count counts[MOST_NAMES];
static uintptr_t last_handle;

static int the_domain; /* its address */
static _Thread_local int depth;

static const fake_nvtx_region *region_at(uint64_t i);
static uint64_t count_named(const char *name, uint64_t *bytes);
static uint64_t sum_of_heaps(void);
static void listen(bool listens);

EXPORTED fake_nvtx_control fake_nvtx = {
    .region = region_at, .count = count_named, .heap_bytes = sum_of_heaps, .listen = listen};

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

static uint64_t number(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

/* ---- Looking --------------------------------------------------------------------------------- */

static const fake_nvtx_region *region_at(uint64_t i) {
    return i < fake_nvtx.n_regions ? &regions[i] : NULL;
}

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

static uint64_t sum_of_heaps(void) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < fake_nvtx.n_heaps; i++) {
        sum += heaps[i].size;
    }
    return sum;
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

/* ---- Heaps ----------------------------------------------------------------------------------- */

static heap *find_heap(nvtx_heap handle) {
    for (uint64_t i = 0; i < fake_nvtx.n_heaps; i++) {
        if (heaps[i].handle == handle) {
            return &heaps[i];
        }
    }
    return NULL;
}

static bool meets(uint64_t a, uint64_t a_size, uint64_t b, uint64_t b_size) {
    return a < b + b_size && b < a + a_size;
}

static void check_heap(const nvtx_heap_description *d) {
    const nvtx_span *span = d->type_description;
    need(d->compat_id == NVTX_MEMORY_COMPAT && d->struct_size == sizeof *d, "a heap", 0);
    need(d->usage == NVTX_HEAP_SUB_ALLOCATOR && d->type == NVTX_MEMORY_VIRTUAL_ADDRESS, "its use",
         0);
    need(d->type_size == sizeof *span && span->size > 0, "its span", number(span->address));
    for (uint64_t i = 0; i < fake_nvtx.n_heaps; i++) {
        need(!meets(heaps[i].addr, heaps[i].size, number(span->address), span->size),
             "heaps are apart", number(span->address));
    }
}

/* The handle is not the address, so that one is not taken for the other. */
static nvtx_heap register_heap(nvtx_domain domain, const nvtx_heap_description *d) {
    enter(domain);
    check_heap(d);
    nvtx_heap handle = NULL;
    if (!fake_nvtx.refuses_heaps) {
        const nvtx_span *span = d->type_description;
        need(fake_nvtx.n_heaps < MOST_HEAPS, "there are few heaps", 0);
        handle = (nvtx_heap)++last_handle;
        heaps[fake_nvtx.n_heaps++] = (heap){number(span->address), span->size, handle};
        fake_nvtx.n_heaps_ever++;
    }
    leave();
    return handle;
}

static void unregister_heap(nvtx_domain domain, nvtx_heap handle) {
    enter(domain);
    heap *h = find_heap(handle);
    need(h != NULL, "the heap that ends is registered", number(handle));
    for (uint64_t i = 0; i < fake_nvtx.n_regions; i++) {
        need(!meets(regions[i].addr, regions[i].size, h->addr, h->size),
             "the regions of a heap end first", regions[i].addr);
    }
    *h = heaps[--fake_nvtx.n_heaps];
    leave();
}

/* ---- Regions --------------------------------------------------------------------------------- */

/* The place of the first region at or above the address. */
static uint64_t place_of(uint64_t addr) {
    uint64_t low = 0;
    uint64_t high = fake_nvtx.n_regions;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (regions[middle].addr >= addr) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static fake_nvtx_region *find_region(const nvtx_reference *reference) {
    uint64_t at = place_of(number(reference->pointer));
    bool is_there = at < fake_nvtx.n_regions && regions[at].addr == number(reference->pointer);
    need(is_there, "the region is registered", number(reference->pointer));
    return &regions[at];
}

static void add_region(const heap *h, const nvtx_span *span) {
    uint64_t addr = number(span->address);
    uint64_t at = place_of(addr);
    need(span->size > 0 && addr >= h->addr && addr + span->size <= h->addr + h->size,
         "a region lies in its heap", addr);
    need(at == fake_nvtx.n_regions || addr + span->size <= regions[at].addr, "regions are apart",
         addr);
    need(at == 0 || regions[at - 1].addr + regions[at - 1].size <= addr, "regions are apart", addr);
    need(fake_nvtx.n_regions < MOST_REGIONS, "there are few regions", addr);
    memmove(&regions[at + 1], &regions[at], (fake_nvtx.n_regions - at) * sizeof regions[0]);
    regions[at] = (fake_nvtx_region){.addr = addr, .size = span->size};
    fake_nvtx.n_regions++;
    fake_nvtx.n_regions_ever++;
}

static void register_regions(nvtx_domain domain, const nvtx_register_batch *b) {
    enter(domain);
    const heap *h = find_heap(b->heap);
    need(b->compat_id == NVTX_MEMORY_COMPAT && b->struct_size == sizeof *b, "a batch", 0);
    need(b->type == NVTX_MEMORY_VIRTUAL_ADDRESS && b->region_size == sizeof(nvtx_span), "its type",
         0);
    need(h != NULL, "the heap of a region is registered", number(b->heap));
    for (size_t i = 0; i < b->n_regions; i++) {
        add_region(h, (const nvtx_span *)b->regions + i);
    }
    leave();
}

static void unregister_regions(nvtx_domain domain, const nvtx_unregister_batch *b) {
    enter(domain);
    need(b->compat_id == NVTX_MEMORY_COMPAT && b->struct_size == sizeof *b, "a batch", 0);
    need(b->reference_type == NVTX_REFERENCE_POINTER && b->reference_size == sizeof(nvtx_reference),
         "its references", 0);
    for (size_t i = 0; i < b->n_references; i++) {
        fake_nvtx_region *r = find_region(&b->references[i]);
        fake_nvtx.n_regions--;
        memmove(r, r + 1, (size_t)(regions + fake_nvtx.n_regions - r) * sizeof *r);
    }
    leave();
}

/* What compute-sanitizer takes: 1 to 49 printable characters. */
static void check_name(const char *text) {
    size_t length = strlen(text);
    need(length > 0 && length < FAKE_NVTX_MAX_NAME, "the length of a name", length);
    for (const char *at = text; *at != '\0'; at++) {
        need(*at >= ' ' && *at <= '~', "a name is printable", 0);
    }
}

static void name_regions(nvtx_domain domain, const nvtx_name_batch *b) {
    enter(domain);
    need(b->compat_id == NVTX_MEMORY_COMPAT && b->struct_size == sizeof *b &&
             b->name_size == sizeof(nvtx_name),
         "a batch of names", 0);
    for (size_t i = 0; i < b->n_names; i++) {
        const nvtx_name *name = &b->names[i];
        need(name->reference_type == NVTX_REFERENCE_POINTER &&
                 name->name_type == NVTX_MESSAGE_ASCII,
             "a name", 0);
        check_name(name->name.ascii);
        strcpy(find_region(&name->region)->name, name->name.ascii);
    }
    leave();
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
EXPORTED int InitializeInjectionNvtxExtension(nvtx_module *m);

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

int InitializeInjectionNvtxExtension(nvtx_module *m) {
    need(fake_nvtx.is_attached, "ranges come before memory", 0);
    need(m->version == NVTX_INTERFACE_VERSION && m->struct_size == sizeof *m, "a module",
         m->version);
    need(m->id == NVTX_MEMORY_MODULE && m->compat_id == NVTX_MEMORY_COMPAT, "its id", m->id);
    need(m->n_segments == 1 && m->segments[0].id == 1 &&
             m->segments[0].n_slots == NVTX_MEMORY_SLOTS,
         "its slots", m->n_segments);
    if (FAKE_KIND == WITHOUT_MEMORY) {
        return 0;
    }
    intptr_t *slots = m->segments[0].slots;
    slots[NVTX_SLOT_HEAP_REGISTER] = (intptr_t)register_heap;
    slots[NVTX_SLOT_HEAP_UNREGISTER] = (intptr_t)unregister_heap;
    slots[NVTX_SLOT_REGIONS_REGISTER] = (intptr_t)register_regions;
    slots[NVTX_SLOT_REGIONS_UNREGISTER] = (intptr_t)unregister_regions;
    slots[NVTX_SLOT_REGIONS_NAME] = (intptr_t)name_regions;
    return 1;
}
