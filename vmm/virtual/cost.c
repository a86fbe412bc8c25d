/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a driver call costs, as measured on an H200 (driver 580.159, CUDA 13.0, Linux).
 * Between two measured sizes the cost is on the line between them; beyond the last, on its
 * continuation. Calls that were not measured cost nothing: no figure is guessed.
 */
#include "vmm/virtual/cost.h"

#include "vmm/base/align.h"

enum { MAX_POINTS = 6 };

typedef struct cost_curve {
    struct {
        uint32_t mib;
        uint32_t ns;
    } points[MAX_POINTS]; /* ascending in size, ended by ns == 0 */
} cost_curve;

static const cost_curve curves[DVMM_N_ALL_CALLS] = {
    [DVMM_CALL_mem_info] = {{{0, 3300}}},
    /* 1.9-7 us from 256 GiB to 4 TiB, 3-160 us to free: the geometric means */
    [DVMM_CALL_address_reserve] = {{{0, 3600}}},
    [DVMM_CALL_address_free] = {{{0, 22000}}},
    [DVMM_CALL_phys_create] =
        {{{2, 6100}, {8, 6500}, {20, 6600}, {64, 7100}, {256, 9100}, {1024, 16900}}},
    [DVMM_CALL_phys_release] =
        {{{2, 7400}, {8, 8900}, {20, 13000}, {64, 25000}, {256, 65000}, {1024, 222000}}},
    [DVMM_CALL_map] = {{{2, 400}, {8, 350}, {20, 360}, {64, 340}, {256, 380}, {1024, 400}}},
    [DVMM_CALL_unmap] =
        {{{2, 12800}, {8, 12400}, {20, 12500}, {64, 13200}, {256, 15300}, {1024, 22800}}},
    [DVMM_CALL_set_access] =
        {{{2, 18500}, {8, 17600}, {20, 18000}, {64, 19400}, {256, 25900}, {1024, 45900}}},
    [DVMM_BENCH_mem_alloc] = {{{2, 30000}, {1024, 73000}}},
    [DVMM_BENCH_mem_free] = {{{2, 26000}, {1024, 239000}}},
    [DVMM_CALL_stream_sync] = {{{0, 210}}},
    [DVMM_BENCH_stream_query] = {{{0, 110}}},
    [DVMM_CALL_context_record] = {{{0, 200}}},
    [DVMM_CALL_capture_status] = {{{0, 12}}},
    [DVMM_CALL_event_create] = {{{0, 60}}},
    [DVMM_CALL_event_destroy] = {{{0, 60}}},
    [DVMM_CALL_event_record] = {{{0, 130}}},
    [DVMM_CALL_event_query] = {{{0, 100}}},
};

/* ns at `bytes` on the line through points i and i + 1. */
static uint64_t on_line(const cost_curve *curve, int i, uint64_t bytes) {
    uint64_t from = curve->points[i].mib * DTI_MIB;
    uint64_t to = curve->points[i + 1].mib * DTI_MIB;
    double share = (double)(bytes - from) / (double)(to - from);
    double rise = (double)curve->points[i + 1].ns - (double)curve->points[i].ns;
    return (uint64_t)((double)curve->points[i].ns + share * rise);
}

static bool has_point(const cost_curve *curve, int i) {
    return i < MAX_POINTS && curve->points[i].ns != 0;
}

static uint64_t cost_of_one(const cost_curve *curve, uint64_t bytes) {
    if (!has_point(curve, 1) || bytes <= curve->points[0].mib * DTI_MIB) {
        return curve->points[0].ns;
    }
    int i = 0;
    while (has_point(curve, i + 2) && bytes > curve->points[i + 1].mib * DTI_MIB) {
        i++;
    }
    return on_line(curve, i, bytes);
}

/* 0.46, 6.4 and 25.6 ms for 2, 32 and 128 MiB. */
uint64_t dvmm_vgpu_host_create_ns(uint64_t size) {
    return 60000 + size / DTI_KIB * 195;
}

/* One call over several mappings costs as much as a call for each: that was measured, too. */
uint64_t dvmm_vgpu_cost_ns(vgpu_call call, uint64_t size, uint64_t n) {
    uint64_t count = dti_max(n, 1);
    return count * cost_of_one(&curves[call], size / count);
}
