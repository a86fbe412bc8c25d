/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is order of work on one stream order of use, when the memory has two addresses? Ductile maps
 * recycled memory at its new address while work on the old one is still under way.
 * Each probe writes by one address and looks by the other, many times, and counts words that are
 * not what the order of the stream promises.
 *
 *     alias_probes [--device N] [--rounds N] [--probe NAME]
 *
 * Prints "probe | rounds | mismatches | promise". A probe whose promise is "hazard" leaves out the
 * wait that a dependent kernel owes its predecessor: it shows what an order that was not asked for
 * looks like, and its mismatches are no failure; the same holds for "event", which asks whether an
 * event between two kernels makes up for the wait. The first probe has to find mismatches. Ends
 * with 1 when a promise was broken, 77 without a device, 3 when it ran out of time.
 *
 * A probe is a line of steps, each a word; behind it the address, A the first one, B the second, or
 * P of other memory; and the pattern by a digit:
 *
 *   map                 B is mapped; before an elder starts, because mapping takes longer than it
 *   fresh               earlier second addresses go, so that no later step waits for that
 *   spin                work that takes a while
 *   fill A 1            writes the pattern
 *   check A 1, read     looks for it; by the read-only cache
 *   set A 1, check_set  writes one byte of it; looks for that
 *   copy A B            to A from B
 *   early_fill, early_check      elders: each lets its successor start before it is done itself
 *   waiting_fill, waiting_check  successors that wait; hasty_fill, hasty_check: that do not
 *   mark, wait          an event is recorded; the host waits for it
 *   away B 1            checks it on another stream, between two events
 *   guard A 1           a kernel checks over and over until `stop`
 *   come_and_go         other second addresses are mapped and unmapped
 *   drop A, back A      unmaps an address, and maps it again
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/gpu_kernels.h"
#include "tests/support/program_device.h"

#include <stdio.h>
#include <string.h>

