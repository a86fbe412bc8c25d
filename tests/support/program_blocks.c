/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program_blocks.h"

/* ---- Allocators ---------------------------------------------------------------------------- */

ductile_status program_create(const program_device *p, uint64_t limit_bytes, const char *conf,
                              ductile_allocator **out) {
    char message[256] = "";
    ductile_options options;
    ductile_options_init(&options);
    options.driver = p->gpu != NULL ? DUCTILE_DRIVER_VIRTUAL : DUCTILE_DRIVER_CUDA;
    options.virtual_gpu = p->gpu;
    options.device = p->device;
    options.limit_bytes = limit_bytes;
    if (ductile_options_parse(&options, conf, message, sizeof message) != DUCTILE_OK) {
        command_refuse(message);
    }
    return ductile_create(out, &options);
}

const char *program_allocator(const program_device *p, uint64_t limit_bytes,
                              ductile_allocator **out) {
    NEED_OK(program_create(p, limit_bytes, "", out));
    return NULL;
}

const char *program_is_sound(ductile_allocator *a) {
    char report[256] = "";
    ductile_status status = ductile_check(a, report, sizeof report);
    NEED(status == DUCTILE_OK, "ductile_check: %s %s", ductile_status_name(status), report);
    return NULL;
}

/* ---- Blocks -------------------------------------------------------------------------------- */

void program_announce(const program_device *p, const pattern_block *b, bool is_live) {
    if (p->gpu != NULL && is_live) {
        ductile_virtual_block_begin(p->gpu, b->address, b->size);
    } else if (p->gpu != NULL) {
        ductile_virtual_block_end(p->gpu, b->address);
    }
}

void live_blocks_add(live_blocks *l, live_block it) {
    l->all[l->n++] = it;
    l->live_bytes += it.block.size;
}

live_block live_blocks_remove(live_blocks *l, size_t i) {
    live_block it = l->all[i];
    l->all[i] = l->all[--l->n];
    l->live_bytes -= it.block.size;
    return it;
}

const char *program_ask(ductile_allocator *a, pattern_block *b, ductile_stream stream) {
    ductile_status status = ductile_alloc(a, b->size, stream, &b->address);
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY, "alloc: %s",
         ductile_status_string(status));
    return NULL;
}

const char *program_take(program_device *p, ductile_allocator *a, pattern_block *b,
                         ductile_stream stream) {
    TRY(program_ask(a, b, stream));
    if (b->address == 0) {
        return NULL;
    }
    program_announce(p, b, true);
    return pattern_write(&p->tester, b, stream);
}

const char *program_give(const program_device *p, ductile_allocator *a, pattern_block *b) {
    program_announce(p, b, false);
    NEED_OK(ductile_free(a, b->address));
    b->address = 0;
    return NULL;
}
