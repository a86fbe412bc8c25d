/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast does a pool fall asleep and wake, and what does it leave? First the link by itself:
 * copies between page-locked memory and the device. Then for each size a pool with contents, first
 * without host memory and later with what the first sleep made, and a second allocator whose host
 * memory is made ahead. Then a pool that grew in many blocks, without contents. At last many cycles
 * of a small pool that grows and shrinks between them: from the third on the device has the same
 * memory free after each sleep, to the byte. Every block has a pattern of its own, which is checked
 * after each wake that promised it.
 *
 *     sleep [--virtual | --device N] [--mib N] [--most-mib N] [--grown-blocks N] [--cycles N]
 *
 * Sizes are --mib, ten times that, and --most-mib. Prints one figure a line: MB/s are 10^6 bytes a
 * second. On the virtual GPU, where it runs small, times are those of the host and mean nothing.
 * Ends with 1 when anything is wrong; 77 without a device.
 */
#include "tests/support/cpu_time.h"
#include "tests/support/program_blocks.h"
#include "tests/support/rng.h"
#include "vmm/base/align.h"
#include "vmm/host_arena.h"

#include <stdio.h>
#include <stdlib.h>

enum { LATER_CYCLES = 4 };

static const ductile_pool_id POOL = {1, 0};

typedef struct program {
    program_device on;
    uint64_t mib, most_mib, grown_blocks, cycles;
    ductile_allocator *a;
    ductile_stream stream;
    live_blocks live;
    uint64_t next_id;
} program;

static program p = {.mib = 1024, .most_mib = 0, .grown_blocks = 2000, .cycles = 1000};

static uint64_t now_us(void) {
    return wall_ns() / 1000;
}

static uint64_t speed(uint64_t bytes, uint64_t us) {
    return bytes / (us > 0 ? us : 1);
}

static void figure(const char *what, uint64_t mib, const char *unit, uint64_t value) {
    char name[160];
    (void)snprintf(name, sizeof name, "%s, %llu MiB, %s", what, (unsigned long long)mib, unit);
    command_figure(name, value);
}

/* ---- Blocks -------------------------------------------------------------------------------- */

static const char *add_block(uint64_t size) {
    live_block b = {.block = {.size = size, .id = ++p.next_id}};
    NEED(p.live.n < MOST_LIVE_BLOCKS, "too many blocks");
    NEED_OK(ductile_pool_begin(p.a, POOL, NULL, NULL));
    ductile_status status = ductile_alloc(p.a, size, p.stream, &b.block.address);
    NEED_OK(ductile_pool_end(p.a, POOL));
    NEED_OK(ductile_pool_release(p.a, POOL));
    NEED(status == DUCTILE_OK, "a block of %llu bytes: %s", (unsigned long long)size,
         ductile_status_name(status));
    live_blocks_add(&p.live, b);
    return pattern_write(&p.on.tester, &b.block, p.stream);
}

static const char *drop_block(size_t i) {
    NEED_OK(ductile_free(p.a, live_blocks_remove(&p.live, i).block.address));
    return NULL;
}

static const char *check_all(void) {
    for (size_t i = 0; i < p.live.n; i++) {
        TRY(pattern_expect(&p.on.tester, &p.live.all[i].block, p.stream));
    }
    return NULL;
}

static const char *open_pool(void) {
    TRY(program_allocator(&p.on, 0, &p.a));
    NEED_OK(ductile_pool_retain(p.a, POOL));
    NEED_OK(ductile_pool_set_kind(p.a, POOL, DUCTILE_POOL_PLAIN));
    return NULL;
}

static const char *close_pool(void) {
    while (p.live.n > 0) {
        TRY(drop_block(p.live.n - 1));
    }
    NEED_OK(ductile_pool_release(p.a, POOL));
    NEED_OK(ductile_destroy(p.a));
    return NULL;
}

/* ---- The link ------------------------------------------------------------------------------ */

static const char *copy_once(const dvmm_host_arena *arena, ductile_addr at, uint64_t bytes,
                             bool is_out, uint64_t *us) {
    uint64_t start = now_us();
    if (is_out) {
        NEED_OK(dvmm_download(p.on.driver, arena->base, at, bytes, p.stream));
    } else {
        NEED_OK(dvmm_upload(p.on.driver, at, arena->base, bytes, p.stream));
    }
    NEED_OK(dvmm_stream_sync(p.on.driver, p.stream));
    uint64_t took = now_us() - start;
    *us = *us == 0 || took < *us ? took : *us;
    return NULL;
}