enum {
    ALIAS_HANDLES = 16,     /* one granule each: several mappings, as in a real move         */
    ALIAS_SLOTS = 8,        /* places for the second address; each round takes the next one  */
    ALIAS_FEW_BLOCKS = 64,  /* leaves room for a dependent kernel to start beside its elder  */
    ALIAS_WORK_NS = 200000, /* how long the elder takes before it touches memory            */
    SECONDS_IN_ALL = 270
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

/* Returns from the calling step with a complaint when a launch failed. */
#define NEED_CODE(call)                                                                            \
    do {                                                                                           \
        int need_code = (call);                                                                    \
        NEED(need_code == 0, "%s failed with %d", #call, need_code);                               \
    } while (0)

/* ---- Addresses ----------------------------------------------------------------------------- */

static const char *alias_map_all(alias_bench *t, ductile_addr at) {
    for (uint64_t i = 0; i < ALIAS_HANDLES; i++) {
        NEED_OK(dvmm_map(t->driver, at + i * t->granule, t->granule, t->handles[i]));
    }
    NEED_OK(dvmm_set_access(t->driver, at, t->bytes, DVMM_ACCESS_RW));
    return NULL;
}

static const char *alias_drop_seconds(alias_bench *t) {
    NEED_OK(dvmm_stream_sync(t->driver, t->stream));
    NEED_OK(dvmm_stream_sync(t->driver, t->other));
    if (t->next_slot > 0) {
        NEED_OK(dvmm_unmap(t->driver, t->slots, t->next_slot * t->bytes));
    }
    t->next_slot = 0;
    return NULL;
}

/* ---- Launches ------------------------------------------------------------------------------ */

static gpu_launch alias_launch(const alias_bench *t, gpu_kernel kernel, ductile_addr addr,
                               uint64_t id) {
    return (gpu_launch){
        .kernel = kernel, .stream = t->stream, .arguments = {addr, t->n_words, id, t->counter}};
}

static int alias_start(const alias_bench *t, gpu_kernel kernel, ductile_addr addr, uint64_t id) {
    gpu_launch l = alias_launch(t, kernel, addr, id);
    return gpu_start(t->gpu, &l);
}

static int alias_early(const alias_bench *t, gpu_kernel kernel, ductile_addr addr, uint64_t id) {
    gpu_launch l = alias_launch(t, kernel, addr, id);
    l.blocks = ALIAS_FEW_BLOCKS;
    l.arguments[kernel == GPU_EARLY_FILL ? 3 : 4] = ALIAS_WORK_NS; /* a check has a counter, too */
    return gpu_start(t->gpu, &l);
}

/* A kernel that may start before its elder is done. */
static int alias_dependent(const alias_bench *t, gpu_kernel kernel, ductile_addr addr,
                           uint64_t id) {
    gpu_launch l = alias_launch(t, kernel, addr, id);
    l.blocks = ALIAS_FEW_BLOCKS;
    l.programmatic = true;
    return gpu_start(t->gpu, &l);
}

static const char *alias_clear_counter(alias_bench *t) {
    NEED_OK(dvmm_fill(t->driver, t->counter, 0, sizeof(uint64_t), t->stream));
    NEED_OK(dvmm_stream_sync(t->driver, t->stream));
    return NULL;
}

static const char *alias_read_counter(alias_bench *t, uint64_t *out) {
    NEED_OK(dvmm_stream_sync(t->driver, t->other));
    NEED_OK(bench_read_back(t->driver, out, t->counter, sizeof(*out), t->stream));
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
    NEED_OK(bench_mem_alloc(t->driver, t->bytes, &t->plain));
    NEED_OK(bench_mem_alloc(t->driver, sizeof(uint64_t), &t->counter));
    return NULL;
}

static const char *alias_make(alias_bench *t) {
    void *host = NULL;
    NEED_OK(dvmm_stream_create(t->driver, &t->stream));
    NEED_OK(dvmm_stream_create(t->driver, &t->other));
    NEED_OK(dvmm_event_create(t->driver, &t->event));
    NEED_OK(bench_host_alloc(t->driver, sizeof(uint64_t), &host));
    t->flag = host;
    t->next_id = 1;
    return make_memory(t);
}

/* Orderly, so that a leak checker on the device has nothing to say; the process ends anyway. */
static void alias_drop(alias_bench *t) {
    dvmm_driver *d = t->driver;
    (void)alias_drop_seconds(t);
    (void)dvmm_unmap(d, t->a, t->bytes);
    (void)dvmm_address_free(d, t->a, t->bytes);
    (void)dvmm_address_free(d, t->slots, ALIAS_SLOTS * t->bytes);
    for (int i = 0; i < ALIAS_HANDLES; i++) {
        (void)dvmm_phys_release(d, t->handles[i]);
    }
    (void)bench_mem_free(d, t->plain);
    (void)bench_mem_free(d, t->counter);
    (void)bench_host_free(d, t->flag);
    (void)dvmm_event_destroy(d, t->event);
    (void)dvmm_stream_destroy(d, t->stream);
    (void)dvmm_stream_destroy(d, t->other);
}

typedef struct step {
    char verb[16], at[2], from[2];
    ductile_addr to;   /* where `at` is */
    uint64_t id;       /* the pattern   */
    ductile_addr with; /* where `from` is */
} step;

/* ---- Steps --------------------------------------------------------------------------------- */

static const char *launch(alias_bench *t, const step *s) {
    static const struct {
        const char *verb;
        int (*start)(const alias_bench *t, gpu_kernel kernel, ductile_addr at, uint64_t id);
        gpu_kernel kernel;
    } all[] = {
        {"fill", alias_start, GPU_FILL_WORDS},
        {"check", alias_start, GPU_CHECK_WORDS},
        {"read", alias_start, GPU_CHECK_CONST},
        {"early_fill", alias_early, GPU_EARLY_FILL},
        {"early_check", alias_early, GPU_EARLY_CHECK},
        {"waiting_fill", alias_dependent, GPU_WAITING_FILL},
        {"waiting_check", alias_dependent, GPU_WAITING_CHECK},
        {"hasty_fill", alias_dependent, GPU_FILL_WORDS},
        {"hasty_check", alias_dependent, GPU_CHECK_WORDS},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(s->verb, all[i].verb) == 0) {
            NEED_CODE(all[i].start(t, all[i].kernel, s->to, s->id));
            return NULL;
        }
    }
    return complain("no step is called %s", s->verb);
}

/* The head of a step, which may have no operands. */
#define STEP(name) static const char *name(alias_bench *t, const step *s __attribute__((unused)))

STEP(fresh) {
    return alias_drop_seconds(t);
}

/* Now, while whatever was issued before may be running. */
STEP(map) {
    TRY(t->next_slot == ALIAS_SLOTS ? fresh(t, s) : NULL);
    t->b = t->slots + t->next_slot * t->bytes;
    TRY(alias_map_all(t, t->b));
    t->next_slot++;
    return NULL;
}

STEP(spin) {
    gpu_launch l = {.kernel = GPU_SPIN,
                    .stream = t->stream,
                    .blocks = 1,
                    .threads = 1,
                    .arguments = {ALIAS_WORK_NS}};
    NEED_CODE(gpu_start(t->gpu, &l));
    return NULL;
}

STEP(set) {
    NEED_OK(dvmm_fill(t->driver, s->to, (uint8_t)s->id, t->bytes, t->stream));
    return NULL;
}

STEP(check_set) {
    uint64_t word = (uint64_t)(uint8_t)s->id * 0x01010101u; /* the byte, four times */
    NEED_CODE(alias_start(t, GPU_CHECK_VALUE, s->to, word));
    return NULL;
}

STEP(copy) {
    NEED_OK(bench_copy(t->driver, s->to, s->with, t->bytes, t->stream));
    return NULL;
}

STEP(mark) {
    NEED_OK(dvmm_event_record(t->driver, t->event, t->stream));
    return NULL;
}

STEP(wait) {
    NEED_OK(dvmm_event_sync(t->driver, t->event));
    return NULL;
}

STEP(away) {
    NEED_OK(dvmm_stream_wait_event(t->driver, t->other, t->event));
    gpu_launch l = alias_launch(t, GPU_CHECK_WORDS, s->to, s->id);
    l.stream = t->other;
    NEED_CODE(gpu_start(t->gpu, &l));
    NEED_OK(dvmm_event_record(t->driver, t->event, t->other));
    NEED_OK(dvmm_stream_wait_event(t->driver, t->stream, t->event));
    return NULL;
}

STEP(guard) {
    const uint64_t limit_ns = 2000000000u;
    __atomic_store_n(t->flag, 0, __ATOMIC_SEQ_CST);
    gpu_launch l = alias_launch(t, GPU_GUARD_WORDS, t->a, s->id);
    l.blocks = ALIAS_FEW_BLOCKS;
    l.arguments[4] = (uint64_t)(uintptr_t)t->flag;
    l.arguments[5] = limit_ns;
    NEED_CODE(gpu_start(t->gpu, &l));
    return NULL;
}

STEP(stop) {
    __atomic_store_n(t->flag, 1, __ATOMIC_SEQ_CST);
    NEED_OK(dvmm_stream_sync(t->driver, t->stream));
    return NULL;
}

STEP(drop) {
    NEED_OK(dvmm_unmap(t->driver, s->to, t->bytes));
    return NULL;
}

STEP(back) {
    return alias_map_all(t, s->to);
}

STEP(come_and_go) {
    step each = *s;
    for (uint64_t i = 0; i < ALIAS_SLOTS / 2; i++) {
        each.to = t->slots + i * t->bytes;
        TRY(back(t, &each));
        TRY(drop(t, &each));
    }
    return NULL;
}

#define VERB(name)                                                                                 \
    { #name, name }

static const struct {
    const char *verb;
    const char *(*make)(alias_bench *t, const step *s);
} others[] = {VERB(map),  VERB(fresh), VERB(spin), VERB(set),        VERB(check_set),
              VERB(copy), VERB(mark),  VERB(wait), VERB(away),       VERB(guard),
              VERB(stop), VERB(drop),  VERB(back), VERB(come_and_go)};

static ductile_addr place(const alias_bench *t, char name) {
    return name == 'A' ? t->a : name == 'B' ? t->b : t->plain;
}

static const char *make(alias_bench *t, step *s) {
    s->to = place(t, s->at[0]);
    s->with = place(t, s->from[0]);
    s->id = t->next_id + (uint64_t)(s->from[0] - '0');
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(s->verb, others[i].verb) == 0) {
            return others[i].make(t, s);
        }
    }
    return launch(t, s);
}

