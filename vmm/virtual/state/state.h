/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The virtual GPU as its files see it; the table of files is in vmm/virtual/README.md. Unless a
 * header says otherwise, every function is called with gpu->lock held, and an int result is the
 * code of the driver.
 */
#ifndef DUCTILE_VMM_VIRTUAL_STATE_STATE_H
#define DUCTILE_VMM_VIRTUAL_STATE_STATE_H

#include "vmm/base/lock.h"
#include "vmm/driver/open_virtual.h"
#include "vmm/virtual/state/memory_state.h"
#include "vmm/virtual/state/race_state.h"
#include "vmm/virtual/state/work_state.h"

#include <ductile_virtual.h>

typedef unsigned vgpu_call; /* a dvmm_call, or a dvmm_bench_call */

typedef struct vgpu_log_entry {
    uint64_t number;
    vgpu_call call;
    int code;
    uint64_t address;
    uint64_t size;
} vgpu_log_entry;

enum { VGPU_VIOLATION_KINDS = DUCTILE_VIOLATION_OVERLAP + 1, VGPU_KEPT_VIOLATIONS = 32 };

typedef struct vgpu_watch {
    uint64_t calls[DVMM_N_ALL_CALLS];
    uint64_t n_calls;

    bool has_fault;
    vgpu_call fault_call; /* DVMM_N_ALL_CALLS: any */
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
    dvmm_virtual_head head;          /* stays first: the allocator reads it */
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

typedef struct ductile_virtual_gpu vgpu;

#endif
