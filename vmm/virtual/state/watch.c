/* SPDX-License-Identifier: Apache-2.0 */
/* Planned faults, violations and the call log of the virtual GPU. */
#include "vmm/virtual/state/watch.h"

#include "vmm/virtual/state/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dvmm_vgpu_watch_init(vgpu *gpu) {
    gpu->watch.log_room = gpu->options.log_calls;
    if (gpu->watch.log_room != 0) {
        gpu->watch.log = calloc(gpu->watch.log_room, sizeof(*gpu->watch.log));
    }
    return gpu->watch.log_room == 0 || gpu->watch.log != NULL;
}

void dvmm_vgpu_watch_fini(vgpu *gpu) {
    free(gpu->watch.log);
}

const char *dvmm_vgpu_call_name(vgpu_call call) {
    static const char *const of_bench[] = {
#define CALL_NAME(name, parameters) #name,
        DVMM_BENCH_CALLS(CALL_NAME)
#undef CALL_NAME
    };
    return call < DVMM_N_CALLS ? dvmm_call_name((dvmm_call)call) : of_bench[call - DVMM_N_CALLS];
}

vgpu_call dvmm_vgpu_call_named(const char *name) {
    vgpu_call call = 0;
    while (call < DVMM_N_ALL_CALLS && strcmp(name, dvmm_vgpu_call_name(call)) != 0) {
        call++;
    }
    return call;
}

const ductile_virtual_fault *dvmm_vgpu_fault_for(vgpu *gpu, vgpu_call call) {
    vgpu_watch *watch = &gpu->watch;
    if (!watch->has_fault || (watch->fault_call != DVMM_N_ALL_CALLS && watch->fault_call != call)) {
        return NULL;
    }
    watch->fault_seen++;
    bool is_hit = watch->fault.persistent ? watch->fault_seen >= watch->fault.nth
                                          : watch->fault_seen == watch->fault.nth;
    watch->fault_fired += is_hit;
    return is_hit ? &watch->fault : NULL;
}

void dvmm_vgpu_log(vgpu *gpu, vgpu_call call, uint64_t address, uint64_t size, int code) {
    vgpu_watch *watch = &gpu->watch;
    watch->calls[call]++;
    watch->n_calls++;
    if (watch->log_room != 0) {
        watch->log[(watch->n_calls - 1) % watch->log_room] =
            (vgpu_log_entry){watch->n_calls, call, code, address, size};
    }
}

const char *ductile_virtual_violation_name(ductile_violation kind) {
    static const char *const names[VGPU_VIOLATION_KINDS] = {
#define VIOLATION_NAME(name, value, text, sentence) [value] = (text),
        DUCTILE_VIOLATION_MAP(VIOLATION_NAME)
#undef VIOLATION_NAME
    };
    return (unsigned)kind < VGPU_VIOLATION_KINDS ? names[kind] : "unknown";
}

/* The text is that of the latest violation. */
static void keep(vgpu *gpu, ductile_violation kind, const ductile_virtual_side *first,
                 const ductile_virtual_side *second) {
    vgpu_watch *watch = &gpu->watch;
    if (watch->n_violations < VGPU_KEPT_VIOLATIONS) {
        ductile_virtual_violation *kept = &watch->kept[watch->n_violations];
        *kept = (ductile_virtual_violation){.kind = kind, .first = *first, .second = *second};
        memcpy(kept->text, watch->violation, sizeof(kept->text));
    }
    watch->n_violations++;
    watch->violations_of[kind]++;
}

void dvmm_vgpu_violation(vgpu *gpu, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(gpu->watch.violation, sizeof(gpu->watch.violation), format, args);
    va_end(args);
    static const ductile_virtual_side unknown;
    keep(gpu, DUCTILE_VIOLATION_MISUSE, &unknown, &unknown);
}

static void describe(const ductile_virtual_side *side, char *out, size_t size) {
    int length;
    if (side->is_host) {
        length = side->operation != 0
                     ? snprintf(out, size, "driver call %llu", (unsigned long long)side->operation)
                     : snprintf(out, size, "the host");
    } else {
        length =
            snprintf(out, size, "work %llu of stream %llu %s", (unsigned long long)side->operation,
                     (unsigned long long)side->stream_id, side->writes ? "writes" : "reads");
    }
    size_t used = length > 0 && (size_t)length < size ? (size_t)length : 0;
    (void)snprintf(out + used, size - used, " %#llx+%llu (handle %llu, block %llu)", side->address,
                   (unsigned long long)side->size, (unsigned long long)side->handle,
                   (unsigned long long)side->block);
}

void dvmm_vgpu_report(vgpu *gpu, ductile_violation kind, const ductile_virtual_side *first,
                      const ductile_virtual_side *second) {
    char before[100] = "";
    char now[100];
    if (first->address != 0) {
        describe(first, before, sizeof(before));
    }
    describe(second, now, sizeof(now));
    (void)snprintf(gpu->watch.violation, sizeof(gpu->watch.violation), "%s: %s%s%s",
                   ductile_virtual_violation_name(kind), before, before[0] != '\0' ? "; then " : "",
                   now);
    keep(gpu, kind, first, second);
}

void dvmm_vgpu_poison(vgpu *gpu, int code) {
    if (gpu->poison == 0) {
        gpu->poison = code;
    }
}
