/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fault_sites.h"

#include "tests/support/rng.h"

#include <ductile_virtual.h>

#include <execinfo.h>

/* ---- Where calls come from ----------------------------------------------------------------- */

enum { N_FRAMES_MAX = 64 };

static fault_sites *recording; /* NULL: no test asks */

static uint64_t way_here(void) {
    void *frames[N_FRAMES_MAX];
    int n = backtrace(frames, N_FRAMES_MAX);
    uint64_t way = 0;
    for (int i = 0; i < n; i++) {
        way = rng_mixed(way + (uint64_t)(uintptr_t)frames[i]);
    }
    return way;
}

static void write_down(dvmm_call call) {
    if (recording->n == N_FAULT_SITES_MAX) {
        return; /* the test sees a full list */
    }
    fault_site site = {
        .call = call, .nth = 1, .way = way_here(), .is_new = true, .in_end = recording->in_end};
    for (size_t i = 0; i < recording->n; i++) {
        const fault_site *earlier = &recording->list[i];
        site.nth += earlier->call == call;
        site.is_new = site.is_new && !(earlier->call == call && earlier->way == site.way);
    }
    recording->list[recording->n++] = site;
}

void fault_sites_record(fault_sites *sites) {
    recording = sites;
    if (sites != NULL) {
        sites->n = 0;
        sites->in_end = false;
    }
}

void fault_sites_mark_end(void) {
    if (recording != NULL) {
        recording->in_end = true;
    }
}

/* ---- Calls that failed --------------------------------------------------------------------- */

static failed_calls failed;

static void add_failed(dvmm_call call, uint64_t size) {
    failed.first = failed.first != NULL ? failed.first : dvmm_call_name(call);
    switch ((int)call) {
    case DVMM_CALL_unmap:
        failed.unmap_bytes += size;
        break;
    case DVMM_CALL_phys_release:
        failed.releases++;
        break;
    case DVMM_CALL_address_free:
        failed.address_frees++;
        break;
    case DVMM_CALL_event_destroy:
        failed.event_destroys++;
        break;
    case DVMM_CALL_stream_sync:
    case DVMM_CALL_event_sync:
    case DVMM_CALL_context_sync:
        failed.syncs++;
        break;
    case DVMM_CALL_event_create:
    case DVMM_CALL_event_record:
    case DVMM_CALL_context_record:
    case DVMM_CALL_stream_is_ours:
    case DVMM_CALL_capture_status:
        failed.marks++;
        break;
    default:
        break;
    }
}

failed_calls failed_calls_get(void) {
    return failed;
}

void failed_calls_reset(void) {
    failed = (failed_calls){0};
}

/* ---- The virtual GPU's log ----------------------------------------------------------------- */

void __real_dvmm_vgpu_log(ductile_virtual_gpu *gpu, dvmm_call call, uint64_t address, uint64_t size,
                          int code);
void __wrap_dvmm_vgpu_log(ductile_virtual_gpu *gpu, dvmm_call call, uint64_t address, uint64_t size,
                          int code);

void __wrap_dvmm_vgpu_log(ductile_virtual_gpu *gpu, dvmm_call call, uint64_t address, uint64_t size,
                          int code) {
    if (recording != NULL && call < DVMM_N_CALLS) { /* and not one of the bench's */
        write_down(call);
    }
    if (code != DVMM_SUCCESS && code != DVMM_NOT_READY) {
        add_failed(call, size);
    } else if (call == DVMM_CALL_phys_create && size > failed.largest_handle) {
        failed.largest_handle = size;
    }
    __real_dvmm_vgpu_log(gpu, call, address, size, code);
}
