/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training step whose parameters are sharded over many GPUs, as PyTorch's FSDP makes it, seen
 * from one of them: a communication stream gathers the parameters of each unit ahead of its use
 * and reduces gradients behind it; what one stream allocates, the other uses.
 *
 *   communication  gather 0  gather 1  gather 2 ...        gather n-1  reduce n  gather n-2 ...
 *   compute                  forward 0  forward 1 ...                 backward n  backward n-1 ...
 *
 * A layer is two units, attention and MLP; activations are recomputed; the number of tokens is
 * drawn again for every step.
 *
 *   fsdp_model.c    the program: what the host does, in order; its allocations as a trace
 *   fsdp_run.c      the program under an allocator, with work on real streams
 *   fsdp_work_*.c   what keeps a stream busy: on CUDA, on the virtual GPU
 */
#ifndef DUCTILE_BENCH_WORKLOADS_FSDP_MODEL_H
#define DUCTILE_BENCH_WORKLOADS_FSDP_MODEL_H

#include "bench/trace/trace_build.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FSDP_COMPUTE, FSDP_COMMUNICATION, FSDP_N_STREAMS };

/* fsdp_check has the bounds. */
typedef struct fsdp_options {
    uint64_t layers;
    uint64_t hidden;
    uint64_t ranks; /* GPUs that share the parameters */
    uint64_t tokens_min;
    uint64_t tokens_max;
    uint64_t steps;
    uint64_t prefetch; /* units gathered ahead of the one in use                           */
    uint64_t hold;     /* gradients under reduction that the host still holds: 0 frees each
                          as soon as its reduction is issued                               */
    uint64_t limiter;  /* units that may be gathered and not yet used up: the host waits for the
                          oldest before it gathers another; 0: it does not                 */
    uint64_t seed;
} fsdp_options;

typedef enum fsdp_op_kind {
    FSDP_ALLOC,  /* `block`, of `bytes`, on `stream`                                    */
    FSDP_USE,    /* record_stream of `block` on `stream`                                */
    FSDP_FREE,   /* `block`                                                             */
    FSDP_GATHER, /* work on `stream` that writes `block`                                */
    FSDP_WORK,   /* work on `stream` that reads `block` and writes `to`, where there are */
    FSDP_RECORD, /* `event` on `stream`                                                  */
    FSDP_WAIT,   /* `stream` waits for `event`                                           */
    FSDP_LIMIT,  /* the host waits for `event`                                           */
    FSDP_STEP    /* a step ends: the host waits for the loss                            */
} fsdp_op_kind;

#define FSDP_NO_BLOCK UINT32_MAX

/* One thing the host does. Work lasts `ns`. */
typedef struct fsdp_op {
    uint64_t bytes;
    uint64_t ns;
    uint32_t block;
    uint32_t to;
    uint32_t event;
    uint16_t kind; /* an fsdp_op_kind */
    uint16_t stream;
} fsdp_op;

/* Never changes once built. */
typedef struct fsdp_program {
    fsdp_op *ops;
    size_t n_ops;
    uint32_t capacity;
    uint32_t n_blocks; /* every allocation is a block of its own */
    uint32_t n_events; /* every recording an event               */
    uint32_t n_works;  /* GATHER and WORK                        */
    uint64_t *bytes;   /* of each block; owned                   */
} fsdp_program;

/* NULL if the options are valid; otherwise the reason why not. */
const char *fsdp_check(const fsdp_options *options);

/* False: the host has no memory left; *out is then empty. Release with fsdp_drop. */
bool fsdp_build(const fsdp_options *options, fsdp_program *out);
void fsdp_drop(fsdp_program *program);

/* Its allocations as a trace. Returns NULL, or a reason: then *out is empty. Release with
 * trace_build_drop. */
const char *fsdp_generate(const fsdp_program *program, trace_builder *out);

#endif