static const char *measure_link(uint64_t bytes) {
    dvmm_host_arena arena;
    ductile_addr at = 0;
    uint64_t out = 0;
    uint64_t in = 0;
    dvmm_host_arena_init(&arena, p.on.driver);
    NEED_OK(dvmm_host_arena_reserve(&arena, bytes));
    TRY(open_pool());
    NEED_OK(ductile_alloc(p.a, bytes, p.stream, &at));
    for (int i = 0; i < 4; i++) {
        TRY(copy_once(&arena, at, bytes, false, &in)); /* first: so what comes out was written */
        TRY(copy_once(&arena, at, bytes, true, &out));
    }
    NEED_OK(ductile_free(p.a, at));
    NEED_OK(dvmm_host_arena_fini(&arena));
    figure("link out", bytes / DTI_MIB, "MB/s", speed(bytes, out));
    figure("link in", bytes / DTI_MIB, "MB/s", speed(bytes, in));
    return close_pool();
}

/* ---- With contents ------------------------------------------------------------------------- */

typedef struct cycle_times {
    uint64_t sleep_us, wake_us;
} cycle_times;

static const char *cycle(ductile_contents contents, cycle_times *t) {
    NEED_OK(dvmm_context_sync(p.on.driver));
    uint64_t start = now_us();
    NEED_OK(ductile_sleep(p.a, POOL, contents));
    uint64_t middle = now_us();
    NEED_OK(ductile_wake(p.a, POOL));
    *t = (cycle_times){middle - start, now_us() - middle};
    return NULL;
}

static int by_sleep(const void *l, const void *r) {
    const cycle_times *left = l;
    const cycle_times *right = r;
    return (left->sleep_us > right->sleep_us) - (left->sleep_us < right->sleep_us);
}

static int by_wake(const void *l, const void *r) {
    const cycle_times *left = l;
    const cycle_times *right = r;
    return (left->wake_us > right->wake_us) - (left->wake_us < right->wake_us);
}

static cycle_times median(cycle_times *all, size_t n) {
    cycle_times m;
    qsort(all, n, sizeof *all, by_sleep);
    m.sleep_us = all[n / 2].sleep_us;
    qsort(all, n, sizeof *all, by_wake);
    m.wake_us = all[n / 2].wake_us;
    return m;
}

static void report(const char *what, uint64_t bytes, cycle_times t) {
    char name[64];
    (void)snprintf(name, sizeof name, "%s sleep", what);
    figure(name, bytes / DTI_MIB, "us", t.sleep_us);
    figure(name, bytes / DTI_MIB, "MB/s", speed(bytes, t.sleep_us));
    (void)snprintf(name, sizeof name, "%s wake", what);
    figure(name, bytes / DTI_MIB, "us", t.wake_us);
    figure(name, bytes / DTI_MIB, "MB/s", speed(bytes, t.wake_us));
}

/* Blocks as weights have them: some large, many small. */
static const char *fill_pool(uint64_t bytes) {
    uint64_t left = bytes;
    while (left > 0) {
        uint64_t part = p.live.n % 4 == 3 ? DTI_MIB : 64 * DTI_MIB;
        part = dti_min(part, left);
        TRY(add_block(part));
        left -= part;
    }
    return NULL;
}

static const char *measure_contents(uint64_t bytes, bool is_made_ahead) {
    cycle_times first;
    cycle_times later[LATER_CYCLES];
    TRY(open_pool());
    TRY(fill_pool(bytes));
    uint64_t start = now_us();
    if (is_made_ahead) {
        NEED_OK(ductile_sleep_host_reserve(p.a, bytes, NULL));
        figure("host memory made ahead", bytes / DTI_MIB, "us", now_us() - start);
    }
    TRY(cycle(DUCTILE_CONTENTS_KEEP, &first));
    TRY(check_all());
    report(is_made_ahead ? "first, made ahead:" : "first:", bytes, first);
    for (int i = 0; i < LATER_CYCLES; i++) {
        TRY(cycle(DUCTILE_CONTENTS_KEEP, &later[i]));
    }
    TRY(check_all());
    report(is_made_ahead ? "later, made ahead:" : "later:", bytes, median(later, LATER_CYCLES));
    return close_pool();
}

/* ---- Without contents ---------------------------------------------------------------------- */

