/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program_graphs.h"

const char *program_graph(const program_device *p, ductile_stream captured, void **graph) {
    ductile_virtual_graph *made = NULL;
    if (p->gpu == NULL) {
        int code = gpu_capture_end(p->tester.gpu, captured, graph);
        NEED(code == 0, "the capture did not end well (%d)", code);
        return NULL;
    }
    NEED_OK(ductile_virtual_capture_end(p->gpu, captured, &made));
    *graph = made;
    return NULL;
}

const char *program_launch(const program_device *p, void *graph, ductile_stream stream) {
    if (p->gpu == NULL) {
        int code = gpu_graph_launch(p->tester.gpu, graph, stream);
        NEED(code == 0, "the graph could not be launched (%d)", code);
        return NULL;
    }
    NEED_OK(ductile_virtual_graph_launch(graph, stream));
    return NULL;
}

const char *program_drop_graph(const program_device *p, void *graph) {
    int code = 0;
    if (p->gpu == NULL) {
        code = gpu_graph_destroy(p->tester.gpu, graph);
    } else {
        ductile_virtual_graph_destroy(graph);
    }
    NEED(code == 0, "the graph could not be destroyed (%d)", code);
    return NULL;
}
