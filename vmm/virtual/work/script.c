/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scripts: work in the order of its capture. From the moment a piece of work is captured until its
 * graph is destroyed, the memory behind its addresses belongs to it: others may use it in order,
 * but no call may unmap or move it.
 */
#include "vmm/virtual/work/script.h"

#include "vmm/base/array.h"
#include "vmm/virtual/addresses/addresses.h"
#include "vmm/virtual/race/blocks.h"
#include "vmm/virtual/race/order.h"
#include "vmm/virtual/state/slots.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/work/work.h"

#include <stdlib.h>

/* ---- Memory that a script uses ------------------------------------------------------------- */

static bool hold(vgpu *gpu, vgpu_script *script, const vgpu_mapping *mapping) {
    if (!dti_have_room(&script->held, sizeof *script->held, &script->held_room,
                       script->n_held + 1)) {
        dvmm_vgpu_stop_detecting(gpu);
        return false;
    }
    script->held[script->n_held++] = mapping->slot;
    return true;
}

static void hold_use(vgpu *gpu, vgpu_script *script, const ductile_virtual_use *use) {
    for (uint64_t done = 0; done < use->size;) {
        vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, use->address + done);
        if (mapping == NULL || !hold(gpu, script, mapping)) {
            return;
        }
        mapping->users.n_graphs++;
        mapping->phys->shadow.n_graphs++;
        done = mapping->start + mapping->phys->size - use->address;
    }
}

static void hold_uses(vgpu *gpu, vgpu_script *script, const vgpu_op *op) {
    for (size_t i = 0; i < op->n_uses && dvmm_vgpu_detects(gpu); i++) {
        hold_use(gpu, script, &op->uses[i]);
    }
}

/* A mapping that went although it was held has taken its count along. */
static void let_go(vgpu *gpu, const dvmm_slot *held) {
    vgpu_mapping *mapping = dvmm_slots_find(&gpu->memory.mappings, held->number);
    if (mapping != NULL && mapping->slot.generation == held->generation) {
        mapping->users.n_graphs--;
        mapping->phys->shadow.n_graphs--;
    }
}

/* ---- Scripts ------------------------------------------------------------------------------- */

static bool record_owners(vgpu *gpu, vgpu_op *op) {
    op->owners = calloc(op->n_uses + 1, sizeof(*op->owners));
    for (size_t i = 0; op->owners != NULL && i < op->n_uses; i++) {
        const vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, op->uses[i].address);
        op->owners[i] = mapping != NULL
                            ? dvmm_vgpu_block_at(mapping, op->uses[i].address, op->uses[i].size)
                            : 0;
    }
    return op->owners != NULL;
}

/* A launch that is itself captured brings its owners along. */
int dvmm_vgpu_script_add(vgpu *gpu, vgpu_script *script, vgpu_op *op) {
    if (op->owners == NULL && !record_owners(gpu, op)) {
        dvmm_vgpu_op_free(op);
        return DVMM_OUT_OF_MEMORY;
    }
    hold_uses(gpu, script, op);
    op->next = NULL;
    if (script->last != NULL) {
        script->last->next = op;
    } else {
        script->first = op;
    }
    script->last = op;
    return DVMM_SUCCESS;
}

void dvmm_vgpu_script_let_go(vgpu *gpu, vgpu_script *script) {
    for (size_t i = 0; i < script->n_held; i++) {
        let_go(gpu, &script->held[i]);
    }
    script->n_held = 0;
}

void dvmm_vgpu_script_hold(vgpu *gpu, vgpu_script *script) {
    for (const vgpu_op *op = script->first; op != NULL; op = op->next) {
        hold_uses(gpu, script, op);
    }
}

void dvmm_vgpu_script_fini(vgpu *gpu, vgpu_script *script) {
    dvmm_vgpu_script_let_go(gpu, script);
    free(script->held);
    while (script->first != NULL) {
        vgpu_op *op = script->first;
        script->first = op->next;
        dvmm_vgpu_op_free(op);
    }
    *script = (vgpu_script){0};
}

int dvmm_vgpu_graph_new(vgpu *gpu, vgpu_script *script, ductile_virtual_graph **out) {
    ductile_virtual_graph *graph = calloc(1, sizeof(*graph));
    if (graph == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    graph->gpu = gpu;
    graph->script = *script;
    *script = (vgpu_script){0};
    *out = graph;
    return DVMM_SUCCESS;
}
