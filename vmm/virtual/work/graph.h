/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs. */
#ifndef DUCTILE_VMM_VIRTUAL_WORK_GRAPH_H
#define DUCTILE_VMM_VIRTUAL_WORK_GRAPH_H

#include "vmm/virtual/state/state.h"

int dvmm_vgpu_graph_launch(ductile_virtual_graph *graph, ductile_stream stream);
void dvmm_vgpu_graph_rest(ductile_virtual_graph *graph, bool rests);
void dvmm_vgpu_graph_destroy(ductile_virtual_graph *graph);
/* Needs no lock. */
ductile_virtual_gpu *dvmm_vgpu_gpu_of(const ductile_virtual_graph *graph);

#endif
