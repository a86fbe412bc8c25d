/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The alias probes: each writes by one address and looks by the other. "A" is the first address,
 * "B" the second. An elder is a kernel that lets its successor start before it is done itself; a
 * hasty successor does not wait for it.
 */
#include "tests/conformance/alias_bench.h"

static const char *copy(alias_bench *t, ductile_addr to, ductile_addr from) {
    NEED_OK(dvmm_copy(t->driver, to, from, t->bytes, t->stream));
    return NULL;
}

/* ---- Plain order --------------------------------------------------------------------------- */

/* A checker that sees nothing would find every promise kept. */
static const char *look_for_another_pattern(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    NEED_CODE(alias_fill(t, t->a, id));
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, b, id + 1));
    return NULL;
}

static const char *write_a_read_b(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    NEED_CODE(alias_spin(t));
    NEED_CODE(alias_fill(t, t->a, id));
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, b, id));
    return NULL;
}

static const char *write_b_read_a(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_spin(t));
    NEED_CODE(alias_fill(t, b, id));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, t->a, id));
    return NULL;
}

/* A stale line in a cache filled by the first look would show in the second. */
static const char *look_write_look(alias_bench *t, gpu_kernel how) {
    ductile_addr b;
    uint64_t before = t->next_id++;
    uint64_t after = t->next_id++;
    NEED_CODE(alias_fill(t, t->a, before));
    NEED_CODE(alias_check(t, how, t->a, before));
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_fill(t, b, after));
    NEED_CODE(alias_check(t, how, t->a, after));
    NEED_CODE(alias_check(t, how, b, after));
    return NULL;
}

static const char *read_a_write_b_read_a(alias_bench *t) {
    return look_write_look(t, GPU_CHECK_WORDS);
}

static const char *read_only_cache(alias_bench *t) {
    return look_write_look(t, GPU_CHECK_CONST);
}

/* The memory changes hands: old user by a, new user by b, old contents must not come back. */
static const char *overwrite_by_b(alias_bench *t) {
    ductile_addr b;
    uint64_t old = t->next_id++;
    uint64_t new = t->next_id++;
    NEED_CODE(alias_spin(t));
    NEED_CODE(alias_fill(t, t->a, old));
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_fill(t, b, new));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, b, new));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, t->a, new));
    return NULL;
}

static const char *across_streams(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    NEED_CODE(alias_spin(t));
    NEED_CODE(alias_fill(t, t->a, id));
    NEED_OK(dvmm_event_record(t->driver, t->event, t->stream));
    TRY(alias_map_second(t, &b));
    NEED_OK(dvmm_stream_wait_event(t->driver, t->other, t->event));
    gpu_launch l = alias_launch(t, GPU_CHECK_WORDS, b, id);
    l.stream = t->other;
    NEED_CODE(gpu_start(t->gpu, &l));
    NEED_OK(dvmm_event_record(t->driver, t->event, t->other));
    NEED_OK(dvmm_stream_wait_event(t->driver, t->stream, t->event));
    return NULL;
}

/* ---- Copies and fills ---------------------------------------------------------------------- */

static const char *write_a_copy_from_b(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    NEED_CODE(alias_spin(t));
    NEED_CODE(alias_fill(t, t->a, id));
    TRY(alias_map_second(t, &b));
    TRY(copy(t, t->plain, b));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, t->plain, id));
    return NULL;
}

static const char *copy_to_a_read_b(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    NEED_CODE(alias_fill(t, t->plain, id));
    NEED_CODE(alias_spin(t));
    TRY(copy(t, t->a, t->plain));
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, b, id));
    return NULL;
}

static const char *copy_to_a_copy_from_b(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    NEED_CODE(alias_fill(t, t->plain, id));
    TRY(copy(t, t->a, t->plain));
    NEED_CODE(alias_fill(t, t->plain, t->next_id++));
    TRY(alias_map_second(t, &b));
    TRY(copy(t, t->plain, b));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, t->plain, id));
    return NULL;
}

/* A byte, four times in a word. */
static uint64_t word_of_byte(uint8_t byte) {
    return (uint64_t)byte * 0x01010101u;
}

static const char *fill_a_read_b(alias_bench *t) {
    ductile_addr b;
    uint8_t byte = (uint8_t)t->next_id++;
    NEED_CODE(alias_spin(t));
    NEED_OK(dvmm_fill(t->driver, t->a, byte, t->bytes, t->stream));
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_check(t, GPU_CHECK_VALUE, b, word_of_byte(byte)));
    return NULL;
}

static const char *write_a_fill_b(alias_bench *t) {
    ductile_addr b;
    uint8_t byte = (uint8_t)t->next_id++;
    NEED_CODE(alias_spin(t));
    NEED_CODE(alias_fill(t, t->a, t->next_id++));
    TRY(alias_map_second(t, &b));
    NEED_OK(dvmm_fill(t->driver, b, byte, t->bytes, t->stream));
    NEED_CODE(alias_check(t, GPU_CHECK_VALUE, t->a, word_of_byte(byte)));
    return NULL;
}

