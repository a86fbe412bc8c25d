/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for tests on hardware, compiled by the driver from text (gpu_kernels_ptx.c), and what it
 * takes to launch them, with the driver library opened at run time as Ductile does. Words are 32
 * bits; the word at index i of a pattern `id` is a hash of both.
 *
 * Functions return the driver's code, 0 for success.
 */
#ifndef TESTS_SUPPORT_GPU_KERNELS_H
#define TESTS_SUPPORT_GPU_KERNELS_H

#include <ductile.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct gpu_kernels gpu_kernels;

/* NULL, or why not: one sentence. `out` holds the device's primary context until gpu_close. */
const char *gpu_open(int ordinal, gpu_kernels **out);
void gpu_close(gpu_kernels *gpu);

/* Programmatic dependent launch needs compute capability 9.0. */
bool gpu_has_dependent_launch(const gpu_kernels *gpu);

typedef enum gpu_kernel {
    GPU_FILL_WORDS,    /* address, n, id:          writes the pattern                         */
    GPU_CHECK_WORDS,   /* address, n, id, counter: adds the words that differ                 */
    GPU_CHECK_CONST,   /* the same through the read-only cache                                */
    GPU_CHECK_VALUE,   /* address, n, value, counter: adds the words that are not the value   */
    GPU_SPIN,          /* ns: one thread passes time                                          */
    GPU_GUARD_WORDS,   /* address, n, id, counter, flag, ns: checks over and over until the
                          host sets the flag, or the time is over                             */
    GPU_EARLY_FILL,    /* address, n, id, ns: lets dependents start, waits, writes            */
    GPU_EARLY_CHECK,   /* address, n, id, counter, ns: lets dependents start, waits, checks   */
    GPU_WAITING_FILL,  /* address, n, id: waits for what it depends on, writes                */
    GPU_WAITING_CHECK, /* address, n, id, counter: waits for what it depends on, checks      */
    GPU_N_KERNELS
} gpu_kernel;

/* The first of the kernels that need dependent launch. */
#define GPU_FIRST_DEPENDENT GPU_EARLY_FILL

enum { GPU_MOST_ARGUMENTS = 6 };

typedef struct gpu_launch {
    gpu_kernel kernel;
    ductile_stream stream;
    unsigned blocks;   /* 0: a number that fills the device             */
    unsigned threads;  /* 0: 256                                        */
    bool programmatic; /* may start before the kernel before it is done */
    uint64_t arguments[GPU_MOST_ARGUMENTS];
} gpu_launch;

int gpu_start(const gpu_kernels *gpu, const gpu_launch *launch);

/* Ends a capture and makes a graph of it that can be launched. */
int gpu_capture_end(const gpu_kernels *gpu, ductile_stream stream, void **graph);
int gpu_graph_launch(const gpu_kernels *gpu, void *graph, ductile_stream stream);
int gpu_graph_destroy(const gpu_kernels *gpu, void *graph);

/* The kernels as text, by gpu_kernel. Those before GPU_FIRST_DEPENDENT run on any device of the
 * last ten years. */
typedef struct gpu_kernel_text {
    const char *name;
    const char *ptx;
} gpu_kernel_text;

extern const gpu_kernel_text gpu_kernel_texts[GPU_N_KERNELS];

#endif
