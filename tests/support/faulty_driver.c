/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/faulty_driver.h"

#include "tests/support/complain.h"

#include <string.h>

/* ---- What exists --------------------------------------------------------------------------- */

static void add(faulty_driver *f, faulty_kind kind, uint64_t name, uint64_t size) {
    f->has_overflowed |= f->n_things == FAULTY_MOST_THINGS;
    if (f->n_things < FAULTY_MOST_THINGS) {
        f->things[f->n_things++] = (faulty_thing){kind, name, size};
    }
}

static void take_out(faulty_driver *f, faulty_kind kind, uint64_t name) {
    for (size_t i = f->n_things; i-- > 0;) {
        if (f->things[i].kind == kind && f->things[i].name == name) {
            f->things[i] = f->things[--f->n_things];
            return;
        }
    }
}

/* An unmap may cover several mappings. */
static void take_out_mappings(faulty_driver *f, uint64_t from, uint64_t size) {
    for (size_t i = f->n_things; i-- > 0;) {
        const faulty_thing *t = &f->things[i];
        if (t->kind == FAULTY_MAPPING && t->name >= from && t->name < from + size) {
            f->things[i] = f->things[--f->n_things];
        }
    }
}

static uint64_t word(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

/* ---- The fault ----------------------------------------------------------------------------- */

static bool fails_now(faulty_driver *f, dvmm_call call) {
    f->n_calls++;
    bool is_first = f->plan.nth != 0 && f->n_calls == f->plan.nth;
    bool is_later = f->plan.for_good && f->n_failures > 0 && call == f->failing;
    if (is_first) {
        f->failing = call;
    }
    f->n_failures += is_first || is_later;
    return is_first || is_later;
}

/* One call: refused, or made; `effect` is what it changes when it has succeeded. */
#define PASS(name, arguments, effect)                                                              \
    do {                                                                                           \
        faulty_driver *f = ctx;                                                                    \
        bool fails = fails_now(f, DVMM_CALL_##name);                                               \
        if (fails && !f->plan.is_late) {                                                           \
            return f->plan.code;                                                                   \
        }                                                                                          \
        int code = f->inner->name arguments;                                                       \
        if (code == DVMM_SUCCESS) {                                                                \
            effect;                                                                                \
        }                                                                                          \
        return fails ? f->plan.code : code;                                                        \
    } while (0)

#define IN f->inner_ctx
#define NOTHING ((void)0)

/* ---- The table ----------------------------------------------------------------------------- */

static void pass_close(void *ctx) {
    const faulty_driver *f = ctx;
    f->inner->close(f->inner_ctx);
}

static uint64_t pass_clock_ns(void *ctx) {
    const faulty_driver *f = ctx;
    return f->inner->clock_ns(f->inner_ctx);
}

static int pass_mem_info(void *ctx, uint64_t *free_bytes, uint64_t *total_bytes) {
    PASS(mem_info, (IN, free_bytes, total_bytes), NOTHING);
}

static int pass_address_reserve(void *ctx, uint64_t size, uint64_t alignment, ductile_addr hint,
                                ductile_addr *out) {
    PASS(address_reserve, (IN, size, alignment, hint, out), add(f, FAULTY_RANGE, *out, size));
}

static int pass_address_free(void *ctx, ductile_addr addr, uint64_t size) {
    PASS(address_free, (IN, addr, size), take_out(f, FAULTY_RANGE, addr));
}

static int pass_phys_create(void *ctx, uint64_t size, const dvmm_phys_props *props,
                            dvmm_phys *out) {
    PASS(phys_create, (IN, size, props, out), add(f, FAULTY_HANDLE, *out, size));
}

static int pass_phys_release(void *ctx, dvmm_phys phys) {
    PASS(phys_release, (IN, phys), take_out(f, FAULTY_HANDLE, phys));
}

static int pass_map(void *ctx, ductile_addr addr, uint64_t size, uint64_t offset, dvmm_phys phys) {
    PASS(map, (IN, addr, size, offset, phys), add(f, FAULTY_MAPPING, addr, size));
}

static int pass_unmap(void *ctx, ductile_addr addr, uint64_t size) {
    PASS(unmap, (IN, addr, size), take_out_mappings(f, addr, size));
}

static int pass_set_access(void *ctx, ductile_addr addr, uint64_t size, dvmm_access access) {
    PASS(set_access, (IN, addr, size, access), NOTHING);
}

static int pass_get_access(void *ctx, ductile_addr addr, dvmm_access *out) {
    PASS(get_access, (IN, addr, out), NOTHING);
}

static int pass_can_access_peer(void *ctx, int device, int *out) {
    PASS(can_access_peer, (IN, device, out), NOTHING);
}

static int pass_set_access_for(void *ctx, ductile_addr addr, uint64_t size, dvmm_access access,
                               const int *devices, size_t n_devices) {
    PASS(set_access_for, (IN, addr, size, access, devices, n_devices), NOTHING);
}

static int pass_get_access_for(void *ctx, ductile_addr addr, int device, dvmm_access *out) {
    PASS(get_access_for, (IN, addr, device, out), NOTHING);
}

static int pass_phys_export(void *ctx, dvmm_phys phys, dvmm_share_type type, dvmm_shared *out) {
    PASS(phys_export, (IN, phys, type, out), NOTHING);
}

static int pass_phys_import(void *ctx, const dvmm_shared *shared, dvmm_phys *out) {
    PASS(phys_import, (IN, shared, out), add(f, FAULTY_HANDLE, *out, 0));
}

static int pass_mem_alloc(void *ctx, uint64_t size, ductile_addr *out) {
    PASS(mem_alloc, (IN, size, out), NOTHING);
}

static int pass_mem_free(void *ctx, ductile_addr addr) {
    PASS(mem_free, (IN, addr), NOTHING);
}

static int pass_mem_alloc_async(void *ctx, uint64_t size, ductile_stream stream,
                                ductile_addr *out) {
    PASS(mem_alloc_async, (IN, size, stream, out), NOTHING);
}

static int pass_mem_free_async(void *ctx, ductile_addr addr, ductile_stream stream) {
    PASS(mem_free_async, (IN, addr, stream), NOTHING);
}

static int pass_async_pool_info(void *ctx, uint64_t *reserved, uint64_t *reserved_peak) {
    PASS(async_pool_info, (IN, reserved, reserved_peak), NOTHING);
}

static int pass_async_pool_trim(void *ctx, uint64_t keep_bytes) {
    PASS(async_pool_trim, (IN, keep_bytes), NOTHING);
}

static int pass_stream_create(void *ctx, ductile_stream *out) {
    PASS(stream_create, (IN, out), add(f, FAULTY_STREAM, word(*out), 0));
}

static int pass_stream_destroy(void *ctx, ductile_stream stream) {
    PASS(stream_destroy, (IN, stream), take_out(f, FAULTY_STREAM, word(stream)));
}

static int pass_stream_sync(void *ctx, ductile_stream stream) {
    PASS(stream_sync, (IN, stream), NOTHING);
}

static int pass_stream_query(void *ctx, ductile_stream stream) {
    PASS(stream_query, (IN, stream), NOTHING);
}

static int pass_stream_is_ours(void *ctx, ductile_stream stream, int *out) {
    PASS(stream_is_ours, (IN, stream, out), NOTHING);
}

static int pass_stream_wait_event(void *ctx, ductile_stream stream, dvmm_event event) {
    PASS(stream_wait_event, (IN, stream, event), NOTHING);
}

static int pass_stream_wait_value(void *ctx, ductile_stream stream, uint64_t *host_word,
                                  uint64_t value) {
    PASS(stream_wait_value, (IN, stream, host_word, value), NOTHING);
}

static int pass_capture_status(void *ctx, ductile_stream stream, dvmm_capture_status *out) {
    PASS(capture_status, (IN, stream, out), NOTHING);
}

static int pass_capture_begin(void *ctx, ductile_stream stream, dvmm_capture_mode mode) {
    PASS(capture_begin, (IN, stream, mode), NOTHING);
}

static int pass_capture_end(void *ctx, ductile_stream stream) {
    PASS(capture_end, (IN, stream), NOTHING);
}

static int pass_capture_exchange_mode(void *ctx, dvmm_capture_mode *mode) {
    PASS(capture_exchange_mode, (IN, mode), NOTHING);
}

static int pass_context_sync(void *ctx) {
    PASS(context_sync, (IN), NOTHING);
}

static int pass_context_record(void *ctx, dvmm_event event) {
    PASS(context_record, (IN, event), NOTHING);
}

static int pass_event_create(void *ctx, dvmm_event *out) {
    PASS(event_create, (IN, out), add(f, FAULTY_EVENT, word(*out), 0));
}

static int pass_event_destroy(void *ctx, dvmm_event event) {
    PASS(event_destroy, (IN, event), take_out(f, FAULTY_EVENT, word(event)));
}

static int pass_event_record(void *ctx, dvmm_event event, ductile_stream stream) {
    PASS(event_record, (IN, event, stream), NOTHING);
}

static int pass_event_query(void *ctx, dvmm_event event) {
    PASS(event_query, (IN, event), NOTHING);
}

static int pass_event_sync(void *ctx, dvmm_event event) {
    PASS(event_sync, (IN, event), NOTHING);
}

static int pass_host_alloc(void *ctx, uint64_t size, void **out) {
    PASS(host_alloc, (IN, size, out), add(f, FAULTY_HOST_MEMORY, word(*out), size));
}

static int pass_host_free(void *ctx, void *memory) {
    PASS(host_free, (IN, memory), take_out(f, FAULTY_HOST_MEMORY, word(memory)));
}

static int pass_host_register(void *ctx, void *memory, uint64_t size) {
    PASS(host_register, (IN, memory, size), add(f, FAULTY_REGISTRATION, word(memory), size));
}

static int pass_host_unregister(void *ctx, void *memory) {
    PASS(host_unregister, (IN, memory), take_out(f, FAULTY_REGISTRATION, word(memory)));
}

static int pass_fill(void *ctx, ductile_addr addr, uint8_t value, uint64_t size,
                     ductile_stream stream) {
    PASS(fill, (IN, addr, value, size, stream), NOTHING);
}

static int pass_copy(void *ctx, ductile_addr to, ductile_addr from, uint64_t size,
                     ductile_stream stream) {
    PASS(copy, (IN, to, from, size, stream), NOTHING);
}

static int pass_upload(void *ctx, ductile_addr to, const void *from, uint64_t size,
                       ductile_stream stream) {
    PASS(upload, (IN, to, from, size, stream), NOTHING);
}

static int pass_download(void *ctx, void *to, ductile_addr from, uint64_t size,
                         ductile_stream stream) {
    PASS(download, (IN, to, from, size, stream), NOTHING);
}

static int pass_read_back(void *ctx, void *to, ductile_addr from, uint64_t size,
                          ductile_stream stream) {
    PASS(read_back, (IN, to, from, size, stream), NOTHING);
}

static const dvmm_driver_ops passing = {.close = pass_close,
#define ENTRY(name) .name = pass_##name,
                                        DVMM_CALLS(ENTRY)
#undef ENTRY
};

/* ---- For tests ----------------------------------------------------------------------------- */

void faulty_install(faulty_driver *f, dvmm_driver *d) {
    memset(f, 0, sizeof *f);
    f->inner = d->ops;
    f->inner_ctx = d->ctx;
    f->ops = passing;
    f->ops.clock_ns = d->ops->clock_ns != NULL ? pass_clock_ns : NULL;
    d->ops = &f->ops;
    d->ctx = f;
}

void faulty_plan_fault(faulty_driver *f, const faulty_plan *plan) {
    f->plan = plan != NULL ? *plan : (faulty_plan){.nth = 0};
    f->n_calls = 0;
    f->n_failures = 0;
}

size_t faulty_count(const faulty_driver *f, faulty_kind kind) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_things; i++) {
        n += f->things[i].kind == kind;
    }
    return n;
}

