/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One physical memory at two addresses, and the steps that probes of it are made of. Steps return
 * NULL or a complaint; launches return the driver's code.
 */
#ifndef TESTS_SUPPORT_ALIAS_BENCH_H
#define TESTS_SUPPORT_ALIAS_BENCH_H

#include "tests/support/complain.h"
#include "tests/support/gpu_kernels.h"
#include "vmm/driver/driver.h"

#include <stddef.h>

enum {
    ALIAS_HANDLES = 16,    /* one granule each: several mappings, as in a real move         */
    ALIAS_SLOTS = 8,       /* places for the second address; each round takes the next one  */
    ALIAS_FEW_BLOCKS = 64, /* leaves room for a dependent kernel to start beside its elder  */
    ALIAS_WORK_NS = 200000 /* how long the elder takes before it touches memory             */
};

/* What the probes share. The memory has its first address at `a` permanently, a second one at `b`
 * for one round, and there is other memory to copy to and from at `plain`. */
typedef struct alias_bench {
    dvmm_driver *driver;
    gpu_kernels *gpu;
    ductile_stream stream;
    ductile_stream other;
    dvmm_event event;
    uint64_t granule;
    uint64_t bytes;
    uint64_t n_words;
    dvmm_phys handles[ALIAS_HANDLES];
    ductile_addr a;
    ductile_addr b;     /* the latest second address */
    ductile_addr slots; /* ALIAS_SLOTS spans for second addresses */
    ductile_addr plain;
    ductile_addr counter; /* device memory: words that differed */
    uint64_t *flag;       /* host memory that a kernel watches */
    unsigned next_slot;
    uint64_t next_id;
} alias_bench;

/* driver and gpu are set by the caller, who also closes them. */
const char *alias_make(alias_bench *t);
void alias_drop(alias_bench *t);

/* The second address, mapped now, while whatever was issued before may be running. */
const char *alias_map_second(alias_bench *t, ductile_addr *b);

/* Waits for all work and unmaps every second address, so that the next ones need no wait. */
const char *alias_drop_seconds(alias_bench *t);

const char *alias_map_all(alias_bench *t, ductile_addr at);

/* A launch on the bench's stream with the operands of most kernels. */
gpu_launch alias_launch(const alias_bench *t, gpu_kernel kernel, ductile_addr addr, uint64_t id);

int alias_spin(const alias_bench *t);
int alias_start(const alias_bench *t, gpu_kernel kernel, ductile_addr addr, uint64_t id);

/* A kernel that lets its successor start, passes time, and only then touches memory. */
int alias_early(const alias_bench *t, gpu_kernel kernel, ductile_addr addr, uint64_t id);

/* A kernel that may start before its elder is done. */
int alias_dependent(const alias_bench *t, gpu_kernel kernel, ductile_addr addr, uint64_t id);

/* A kernel that checks the first address over and over until it is stopped. */
int alias_start_guard(const alias_bench *t, uint64_t id);
void alias_stop_guard(const alias_bench *t);

const char *alias_clear_counter(alias_bench *t);
const char *alias_read_counter(alias_bench *t, uint64_t *out);

/* Returns from the calling step with a complaint when a launch failed. */
#define NEED_CODE(call)                                                                            \
    do {                                                                                           \
        int need_code = (call);                                                                    \
        NEED(need_code == 0, "%s failed with %d", #call, need_code);                               \
    } while (0)

/* What a probe relies on: the order of the stream; an event between two kernels; nothing. The last
 * is for the probe that shows that a difference is seen. */
typedef enum alias_promise {
    PROMISE_KEPT,
    PROMISE_EVENT,
    PROMISE_NONE,
    PROMISE_DIFFERENT
} alias_promise;

typedef struct alias_probe {
    const char *name;
    const char *steps;
    alias_promise promise;
    bool is_dependent; /* needs programmatic dependent launch */
} alias_probe;

extern const alias_probe alias_probes[];
extern const size_t n_alias_probes;

const char *alias_play(alias_bench *t, const char *steps);

#endif
