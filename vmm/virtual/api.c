/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of ductile_virtual.h, by which a test drives, disturbs and observes a virtual GPU.
 * They are not driver calls: they cost no virtual time, are not counted and cannot be made to
 * fail. */
#include "vmm/base/align.h"
#include "vmm/virtual/memory/exports.h"
#include "vmm/virtual/race/blocks.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/state/watch.h"
#include "vmm/virtual/work/capture.h"
#include "vmm/virtual/work/events.h"
#include "vmm/virtual/work/graph.h"
#include "vmm/virtual/work/streams.h"
#include "vmm/virtual/work/uses.h"
#include "vmm/virtual/work/work.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Evaluates an internal call, which returns the driver's code, under the lock. */
#define UNDER_LOCK(gpu, action)                                                                    \
    int code;                                                                                      \
    dti_lock_acquire(&(gpu)->lock);                                                                \
    (gpu)->race.is_program = true;                                                                 \
    code = (gpu)->poison != 0 ? (gpu)->poison : (action);                                          \
    (gpu)->race.is_program = false;                                                                \
    dti_lock_release(&(gpu)->lock);                                                                \
    return dvmm_status_of(code)

/* The same for a call that makes a stream. */
#define CREATE_STREAM(gpu, out, action)                                                            \
    if ((gpu) == NULL || (out) == NULL) {                                                          \
        return DUCTILE_ERR_INVALID_ARGUMENT;                                                       \
    }                                                                                              \
    *(out) = NULL;                                                                                 \
    UNDER_LOCK(gpu, action)

static uint64_t read_count(ductile_virtual_gpu *gpu, const uint64_t *count) {
    dti_lock_acquire(&gpu->lock);
    uint64_t n = *count;
    dti_lock_release(&gpu->lock);
    return n;
}

/* ---- Streams and work ---------------------------------------------------------------------- */

ductile_status ductile_virtual_stream_create(ductile_virtual_gpu *gpu, ductile_stream *out) {
    CREATE_STREAM(gpu, out, dvmm_vgpu_stream_create(gpu, out));
}

ductile_status ductile_virtual_stream_create_blocking(ductile_virtual_gpu *gpu,
                                                      ductile_stream *out) {
    CREATE_STREAM(gpu, out, dvmm_vgpu_stream_create_blocking(gpu, out));
}

ductile_status ductile_virtual_stream_create_on(ductile_virtual_gpu *gpu, int device,
                                                ductile_stream *out) {
    CREATE_STREAM(gpu, out, dvmm_vgpu_stream_create_on(gpu, device, out));
}

ductile_status ductile_virtual_stream_create_foreign(ductile_virtual_gpu *gpu,
                                                     ductile_stream *out) {
    CREATE_STREAM(gpu, out, dvmm_vgpu_stream_create_foreign(gpu, 0, out));
}

ductile_status ductile_virtual_stream_destroy(ductile_virtual_gpu *gpu, ductile_stream stream) {
    UNDER_LOCK(gpu, dvmm_vgpu_stream_destroy(gpu, stream));
}

ductile_status ductile_virtual_launch(ductile_virtual_gpu *gpu, ductile_stream stream,
                                      const ductile_virtual_use *uses, size_t n_uses) {
    if (uses == NULL && n_uses != 0) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    UNDER_LOCK(gpu, dvmm_vgpu_launch(gpu, stream, uses, n_uses));
}

ductile_status ductile_virtual_stream_wait(ductile_virtual_gpu *gpu, ductile_stream stream,
                                           ductile_stream on) {
    UNDER_LOCK(gpu, dvmm_vgpu_stream_wait_stream(gpu, stream, on));
}

ductile_status ductile_virtual_stream_sync(ductile_virtual_gpu *gpu, ductile_stream stream) {
    UNDER_LOCK(gpu, dvmm_vgpu_stream_sync(gpu, stream));
}

void ductile_virtual_advance(ductile_virtual_gpu *gpu, uint64_t n) {
    dti_lock_acquire(&gpu->lock);
    gpu->work.now += n;
    dvmm_vgpu_progress(gpu, true);
    dti_lock_release(&gpu->lock);
}

void ductile_virtual_set_schedule(ductile_virtual_gpu *gpu, ductile_schedule schedule,
                                  uint64_t lag) {
    dti_lock_acquire(&gpu->lock);
    gpu->work.schedule = schedule;
    gpu->work.lag = lag;
    dti_lock_release(&gpu->lock);
}

/* ---- Captures and graphs ------------------------------------------------------------------- */

ductile_status ductile_virtual_capture_begin(ductile_virtual_gpu *gpu, ductile_stream stream,
                                             ductile_capture_mode mode) {
    UNDER_LOCK(gpu, dvmm_vgpu_capture_begin(gpu, stream, (dvmm_capture_mode)mode));
}

