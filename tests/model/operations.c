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

/* Out of 256 values of the first byte, how many mean which operation. */
static const struct operation {
    const char *(*run)(subject *s, const record *r);
    uint8_t weight;
} operations[] = {
    {do_balance, 60},     {do_alloc, 8},          {do_free, 8},          {do_dedicated, 5},
    {do_phase, 4},        {do_use, 14},           {do_free_on, 8},       {do_join, 12},
    {do_verify, 3},       {do_query, 4},          {do_advance, 10},      {do_sync, 3},
    {do_order, 5},        {do_replace_stream, 2}, {do_peer, 2},          {do_capture_begin, 4},
    {do_capture_end, 3},  {do_launch, 4},         {do_destroy_graph, 3}, {do_set_captures, 2},
    {do_pool_open, 6},    {do_pool_close, 7},     {do_pool_hold, 5},     {do_pool_kind, 3},
    {do_pool_view, 3},    {do_pool_trim, 3},      {do_pause, 8},         {do_alloc_at, 2},
    {do_trim, 3},         {do_empty, 3},          {do_limit, 3},         {do_soft_limit, 2},
    {do_external, 4},     {do_fault, 2},          {do_no_fault, 2},      {do_callback, 2},
    {do_views, 3},        {do_misuse, 4},         {do_pin, 7},           {do_share, 2},
    {do_close_import, 2}, {do_anew, 1},           {do_pay, 4},           {do_rest, 2},
    {do_thread, 6},       {do_end_thread, 3},
};

/* What a soak leaves out: what changes how much memory there is, or ends everything. */
static const char *(*const unsteady[])(subject *s, const record *r) = {
    do_phase, do_limit, do_soft_limit, do_external, do_fault,        do_share,    do_anew,
    do_peer,  do_pause, do_pool_open,  do_callback, do_set_captures, do_pool_hold};

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
    const char *why = chosen(r->op)->run(s, r);
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
