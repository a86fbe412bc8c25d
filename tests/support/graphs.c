/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/graphs.h"

#include "tests/support/complain.h"

const char *graph_begin(const graphs *g, ductile_stream stream, dvmm_capture_mode mode) {
    NEED_OK(dvmm_capture_begin(g->driver, stream, mode));
    return NULL;
}

const char *graph_end(const graphs *g, ductile_stream stream, graph *out) {
    *out = (graph){NULL};
    if (g->gpu != NULL) {
        int code = gpu_capture_end(g->gpu, stream, &out->handle);
        NEED(code == 0, "the capture did not end well (%d)", code);
        return NULL;
    }
    ductile_virtual_graph *made = NULL;
    NEED_OK(ductile_virtual_capture_end(g->virtual_gpu, stream, &made));
    out->handle = made;
    return NULL;
}

const char *graph_launch(const graphs *g, const graph *it, ductile_stream stream) {
    if (g->gpu != NULL) {
        int code = gpu_graph_launch(g->gpu, it->handle, stream);
        NEED(code == 0, "the graph could not be launched (%d)", code);
        return NULL;
    }
    NEED_OK(ductile_virtual_graph_launch(it->handle, stream));
    return NULL;
}

const char *graph_destroy(const graphs *g, graph *it) {
    if (g->gpu != NULL) {
        int code = gpu_graph_destroy(g->gpu, it->handle);
        NEED(code == 0, "the graph could not be destroyed (%d)", code);
    } else {
        ductile_virtual_graph_destroy(it->handle);
    }
    it->handle = NULL;
    return NULL;
}
