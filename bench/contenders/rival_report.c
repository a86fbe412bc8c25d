/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/rival_report.h"

#include <stdio.h>

ductile_status rival_refuse(ductile_status status, const char *text, char *message, size_t size) {
    if (size > 0) {
        (void)snprintf(message, size, "%s", text);
    }
    return status;
}

void rival_driver_stats(const dvmm_driver *driver, contender_stats *out) {
    dvmm_counters counters;
    dvmm_get_counters(driver, &counters);
    out->creates = dvmm_successes(&counters, DVMM_CALL_phys_create) +
                   dvmm_successes(&counters, DVMM_CALL_mem_alloc) +
                   dvmm_successes(&counters, DVMM_CALL_mem_alloc_async);
    out->releases = dvmm_successes(&counters, DVMM_CALL_phys_release) +
                    dvmm_successes(&counters, DVMM_CALL_mem_free) +
                    dvmm_successes(&counters, DVMM_CALL_mem_free_async);
    out->maps = dvmm_successes(&counters, DVMM_CALL_map);
    out->unmaps = dvmm_successes(&counters, DVMM_CALL_unmap);
    out->stream_syncs = dvmm_count_host_waits(&counters);
    out->event_waits = counters.calls[DVMM_CALL_stream_wait_event];
    out->driver_time_ns = counters.driver_time_ns;
    out->driver_host_ns = counters.host_time_ns;
}
