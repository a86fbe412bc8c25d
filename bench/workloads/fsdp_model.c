/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/fsdp_model.h"

#include "bench/base/array.h"

#include <stdlib.h>

enum { WEIGHT_BYTES = 2, MAX_UNITS = 2048, MAX_HELD = 64 };

/* Of one rank: about what an H200 and a good network give. They set the proportions of work, not
 * results. */
static const double flops_per_ns = 4e5;
static const double network_bytes_per_ns = 100;

/* ---- Options ------------------------------------------------------------------------------- */

static bool in_bounds(uint64_t n, uint64_t most) {
    return n >= 1 && n <= most;
}

const char *fsdp_check(const fsdp_options *o) {
    if (!in_bounds(o->layers, MAX_UNITS / 2)) {
        return "--layers goes from 1 to 1024";
    }
    if (!in_bounds(o->hidden, 65536)) {
        return "--hidden goes from 1 to 65536";
    }
    if (!in_bounds(o->ranks, 65536)) {
        return "--ranks goes from 1 to 65536";
    }
    if (!in_bounds(o->tokens_min, o->tokens_max) || !in_bounds(o->tokens_max, 1 << 22)) {
        return "--tokens is MIN:MAX with 1 <= MIN <= MAX <= 4194304";
    }
    if (o->steps < 2 || o->steps > 10000 || !in_bounds(o->prefetch, MAX_UNITS)) {
        return "--steps goes from 2 to 10000, --prefetch from 1 to 2048";
    }
    if (o->hold > MAX_HELD) {
        return "--hold goes from 0 to 64";
    }
    if (o->limiter != 0 && (o->limiter <= o->prefetch || o->limiter > MAX_UNITS)) {
        return "--limiter is 0, or more than --prefetch and at most 2048";
    }
    return NULL;
}

/* ---- Writing the program ------------------------------------------------------------------- */

/* A program being built. After the first failure everything is ignored. */
typedef struct fsdp_builder {
    const fsdp_options *options;
    fsdp_program *to;
    uint64_t random;
    uint64_t tokens; /* of the step under way */
    bool failed;
    /* of the step under way */
    uint32_t gathered[2 * MAX_UNITS]; /* blocks, by position in the order of gathers */
    uint32_t gather_events[2 * MAX_UNITS];
    uint32_t drop_events[2 * MAX_UNITS]; /* with a limiter */
    uint64_t n_gathered;
    uint32_t activations[MAX_UNITS]; /* by unit */
    uint32_t held[MAX_HELD + 1];     /* gradients, oldest first */
    uint64_t n_held;
} fsdp_builder;

static void add(fsdp_builder *b, fsdp_op op) {
    fsdp_program *p = b->to;
    b->failed = !array_add(&p->ops, sizeof op, &p->capacity, &p->n_ops, &op) || b->failed;
}

static uint32_t alloc_block(fsdp_builder *b, uint64_t bytes, uint16_t stream) {
    uint32_t block = b->to->n_blocks++;
    add(b, (fsdp_op){.kind = FSDP_ALLOC, .block = block, .bytes = bytes, .stream = stream});
    return block;
}

static void free_block(fsdp_builder *b, uint32_t block) {
    add(b, (fsdp_op){.kind = FSDP_FREE, .block = block});
}

static void use_block(fsdp_builder *b, uint32_t block, uint16_t stream) {
    add(b, (fsdp_op){.kind = FSDP_USE, .block = block, .stream = stream});
}

static void work(fsdp_builder *b, uint16_t stream, uint32_t from, uint32_t to, double ns) {
    b->to->n_works++;
    add(b, (fsdp_op){
               .kind = FSDP_WORK, .stream = stream, .block = from, .to = to, .ns = (uint64_t)ns});
}

static uint32_t record(fsdp_builder *b, uint16_t stream) {
    uint32_t event = b->to->n_events++;
    add(b, (fsdp_op){.kind = FSDP_RECORD, .stream = stream, .event = event});
    return event;
}

static void wait_for(fsdp_builder *b, uint16_t stream, uint32_t event) {
    add(b, (fsdp_op){.kind = FSDP_WAIT, .stream = stream, .event = event});
}

/* Later work of `stream` comes after all that `on` has now. */
static void join(fsdp_builder *b, uint16_t stream, uint16_t on) {
    wait_for(b, stream, record(b, on));
}

/* ---- The model ----------------------------------------------------------------------------- */

static uint64_t n_units(const fsdp_options *o) {
    return 2 * o->layers;
}

