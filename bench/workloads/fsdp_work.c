/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/fsdp_work.h"

void fsdp_work_init(fsdp_work *w, const fsdp_work_ops *ops, const stage *on, uint64_t seed) {
    *w = (fsdp_work){.ops = ops, .on = on, .random = seed * 0x9E3779B97F4A7C15u + 1};
}

void fsdp_work_close(fsdp_work *w) {
    if (w != NULL) {
        w->ops->close(w);
    }
}

/* Within 10 %: no two kernels of real life take equally long. */
static uint64_t vary(fsdp_work *w, uint64_t ns) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    uint64_t percent = 90 + (w->random >> 33) % 21;
    return ns / 100 * percent;
}

ductile_status fsdp_work_busy(fsdp_work *w, size_t stream, uint64_t ns, ductile_addr address,
                              uint64_t size) {
    return w->ops->busy(w, stream, vary(w, ns), address, size);
}

ductile_status fsdp_work_host(fsdp_work *w, uint64_t ns) {
    return w->ops->host(w, vary(w, ns));
}
