/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a program as a list of requests with lifetimes: the step under way is recorded, steps
 * that are over are kept, and the step under way follows the kept one that began like it.
 *
 *     requests   carried, carried, ... | first, second, ...
 *                live when it began    | made in the step
 *
 * Where a step leaves the one that it follows it goes on with another that agrees so far, or skips
 * what is missing, or takes a request to be one too many.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_PLAN_STEPS_H
#define DUCTILE_BENCH_CONTENDERS_PLAN_STEPS_H

#include "bench/contenders/plan_pack.h"

enum { PLAN_MAX_STEPS = 256, PLAN_MAX_REQUESTS = 1 << 16 };

#define PLAN_NONE UINT32_MAX

typedef struct plan_request {
    uint64_t size;
    uint64_t offset; /* where the step's layout places it */
    uint64_t prefix; /* hash of all requests of the step up to this one */
    uint32_t born, dies;
    uint32_t range;
} plan_request;

typedef struct plan_step {
    plan_request *requests;
    size_t n, capacity;
    size_t n_carried;
    uint32_t clock;   /* allocations and frees until now */
    uint64_t used;    /* when it was last followed; the oldest one goes first */
    bool is_laid_out; /* all requests have an offset */
    uint64_t refused; /* the step in which its layout would need too much; 0: none */
} plan_step;

typedef struct plan_steps {
    plan_step now;
    plan_step kept[PLAN_MAX_STEPS];
    size_t n_kept;
    uint64_t n_begun;
    plan_step *followed; /* NULL: none */
    size_t at;           /* the next request of the followed one */
    size_t n_strange;    /* requests in a row that it does not have */
    bool is_exact;       /* until now the step is the followed one from the start */
} plan_steps;

/* Keeps the step under way, unless it was the followed one, and begins an empty one. */
void plan_steps_begin(plan_steps *s);
/* Adds something that is live at the start. Its index in `now`, or NONE: no room. */
uint32_t plan_steps_carry(plan_steps *s, uint64_t size, uint32_t range);
/* The next request: its index in `followed`, or NONE. *is_new: another step is followed than
 * before, and has to be laid out from this request on. */
uint32_t plan_steps_follow(plan_steps *s, uint64_t size, uint32_t range, bool *is_new);
/* The followed step is followed no more, until the next one begins. */
void plan_steps_refuse(plan_steps *s);
/* Records the request. Its index in `now`, or NONE: the step is too long. */
uint32_t plan_steps_add(plan_steps *s, uint64_t size, uint32_t range);
void plan_steps_end_request(plan_steps *s, uint32_t request);
void plan_steps_fini(plan_steps *s);

#endif
