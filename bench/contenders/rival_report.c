/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/rival_report.h"

#include <stdio.h>

ductile_status rival_refuse(ductile_status status, const char *text, char *message, size_t size) {
    if (size > 0) {
        (void)snprintf(message, size, "%s", text);
    }
    return status;
}

static uint64_t succeeded(const dvmm_counters *counters, dvmm_call call) {
    return counters->calls[call] - counters->failures[call];
}

void rival_driver_stats(const dvmm_driver *driver, contender_stats *out) {
    dvmm_counters counters;
    dvmm_get_counters(driver, &counters);
    out->creates = succeeded(&counters, DVMM_CALL_phys_create) +
                   succeeded(&counters, DVMM_CALL_mem_alloc) +
                   succeeded(&counters, DVMM_CALL_mem_alloc_async);
    out->releases = succeeded(&counters, DVMM_CALL_phys_release) +
                    succeeded(&counters, DVMM_CALL_mem_free) +
                    succeeded(&counters, DVMM_CALL_mem_free_async);
    out->maps = succeeded(&counters, DVMM_CALL_map);
    out->unmaps = succeeded(&counters, DVMM_CALL_unmap);
    out->stream_syncs = counters.calls[DVMM_CALL_stream_sync] +
                        counters.calls[DVMM_CALL_event_sync] +
                        counters.calls[DVMM_CALL_context_sync];
    out->event_waits = counters.calls[DVMM_CALL_stream_wait_event];
    out->driver_time_ns = counters.driver_time_ns;
    out->driver_host_ns = counters.host_time_ns;
}
