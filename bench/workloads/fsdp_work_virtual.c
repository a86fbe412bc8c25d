/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/fsdp_work.h"
#include "vmm/base/status.h"

#include <stdlib.h>

/* One kernel. In its stream stand: started, the kernel, ended. */
typedef struct kernel {
    struct kernel *next;
    dvmm_event started;
    dvmm_event ended;
    uint64_t ns;
    uint64_t start_ns; /* valid once has_started */
    bool has_started;
} kernel;

/* Kernels of one stream that have not ended, oldest first. */
typedef struct line {
    kernel *first;
    kernel *last; /* valid while first is not NULL */
} line;

typedef struct virtual_work {
    fsdp_work base;
    line lines[FSDP_N_STREAMS];
    kernel *spare;
    uint64_t now_ns;
    uint64_t driver_ns; /* of the virtual GPU's clock, up to which the host's time is counted */
} virtual_work;

static virtual_work *of(fsdp_work *w) {
    return (virtual_work *)w;
}

static dvmm_driver *driver_of(const virtual_work *w) {
    return w->base.on->driver;
}

/* What driver calls have cost the host so far. */
static uint64_t driver_clock(const virtual_work *w) {
    ductile_virtual_state state = {.struct_size = sizeof state};
    return ductile_virtual_get_state(w->base.on->gpu, &state) == DUCTILE_OK ? state.time_ns : 0;
}

/* ---- Kernels ------------------------------------------------------------------------------- */

static void drop_kernel(virtual_work *w, kernel *k) {
    if (k->started != NULL) {
        (void)dvmm_event_destroy(driver_of(w), k->started);
    }
    if (k->ended != NULL) {
        (void)dvmm_event_destroy(driver_of(w), k->ended);
    }
    free(k);
}

