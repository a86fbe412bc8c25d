/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures whose graphs are kept and launched, on CUDA and on the virtual GPU. Functions return
 * NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_GRAPHS_H
#define TESTS_SUPPORT_GRAPHS_H

#include "tests/support/gpu_kernels.h"
#include "vmm/driver/driver.h"

#include <ductile_virtual.h>

/* The device: `gpu` on CUDA, `virtual_gpu` otherwise; the other is NULL. */
typedef struct graphs {
    gpu_kernels *gpu;
    ductile_virtual_gpu *virtual_gpu;
    dvmm_driver *driver;
} graphs;

typedef struct graph {
    void *handle; /* of the graph that can be launched */
} graph;

const char *graph_begin(const graphs *g, ductile_stream stream, dvmm_capture_mode mode);

/* Complains when the capture was invalidated. */
const char *graph_end(const graphs *g, ductile_stream stream, graph *out);

const char *graph_launch(const graphs *g, const graph *it, ductile_stream stream);
const char *graph_destroy(const graphs *g, graph *it);

#endif
