/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another stream may still use a block when its owner frees it; the trace says when that use ends.
 * For it stands a gate in that stream, closed at the free and opened at the completion.
 *
 *   CUDA          the stream waits for a word of host memory; opening writes the word
 *   virtual GPU   a kernel that completes only when it is waited for; opening waits
 *
 * A stream passes its gates in order. A host wait for the stream (an allocator under pressure makes
 * one) has to end as it would with real work: on the virtual GPU the wait itself completes the
 * kernel; on CUDA a watcher opens the next gate when the replay stands still. How long that takes
 * says nothing about an allocator, so waited_ns has it and the replay subtracts it.
 */
#ifndef DUCTILE_BENCH_REPLAY_GATES_H
#define DUCTILE_BENCH_REPLAY_GATES_H

#include "bench/replay/testbed.h"
#include "bench/trace/trace.h"

#include <pthread.h>
#include <stdatomic.h>

/* The gates of one stream. Gate number k of a pass is number base + k here. */
typedef struct gate_line {
    uint64_t *word;     /* CUDA: gates up to this number are open. In device-visible memory */
    dvmm_event *events; /* of closed gates, by number modulo capacity */
    uint64_t capacity;
    uint64_t base;
    _Atomic uint64_t n_closed; /* gates closed in all passes */
    uint64_t n_opened;         /* by the trace: gates opened in all passes */
} gate_line;

/* When the watcher opens gates. All zero: after a quarter of a second each time, however often. */
typedef struct gates_patience {
    uint64_t again_ns;    /* standing still so long, once gates were opened in this process */
    uint64_t most_forced; /* standstills of this process after which no gate is closed any more: an
                             allocator that waits at every free would take longer than a person
                             waits; 0: no bound */
} gates_patience;

/* All zero has no gates. Owned by the replaying thread; the watcher reads n_closed and raises
 * words. */
typedef struct gates {
    const testbed *on;
    gates_patience patience;
    gate_line *lines; /* one per stream of the trace */
    size_t n_lines;
    void *words;
    pthread_t watcher;
    bool is_watched;
    _Atomic bool stop_watching;
    _Atomic uint64_t position;  /* of the replay; the watcher sees by it whether that moves */
    _Atomic uint64_t n_forced;  /* gates that the watcher opened */
    _Atomic uint64_t waited_ns; /* how long the replay stood still until it did */
} gates;

ductile_status gates_init(gates *g, const testbed *on, const trace *t, gates_patience patience);
void gates_fini(gates *g);

/* Before the free: the gate stands in the stream. After the free: gates_mark. */
ductile_status gates_close(gates *g, size_t stream, uint64_t number);
ductile_status gates_mark(gates *g, size_t stream, uint64_t number);

/* The first n gates of this pass are open, and the device has seen it. */
ductile_status gates_open(gates *g, size_t stream, uint64_t n);

/* All gates are open; the next pass counts from 1 again. */
ductile_status gates_end_pass(gates *g);

static inline void gates_note_position(gates *g, uint64_t position) {
    atomic_store_explicit(&g->position, position, memory_order_relaxed);
}

#endif
