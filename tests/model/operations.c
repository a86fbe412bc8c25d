/* SPDX-License-Identifier: Apache-2.0 */
/* From bytes to operations: the one decoder, for seeds and for fuzzers. */
#include "tests/model/decoder.h"

#include "tests/model/subject.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *do_anew(subject *s, const record *r) {
    if (is_capturing(s)) {
        return NULL;
    }
    say(s, "destroy the allocator with its live blocks, and make another");
    return subject_make_anew(s, r->a % 2 == 0);
}

static const struct operation {
    const char *(*run)(subject *s, const record *r);
    uint8_t weight;
} operations[] = {
#define OPERATION(run, weight) {run, weight},
    OPERATIONS(OPERATION)
#undef OPERATION
};

/* What a soak leaves out: what changes how much memory there is, or ends everything. */
static const char *(*const unsteady[])(subject *s, const record *r) = {
    do_phase, do_limit, do_soft_limit, do_external, do_fault,        do_share,    do_anew,
    do_peer,  do_sleep, do_pool_open,  do_callback, do_set_captures, do_pool_hold};

enum { N_OPERATIONS = sizeof operations / sizeof operations[0] };

static const struct operation *chosen(uint8_t op) {
    unsigned at = op;
    for (size_t i = 0; i < N_OPERATIONS; i++) {
        if (at < operations[i].weight) {
            return &operations[i];
        }
        at -= operations[i].weight;
    }
    return &operations[0];
}

bool subject_is_steady(uint8_t op) {
    for (size_t i = 0; i < sizeof unsteady / sizeof *unsteady; i++) {
        if (chosen(op)->run == unsteady[i]) {
            return false;
        }
    }
    return true;
}

static record read_record(const uint8_t *b) {
    return (record){b[0], b[1], b[2], b[3],
                    (uint32_t)b[4] | (uint32_t)b[5] << 8 | (uint32_t)b[6] << 16 |
                        (uint32_t)b[7] << 24};
}

const char *subject_step(subject *s, const record *r) {
    s->text[0] = '\0';
    const char *why = s->is_sleepy && r->op % 16 == 15 ? do_nap(s, r) : chosen(r->op)->run(s, r);
    if (s->is_faulty && fixture_state(&s->f).poisoned != 0) {
        s->is_over = true; /* the fault was one that ends the device */
        why = NULL;
    }
    TRY(no_violation(s));
    TRY(why);
    s->step++;
    return s->step % s->audit_period == 0 ? subject_audit(s) : NULL;
}

/* ---- A run --------------------------------------------------------------------------------- */

static void print(const subject *s, bool trace) {
    if (trace && s->text[0] != '\0') {
        (void)printf("%8llu  %s\n", (unsigned long long)s->step, s->text);
        (void)fflush(stdout);
    }
}

/* Where the operations come from. */
typedef struct script {
    decoder_source next;
    void *user;
    bool trace, is_read;
} script;

/* As long as it is this thread's turn. */
static const char *play_here(subject *s, void *argument) {
    script *p = argument;
    uint8_t b[DECODER_RECORD_BYTES];
    while (s->crew.next == s->crew.here && !s->is_over && !p->is_read) {
        if (!p->next(p->user, b, sizeof b)) {
            p->is_read = true;
            break;
        }
        record r = read_record(b);
        const char *why = subject_step(s, &r);
        print(s, p->trace);
        NEED(why == NULL, "%s, in operation %llu (%s)", why, (unsigned long long)s->step, s->text);
    }
    return NULL;
}

static const char *play(subject *s, script *p) {
    while (!s->is_over && !p->is_read) {
        TRY(on_thread(s, s->crew.next, play_here, p));
    }
    return NULL;
}

const char *decoder_run(decoder_source next, void *user, bool trace, uint64_t *n_operations) {
    uint8_t head[DECODER_HEAD_BYTES] = {0};
    subject *s = malloc(sizeof *s);
    NEED(s != NULL, "no host memory for the test");
    (void)next(user, head, sizeof head);
    const char *why = subject_open(s, head);
    print(s, trace);
    script p = {next, user, trace, false};
    why = why == NULL ? play(s, &p) : why;
    if (n_operations != NULL) {
        *n_operations += s->step;
    }
    if (why == NULL) {
        const char *end = subject_close(s);
        why = end != NULL ? complain("%s, at the end", end) : NULL;
    }
    free(why == NULL ? s : NULL); /* what is broken is left as it is */
    return why;
}

typedef struct span {
    const uint8_t *at;
    size_t left;
} span;

static bool take(void *user, uint8_t *out, size_t n) {
    span *b = user;
    if (b->left < n) {
        return false;
    }
    memcpy(out, b->at, n);
    b->at += n;
    b->left -= n;
    return true;
}

const char *decoder_run_bytes(const uint8_t *bytes, size_t size, bool trace,
                              uint64_t *n_operations) {
    span all = {bytes, size};
    return decoder_run(take, &all, trace, n_operations);
}