static ductile_status take_kernel(virtual_work *w, kernel **out) {
    kernel *k = w->spare;
    if (k != NULL) {
        w->spare = k->next;
        *out = k;
        return DUCTILE_OK;
    }
    k = calloc(1, sizeof *k);
    *out = k;
    if (k == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = dvmm_event_create(driver_of(w), &k->started);
    if (status == DUCTILE_OK) {
        status = dvmm_event_create(driver_of(w), &k->ended);
    }
    if (status != DUCTILE_OK) {
        drop_kernel(w, k);
    }
    return status;
}

static void push(line *in, kernel *k) {
    k->next = NULL;
    if (in->first == NULL) {
        in->first = k;
    } else {
        in->last->next = k;
    }
    in->last = k;
}

static void pop(virtual_work *w, line *from) {
    kernel *k = from->first;
    from->first = k->next;
    k->next = w->spare;
    w->spare = k;
}

static ductile_status virtual_busy(fsdp_work *base, size_t stream, uint64_t ns,
                                   ductile_addr address, uint64_t size) {
    virtual_work *w = of(base);
    ductile_stream in = base->on->streams[stream];
    const ductile_virtual_use use = {.address = address, .size = size};
    kernel *k = NULL;
    DTI_TRY(take_kernel(w, &k));
    k->ns = ns;
    k->has_started = false;
    push(&w->lines[stream], k);
    ductile_status status = dvmm_event_record(driver_of(w), k->started, in);
    if (status == DUCTILE_OK) {
        status = testbed_launch_lazy(base->on, in, size > 0 ? &use : NULL);
    }
    return status == DUCTILE_OK ? dvmm_event_record(driver_of(w), k->ended, in) : status;
}

/* ---- Time ---------------------------------------------------------------------------------- */

static bool is_done(const virtual_work *w, dvmm_event event) {
    return dvmm_event_query(driver_of(w), event) == DUCTILE_OK;
}

static void start_what_can(virtual_work *w) {
    for (size_t i = 0; i < FSDP_N_STREAMS; i++) {
        kernel *k = w->lines[i].first;
        if (k != NULL && !k->has_started && is_done(w, k->started)) {
            k->has_started = true;
            k->start_ns = w->now_ns;
        }
    }
}

/* The line whose running kernel ends first; NULL: no kernel is running. */
static line *find_next(virtual_work *w) {
    line *found = NULL;
    for (size_t i = 0; i < FSDP_N_STREAMS; i++) {
        kernel *k = w->lines[i].first;
        if (k != NULL && k->has_started &&
            (found == NULL || k->start_ns + k->ns < found->first->start_ns + found->first->ns)) {
            found = &w->lines[i];
        }
    }
    return found;
}

static ductile_status end_kernel(virtual_work *w, line *of_line) {
    kernel *k = of_line->first;
    uint64_t end = k->start_ns + k->ns;
    w->now_ns = end > w->now_ns ? end : w->now_ns;
    ductile_status status = dvmm_event_sync(driver_of(w), k->ended);
    pop(w, of_line);
    return status;
}

static ductile_status run_to(virtual_work *w, uint64_t moment) {
    ductile_status status = DUCTILE_OK;
    for (;;) {
        start_what_can(w);
        line *next = find_next(w);
        if (status != DUCTILE_OK || next == NULL ||
            next->first->start_ns + next->first->ns > moment) {
            break;
        }
        status = end_kernel(w, next);
    }
    w->now_ns = moment > w->now_ns ? moment : w->now_ns;
    return status;
}

/* When the kernels of a line that the host has waited for would have ended. */
static uint64_t forced_end(virtual_work *w, line *in) {
    uint64_t end = w->now_ns;
    while (in->first != NULL && is_done(w, in->first->ended)) {
        kernel *k = in->first;
        end = (k->has_started ? k->start_ns : end) + k->ns;
        pop(w, in);
    }
    return end;
}

static ductile_status count_host_waits(virtual_work *w) {
    uint64_t end = w->now_ns;
    for (size_t i = 0; i < FSDP_N_STREAMS; i++) {
        uint64_t this_end = forced_end(w, &w->lines[i]);
        end = this_end > end ? this_end : end;
    }
    return run_to(w, end);
}

static ductile_status virtual_host(fsdp_work *base, uint64_t ns) {
    virtual_work *w = of(base);
    uint64_t clock = driver_clock(w);
    uint64_t spent = ns + clock - w->driver_ns;
    ductile_status status = count_host_waits(w);
    if (status == DUCTILE_OK) {
        status = run_to(w, w->now_ns + spent);
    }
    w->driver_ns = driver_clock(w);
    return status;
}

static ductile_status virtual_sync(fsdp_work *base) {
    virtual_work *w = of(base);
    for (;;) {
        start_what_can(w);
        line *next = find_next(w);
        if (next == NULL) {
            break;
        }
        DTI_TRY(end_kernel(w, next));
    }
    w->driver_ns = driver_clock(w);
    return dvmm_context_sync(driver_of(w));
}

static uint64_t virtual_now_ns(const fsdp_work *base) {
    return ((const virtual_work *)base)->now_ns;
}

/* ---- Making and dropping ------------------------------------------------------------------- */

static void virtual_close(fsdp_work *base) {
    virtual_work *w = of(base);
    (void)virtual_sync(base);
    for (size_t i = 0; i < FSDP_N_STREAMS; i++) {
        while (w->lines[i].first != NULL) { /* after a failure */
            pop(w, &w->lines[i]);
        }
    }
    while (w->spare != NULL) {
        kernel *k = w->spare;
        w->spare = k->next;
        drop_kernel(w, k);
    }
    free(w);
}

ductile_status fsdp_work_open_virtual(const testbed *on, fsdp_work **out) {
    static const fsdp_work_ops ops = {
        .busy = virtual_busy,
        .host = virtual_host,
        .sync = virtual_sync,
        .now_ns = virtual_now_ns,
        .close = virtual_close,
    };
    virtual_work *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    w->base = (fsdp_work){.ops = &ops, .on = on};
    w->driver_ns = driver_clock(w);
    *out = &w->base;
    return DUCTILE_OK;
}