ductile_status ductile_virtual_capture_end(ductile_virtual_gpu *gpu, ductile_stream stream,
                                           ductile_virtual_graph **out) {
    if (out != NULL) {
        *out = NULL;
    }
    UNDER_LOCK(gpu, dvmm_vgpu_capture_end(gpu, stream, out));
}

ductile_status ductile_virtual_graph_launch(ductile_virtual_graph *graph, ductile_stream stream) {
    if (graph == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_virtual_gpu *gpu = dvmm_vgpu_gpu_of(graph);
    UNDER_LOCK(gpu, dvmm_vgpu_graph_launch(graph, stream));
}

void ductile_virtual_graph_rest(ductile_virtual_graph *graph, int rests) {
    if (graph == NULL) {
        return;
    }
    ductile_virtual_gpu *gpu = dvmm_vgpu_gpu_of(graph);
    dti_lock_acquire(&gpu->lock);
    dvmm_vgpu_graph_rest(graph, rests != 0);
    dti_lock_release(&gpu->lock);
}

void ductile_virtual_graph_destroy(ductile_virtual_graph *graph) {
    if (graph == NULL) {
        return;
    }
    ductile_virtual_gpu *gpu = dvmm_vgpu_gpu_of(graph);
    dti_lock_acquire(&gpu->lock);
    dvmm_vgpu_graph_destroy(graph);
    dti_lock_release(&gpu->lock);
}

/* ---- Faults -------------------------------------------------------------------------------- */

static bool is_fault(const ductile_virtual_fault *fault) {
    return fault->struct_size >= sizeof(*fault) && fault->nth != 0 && fault->code != DVMM_SUCCESS &&
           fault->effect >= 0 && fault->effect <= 2 &&
           (fault->call == NULL || dvmm_vgpu_call_named(fault->call) != DVMM_N_ALL_CALLS);
}

ductile_status ductile_virtual_inject(ductile_virtual_gpu *gpu,
                                      const ductile_virtual_fault *fault) {
    if (fault != NULL && !is_fault(fault)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    dti_lock_acquire(&gpu->lock);
    vgpu_watch *watch = &gpu->watch;
    watch->has_fault = fault != NULL;
    watch->fault_seen = 0;
    watch->fault_fired = 0;
    if (fault != NULL) {
        watch->fault = *fault;
        watch->fault.call = NULL; /* the caller's; fault_call says it */
        watch->fault_call =
            fault->call != NULL ? dvmm_vgpu_call_named(fault->call) : DVMM_N_ALL_CALLS;
    }
    dti_lock_release(&gpu->lock);
    return DUCTILE_OK;
}

uint64_t ductile_virtual_faults_fired(ductile_virtual_gpu *gpu) {
    return read_count(gpu, &gpu->watch.fault_fired);
}

ductile_status ductile_virtual_set_external_bytes(ductile_virtual_gpu *gpu, uint64_t bytes) {
    ductile_status status = DUCTILE_ERR_OUT_OF_MEMORY;
    dti_lock_acquire(&gpu->lock);
    if (bytes <= gpu->options.capacity_bytes - gpu->memory.used_bytes) {
        gpu->memory.external_bytes = bytes;
        status = DUCTILE_OK;
    }
    dti_lock_release(&gpu->lock);
    return status;
}

/* ---- What it saw --------------------------------------------------------------------------- */

static ductile_virtual_state state_of(const vgpu *gpu) {
    const vgpu_memory *m = &gpu->memory;
    return (ductile_virtual_state){
        .used_bytes = m->used_bytes,
        .used_peak_bytes = m->used_peak_bytes,
        .handles = m->handles.n_live,
        .mappings = m->mappings.n_live,
        .reservations = m->n_ranges,
        .reserved_address_bytes = m->reserved_bytes,
        .streams = gpu->work.streams.n_live,
        .events = gpu->work.events.n_live,
        .allocations = m->n_allocations,
        .violations = gpu->watch.n_violations,
        .calls = gpu->watch.n_calls,
        .time_ns = atomic_load_explicit(&gpu->time_ns, memory_order_relaxed),
        .poisoned = gpu->poison,
        .detects = gpu->race.level,
        .host_bytes = m->host_bytes,
    };
}

ductile_status ductile_virtual_get_state(ductile_virtual_gpu *gpu, ductile_virtual_state *out) {
    if (gpu == NULL || out == NULL || out->struct_size < sizeof(out->struct_size)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    dti_lock_acquire(&gpu->lock);
    dvmm_vgpu_exports_sweep(gpu);
    ductile_virtual_state state = state_of(gpu);
    dti_lock_release(&gpu->lock);
    state.struct_size = out->struct_size;
    memcpy(out, &state, dti_min(out->struct_size, sizeof(state)));
    return DUCTILE_OK;
}

int ductile_virtual_access(ductile_virtual_gpu *gpu, ductile_addr address, int device) {
    dvmm_access access = DVMM_ACCESS_NONE;
    dti_lock_acquire(&gpu->lock);
    int code = dvmm_vgpu_get_access_for(gpu, address, device, &access);
    dti_lock_release(&gpu->lock);
    return code == DVMM_SUCCESS ? (int)access : -1;
}

uint64_t ductile_virtual_count(ductile_virtual_gpu *gpu, const char *call) {
    vgpu_call found = dvmm_vgpu_call_named(call);
    if (found == DVMM_N_ALL_CALLS) {
        return UINT64_MAX;
    }
    return read_count(gpu, &gpu->watch.calls[found]);
}

void ductile_virtual_last_violation(ductile_virtual_gpu *gpu, char *buffer, size_t size) {
    dti_lock_acquire(&gpu->lock);
    if (size != 0) {
        (void)snprintf(buffer, size, "%s", gpu->watch.violation);
    }
    dti_lock_release(&gpu->lock);
}

/* ---- What it detects ----------------------------------------------------------------------- */

uint64_t ductile_virtual_violations_of(ductile_virtual_gpu *gpu, ductile_violation kind) {
    if ((unsigned)kind >= VGPU_VIOLATION_KINDS) {
        return 0;
    }
    return read_count(gpu, &gpu->watch.violations_of[kind]);
}

ductile_status ductile_virtual_get_violation(ductile_virtual_gpu *gpu, uint64_t index,
                                             ductile_virtual_violation *out) {
    if (gpu == NULL || out == NULL || out->struct_size < sizeof(out->struct_size)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_virtual_violation found = {0};
    dti_lock_acquire(&gpu->lock);
    bool is_kept = index < dti_min(gpu->watch.n_violations, VGPU_KEPT_VIOLATIONS);
    if (is_kept) {
        found = gpu->watch.kept[index];
    }
    dti_lock_release(&gpu->lock);
    found.struct_size = out->struct_size;
    memcpy(out, &found, dti_min(out->struct_size, sizeof(found)));
    return is_kept ? DUCTILE_OK : DUCTILE_ERR_INVALID_ARGUMENT;
}

void ductile_virtual_block_begin(ductile_virtual_gpu *gpu, ductile_addr address, uint64_t size) {
    dti_lock_acquire(&gpu->lock);
    dvmm_vgpu_block_begin(gpu, address, size);
    dti_lock_release(&gpu->lock);
}

void ductile_virtual_block_end(ductile_virtual_gpu *gpu, ductile_addr address) {
    dti_lock_acquire(&gpu->lock);
    dvmm_vgpu_block_end(gpu, address);
    dti_lock_release(&gpu->lock);
}

/* ---- The log ------------------------------------------------------------------------------- */

/* The kept calls, oldest first. The caller frees it; NULL when the host has no memory. */
static vgpu_log_entry *copy_log(vgpu *gpu, uint64_t *n) {
    const vgpu_watch *watch = &gpu->watch;
    vgpu_log_entry *copy = calloc(watch->log_room + 1, sizeof(*copy));
    if (copy == NULL) {
        return NULL;
    }
    dti_lock_acquire(&gpu->lock);
    *n = dti_min(watch->n_calls, watch->log_room);
    uint64_t first = watch->n_calls - *n;
    for (uint64_t i = 0; i < *n; i++) {
        copy[i] = watch->log[(first + i) % watch->log_room];
    }
    dti_lock_release(&gpu->lock);
    return copy;
}

static int write_entry(const vgpu_log_entry *entry, ductile_write_fn write, void *user) {
    char line[160];
    int length =
        snprintf(line, sizeof(line), "%" PRIu64 " %s 0x%" PRIx64 " %" PRIu64 " %d\n", entry->number,
                 dvmm_vgpu_call_name(entry->call), entry->address, entry->size, entry->code);
    return write(user, line, (size_t)length);
}

ductile_status ductile_virtual_write_log(ductile_virtual_gpu *gpu, ductile_write_fn write,
                                         void *user) {
    if (gpu == NULL || write == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    uint64_t n;
    vgpu_log_entry *entries = copy_log(gpu, &n);
    if (entries == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    for (uint64_t i = 0; i < n && write_entry(&entries[i], write, user) == 0; i++) {
    }
    free(entries);
    return DUCTILE_OK;
}

/* ---- Contents ------------------------------------------------------------------------------ */

ductile_status ductile_virtual_upload(ductile_virtual_gpu *gpu, ductile_addr to, const void *from,
                                      uint64_t size, ductile_stream stream) {
    UNDER_LOCK(gpu, dvmm_vgpu_upload(gpu, to, from, size, stream));
}

ductile_status ductile_virtual_fill(ductile_virtual_gpu *gpu, ductile_addr to, uint8_t value,
                                    uint64_t size, ductile_stream stream) {
    UNDER_LOCK(gpu, dvmm_vgpu_fill(gpu, to, value, size, stream));
}

ductile_status ductile_virtual_read_back(ductile_virtual_gpu *gpu, void *to, ductile_addr from,
                                         uint64_t size, ductile_stream stream) {
    UNDER_LOCK(gpu, dvmm_vgpu_read_back(gpu, to, from, size, stream));
}