static const char *alias_play(alias_bench *t, const char *steps) {
    const char *why = NULL;
    while (why == NULL && *steps != '\0') {
        step s = {0};
        (void)sscanf(steps, " %15[a-z_] %1[ABP] %1[ABP0-9]", s.verb, s.at, s.from);
        why = make(t, &s);
        steps += strcspn(steps, ";");
        steps += strspn(steps, "; ");
    }
    t->next_id += 10;
    return why;
}

/* What a probe relies on: the order of the stream; an event between two kernels; nothing. The last
 * is for the probe that shows that a difference is seen. */
typedef enum alias_promise {
    PROMISE_KEPT,
    PROMISE_EVENT,
    PROMISE_NONE,
    PROMISE_DIFFERENT
} alias_promise;

typedef struct alias_probe {
    const char *name; /* "dependent: ..." needs programmatic dependent launch */
    const char *steps;
    alias_promise promise;
} alias_probe;

/* ---- The probes ---------------------------------------------------------------------------- */

#define KEPT(name, steps)                                                                          \
    { name, steps, PROMISE_KEPT }

static const alias_probe alias_probes[] = {
    /* A checker that sees nothing would find every promise kept. */
    {"write A, look for another pattern by B", "fill A 1; map; check B 2", PROMISE_DIFFERENT},
    KEPT("write A, read B", "spin; fill A 1; map; check B 1"),
    KEPT("write B, read A", "map; spin; fill B 1; check A 1"),
    /* A stale line in a cache filled by the first look would show in the second. */
    KEPT("read A, write B, read A", "fill A 1; check A 1; map; fill B 2; check A 2; check B 2"),
    KEPT("read A, write B, read A, read-only cache",
         "fill A 1; read A 1; map; fill B 2; read A 2; read B 2"),
    /* The memory changes hands: old contents must not come back. */
    KEPT("write A, overwrite by B", "spin; fill A 1; map; fill B 2; check B 2; check A 2"),
    KEPT("write A, event, read B on another stream", "spin; fill A 1; mark; map; away B 1"),
    KEPT("write A, copy from B", "spin; fill A 1; map; copy P B; check P 1"),
    KEPT("copy to A, read B", "fill P 1; spin; copy A P; map; check B 1"),
    KEPT("copy to A, copy from B", "fill P 1; copy A P; fill P 2; map; copy P B; check P 1"),
    KEPT("memset A, read B", "spin; set A 1; map; check_set B 1"),
    KEPT("write A, memset B, read A", "spin; fill A 2; map; set B 1; check_set A 1"),
    KEPT("memset A, copy from B", "set A 1; map; copy P B; check_set P 1"),
    /* What follows on the stream writes only after the kernel has ended. */
    KEPT("persistent kernel on A while B is mapped",
         "fresh; fill A 1; guard A 1; map; fill B 2; check B 2; stop"),
    KEPT("persistent kernel on A while aliases go",
         "fresh; fill A 1; guard A 1; come_and_go; stop"),
    /* The whole life of a move: the old address goes while the use of the new one goes on. */
    KEPT("move to B, unmap A after its marker",
         "spin; fill A 1; map; mark; fill B 2; spin; check B 2; wait; drop A; check B 2; back A;"
         "check A 2"),
    KEPT("dependent: writes A, waits and reads B", "map; early_fill A 1; waiting_check B 1"),
    /* The elder never lets its successor start: the end of a kernel does. */
    KEPT("dependent: plain writes A, waits, reads B", "map; fill A 1; waiting_check B 1"),
    KEPT("dependent: writes A, plain reads B", "map; early_fill A 1; check B 1"),
    KEPT("dependent: writes A, copy from B", "map; early_fill A 1; copy P B; check P 1"),
    /* The elder still reads the old contents when the successor wants to write new ones. */
    KEPT("dependent: reads A, waits and writes B",
         "map; fill A 1; early_check A 1; waiting_fill B 2; check A 2"),
    KEPT("dependent: reads A, plain writes B", "map; fill A 1; early_check A 1; fill B 2"),
    /* The allocator records an event before it returns a recycled address. Does that event order a
     * successor that does not wait by itself? */
    {"dependent: writes A, event, hasty reads B", "map; early_fill A 1; mark; hasty_check B 1",
     PROMISE_EVENT},
    {"dependent: reads A, event, hasty writes B",
     "map; fill A 1; early_check A 1; mark; hasty_fill B 2", PROMISE_EVENT},
    {"dependent: writes A, hasty reads B", "map; early_fill A 1; hasty_check B 1", PROMISE_NONE},
    {"dependent: reads A, hasty writes B", "map; fill A 1; early_check A 1; hasty_fill B 2",
     PROMISE_NONE},
    /* The same hazard with one address, for comparison: it is the kernel's, not the alias's. */
    {"dependent: writes A, hasty reads A", "early_fill A 1; hasty_check A 1", PROMISE_NONE},
};