static const char *measure_grown(uint64_t n_blocks, uint64_t block_bytes) {
    cycle_times all[LATER_CYCLES];
    TRY(open_pool());
    for (uint64_t i = 0; i < n_blocks; i++) {
        TRY(add_block(block_bytes));
    }
    for (int i = 0; i < LATER_CYCLES; i++) {
        TRY(cycle(DUCTILE_CONTENTS_DROP, &all[i]));
        if (i == 0) {
            report("no contents, first:", n_blocks * block_bytes, all[0]);
        }
    }
    report("no contents, later:", n_blocks * block_bytes, median(all, LATER_CYCLES));
    return close_pool();
}

/* ---- Many cycles --------------------------------------------------------------------------- */

static const char *vary(rng *r) {
    for (int i = 0; i < 4; i++) {
        TRY(add_block(dti_round_up(512 + rng_below(r, 4 * DTI_MIB), 4)));
    }
    for (int i = 0; i < 2; i++) {
        TRY(drop_block(rng_below(r, p.live.n)));
    }
    return NULL;
}

typedef struct seen {
    uint64_t free_asleep; /* of the device, from the third sleep on */
    uint64_t early_us, late_us;
} seen;

static const char *one_of_many(rng *r, uint64_t i, seen *s) {
    uint64_t free_bytes = 0;
    TRY(vary(r));
    NEED_OK(dvmm_context_sync(p.on.driver));
    uint64_t start = now_us();
    NEED_OK(ductile_sleep(p.a, POOL, DUCTILE_CONTENTS_KEEP));
    uint64_t took = now_us() - start;
    TRY(program_free_bytes(p.on.driver, &free_bytes));
    s->free_asleep = i == 2 ? free_bytes : s->free_asleep;
    NEED(i < 3 || free_bytes == s->free_asleep,
         "%llu bytes are free after sleep %llu, and %llu were after the third",
         (unsigned long long)free_bytes, (unsigned long long)i, (unsigned long long)s->free_asleep);
    start = now_us();
    NEED_OK(ductile_wake(p.a, POOL));
    took += now_us() - start;
    s->early_us += i >= 10 && i < p.cycles / 4 ? took : 0;
    s->late_us += i >= p.cycles - p.cycles / 4 ? took : 0;
    TRY(i % 16 == 0 ? check_all() : NULL);
    while (p.live.n > 24) {
        TRY(drop_block(rng_below(r, p.live.n)));
    }
    return NULL;
}

static const char *measure_residue(void) {
    rng r = rng_seeded(7);
    seen s = {0};
    TRY(open_pool());
    NEED_OK(ductile_sleep_host_reserve(p.a, 256 * DTI_MIB, NULL));
    TRY(fill_pool(dti_min(p.mib, 128) * DTI_MIB));
    for (uint64_t i = 0; i < p.cycles; i++) {
        TRY(one_of_many(&r, i, &s));
    }
    TRY(check_all());
    uint64_t n = p.cycles / 4;
    command_figure("cycles of a pool that changes", p.cycles);
    command_figure("us of a cycle in the first quarter", n > 10 ? s.early_us / (n - 10) : 0);
    command_figure("us of a cycle in the last quarter", n > 0 ? s.late_us / n : 0);
    command_figure("bytes of the device free asleep, always", s.free_asleep);
    return close_pool();
}

/* ---- The whole ----------------------------------------------------------------------------- */

static const char *measure_size(uint64_t mib) {
    TRY(measure_contents(mib * DTI_MIB, false));
    return measure_contents(mib * DTI_MIB, true);
}

static const char *run(void) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.capacity_bytes = 4 * DTI_GIB;
    TRY(program_open(&p.on, &options, 1));
    p.stream = p.on.streams[0];
    TRY(measure_link(dti_min(p.mib * DTI_MIB, 4 * DTI_GIB)));
    TRY(measure_size(p.mib));
    TRY(measure_size(p.mib * 10));
    if (p.most_mib > 0) {
        TRY(measure_size(p.most_mib));
    }
    uint64_t grown = dti_max(p.mib * 10 * DTI_MIB / dti_max(p.grown_blocks, 1), 512);
    TRY(measure_grown(p.grown_blocks, dti_round_up(grown, 512)));
    TRY(measure_residue());
    return program_close(&p.on);
}

int main(int argc, char **argv) {
    const command_option options[] = {PROGRAM_OPTIONS(&p.on),
                                      {"--mib", .number = &p.mib},
                                      {"--most-mib", .number = &p.most_mib},
                                      {"--grown-blocks", .number = &p.grown_blocks},
                                      {"--cycles", .number = &p.cycles}};
    command_read("sleep", options, sizeof options / sizeof options[0], argc, argv);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    return command_end(run());
}