static const char *fill_a_copy_from_b(alias_bench *t) {
    ductile_addr b;
    uint8_t byte = (uint8_t)t->next_id++;
    NEED_OK(dvmm_fill(t->driver, t->a, byte, t->bytes, t->stream));
    TRY(alias_map_second(t, &b));
    TRY(copy(t, t->plain, b));
    NEED_CODE(alias_check(t, GPU_CHECK_VALUE, t->plain, word_of_byte(byte)));
    return NULL;
}

/* ---- Programmatic dependent launch --------------------------------------------------------- */

/* Second addresses are mapped before the elder starts: mapping takes longer than the elder. */

static const char *elder_writes_waiting_reads(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_early_fill(t, t->a, id));
    NEED_CODE(alias_dependent(t, GPU_WAITING_CHECK, b, id));
    return NULL;
}

/* The elder never lets its successor start: the end of a kernel does. */
static const char *plain_writes_waiting_reads(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_fill(t, t->a, id));
    NEED_CODE(alias_dependent(t, GPU_WAITING_CHECK, b, id));
    return NULL;
}

static const char *elder_writes_plain_reads(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_early_fill(t, t->a, id));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, b, id));
    return NULL;
}

static const char *elder_writes_copy_reads(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_early_fill(t, t->a, id));
    TRY(copy(t, t->plain, b));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, t->plain, id));
    return NULL;
}

/* The elder still reads the old contents when the successor wants to write new ones. */
static const char *elder_reads_waiting_writes(alias_bench *t) {
    ductile_addr b;
    uint64_t old = t->next_id++;
    uint64_t new = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_fill(t, t->a, old));
    NEED_CODE(alias_early_check(t, t->a, old));
    NEED_CODE(alias_dependent(t, GPU_WAITING_FILL, b, new));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, t->a, new));
    return NULL;
}

static const char *elder_reads_plain_writes(alias_bench *t) {
    ductile_addr b;
    uint64_t old = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_fill(t, t->a, old));
    NEED_CODE(alias_early_check(t, t->a, old));
    NEED_CODE(alias_fill(t, b, t->next_id++));
    return NULL;
}

/* The allocator records an event before it returns a recycled address. Does that event order a
 * successor that does not wait by itself? */
static const char *elder_writes_event_hasty_reads(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_early_fill(t, t->a, id));
    NEED_OK(dvmm_event_record(t->driver, t->event, t->stream));
    NEED_CODE(alias_dependent(t, GPU_CHECK_WORDS, b, id));
    return NULL;
}

static const char *elder_reads_event_hasty_writes(alias_bench *t) {
    ductile_addr b;
    uint64_t old = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_fill(t, t->a, old));
    NEED_CODE(alias_early_check(t, t->a, old));
    NEED_OK(dvmm_event_record(t->driver, t->event, t->stream));
    NEED_CODE(alias_dependent(t, GPU_FILL_WORDS, b, t->next_id++));
    return NULL;
}

static const char *elder_writes_hasty_reads(alias_bench *t) {
    ductile_addr b;
    uint64_t id = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_early_fill(t, t->a, id));
    NEED_CODE(alias_dependent(t, GPU_CHECK_WORDS, b, id));
    return NULL;
}

static const char *elder_reads_hasty_writes(alias_bench *t) {
    ductile_addr b;
    uint64_t old = t->next_id++;
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_fill(t, t->a, old));
    NEED_CODE(alias_early_check(t, t->a, old));
    NEED_CODE(alias_dependent(t, GPU_FILL_WORDS, b, t->next_id++));
    return NULL;
}

/* The same hazard with one address, for comparison: it is the kernel's, not the alias's. */
static const char *same_address_hasty_reads(alias_bench *t) {
    uint64_t id = t->next_id++;
    NEED_CODE(alias_early_fill(t, t->a, id));
    NEED_CODE(alias_dependent(t, GPU_CHECK_WORDS, t->a, id));
    return NULL;
}

/* ---- Long-running kernels ------------------------------------------------------------------ */

/* A kernel looks at its memory over and over while the new address comes; what follows on the
 * stream writes there only after the kernel has ended. */
static const char *persistent_while_mapping(alias_bench *t) {
    ductile_addr b;
    uint64_t old = t->next_id++;
    uint64_t new = t->next_id++;
    TRY(alias_drop_seconds(t));
    NEED_CODE(alias_fill(t, t->a, old));
    NEED_CODE(alias_start_guard(t, old));
    TRY(alias_map_second(t, &b));
    NEED_CODE(alias_fill(t, b, new));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, b, new));
    alias_stop_guard(t);
    NEED_OK(dvmm_stream_sync(t->driver, t->stream));
    return NULL;
}

