/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Are contents whole when the first thing that a process does on a GPU is a sleep? By the driver
 * alone, without an allocator: host memory is page-locked for the first time, blocks are copied
 * out, unmapped and released, other memory is made, filled and freed, new memory is mapped at the
 * old addresses, the blocks are copied in, and checked. Two of them end within a granule.
 *
 *     first_sleep [--virtual | --device N] [--cycles N] [--singly]
 *
 * --singly: a call for each copy, where otherwise one call makes all. The first cycle is what the
 * program is for: more processes tell more than more cycles. Ends with 1 when contents differ or a
 * call fails; 77 without a device, or without batches where they are to be used.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/program_device.h"
#include "vmm/base/align.h"
#include "vmm/host_pages.h"

enum { N_BLOCKS = 4, OTHER_BYTE = 0xA5 };

static const uint64_t other_bytes = 64 * DTI_MIB;

typedef struct block {
    uint64_t mapped_bytes;
    pattern_block block; /* its first bytes: what is copied */
} block;

static struct {
    program_device on;
    ductile_stream stream; /* of the patterns */
    block blocks[N_BLOCKS];
    uint8_t *host;
    uint64_t host_bytes;
    uint64_t cycles;
    bool singly;
} p = {.cycles = 1,
       .blocks = {{32 * DTI_MIB, {.size = 32 * DTI_MIB}},
                  {2 * DTI_MIB, {.size = 1024}},
                  {4 * DTI_MIB, {.size = 4000000}},
                  {6 * DTI_MIB, {.size = 4000000}}}};

/* ---- Memory -------------------------------------------------------------------------------- */

/* The mapping alone keeps the memory alive: an unmap gives it back. */
static const char *map(const block *b) {
    const dvmm_phys_props props = {0};
    dvmm_phys phys = 0;
    NEED_OK(dvmm_phys_create(p.on.driver, b->mapped_bytes, &props, &phys));
    NEED_OK(dvmm_map(p.on.driver, b->block.address, b->mapped_bytes, phys));
    NEED_OK(dvmm_set_access(p.on.driver, b->block.address, b->mapped_bytes, DVMM_ACCESS_RW));
    NEED_OK(dvmm_phys_release(p.on.driver, phys));
    return NULL;
}

static const char *map_all(void) {
    for (int i = 0; i < N_BLOCKS; i++) {
        TRY(map(&p.blocks[i]));
    }
    return NULL;
}

static const char *unmap_all(void) {
    for (int i = 0; i < N_BLOCKS; i++) {
        NEED_OK(dvmm_unmap(p.on.driver, p.blocks[i].block.address, p.blocks[i].mapped_bytes));
    }
    return NULL;
}

static const char *make_host_memory(void) {
    for (int i = 0; i < N_BLOCKS; i++) {
        p.host_bytes += p.blocks[i].block.size;
    }
    p.host_bytes = dti_round_up(p.host_bytes, DVMM_HUGE_PAGE);
    p.host = dvmm_host_pages_reserve(p.host_bytes);
    NEED(p.host != NULL, "no addresses for host memory");
    NEED(dvmm_host_pages_make(p.host, p.host_bytes), "no host memory");
    return NULL;
}

static const char *make_all(void) {
    for (int i = 0; i < N_BLOCKS; i++) {
        block *b = &p.blocks[i];
        NEED_OK(dvmm_address_reserve(p.on.driver, b->mapped_bytes, &b->block.address));
    }
    TRY(map_all());
    return make_host_memory();
}

static const char *drop_all(void) {
    TRY(unmap_all());
    for (int i = 0; i < N_BLOCKS; i++) {
        const block *b = &p.blocks[i];
        NEED_OK(dvmm_address_free(p.on.driver, b->block.address, b->mapped_bytes));
    }
    NEED_OK(dvmm_host_unregister(p.on.driver, p.host));
    dvmm_host_pages_drop(p.host, p.host_bytes);
    dvmm_host_pages_unreserve(p.host, p.host_bytes);
    return NULL;
}

/* ---- Copies -------------------------------------------------------------------------------- */

