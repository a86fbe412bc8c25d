/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/base/log.h"

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

/* ---- Driver failures ----------------------------------------------------------------------- */

typedef struct failure {
    bool happened;
    dvmm_call call;
    int code;
    uint64_t size;
} failure;

static _Thread_local failure first_failure;

void dpool_record_failure(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    (void)user;
    (void)address;
    if (!first_failure.happened) {
        first_failure = (failure){true, call, code, size};
    }
}

void dpool_forget_failure(void) {
    first_failure.happened = false;
}

static void log_met_capture(ductile_allocator *a) {
    if (atomic_load_explicit(&a->met_capture, memory_order_relaxed) &&
        atomic_exchange(&a->met_capture, false)) {
        dpool_log(
            a, DUCTILE_LOG_WARNING,
            "a context marker met a stream capture that was not announced, and broke it: from "
            "now on memory moves between streams only under pressure. Announce captures "
            "(ductile_capture_begin), or set captures:unannounced");
    }
}

void dpool_log_losses(ductile_allocator *a) {
    log_met_capture(a);
    dti_lock_acquire(&a->index_lock);
    uint64_t all = dvmm_store_read(&a->store).lost_bytes;
    uint64_t lost = all - a->lost_reported;
    a->lost_reported = all;
    dti_lock_release(&a->index_lock);
    if (lost != 0) {
        dpool_log(a, DUCTILE_LOG_WARNING,
                  "%" PRIu64 " bytes are lost: the driver failed to undo a call (%s: %s)", lost,
                  first_failure.happened ? dvmm_call_name(first_failure.call) : "an earlier call",
                  first_failure.happened ? dvmm_code_name(first_failure.code) : "unknown");
    }
}

bool dpool_describe_failure(char *text, size_t size) {
    if (first_failure.happened) {
        (void)snprintf(text, size, "driver call %s of %" PRIu64 " bytes returned %s (%d)",
                       dvmm_call_name(first_failure.call), first_failure.size,
                       dvmm_code_name(first_failure.code), first_failure.code);
    }
    return first_failure.happened;
}

void dpool_log_failure(const ductile_allocator *a, ductile_status status, uint64_t requested) {
    char why[DPOOL_FAILURE_BYTES] = "";
    bool is_drivers = dpool_describe_failure(why, sizeof why);
    dpool_log(a, DUCTILE_LOG_ERROR, "allocation of %" PRIu64 " bytes refused: %s%s%s", requested,
              ductile_status_name(status), is_drivers ? ": " : "", why);
}
