/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: what a capture collected, launched as often as the program likes. */
#include "vmm/virtual/work/graph.h"

#include "vmm/virtual/state/state.h"
#include "vmm/virtual/state/watch.h"
#include "vmm/virtual/work/events.h"
#include "vmm/virtual/work/script.h"
#include "vmm/virtual/work/streams.h"
#include "vmm/virtual/work/work.h"

#include <stdlib.h>
#include <string.h>

static vgpu_op *copy_of(const vgpu_op *op) {
    vgpu_op *copy = dvmm_vgpu_op_new(op->kind, op->n_uses);
    if (copy == NULL) {
        return NULL;
    }
    memcpy(copy->uses, op->uses, op->n_uses * sizeof(op->uses[0]));
    copy->word = op->word;
    copy->value = op->value;
    copy->owners = malloc((op->n_uses + 1) * sizeof(*copy->owners));
    copy->bytes = op->bytes != NULL ? malloc(op->uses[0].size + 1) : NULL;
    if (copy->owners == NULL || (op->bytes != NULL && copy->bytes == NULL)) {
        dvmm_vgpu_op_free(copy);
        return NULL;
    }
    memcpy(copy->owners, op->owners, op->n_uses * sizeof(*op->owners));
    if (op->bytes != NULL) {
        memcpy(copy->bytes, op->bytes, op->uses[0].size);
    }
    return copy;
}

/* ---- Graphs -------------------------------------------------------------------------------- */

static int issue_script(vgpu *gpu, ductile_stream stream, const vgpu_script *script) {
    int code = DVMM_SUCCESS;
    for (const vgpu_op *op = script->first; op != NULL && code == DVMM_SUCCESS; op = op->next) {
        code = dvmm_vgpu_issue_on(gpu, stream, copy_of(op));
    }
    return code;
}

/* One graph never runs beside itself. In a capture its work is only collected. */
int dvmm_vgpu_graph_launch(ductile_virtual_graph *graph, ductile_stream stream) {
    vgpu *gpu = graph->gpu;
    vgpu_queue *queue;
    if (graph->rests) {
        dvmm_vgpu_violation(gpu, "a graph at rest was launched");
    }
    int code = dvmm_vgpu_find_queue(gpu, stream, &queue);
    if (code != DVMM_SUCCESS || queue->capture != NULL) {
        return code != DVMM_SUCCESS ? code : issue_script(gpu, stream, &graph->script);
    }
    if (graph->launched != NULL) {
        code = dvmm_vgpu_wait_in(gpu, queue, graph->launched);
    }
    if (code == DVMM_SUCCESS) {
        code = issue_script(gpu, stream, &graph->script);
    }
    dvmm_vgpu_marker_drop(graph->launched);
    graph->launched = NULL;
    return code == DVMM_SUCCESS ? dvmm_vgpu_record_in(gpu, queue, &graph->launched) : code;
}

void dvmm_vgpu_graph_rest(ductile_virtual_graph *graph, bool rests) {
    if (graph->rests != rests) {
        graph->rests = rests;
        (rests ? dvmm_vgpu_script_let_go : dvmm_vgpu_script_hold)(graph->gpu, &graph->script);
    }
}

ductile_virtual_gpu *dvmm_vgpu_gpu_of(const ductile_virtual_graph *graph) {
    return graph->gpu;
}

void dvmm_vgpu_graph_destroy(ductile_virtual_graph *graph) {
    dvmm_vgpu_script_fini(graph->gpu, &graph->script);
    dvmm_vgpu_marker_drop(graph->launched);
    free(graph);
}