/* Attention has 4 H^2 weights, an MLP 8 H^2. */
static uint64_t elements_of(const fsdp_options *o, uint64_t unit) {
    return (unit % 2 == 0 ? 4 : 8) * o->hidden * o->hidden;
}

static uint64_t unit_bytes(const fsdp_options *o, uint64_t unit) {
    return elements_of(o, unit) * WEIGHT_BYTES;
}

static double network_ns(const fsdp_options *o, uint64_t unit) {
    return (double)unit_bytes(o, unit) / network_bytes_per_ns;
}

static double forward_ns(const fsdp_builder *b, uint64_t unit) {
    return 2.0 * (double)elements_of(b->options, unit) * (double)b->tokens / flops_per_ns;
}

static uint64_t token_bytes(const fsdp_builder *b, uint64_t width) {
    return b->tokens * width * b->options->hidden * WEIGHT_BYTES;
}

/* Queries, keys, values and their product; or the wide middle and its activation. */
static uint64_t temporary_bytes(const fsdp_builder *b, uint64_t unit) {
    return token_bytes(b, unit % 2 == 0 ? 4 : 8);
}

/* The shard of the weights, its gradient in 4 bytes, master copy and two moments. */
static void alloc_shards(fsdp_builder *b) {
    for (uint64_t unit = 0; unit < n_units(b->options); unit++) {
        uint64_t elements = elements_of(b->options, unit) / b->options->ranks + 1;
        (void)alloc_block(b, elements * WEIGHT_BYTES, FSDP_COMPUTE);
        for (int i = 0; i < 4; i++) {
            (void)alloc_block(b, elements * 4, FSDP_COMPUTE);
        }
    }
}

/* Which unit the gather at a position is of: all in order, then all but the last in reverse. */
static uint64_t unit_at(const fsdp_options *o, uint64_t position) {
    uint64_t n = n_units(o);
    return position < n ? position : 2 * n - 2 - position;
}

static void gather(fsdp_builder *b, uint64_t position) {
    uint64_t unit = unit_at(b->options, position);
    uint32_t block = alloc_block(b, unit_bytes(b->options, unit), FSDP_COMMUNICATION);
    b->to->n_works++;
    add(b, (fsdp_op){.kind = FSDP_GATHER,
                     .stream = FSDP_COMMUNICATION,
                     .block = block,
                     .ns = (uint64_t)network_ns(b->options, unit)});
    b->gathered[position] = block;
    b->gather_events[position] = record(b, FSDP_COMMUNICATION);
}

/* What was gathered so many units before has been used up. */
static void limit(fsdp_builder *b, uint64_t position) {
    uint64_t limiter = b->options->limiter;
    if (limiter > 0 && position >= limiter) {
        add(b, (fsdp_op){.kind = FSDP_LIMIT, .event = b->drop_events[position - limiter]});
    }
}

static void gather_ahead(fsdp_builder *b, uint64_t position) {
    uint64_t end = 2 * n_units(b->options) - 1;
    uint64_t wanted = position + b->options->prefetch + 1;
    while (b->n_gathered < wanted && b->n_gathered < end) {
        limit(b, b->n_gathered);
        gather(b, b->n_gathered++);
    }
    wait_for(b, FSDP_COMPUTE, b->gather_events[position]);
}

/* The whole parameters are the communication stream's memory, and compute has used them. */
static void drop_gathered(fsdp_builder *b, uint64_t position) {
    use_block(b, b->gathered[position], FSDP_COMPUTE);
    free_block(b, b->gathered[position]);
    if (b->options->limiter > 0) {
        b->drop_events[position] = record(b, FSDP_COMPUTE);
    }
}

static void run_forward(fsdp_builder *b, uint64_t unit) {
    b->activations[unit] = alloc_block(b, token_bytes(b, 1), FSDP_COMPUTE);
    uint32_t temporary = alloc_block(b, temporary_bytes(b, unit), FSDP_COMPUTE);
    work(b, FSDP_COMPUTE, b->gathered[unit], FSDP_NO_BLOCK, forward_ns(b, unit));
    free_block(b, temporary);
}

/* The gradient is compute's memory, and the communication stream reduces it. */
static void reduce(fsdp_builder *b, uint64_t unit, uint32_t gradient) {
    join(b, FSDP_COMMUNICATION, FSDP_COMPUTE);
    work(b, FSDP_COMMUNICATION, gradient, FSDP_NO_BLOCK, network_ns(b->options, unit));
    use_block(b, gradient, FSDP_COMMUNICATION);
    b->held[b->n_held++] = gradient;
}

