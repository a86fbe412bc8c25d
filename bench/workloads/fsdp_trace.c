/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/fsdp_trace.h"

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
