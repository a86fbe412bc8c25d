/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A contender whose allocations and frees are timed one by one: what a program waits for in a call,
 * driver calls included. Reading the clock takes as long as a call that hits; its cost is taken
 * off, but figures for whole passes come from replays without it.
 */
#ifndef DUCTILE_BENCH_REPLAY_TIMED_CONTENDER_H
#define DUCTILE_BENCH_REPLAY_TIMED_CONTENDER_H

#include "bench/base/call_times.h"
#include "bench/contenders/contender.h"

#include <stdatomic.h>

/* Owned by the replaying thread; refers to the contender, and to the waits of its gates. */
typedef struct timed_contender {
    const contender_ops *inner;
    void *contender;
    bool is_virtual; /* then driver calls take their modelled time */
    const _Atomic uint64_t *waited_ns;
    call_times times;
} timed_contender;

/* Has alloc, free, record_stream and stream_done; its self is a timed_contender. */
contender_ops timed_contender_ops(const contender_ops *inner);

#endif
