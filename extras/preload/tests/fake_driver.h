/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 with all that Ductile and libductile_preload.so call. It hands out addresses,
 * contexts and streams that differ, and knows which stream is being captured. Work is done at once.
 */
#ifndef PRELOAD_TESTS_FAKE_DRIVER_H
#define PRELOAD_TESTS_FAKE_DRIVER_H

#include "../abi.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct fake_counts {
    atomic_int mallocs, frees;             /* cuMemAlloc, cuMemFree of memory of its own */
    atomic_int async_mallocs, async_frees; /* the same of the stream-ordered calls       */
    atomic_int pitched, managed, ipc;
    atomic_int creates, maps;
    atomic_int waits;                 /* cuCtxSynchronize                           */
    atomic_int other_waits;           /* those of them that are not for device 0 */
    atomic_int stream_waits, markers; /* cuCtxRecordEvent */
    atomic_int broken_captures;       /* during one a marker, a wait for all work, or a wait for
                                         a stream by a thread that is not in relaxed mode */
    atomic_int resets, trims, peers;
    atomic_bool fails_wait;       /* planned: cuCtxSynchronize fails            */
    atomic_bool is_held_up;       /* planned: cuCtxSynchronize waits until it is not */
    atomic_bool is_out_of_memory; /* planned: cuMemCreate fails                 */
    atomic_bool is_full;          /* planned: no memory until cuMemRelease is called */
    atomic_bool has_own_pool;     /* planned: another pool is current           */
    atomic_bool reuses_addresses; /* planned: reservations begin again where the first one was */
    atomic_bool is_wrong_thread;  /* planned: cuStreamEndCapture fails, and the capture goes on */
} fake_counts;

/* Of this process. */
fake_counts *fake_driver_counts(void);

/* A second device's primary context, and one of device 0 that is not primary. */
#define FAKE_OTHER_CONTEXT ((cu_context)0x9000)
#define FAKE_DEFAULT_POOL(device) ((cu_mem_pool)(uintptr_t)(0x5000 + (device)))
#define FAKE_OWN_POOL ((cu_mem_pool)0x5100)

#endif
