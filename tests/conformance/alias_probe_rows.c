/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The alias probes: each writes by one address and looks by the other. "A" is the first address,
 * "B" the second, "P" other memory. An elder is a kernel that lets its successor start before it is
 * done itself; a hasty successor does not wait for it.
 *
 * A probe is a line of steps, each a word; behind it the address, and the pattern by a digit:
 *
 *   map          B is mapped; before an elder starts, because mapping takes longer than it
 *   fresh        all earlier second addresses go, so that no later step waits for that
 *   spin         work that takes a while
 *   fill A 1     writes the pattern            check A 1    looks for it; read: by the read-only
 * cache set A 1      writes one byte of it         check_set    looks for that copy A B     to A
 * from B early_fill, early_check        elders waiting_fill, waiting_check    successors that wait;
 * hasty_fill, hasty_check: those that do not mark, wait   an event is recorded; the host waits for
 * it away B 1     checks it on another stream, between two events guard A 1    a kernel checks over
 * and over until `stop` come_and_go  other second addresses are mapped and unmapped drop A, back A
 * unmaps an address, and maps it again
 */
#include "tests/conformance/alias_bench.h"

#include <stdio.h>
#include <string.h>

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

static const char *map(alias_bench *t, const step *s) {
    (void)s;
    return alias_map_second(t, &t->b);
}

static const char *fresh(alias_bench *t, const step *s) {
    (void)s;
    return alias_drop_seconds(t);
}

static const char *spin(alias_bench *t, const step *s) {
    (void)s;
    NEED_CODE(alias_spin(t));
    return NULL;
}

static const char *set(alias_bench *t, const step *s) {
    NEED_OK(dvmm_fill(t->driver, s->to, (uint8_t)s->id, t->bytes, t->stream));
    return NULL;
}

static const char *check_set(alias_bench *t, const step *s) {
    uint64_t word = (uint64_t)(uint8_t)s->id * 0x01010101u; /* the byte, four times */
    NEED_CODE(alias_start(t, GPU_CHECK_VALUE, s->to, word));
    return NULL;
}

static const char *copy(alias_bench *t, const step *s) {
    NEED_OK(dvmm_copy(t->driver, s->to, s->with, t->bytes, t->stream));
    return NULL;
}

static const char *mark(alias_bench *t, const step *s) {
    (void)s;
    NEED_OK(dvmm_event_record(t->driver, t->event, t->stream));
    return NULL;
}

static const char *wait(alias_bench *t, const step *s) {
    (void)s;
    NEED_OK(dvmm_event_sync(t->driver, t->event));
    return NULL;
}

static const char *away(alias_bench *t, const step *s) {
    NEED_OK(dvmm_stream_wait_event(t->driver, t->other, t->event));
    gpu_launch l = alias_launch(t, GPU_CHECK_WORDS, s->to, s->id);
    l.stream = t->other;
    NEED_CODE(gpu_start(t->gpu, &l));
    NEED_OK(dvmm_event_record(t->driver, t->event, t->other));
    NEED_OK(dvmm_stream_wait_event(t->driver, t->stream, t->event));
    return NULL;
}

static const char *guard(alias_bench *t, const step *s) {
    NEED_CODE(alias_start_guard(t, s->id));
    return NULL;
}

static const char *stop(alias_bench *t, const step *s) {
    (void)s;
    alias_stop_guard(t);
    NEED_OK(dvmm_stream_sync(t->driver, t->stream));
    return NULL;
}

static const char *drop(alias_bench *t, const step *s) {
    NEED_OK(dvmm_unmap(t->driver, s->to, t->bytes));
    return NULL;
}

static const char *back(alias_bench *t, const step *s) {
    return alias_map_all(t, s->to);
}

static const char *come_and_go(alias_bench *t, const step *s) {
    step each = *s;
    for (uint64_t i = 0; i < ALIAS_SLOTS / 2; i++) {
        each.to = t->slots + i * t->bytes;
        TRY(back(t, &each));
        TRY(drop(t, &each));
    }
    return NULL;
}

static const struct {
    const char *verb;
    const char *(*make)(alias_bench *t, const step *s);
} others[] = {
    {"map", map},
    {"fresh", fresh},
    {"spin", spin},
    {"set", set},
    {"check_set", check_set},
    {"copy", copy},
    {"mark", mark},
    {"wait", wait},
    {"away", away},
    {"guard", guard},
    {"stop", stop},
    {"drop", drop},
    {"back", back},
    {"come_and_go", come_and_go},
};

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

