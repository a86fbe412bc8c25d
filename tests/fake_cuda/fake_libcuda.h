/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for libcuda.so.1 that a test loads first and then plans: which functions are missing,
 * which call fails, what the device is like. It models nothing; it counts what is held, so that a
 * test can see that everything was given back, and remembers how it was called.
 *
 * One process, one fake, one thread that plans. Everything is in one struct, exported under the
 * name "fake_control".
 */
#ifndef TESTS_FAKE_CUDA_FAKE_LIBCUDA_H
#define TESTS_FAKE_CUDA_FAKE_LIBCUDA_H

#include "bench/driver/cuda_functions.h"

#include <stdatomic.h>

/* A stream of another context, and that context. */
#define FAKE_FOREIGN_STREAM ((ductile_stream)0x6000)
#define FAKE_FOREIGN_CONTEXT ((cu_context)0x3000)

/* A stream that the driver knows no context of. */
#define FAKE_STREAM_OF_NONE ((ductile_stream)0x6400)

/* A stream of a green context of the device. */
#define FAKE_GREEN_STREAM ((ductile_stream)0x6800)
#define FAKE_GREEN_CONTEXT ((cu_context)0x3800)

typedef struct fake_state {
    /* planned by the test */
    const char *hidden;  /* function the driver's search finds nothing for (but "succeeds") */
    int hidden_answer;   /* what a search of CUDA 12 says of it beside its code             */
    const char *failing; /* function that returns fail_code                                 */
    int fail_code;
    int fail_from; /* the first so many calls of it succeed                                 */
    int version;   /* of CUDA: 13000 */
    int n_devices;
    int has_vmm;
    int has_pools;
    int has_wait_value;
    int has_fabric;
    unsigned long long granted; /* what cuMemGetAccess answers */
    int linger_us;              /* that each call takes; 0: none is timed, nor counted below */

    /* counted by the fake */
    int contexts; /* retained */
    int reservations;
    int handles;
    int mappings;
    int graphs;
    int events;
    int streams;
    int foreign_waits; /* of streams, for events of the other context   */
    int behind_waits;  /* events recorded here after such a wait        */
    int pushes;
    int pops;
    unsigned long long pool_threshold;
    int pool_trims;
    int reserved_peak_resets; /* after a trim */
    int used_peak_resets;
    ductile_addr copied_to, copied_from; /* by the last copy of a batch */
    size_t copied_bytes;
    int wrong_finds; /* searches with a flag or version other than agreed */
    int bench_finds; /* searches for what the library never calls         */
    cu_context primary;
    cu_context current;              /* of the one thread */
    const char *last_call;           /* but for getting, pushing and popping the context */
    cu_context context_of_last_call; /* current during it */
    int n_calls;
    _Atomic int inside; /* threads in a call that lingers */
    _Atomic int most_inside;
} fake_state;

#endif
