/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { MAX_LINE = 512 };

void dpool_log(const ductile_allocator *a, ductile_log_level level, const char *format, ...) {
    if (a->options.log == NULL) {
        return;
    }
    char line[MAX_LINE];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    a->options.log(a->options.log_user, level, line);
}

static void log_out_of_memory(ductile_allocator *a, uint64_t requested) {
    ductile_stats s = {.struct_size = sizeof s};
    if (ductile_get_stats(a, &s) != DUCTILE_OK) {
        return;
    }
    dpool_log(a, DUCTILE_LOG_WARNING,
              "out of memory: %" PRIu64 " bytes asked for; of a limit of %" PRIu64 ", %" PRIu64
              " are held: %" PRIu64 " live, %" PRIu64 " free, %" PRIu64
              " waiting for other streams, %" PRIu64 " lost to driver failures",
              requested, a->store.limit_bytes, s.reserved_bytes, s.allocated_bytes, s.free_bytes,
              s.pending_bytes, s.quarantined_bytes);
}

void dpool_log_refusal(ductile_allocator *a, ductile_status status, uint64_t requested) {
    if (a->options.log == NULL) {
        return;
    }
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        log_out_of_memory(a, requested);
        return;
    }
    dpool_log(a, DUCTILE_LOG_ERROR, "allocation of %" PRIu64 " bytes refused: %s (driver: %s)",
              requested, ductile_status_name(status), dvmm_code_name(dvmm_last_code()));
}
