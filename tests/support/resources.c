/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/resources.h"

void resources_add(resources *t, resource_kind kind, uint64_t it, uint64_t beside) {
    t->has_overflowed |= t->n == MOST_RESOURCES;
    if (t->n < MOST_RESOURCES) {
        t->all[t->n++] = (resource){kind, it, beside};
    }
}

void resources_take_out(resources *t, resource_kind kind, uint64_t it) {
    for (size_t i = t->n; i-- > 0;) {
        if (t->all[i].kind == kind && t->all[i].it == it) {
            t->all[i] = t->all[--t->n];
            return;
        }
    }
}

size_t resources_count(const resources *t, resource_kind kind) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        n += t->all[i].kind == kind;
    }
    return n;
}

const char *resource_name(resource_kind kind) {
    static const char *const names[N_RESOURCE_KINDS] = {
        "nothing", "memory of a stream", "stream",      "event", "mapping", "range", "handle",
        "memory",  "host memory",        "registration"};
    return names[kind];
}

static int undo(const resource *t, const dvmm_driver_ops *ops, const dvmm_bench_ops *bench,
                void *ctx) {
    void *pointer = (void *)(uintptr_t)t->it;
    switch (t->kind) {
    case ORDERED_MEMORY:
        return bench->mem_free_async(ctx, t->it, (ductile_stream)(uintptr_t)t->beside);
    case A_STREAM:
        (void)ops->stream_sync(ctx, pointer);
        return ops->stream_destroy(ctx, pointer);
    case AN_EVENT:
        return ops->event_destroy(ctx, pointer);
    case A_MAPPING:
        return ops->unmap(ctx, t->it, t->beside);
    case A_RANGE:
        return ops->address_free(ctx, t->it, t->beside);
    case A_HANDLE:
        return ops->phys_release(ctx, t->it);
    case CLASSIC_MEMORY:
        return bench->mem_free(ctx, t->it);
    case HOST_MEMORY:
        return bench->host_free(ctx, pointer);
    case A_REGISTRATION:
        return ops->host_unregister(ctx, pointer);
    case NO_RESOURCE:
    case N_RESOURCE_KINDS:
        break;
    }
    return DVMM_SUCCESS;
}

int resources_undo(resources *t, const dvmm_driver_ops *ops, const dvmm_bench_ops *bench, void *ctx,
                   resource *first) {
    int worst = DVMM_SUCCESS;
    for (int kind = NO_RESOURCE + 1; kind < N_RESOURCE_KINDS; kind++) {
        for (size_t i = t->n; i-- > 0;) {
            int code =
                t->all[i].kind == (resource_kind)kind ? undo(&t->all[i], ops, bench, ctx) : worst;
            if (worst == DVMM_SUCCESS && code != DVMM_SUCCESS) {
                worst = code;
                *first = t->all[i];
            }
        }
    }
    t->n = 0;
    return worst;
}
