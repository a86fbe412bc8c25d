/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an allocator spends in CUDA. The program defines the runtime's functions that an allocator
 * calls, and the libraries in it find these before the runtime's own: each is timed and handed on.
 * The driver's functions that PyTorch looks up for expandable segments are replaced when it asks
 * for them. Calls of a library that has the runtime within itself cannot be seen.
 */
#ifndef DUCTILE_LAB_CUDA_CALLS_HPP
#define DUCTILE_LAB_CUDA_CALLS_HPP

#include <cstdint>

/* Of the calling thread. */
struct CudaCalls {
    uint64_t ns = 0;
    uint64_t host_waits = 0; /* for a stream, an event or the device */
    uint64_t n_calls = 0;
};

CudaCalls cuda_calls_so_far();

#endif