static void describe_copies(dvmm_batch *batch, bool is_out) {
    uint8_t *host = p.host;
    *batch = (dvmm_batch){.is_out = is_out};
    for (int i = 0; i < N_BLOCKS; i++) {
        const pattern_block *c = &p.blocks[i].block;
        batch->device[batch->n] = c->address;
        batch->host[batch->n] = (ductile_addr)(uintptr_t)host;
        batch->sizes[batch->n++] = c->size;
        batch->bytes += c->size;
        host += c->size;
    }
}

static const char *copy_singly(const dvmm_batch *batch, ductile_stream stream) {
    for (uint32_t i = 0; i < batch->n; i++) {
        void *host = (void *)(uintptr_t)batch->host[i];
        NEED_OK(batch->is_out
                    ? dvmm_download(p.on.driver, host, batch->device[i], batch->sizes[i], stream)
                    : dvmm_upload(p.on.driver, batch->device[i], host, batch->sizes[i], stream));
    }
    return NULL;
}

static const char *copy_together(dvmm_batch *batch, ductile_stream stream) {
    ductile_status status = dvmm_copy_batch(p.on.driver, batch, stream);
    if (status == DUCTILE_ERR_UNSUPPORTED) {
        command_skip("the driver copies no batches: --singly");
    }
    NEED(status == DUCTILE_OK, "a batch of copies returned %s", ductile_status_name(status));
    return NULL;
}

/* On a stream that is made for it, as a sleep does. */
static const char *copy_all(bool is_out) {
    ductile_stream stream = NULL;
    dvmm_batch batch;
    describe_copies(&batch, is_out);
    NEED_OK(dvmm_stream_create(p.on.driver, &stream));
    TRY(p.singly ? copy_singly(&batch, stream) : copy_together(&batch, stream));
    NEED_OK(dvmm_stream_sync(p.on.driver, stream));
    NEED_OK(dvmm_stream_destroy(p.on.driver, stream));
    return NULL;
}

/* ---- Cycles -------------------------------------------------------------------------------- */

/* What this leaves in memory would be seen where a copy were lost. */
static const char *use_memory_otherwise(void) {
    ductile_addr other = 0;
    NEED_OK(bench_mem_alloc(p.on.driver, other_bytes, &other));
    NEED_OK(dvmm_fill(p.on.driver, other, OTHER_BYTE, other_bytes, p.stream));
    NEED_OK(dvmm_stream_sync(p.on.driver, p.stream));
    NEED_OK(bench_mem_free(p.on.driver, other));
    return NULL;
}

static const char *write_all(uint64_t cycle) {
    for (uint64_t i = 0; i < N_BLOCKS; i++) {
        p.blocks[i].block.id = 1 + cycle * N_BLOCKS + i;
        TRY(pattern_write(&p.on.tester, &p.blocks[i].block, p.stream));
    }
    NEED_OK(dvmm_context_sync(p.on.driver));
    return NULL;
}

static const char *check_all(void) {
    for (int i = 0; i < N_BLOCKS; i++) {
        TRY(pattern_expect(&p.on.tester, &p.blocks[i].block, p.stream));
    }
    return NULL;
}

static const char *sleep_and_wake(uint64_t cycle) {
    TRY(write_all(cycle));
    if (cycle == 0) {
        NEED_OK(dvmm_host_register(p.on.driver, p.host, p.host_bytes));
    }
    TRY(copy_all(true));
    TRY(unmap_all());
    TRY(use_memory_otherwise());
    TRY(map_all());
    TRY(copy_all(false));
    return check_all();
}

static const char *run(void) {
    TRY(program_open(&p.on, NULL, 1));
    p.stream = p.on.streams[0];
    TRY(make_all());
    for (uint64_t cycle = 0; cycle < p.cycles; cycle++) {
        const char *why = sleep_and_wake(cycle);
        NEED(why == NULL, "cycle %llu: %s", (unsigned long long)cycle + 1, why);
    }
    command_figure(p.singly ? "cycles, copies one by one" : "cycles, copies in batches", p.cycles);
    TRY(drop_all());
    return program_close(&p.on);
}

int main(int argc, char **argv) {
    const command_option options[] = {
        PROGRAM_OPTIONS(&p.on), {"--cycles", .number = &p.cycles}, {"--singly", .flag = &p.singly}};
    command_read("first_sleep", options, sizeof options / sizeof options[0], argc, argv);
    command_end_after(60);
    return command_end(run());
}