const char *faulty_kind_name(faulty_kind kind) {
    static const char *const names[FAULTY_N_KINDS] = {"range", "handle", "mapping",
                                                      "event", "stream", "page-locked buffer"};
    return names[kind];
}

static ductile_status give_back(dvmm_driver *d, const faulty_thing *t) {
    switch (t->kind) {
    case FAULTY_RANGE:
        return dvmm_address_free(d, t->name, t->size);
    case FAULTY_HANDLE:
        return dvmm_phys_release(d, t->name);
    case FAULTY_MAPPING:
        return dvmm_unmap(d, t->name, t->size);
    case FAULTY_EVENT:
        return dvmm_event_destroy(d, (dvmm_event)(uintptr_t)t->name);
    case FAULTY_STREAM:
        return dvmm_stream_destroy(d, (ductile_stream)(uintptr_t)t->name);
    case FAULTY_HOST_MEMORY:
        return dvmm_host_free(d, (void *)(uintptr_t)t->name);
    case FAULTY_REGISTRATION:
        return dvmm_host_unregister(d, (void *)(uintptr_t)t->name);
    case FAULTY_N_KINDS:
        break;
    }
    return DUCTILE_ERR_INVALID_ARGUMENT;
}

/* Mappings go before what they map and what they lie in. */
const char *faulty_clean_up(faulty_driver *f, dvmm_driver *d) {
    static const faulty_kind order[] = {FAULTY_MAPPING,     FAULTY_HANDLE, FAULTY_RANGE,
                                        FAULTY_EVENT,       FAULTY_STREAM, FAULTY_HOST_MEMORY,
                                        FAULTY_REGISTRATION};
    NEED_OK(dvmm_context_sync(d));
    for (size_t k = 0; k < FAULTY_N_KINDS; k++) {
        for (size_t i = f->n_things; i-- > 0;) {
            const faulty_thing t = f->things[i];
            if (t.kind == order[k]) {
                ductile_status status = give_back(d, &t);
                NEED(status == DUCTILE_OK, "a %s that was left cannot be given back: %s",
                     faulty_kind_name(order[k]), ductile_status_name(status));
                take_out(f, t.kind, t.name);
            }
        }
    }
    return NULL;
}