/* Unused aliases come and go beside a running kernel. */
static const char *persistent_while_unmapping(alias_bench *t) {
    uint64_t id = t->next_id++;
    TRY(alias_drop_seconds(t));
    NEED_CODE(alias_fill(t, t->a, id));
    NEED_CODE(alias_start_guard(t, id));
    for (uint64_t i = 0; i < ALIAS_SLOTS / 2; i++) {
        ductile_addr b = t->slots + i * t->bytes;
        TRY(alias_map_all(t, b));
        NEED_OK(dvmm_unmap(t->driver, b, t->bytes));
    }
    alias_stop_guard(t);
    NEED_OK(dvmm_stream_sync(t->driver, t->stream));
    return NULL;
}

/* The whole life of a move: map the new address, record the marker, use the new address, and when
 * the marker is done unmap the old one while the use of the new one goes on. */
static const char *move_and_unmap_old(alias_bench *t) {
    ductile_addr b;
    uint64_t old = t->next_id++;
    uint64_t new = t->next_id++;
    NEED_CODE(alias_spin(t));
    NEED_CODE(alias_fill(t, t->a, old));
    TRY(alias_map_second(t, &b));
    NEED_OK(dvmm_event_record(t->driver, t->event, t->stream));
    NEED_CODE(alias_fill(t, b, new));
    NEED_CODE(alias_spin(t));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, b, new));
    NEED_OK(dvmm_event_sync(t->driver, t->event));
    NEED_OK(dvmm_unmap(t->driver, t->a, t->bytes));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, b, new));
    TRY(alias_map_all(t, t->a));
    NEED_CODE(alias_check(t, GPU_CHECK_WORDS, t->a, new));
    return NULL;
}

/* ---- The rows ------------------------------------------------------------------------------ */

const alias_probe alias_probes[] = {
    {"write A, look for another pattern by B", look_for_another_pattern, PROMISE_DIFFERENT, false},
    {"write A, read B", write_a_read_b, PROMISE_KEPT, false},
    {"write B, read A", write_b_read_a, PROMISE_KEPT, false},
    {"read A, write B, read A", read_a_write_b_read_a, PROMISE_KEPT, false},
    {"read A, write B, read A, read-only cache", read_only_cache, PROMISE_KEPT, false},
    {"write A, overwrite by B", overwrite_by_b, PROMISE_KEPT, false},
    {"write A, event, read B on another stream", across_streams, PROMISE_KEPT, false},
    {"write A, copy from B", write_a_copy_from_b, PROMISE_KEPT, false},
    {"copy to A, read B", copy_to_a_read_b, PROMISE_KEPT, false},
    {"copy to A, copy from B", copy_to_a_copy_from_b, PROMISE_KEPT, false},
    {"memset A, read B", fill_a_read_b, PROMISE_KEPT, false},
    {"write A, memset B, read A", write_a_fill_b, PROMISE_KEPT, false},
    {"memset A, copy from B", fill_a_copy_from_b, PROMISE_KEPT, false},
    {"persistent kernel on A while B is mapped", persistent_while_mapping, PROMISE_KEPT, false},
    {"persistent kernel on A while aliases go", persistent_while_unmapping, PROMISE_KEPT, false},
    {"move to B, unmap A after its marker", move_and_unmap_old, PROMISE_KEPT, false},
    {"dependent: writes A, waits and reads B", elder_writes_waiting_reads, PROMISE_KEPT, true},
    {"dependent: plain writes A, waits, reads B", plain_writes_waiting_reads, PROMISE_KEPT, true},
    {"dependent: writes A, plain reads B", elder_writes_plain_reads, PROMISE_KEPT, true},
    {"dependent: writes A, copy from B", elder_writes_copy_reads, PROMISE_KEPT, true},
    {"dependent: reads A, waits and writes B", elder_reads_waiting_writes, PROMISE_KEPT, true},
    {"dependent: reads A, plain writes B", elder_reads_plain_writes, PROMISE_KEPT, true},
    {"dependent: writes A, event, hasty reads B", elder_writes_event_hasty_reads, PROMISE_EVENT,
     true},
    {"dependent: reads A, event, hasty writes B", elder_reads_event_hasty_writes, PROMISE_EVENT,
     true},
    {"dependent: writes A, hasty reads B", elder_writes_hasty_reads, PROMISE_NONE, true},
    {"dependent: reads A, hasty writes B", elder_reads_hasty_writes, PROMISE_NONE, true},
    {"dependent: writes A, hasty reads A", same_address_hasty_reads, PROMISE_NONE, true},
};

const size_t n_alias_probes = sizeof(alias_probes) / sizeof(alias_probes[0]);
