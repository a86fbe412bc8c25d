/* SPDX-License-Identifier: Apache-2.0 */
/* One program under one contender, on a virtual GPU of its own. */
#ifndef TESTS_BENCH_PROGRAM_H
#define TESTS_BENCH_PROGRAM_H

#include "bench/replay/testbed.h"
#include "vmm/base/align.h"

#include <criterion/criterion.h>

#define KIB ((uint64_t)1 << 10)
#define MIB DTI_MIB
#define GIB DTI_GIB

enum { MOST_BLOCKS = 8192 };

typedef struct program_block {
    ductile_addr address;
    uint64_t size;
} program_block;

static struct {
    bench_device device;
    testbed bed;
    const contender_ops *ops;
    void *self;                        /* the contender */
    program_block blocks[MOST_BLOCKS]; /* live, in no order */
    size_t n_blocks;
    uint64_t live, live_peak;
    uint64_t n_refused;
} now;

/* setting: as in DUCTILE_CONF, NULL for none. */
static inline void start_with(const contender_ops *contender, uint64_t capacity,
                              const char *setting, ductile_schedule schedule) {
    char reason[256] = "";
    memset(&now, 0, sizeof now);
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &now.device, reason, sizeof reason));
    const testbed_plan plan = {.device = &now.device,
                               .contender = contender,
                               .capacity_bytes = capacity,
                               .n_streams = 2,
                               .pace = {.schedule = schedule},
                               .settings = &setting,
                               .n_settings = setting != NULL};
    cr_assert_eq(testbed_open(&now.bed, &plan, reason, sizeof reason), DUCTILE_OK, "%s", reason);
    now.ops = contender;
    now.self = now.bed.contender;
}

static inline void start(const contender_ops *contender, uint64_t capacity) {
    start_with(contender, capacity, NULL, DUCTILE_SCHEDULE_EAGER);
}

static inline contender_stats stats(void) {
    contender_stats s = {0};
    now.ops->stats(now.self, &s);
    return s;
}

/* 0: out of memory. */
static inline ductile_addr try_take(uint64_t size, size_t stream) {
    program_block *b = &now.blocks[now.n_blocks];
    cr_assert_lt(now.n_blocks, MOST_BLOCKS);
    ductile_status status = now.ops->alloc(now.self, size, now.bed.streams[stream], &b->address);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        now.n_refused++;
        return 0;
    }
    cr_assert_eq(status, DUCTILE_OK, "%s", ductile_status_string(status));
    cr_assert_eq(b->address % DUCTILE_ALIGNMENT, 0);
    b->size = size;
    now.n_blocks++;
    now.live += size;
    now.live_peak = now.live > now.live_peak ? now.live : now.live_peak;
    return b->address;
}

static inline ductile_addr take(uint64_t size) {
    ductile_addr address = try_take(size, 0);
    cr_assert(address != 0 || size == 0, "out of memory");
    return address;
}

/* The last one takes its place. */
static inline void give_at(size_t index) {
    program_block *b = &now.blocks[index];
    cr_assert_lt(index, now.n_blocks);
    cr_assert_eq(now.ops->free(now.self, b->address), DUCTILE_OK);
    now.live -= b->size;
    *b = now.blocks[--now.n_blocks];
}

static inline void give(ductile_addr address) {
    size_t i = 0;
    while (i < now.n_blocks && now.blocks[i].address != address) {
        i++;
    }
    give_at(i);
}

static inline void give_all(void) {
    while (now.n_blocks > 0) {
        give_at(now.n_blocks - 1);
    }
}

/* Ends the contender, with what is live: nothing is left behind, and no mistake was made. */
static inline void end_as_it_is(void) {
    ductile_virtual_state state = {.struct_size = sizeof state};
    testbed_end_contender(&now.bed);
    cr_assert_eq(ductile_virtual_get_state(now.bed.gpu, &state), DUCTILE_OK);
    cr_expect_eq(state.violations, 0);
    cr_expect_eq(state.used_bytes, 0, "%llu bytes are left", (unsigned long long)state.used_bytes);
    cr_expect_eq(state.handles + state.mappings + state.reservations + state.allocations, 0);
    cr_expect_eq(state.events, 0);
    testbed_close(&now.bed);
}

static inline void end(void) {
    give_all();
    end_as_it_is();
}

#endif