enum { N_PROBES = sizeof alias_probes / sizeof *alias_probes };

/* ---- Rounds -------------------------------------------------------------------------------- */

static const char *promise_word(alias_promise p) {
    static const char *const words[] = {"kept", "event", "hazard", "must differ"};
    return words[p];
}

static bool is_broken(alias_promise p, uint64_t mismatches) {
    return (p == PROMISE_KEPT && mismatches > 0) || (p == PROMISE_DIFFERENT && mismatches == 0);
}

static const char *run_rounds(alias_bench *t, const alias_probe *p, unsigned rounds,
                              uint64_t *mismatches) {
    TRY(alias_clear_counter(t));
    for (unsigned i = 0; i < rounds; i++) {
        TRY(alias_play(t, p->steps));
    }
    return alias_read_counter(t, mismatches);
}

/* Returns 0 when nothing that was promised was broken.
 * An error is final: the device may be lost. */
static int run_probe(alias_bench *t, const alias_probe *p, unsigned rounds) {
    uint64_t mismatches = 0;
    if (strncmp(p->name, "dependent:", 10) == 0 && !gpu_has_dependent_launch(t->gpu)) {
        (void)printf("%s | 0 | - | not supported here\n", p->name);
        return 0;
    }
    const char *why = run_rounds(t, p, rounds, &mismatches);
    if (why != NULL) {
        (void)printf("%s | error | %s (driver's code %d)\n", p->name, why, dvmm_last_code());
        return -1;
    }
    (void)printf("%s | %u | %llu | %s\n", p->name, rounds, (unsigned long long)mismatches,
                 promise_word(p->promise));
    (void)fflush(stdout);
    return is_broken(p->promise, mismatches) ? COMMAND_BROKEN : 0;
}

