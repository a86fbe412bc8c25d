/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the virtual GPU, shared by the driver_virtual*.c files and nobody else.
 *
 *   driver_virtual.c            life, the call pipeline, the table of the seam
 *   driver_virtual_addresses.c  reservations, and which granule maps what
 *   driver_virtual_memory.c     physical handles and mappings
 *   driver_virtual_share.c      access of other devices; export and import
 *   driver_virtual_alloc.c      cuMemAlloc
 *   driver_virtual_content.c    what the bytes are
 *   driver_virtual_work.c       queues of work, and when it runs
 *   driver_virtual_streams.c    streams
 *   driver_virtual_events.c     events, and waits for them
 *   driver_virtual_uses.c       work with memory; host memory
 *   driver_virtual_capture.c    stream capture
 *   driver_virtual_graph.c      graphs
 *   driver_virtual_race.h       detection of misuse, in four files
 *   driver_virtual_watch.c      planned faults, violations, the call log
 *   driver_virtual_cost.c       what a call costs
 *   driver_virtual_api.c        the functions of ductile_virtual.h
 *
 * Unless a comment says otherwise, every function here is called with gpu->lock held and returns
 * the driver's code.
 */
#ifndef DUCTILE_VMM_VIRTUAL_GPU_H
#define DUCTILE_VMM_VIRTUAL_GPU_H

#include "vmm/base/lock.h"
#include "vmm/driver/driver.h"
#include "vmm/virtual/memory/memory.h"
#include "vmm/virtual/work/work.h"

#include <ductile_virtual.h>

/* ---- What it saw --------------------------------------------------------------------------- */

typedef struct vgpu_log_entry {
    uint64_t number;
    dvmm_call call;
    int code;
    uint64_t address;
    uint64_t size;
} vgpu_log_entry;

enum { VGPU_VIOLATION_KINDS = DUCTILE_VIOLATION_OVERLAP + 1, VGPU_KEPT_VIOLATIONS = 32 };

typedef struct vgpu_watch {
    uint64_t calls[DVMM_N_CALLS];
    uint64_t n_calls;

    bool has_fault;
    dvmm_call fault_call; /* DVMM_N_CALLS: any */
    ductile_virtual_fault fault;
    uint64_t fault_seen;
    uint64_t fault_fired;

    uint64_t n_violations;
    uint64_t violations_of[VGPU_VIOLATION_KINDS];
    ductile_virtual_violation kept[VGPU_KEPT_VIOLATIONS]; /* the first */
    char violation[240];                                  /* the latest */

    vgpu_log_entry *log; /* a ring of log_room */
    uint64_t log_room;
} vgpu_watch;

struct ductile_virtual_gpu {
    /* constant after creation */
    ductile_virtual_options options; /* no field means "default" any more */
    unsigned granule_shift;
    uint64_t identity; /* among the virtual GPUs of all processes */
    bool is_private;   /* closing the driver destroys it */

    _Atomic uint64_t time_ns; /* written under the lock, read without */

    dti_lock lock; /* guards everything below */
    int poison;    /* 0, or the first sticky code */
    vgpu_memory memory;
    vgpu_work work;
    vgpu_watch watch;
    vgpu_race race;
};

/* ---- driver_virtual_watch.c ---------------------------------------------------------------- */

bool dvmm_vgpu_watch_init(vgpu *gpu);
void dvmm_vgpu_watch_fini(vgpu *gpu);
/* The planned fault, if this call is the one; NULL otherwise. */
const ductile_virtual_fault *dvmm_vgpu_fault_for(vgpu *gpu, dvmm_call call);
void dvmm_vgpu_log(vgpu *gpu, dvmm_call call, uint64_t address, uint64_t size, int code);
/* A mistake that the hardware lets pass. */
void dvmm_vgpu_violation(vgpu *gpu, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One that was detected. `first` may be all zero: not known. */
void dvmm_vgpu_report(vgpu *gpu, ductile_violation kind, const ductile_virtual_side *first,
                      const ductile_virtual_side *second);
void dvmm_vgpu_poison(vgpu *gpu, int code);

/* ---- driver_virtual_cost.c ----------------------------------------------------------------- */

/* What one call costs, in ns; `n` is how many mappings of `size` bytes in all it touches. Pure. */
uint64_t dvmm_vgpu_cost_ns(dvmm_call call, uint64_t size, uint64_t n);

#endif
