/* SPDX-License-Identifier: Apache-2.0 */
/* The workbench of the alias probes. */
#include "tests/conformance/alias_bench.h"

/* ---- Addresses ----------------------------------------------------------------------------- */

const char *alias_map_all(alias_bench *t, ductile_addr at) {
    for (uint64_t i = 0; i < ALIAS_HANDLES; i++) {
        NEED_OK(dvmm_map(t->driver, at + i * t->granule, t->granule, t->handles[i]));
    }
    NEED_OK(dvmm_set_access(t->driver, at, t->bytes, DVMM_ACCESS_RW));
    return NULL;
}

const char *alias_drop_seconds(alias_bench *t) {
    NEED_OK(dvmm_stream_sync(t->driver, t->stream));
    NEED_OK(dvmm_stream_sync(t->driver, t->other));
    if (t->next_slot > 0) {
        NEED_OK(dvmm_unmap(t->driver, t->slots, t->next_slot * t->bytes));
    }
    t->next_slot = 0;
    return NULL;
}

const char *alias_map_second(alias_bench *t, ductile_addr *b) {
    if (t->next_slot == ALIAS_SLOTS) {
        TRY(alias_drop_seconds(t));
    }
    *b = t->slots + t->next_slot * t->bytes;
    TRY(alias_map_all(t, *b));
    t->next_slot++;
    return NULL;
}

/* ---- Launches ------------------------------------------------------------------------------ */

gpu_launch alias_launch(const alias_bench *t, gpu_kernel kernel, ductile_addr addr, uint64_t id) {
    return (gpu_launch){
        .kernel = kernel, .stream = t->stream, .arguments = {addr, t->n_words, id, t->counter}};
}

int alias_start(const alias_bench *t, gpu_kernel kernel, ductile_addr addr, uint64_t id) {
    gpu_launch l = alias_launch(t, kernel, addr, id);
    return gpu_start(t->gpu, &l);
}

int alias_spin(const alias_bench *t) {
    gpu_launch l = {.kernel = GPU_SPIN,
                    .stream = t->stream,
                    .blocks = 1,
                    .threads = 1,
                    .arguments = {ALIAS_WORK_NS}};
    return gpu_start(t->gpu, &l);
}

int alias_early(const alias_bench *t, gpu_kernel kernel, ductile_addr addr, uint64_t id) {
    gpu_launch l = alias_launch(t, kernel, addr, id);
    l.blocks = ALIAS_FEW_BLOCKS;
    l.arguments[kernel == GPU_EARLY_FILL ? 3 : 4] = ALIAS_WORK_NS; /* a check has a counter, too */
    return gpu_start(t->gpu, &l);
}

/* A kernel that may start before its elder is done. */
int alias_dependent(const alias_bench *t, gpu_kernel kernel, ductile_addr addr, uint64_t id) {
    gpu_launch l = alias_launch(t, kernel, addr, id);
    l.blocks = ALIAS_FEW_BLOCKS;
    l.programmatic = true;
    return gpu_start(t->gpu, &l);
}

int alias_start_guard(const alias_bench *t, uint64_t id) {
    const uint64_t limit_ns = 2000000000u;
    __atomic_store_n(t->flag, 0, __ATOMIC_SEQ_CST);
    gpu_launch l = alias_launch(t, GPU_GUARD_WORDS, t->a, id);
    l.blocks = ALIAS_FEW_BLOCKS;
    l.arguments[4] = (uint64_t)(uintptr_t)t->flag;
    l.arguments[5] = limit_ns;
    return gpu_start(t->gpu, &l);
}

void alias_stop_guard(const alias_bench *t) {
    __atomic_store_n(t->flag, 1, __ATOMIC_SEQ_CST);
}

const char *alias_clear_counter(alias_bench *t) {
    NEED_OK(dvmm_fill(t->driver, t->counter, 0, sizeof(uint64_t), t->stream));
    NEED_OK(dvmm_stream_sync(t->driver, t->stream));
    return NULL;
}

const char *alias_read_counter(alias_bench *t, uint64_t *out) {
    NEED_OK(dvmm_stream_sync(t->driver, t->other));
    NEED_OK(dvmm_read_back(t->driver, out, t->counter, sizeof(*out), t->stream));
    return NULL;
}

/* ---- The workbench ------------------------------------------------------------------------- */

static const char *make_memory(alias_bench *t) {
    const dvmm_phys_props plain = {0};
    t->granule = dvmm_get_caps(t->driver)->granule_bytes;
    t->bytes = ALIAS_HANDLES * t->granule;
    t->n_words = t->bytes / sizeof(uint32_t);
    for (int i = 0; i < ALIAS_HANDLES; i++) {
        NEED_OK(dvmm_phys_create(t->driver, t->granule, &plain, &t->handles[i]));
    }
    NEED_OK(dvmm_address_reserve(t->driver, t->bytes, &t->a));
    NEED_OK(dvmm_address_reserve(t->driver, ALIAS_SLOTS * t->bytes, &t->slots));
    TRY(alias_map_all(t, t->a));
    NEED_OK(dvmm_mem_alloc(t->driver, t->bytes, &t->plain));
    NEED_OK(dvmm_mem_alloc(t->driver, sizeof(uint64_t), &t->counter));
    return NULL;
}

const char *alias_make(alias_bench *t) {
    void *host = NULL;
    NEED_OK(dvmm_stream_create(t->driver, &t->stream));
    NEED_OK(dvmm_stream_create(t->driver, &t->other));
    NEED_OK(dvmm_event_create(t->driver, &t->event));
    NEED_OK(dvmm_host_alloc(t->driver, sizeof(uint64_t), &host));
    t->flag = host;
    t->next_id = 1;
    return make_memory(t);
}

/* Orderly, so that a leak checker on the device has nothing to say; the process ends anyway. */
void alias_drop(alias_bench *t) {
    dvmm_driver *d = t->driver;
    (void)alias_drop_seconds(t);
    (void)dvmm_unmap(d, t->a, t->bytes);
    (void)dvmm_address_free(d, t->a, t->bytes);
    (void)dvmm_address_free(d, t->slots, ALIAS_SLOTS * t->bytes);
    for (int i = 0; i < ALIAS_HANDLES; i++) {
        (void)dvmm_phys_release(d, t->handles[i]);
    }
    (void)dvmm_mem_free(d, t->plain);
    (void)dvmm_mem_free(d, t->counter);
    (void)dvmm_host_free(d, t->flag);
    (void)dvmm_event_destroy(d, t->event);
    (void)dvmm_stream_destroy(d, t->stream);
    (void)dvmm_stream_destroy(d, t->other);
}
