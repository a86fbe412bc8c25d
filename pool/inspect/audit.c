/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/inspect/audit.h"

#include "pool/base/log.h"

void dpool_audit_now(ductile_allocator *a) {
    char report[256];
    if (ductile_check(a, report, sizeof report) == DUCTILE_OK) {
        return;
    }
    dpool_log(a, DUCTILE_LOG_ERROR, "invariant broken: %s", report);
    if (DUCTILE_CHECK >= 3) {
        dti_fail("", report, __FILE__, __LINE__);
    }
}