const char *alias_play(alias_bench *t, const char *steps) {
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

/* ---- The probes ---------------------------------------------------------------------------- */

const alias_probe alias_probes[] = {
    /* A checker that sees nothing would find every promise kept. */
    {"write A, look for another pattern by B", "fill A 1; map; check B 2", PROMISE_DIFFERENT,
     false},
    {"write A, read B", "spin; fill A 1; map; check B 1", PROMISE_KEPT, false},
    {"write B, read A", "map; spin; fill B 1; check A 1", PROMISE_KEPT, false},
    /* A stale line in a cache filled by the first look would show in the second. */
    {"read A, write B, read A", "fill A 1; check A 1; map; fill B 2; check A 2; check B 2",
     PROMISE_KEPT, false},
    {"read A, write B, read A, read-only cache",
     "fill A 1; read A 1; map; fill B 2; read A 2; read B 2", PROMISE_KEPT, false},
    /* The memory changes hands: old contents must not come back. */
    {"write A, overwrite by B", "spin; fill A 1; map; fill B 2; check B 2; check A 2", PROMISE_KEPT,
     false},
    {"write A, event, read B on another stream", "spin; fill A 1; mark; map; away B 1",
     PROMISE_KEPT, false},
    {"write A, copy from B", "spin; fill A 1; map; copy P B; check P 1", PROMISE_KEPT, false},
    {"copy to A, read B", "fill P 1; spin; copy A P; map; check B 1", PROMISE_KEPT, false},
    {"copy to A, copy from B", "fill P 1; copy A P; fill P 2; map; copy P B; check P 1",
     PROMISE_KEPT, false},
    {"memset A, read B", "spin; set A 1; map; check_set B 1", PROMISE_KEPT, false},
    {"write A, memset B, read A", "spin; fill A 2; map; set B 1; check_set A 1", PROMISE_KEPT,
     false},
    {"memset A, copy from B", "set A 1; map; copy P B; check_set P 1", PROMISE_KEPT, false},
    /* What follows on the stream writes only after the kernel has ended. */
    {"persistent kernel on A while B is mapped",
     "fresh; fill A 1; guard A 1; map; fill B 2; check B 2; stop", PROMISE_KEPT, false},
    {"persistent kernel on A while aliases go", "fresh; fill A 1; guard A 1; come_and_go; stop",
     PROMISE_KEPT, false},
    /* The whole life of a move: the old address goes while the use of the new one goes on. */
    {"move to B, unmap A after its marker",
     "spin; fill A 1; map; mark; fill B 2; spin; check B 2; wait; drop A; check B 2; back A;"
     "check A 2",
     PROMISE_KEPT, false},
    {"dependent: writes A, waits and reads B", "map; early_fill A 1; waiting_check B 1",
     PROMISE_KEPT, true},
    /* The elder never lets its successor start: the end of a kernel does. */
    {"dependent: plain writes A, waits, reads B", "map; fill A 1; waiting_check B 1", PROMISE_KEPT,
     true},
    {"dependent: writes A, plain reads B", "map; early_fill A 1; check B 1", PROMISE_KEPT, true},
    {"dependent: writes A, copy from B", "map; early_fill A 1; copy P B; check P 1", PROMISE_KEPT,
     true},
    /* The elder still reads the old contents when the successor wants to write new ones. */
    {"dependent: reads A, waits and writes B",
     "map; fill A 1; early_check A 1; waiting_fill B 2; check A 2", PROMISE_KEPT, true},
    {"dependent: reads A, plain writes B", "map; fill A 1; early_check A 1; fill B 2", PROMISE_KEPT,
     true},
    /* The allocator records an event before it returns a recycled address. Does that event order a
     * successor that does not wait by itself? */
    {"dependent: writes A, event, hasty reads B", "map; early_fill A 1; mark; hasty_check B 1",
     PROMISE_EVENT, true},
    {"dependent: reads A, event, hasty writes B",
     "map; fill A 1; early_check A 1; mark; hasty_fill B 2", PROMISE_EVENT, true},
    {"dependent: writes A, hasty reads B", "map; early_fill A 1; hasty_check B 1", PROMISE_NONE,
     true},
    {"dependent: reads A, hasty writes B", "map; fill A 1; early_check A 1; hasty_fill B 2",
     PROMISE_NONE, true},
    /* The same hazard with one address, for comparison: it is the kernel's, not the alias's. */
    {"dependent: writes A, hasty reads A", "early_fill A 1; hasty_check A 1", PROMISE_NONE, true},
};

const size_t n_alias_probes = sizeof(alias_probes) / sizeof(alias_probes[0]);