static void drop_held(fsdp_builder *b, uint64_t keep) {
    uint64_t n_dropped = b->n_held > keep ? b->n_held - keep : 0;
    for (uint64_t i = 0; i < n_dropped; i++) {
        free_block(b, b->held[i]);
    }
    for (uint64_t i = n_dropped; i < b->n_held; i++) {
        b->held[i - n_dropped] = b->held[i];
    }
    b->n_held -= n_dropped;
}

static void run_backward(fsdp_builder *b, uint64_t unit, uint64_t position) {
    uint32_t temporary = alloc_block(b, 2 * temporary_bytes(b, unit), FSDP_COMPUTE);
    uint32_t gradient = alloc_block(b, unit_bytes(b->options, unit), FSDP_COMPUTE);
    work(b, FSDP_COMPUTE, b->gathered[position], gradient, 3 * forward_ns(b, unit));
    free_block(b, temporary);
    free_block(b, b->activations[unit]);
    drop_gathered(b, position);
    reduce(b, unit, gradient);
    drop_held(b, b->options->hold);
}

/* The last unit's parameters stay from its forward to its backward. */
static void run_step(fsdp_builder *b) {
    uint64_t n = n_units(b->options);
    b->n_gathered = 0;
    join(b, FSDP_COMMUNICATION, FSDP_COMPUTE); /* the new weights come from the optimizer */
    for (uint64_t unit = 0; unit < n; unit++) {
        gather_ahead(b, unit);
        run_forward(b, unit);
        if (unit + 1 < n) {
            drop_gathered(b, unit);
        }
    }
    for (uint64_t position = n - 1; position <= 2 * n - 2; position++) {
        gather_ahead(b, position);
        run_backward(b, unit_at(b->options, position), position);
    }
    drop_held(b, 0);
    join(b, FSDP_COMPUTE, FSDP_COMMUNICATION);
    work(b, FSDP_COMPUTE, FSDP_NO_BLOCK, FSDP_NO_BLOCK, 1e5);
    add(b, (fsdp_op){.kind = FSDP_STEP});
}

static uint64_t draw(fsdp_builder *b, uint64_t min, uint64_t max) {
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return min + (b->random >> 33) % (max - min + 1);
}

/* ---- The whole ----------------------------------------------------------------------------- */

static bool note_sizes(fsdp_program *p) {
    p->bytes = calloc(p->n_blocks, sizeof *p->bytes);
    if (p->bytes == NULL) {
        return false;
    }
    for (size_t i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind == FSDP_ALLOC) {
            p->bytes[p->ops[i].block] = p->ops[i].bytes;
        }
    }
    return true;
}

bool fsdp_build(const fsdp_options *options, fsdp_program *out) {
    fsdp_builder *b = calloc(1, sizeof *b);
    *out = (fsdp_program){0};
    if (b == NULL) {
        return false;
    }
    b->options = options;
    b->to = out;
    b->random = options->seed;
    alloc_shards(b);
    for (uint64_t i = 0; i < options->steps; i++) {
        b->tokens = draw(b, options->tokens_min, options->tokens_max);
        run_step(b);
    }
    bool ok = !b->failed && note_sizes(out);
    free(b);
    if (!ok) {
        fsdp_drop(out);
    }
    return ok;
}

void fsdp_drop(fsdp_program *program) {
    free(program->ops);
    free(program->bytes);
    *program = (fsdp_program){0};
}

/* ---- As a trace ---------------------------------------------------------------------------- */

/* Blocks are numbered alike in the program and in the builder: each is allocated once, in order. */
static const char *add_op(trace_builder *b, const fsdp_op *op) {
    uint32_t block = 0;
    switch ((fsdp_op_kind)op->kind) {
    case FSDP_ALLOC:
        return trace_build_alloc(b, op->bytes, op->stream, &block);
    case FSDP_USE:
        return trace_build_use(b, op->block, op->stream);
    case FSDP_FREE:
        return trace_build_free(b, op->block);
    case FSDP_STEP:
        return trace_build_step(b);
    case FSDP_GATHER:
    case FSDP_WORK:
    case FSDP_RECORD:
    case FSDP_WAIT:
    case FSDP_LIMIT:
        break;
    }
    return NULL;
}

const char *fsdp_generate(const fsdp_program *program, trace_builder *out) {
    const char *reason = NULL;
    *out = (trace_builder){.names_uses = true};
    for (size_t i = 0; reason == NULL && i < program->n_ops; i++) {
        reason = add_op(out, &program->ops[i]);
    }
    if (reason != NULL) {
        trace_build_drop(out);
    }
    return reason;
}
