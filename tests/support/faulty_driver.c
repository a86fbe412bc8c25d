/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/faulty_driver.h"

#include "tests/support/complain.h"

#include <string.h>

/* ---- What exists --------------------------------------------------------------------------- */

/* An unmap may cover several mappings. */
static void take_out_mappings(faulty_driver *f, uint64_t from, uint64_t size) {
    for (size_t i = f->left.n; i-- > 0;) {
        const resource t = f->left.all[i];
        if (t.kind == A_MAPPING && t.it >= from && t.it < from + size) {
            resources_take_out(&f->left, A_MAPPING, t.it);
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

/* A call that is refused, or made; `effect` is what it changes when it has succeeded. */
#define PASS(name, parameters, arguments, effect)                                                  \
    static int pass_##name parameters {                                                            \
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
    }

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

PASS(mem_info, (void *ctx, uint64_t *free_bytes, uint64_t *total_bytes),
     (IN, free_bytes, total_bytes), NOTHING)
PASS(address_reserve,
     (void *ctx, uint64_t size, uint64_t alignment, ductile_addr hint, ductile_addr *out),
     (IN, size, alignment, hint, out), resources_add(&f->left, A_RANGE, *out, size))
PASS(address_free, (void *ctx, ductile_addr addr, uint64_t size), (IN, addr, size),
     resources_take_out(&f->left, A_RANGE, addr))
PASS(phys_create, (void *ctx, uint64_t size, const dvmm_phys_props *props, dvmm_phys *out),
     (IN, size, props, out), resources_add(&f->left, A_HANDLE, *out, size))
PASS(phys_release, (void *ctx, dvmm_phys phys), (IN, phys),
     resources_take_out(&f->left, A_HANDLE, phys))
PASS(map, (void *ctx, ductile_addr addr, uint64_t size, uint64_t offset, dvmm_phys phys),
     (IN, addr, size, offset, phys), resources_add(&f->left, A_MAPPING, addr, size))
PASS(unmap, (void *ctx, ductile_addr addr, uint64_t size), (IN, addr, size),
     take_out_mappings(f, addr, size))
PASS(set_access, (void *ctx, ductile_addr addr, uint64_t size, dvmm_access access),
     (IN, addr, size, access), NOTHING)
PASS(get_access, (void *ctx, ductile_addr addr, dvmm_access *out), (IN, addr, out), NOTHING)
PASS(can_access_peer, (void *ctx, int device, int *out), (IN, device, out), NOTHING)
PASS(set_access_for,
     (void *ctx, ductile_addr addr, uint64_t size, dvmm_access access, const int *devices,
      size_t n_devices),
     (IN, addr, size, access, devices, n_devices), NOTHING)
PASS(phys_export, (void *ctx, dvmm_phys phys, dvmm_share_type type, dvmm_shared *out),
     (IN, phys, type, out), NOTHING)
PASS(phys_import, (void *ctx, const dvmm_shared *shared, dvmm_phys *out), (IN, shared, out),
     resources_add(&f->left, A_HANDLE, *out, 0))
PASS(stream_create, (void *ctx, ductile_stream *out), (IN, out),
     resources_add(&f->left, A_STREAM, word(*out), 0))
PASS(stream_destroy, (void *ctx, ductile_stream stream), (IN, stream),
     resources_take_out(&f->left, A_STREAM, word(stream)))
PASS(stream_sync, (void *ctx, ductile_stream stream), (IN, stream), NOTHING)
PASS(stream_is_ours, (void *ctx, ductile_stream stream, int *out), (IN, stream, out), NOTHING)
PASS(stream_wait_event, (void *ctx, ductile_stream stream, dvmm_event event), (IN, stream, event),
     NOTHING)
PASS(capture_status, (void *ctx, ductile_stream stream, dvmm_capture_status *out),
     (IN, stream, out), NOTHING)
PASS(capture_exchange_mode, (void *ctx, dvmm_capture_mode *mode), (IN, mode), NOTHING)
PASS(context_sync, (void *ctx), (IN), NOTHING)
PASS(context_record, (void *ctx, dvmm_event event), (IN, event), NOTHING)
PASS(event_create, (void *ctx, dvmm_event *out), (IN, out),
     resources_add(&f->left, AN_EVENT, word(*out), 0))
PASS(event_destroy, (void *ctx, dvmm_event event), (IN, event),
     resources_take_out(&f->left, AN_EVENT, word(event)))
PASS(event_record, (void *ctx, dvmm_event event, ductile_stream stream), (IN, event, stream),
     NOTHING)
PASS(event_query, (void *ctx, dvmm_event event), (IN, event), NOTHING)
PASS(event_sync, (void *ctx, dvmm_event event), (IN, event), NOTHING)
PASS(host_register, (void *ctx, void *memory, uint64_t size), (IN, memory, size),
     resources_add(&f->left, A_REGISTRATION, word(memory), size))
PASS(host_unregister, (void *ctx, void *memory), (IN, memory),
     resources_take_out(&f->left, A_REGISTRATION, word(memory)))
PASS(fill, (void *ctx, ductile_addr addr, uint8_t value, uint64_t size, ductile_stream stream),
     (IN, addr, value, size, stream), NOTHING)
PASS(upload, (void *ctx, ductile_addr to, const void *from, uint64_t size, ductile_stream stream),
     (IN, to, from, size, stream), NOTHING)
PASS(download, (void *ctx, void *to, ductile_addr from, uint64_t size, ductile_stream stream),
     (IN, to, from, size, stream), NOTHING)
PASS(copy_batch, (void *ctx, dvmm_batch *batch, ductile_stream stream), (IN, batch, stream),
     NOTHING)
static const dvmm_driver_ops passing = {.close = pass_close,
#define ENTRY(name, parameters) .name = pass_##name,
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

const char *faulty_clean_up(faulty_driver *f, dvmm_driver *d) {
    void *ctx = NULL;
    resource first = {NO_RESOURCE, 0, 0};
    const dvmm_driver_ops *ops = dvmm_raw_ops(d, &ctx);
    NEED_OK(dvmm_context_sync(d));
    int code = resources_undo(&f->left, ops, NULL, ctx, &first);
    NEED(code == DVMM_SUCCESS, "a %s that was left cannot be given back: %s",
         resource_name(first.kind), dvmm_code_name(code));
    return NULL;
}
