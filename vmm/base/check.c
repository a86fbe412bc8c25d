/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static void report_and_abort(const dti_failure *failure) {
    (void)fprintf(stderr, "ductile: %s:%d: check failed%s%s: %s\n", failure->file, failure->line,
                  failure->invariant[0] != '\0' ? ", invariant " : "", failure->invariant,
                  failure->condition);
    abort();
}

static _Atomic(dti_fail_handler) current_handler = report_and_abort;

void dti_set_fail_handler(dti_fail_handler handler) {
    atomic_store(&current_handler, handler);
}

void dti_fail(const char *invariant, const char *condition, const char *file, int line) {
    dti_failure failure = {invariant, condition, file, line};
    atomic_load (&current_handler)(&failure);
}
