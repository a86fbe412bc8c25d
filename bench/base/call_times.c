/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/base/call_times.h"

#include "bench/base/array.h"

#include <stdlib.h>

bool call_times_reserve(call_times *t, size_t n) {
    uint64_t *ns = n <= SIZE_MAX / sizeof *ns ? realloc(t->ns, (n + 1) * sizeof *ns) : NULL;
    if (ns == NULL) {
        return false;
    }
    t->ns = ns;
    t->capacity = n;
    return true;
}

void call_times_drop(call_times *t) {
    free(t->ns);
    *t = (call_times){0};
}

/* Pre: sorted, not empty. */
static uint64_t percentile(const call_times *t, size_t percent) {
    size_t rank = (t->n / 100) * percent + ((t->n % 100) * percent + 99) / 100;
    return t->ns[rank - 1];
}

call_summary call_times_summarize(call_times *t) {
    if (t->n == 0) {
        return (call_summary){0};
    }
    qsort(t->ns, t->n, sizeof *t->ns, array_by_number);
    return (call_summary){.calls = t->n,
                          .median_ns = percentile(t, 50),
                          .p99_ns = percentile(t, 99),
                          .worst_ns = t->ns[t->n - 1]};
}

void call_summary_json(dti_json *j, const char *name, const call_summary *calls) {
    dti_json_open(j, name, '{');
    dti_json_number(j, "calls", calls->calls);
    dti_json_number(j, "median", calls->median_ns);
    dti_json_number(j, "p99", calls->p99_ns);
    dti_json_number(j, "worst", calls->worst_ns);
    dti_json_close(j, '}');
}