/* ---- The program --------------------------------------------------------------------------- */

static int run_probes(alias_bench *t, const char *only, unsigned rounds) {
    int result = 0;
    size_t n_run = 0;
    for (size_t i = 0; i < N_PROBES; i++) {
        if (only != NULL && strcmp(only, alias_probes[i].name) != 0) {
            continue;
        }
        int code = run_probe(t, &alias_probes[i], rounds);
        if (code < 0) {
            return COMMAND_BROKEN;
        }
        result = code != 0 ? code : result;
        n_run++;
    }
    if (n_run == 0) {
        command_refuse("no probe has that name");
    }
    return result;
}

static void print_head(const alias_bench *t) {
    const dvmm_caps *caps = dvmm_get_caps(t->driver);
    (void)printf("# %s, driver %s, %u handles\n", caps->name, caps->driver_version, ALIAS_HANDLES);
    (void)printf("# probe | rounds | mismatches | promise\n");
}

int main(int argc, char **argv) {
    static alias_bench t;
    program_device on = {.device = 0};
    uint64_t rounds = 200;
    const char *only = NULL;
    const command_option options[] = {
        {"--device", .device = &on.device},
        {"--rounds", .number = &rounds},
        {"--probe", .text = &only, .placeholder = "NAME"},
    };
    command_read("alias_probes", options, sizeof options / sizeof *options, argc, argv);
    const char *why = program_open_driver(&on, NULL);
    t.driver = on.driver;
    command_end_after(SECONDS_IN_ALL);
    why = why == NULL ? gpu_open(on.device, &t.gpu) : why;
    why = why == NULL ? alias_make(&t) : why;
    if (why != NULL) {
        return command_end(why);
    }
    print_head(&t);
    int result = run_probes(&t, only, (unsigned)rounds);
    if (dvmm_usable(t.driver) == DUCTILE_OK) {
        alias_drop(&t);
        gpu_close(t.gpu);
    }
    dvmm_close(t.driver);
    return result;
}
