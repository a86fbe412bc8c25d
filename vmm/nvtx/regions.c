/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/nvtx/regions.h"

#include "vmm/base/align.h"
#include "vmm/base/array.h"
#include "vmm/nvtx/nvtx_state.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 50 }; /* compute-sanitizer takes 49 characters */

static const void *pointer_to(uint64_t addr) {
    return (const void *)(uintptr_t)addr;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

/* The place of the first entry that ends above the address. */
static uint32_t first_above(const nvtx_list *list, uint64_t addr) {
    uint32_t low = 0;
    uint32_t high = list->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (list->items[middle].addr + list->items[middle].size > addr) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static bool is_at(const nvtx_list *list, uint32_t at, uint64_t addr) {
    return at < list->n && list->items[at].addr == addr;
}

static void insert(nvtx_list *list, const nvtx_known *k) {
    uint32_t at = first_above(list, k->addr);
    memmove(&list->items[at + 1], &list->items[at], (list->n - at) * sizeof *list->items);
    list->items[at] = *k;
    list->n++;
}

static void take_out(nvtx_list *list, uint32_t at) {
    list->n--;
    memmove(&list->items[at], &list->items[at + 1], (list->n - at) * sizeof *list->items);
}

static bool has_room(nvtx_list *list) {
    return dti_have_room(&list->items, sizeof *list->items, &list->room, (uint64_t)list->n + 1);
}

/* ---- Regions: what a block and a heap have in common ----------------------------------------- */

static nvtx_span common(const nvtx_known *block, const nvtx_known *heap) {
    uint64_t from = dti_max(block->addr, heap->addr);
    uint64_t to = dti_min(block->addr + block->size, heap->addr + heap->size);
    return (nvtx_span){to - from, pointer_to(from)};
}

static void name_region(const nvtx_tool *tool, const nvtx_span *span, const nvtx_known *block) {
    char text[MAX_NAME];
    (void)snprintf(text, sizeof text, "ductile block %llu of stream 0x%llx",
                   (unsigned long long)block->number, (unsigned long long)(uintptr_t)block->of);
    const nvtx_name name = {.reference_type = NVTX_REFERENCE_POINTER,
                            .name_type = NVTX_MESSAGE_ASCII,
                            .region.pointer = span->address,
                            .name.ascii = text};
    const nvtx_name_batch batch = {.compat_id = NVTX_MEMORY_COMPAT,
                                   .struct_size = sizeof batch,
                                   .n_names = 1,
                                   .name_size = sizeof name,
                                   .names = &name};
    tool->regions_name(tool->domain, &batch);
}

typedef void (*region_fn)(const nvtx_tool *tool, const nvtx_known *block, const nvtx_known *heap);

static void begin_region(const nvtx_tool *tool, const nvtx_known *block, const nvtx_known *heap) {
    const nvtx_span span = common(block, heap);
    const nvtx_register_batch batch = {.compat_id = NVTX_MEMORY_COMPAT,
                                       .struct_size = sizeof batch,
                                       .type = NVTX_MEMORY_VIRTUAL_ADDRESS,
                                       .heap = heap->heap,
                                       .n_regions = 1,
                                       .region_size = sizeof span,
                                       .regions = &span};
    tool->regions_register(tool->domain, &batch);
    name_region(tool, &span, block);
}

static void end_region(const nvtx_tool *tool, const nvtx_known *block, const nvtx_known *heap) {
    const nvtx_reference reference = {.pointer = common(block, heap).address};
    const nvtx_unregister_batch batch = {.compat_id = NVTX_MEMORY_COMPAT,
                                         .struct_size = sizeof batch,
                                         .reference_type = NVTX_REFERENCE_POINTER,
                                         .n_references = 1,
                                         .reference_size = sizeof reference,
                                         .references = &reference};
    tool->regions_unregister(tool->domain, &batch);
}

static void visit_regions_of_block(const dvmm_nvtx *n, const nvtx_known *block, region_fn visit) {
    for (uint32_t i = first_above(&n->heaps, block->addr);
         i < n->heaps.n && n->heaps.items[i].addr < block->addr + block->size; i++) {
        visit(n->tool, block, &n->heaps.items[i]);
    }
}

static void visit_regions_of_heap(const dvmm_nvtx *n, const nvtx_known *heap, region_fn visit) {
    for (uint32_t i = first_above(&n->blocks, heap->addr);
         i < n->blocks.n && n->blocks.items[i].addr < heap->addr + heap->size; i++) {
        visit(n->tool, &n->blocks.items[i], heap);
    }
}

/* ---- Heaps ----------------------------------------------------------------------------------- */

static nvtx_heap register_heap(const nvtx_tool *tool, uint64_t addr, uint64_t size) {
    const nvtx_span span = {size, pointer_to(addr)};
    const nvtx_heap_description heap = {.compat_id = NVTX_MEMORY_COMPAT,
                                        .struct_size = sizeof heap,
                                        .usage = NVTX_HEAP_SUB_ALLOCATOR,
                                        .type = NVTX_MEMORY_VIRTUAL_ADDRESS,
                                        .type_size = sizeof span,
                                        .type_description = &span};
    return tool->heap_register(tool->domain, &heap);
}

/* NULL stands for the whole process, which is no heap of ours. */
static bool is_heap(nvtx_heap heap) {
    return heap != NULL && heap != NVTX_NO_HEAP;
}

static void begin_heap_locked(dvmm_nvtx *n, uint64_t addr, uint64_t size) {
    DTI_ASSERT_HELD(&n->lock);
    nvtx_known heap = {.addr = addr, .size = size};
    if (has_room(&n->heaps)) {
        heap.heap = register_heap(n->tool, addr, size);
    }
    if (!is_heap(heap.heap)) {
        n->n_refused++;
        return;
    }
    insert(&n->heaps, &heap);
    visit_regions_of_heap(n, &heap, begin_region);
}

void dvmm_nvtx_heap_begin(dvmm_nvtx *n, ductile_addr addr, uint64_t size) {
    if (!dvmm_nvtx_has_memory(n)) {
        return;
    }
    DTI_ASSERT_MAY_CALL_DRIVER();
    dti_lock_acquire(&n->lock);
    begin_heap_locked(n, addr, size);
    dti_lock_release(&n->lock);
}

static void end_heap_locked(dvmm_nvtx *n, uint32_t at) {
    DTI_ASSERT_HELD(&n->lock);
    const nvtx_known heap = n->heaps.items[at];
    visit_regions_of_heap(n, &heap, end_region);
    n->tool->heap_unregister(n->tool->domain, heap.heap);
    take_out(&n->heaps, at);
}

void dvmm_nvtx_heap_end(dvmm_nvtx *n, ductile_addr addr) {
    if (!dvmm_nvtx_has_memory(n)) {
        return;
    }
    DTI_ASSERT_MAY_CALL_DRIVER();
    dti_lock_acquire(&n->lock);
    uint32_t at = first_above(&n->heaps, addr);
    if (is_at(&n->heaps, at, addr)) {
        end_heap_locked(n, at);
    }
    dti_lock_release(&n->lock);
}

void dvmm_nvtx_end_all(dvmm_nvtx *n) {
    if (!dvmm_nvtx_has_memory(n)) {
        return;
    }
    DTI_ASSERT_MAY_CALL_DRIVER();
    dti_lock_acquire(&n->lock);
    while (n->heaps.n > 0) {
        end_heap_locked(n, n->heaps.n - 1);
    }
    dti_lock_release(&n->lock);
}

uint64_t dvmm_nvtx_take_refusals(dvmm_nvtx *n) {
    if (!dvmm_nvtx_has_memory(n)) {
        return 0;
    }
    dti_lock_acquire(&n->lock);
    uint64_t refused = n->n_refused;
    n->n_refused = 0;
    dti_lock_release(&n->lock);
    return refused;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static ductile_status begin_block_locked(dvmm_nvtx *n, uint64_t addr, uint64_t size,
                                         const void *stream) {
    DTI_ASSERT_HELD(&n->lock);
    if (!has_room(&n->blocks)) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    const nvtx_known block = {.addr = addr, .size = size, .number = ++n->n_blocks, .of = stream};
    insert(&n->blocks, &block);
    visit_regions_of_block(n, &block, begin_region);
    return DUCTILE_OK;
}

ductile_status dvmm_nvtx_block_begin(dvmm_nvtx *n, ductile_addr addr, uint64_t size,
                                     ductile_stream stream) {
    if (!dvmm_nvtx_has_memory(n)) {
        return DUCTILE_OK;
    }
    DTI_ASSERT_MAY_CALL_DRIVER();
    dti_lock_acquire(&n->lock);
    ductile_status status = begin_block_locked(n, addr, size, stream);
    dti_lock_release(&n->lock);
    return status;
}

void dvmm_nvtx_block_end(dvmm_nvtx *n, ductile_addr addr) {
    if (!dvmm_nvtx_has_memory(n)) {
        return;
    }
    DTI_ASSERT_MAY_CALL_DRIVER();
    dti_lock_acquire(&n->lock);
    uint32_t at = first_above(&n->blocks, addr);
    if (is_at(&n->blocks, at, addr)) {
        const nvtx_known block = n->blocks.items[at];
        visit_regions_of_block(n, &block, end_region);
        take_out(&n->blocks, at);
    }
    dti_lock_release(&n->lock);
}
