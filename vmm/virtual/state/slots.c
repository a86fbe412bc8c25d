/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/virtual/state/slots.h"

#include "vmm/base/check.h"

#include <stdlib.h>
#include <string.h>

enum { ITEMS_PER_CHUNK = 256, HANDLE_STEP = 64 };

void dvmm_slots_init(dvmm_slots *slots, size_t item_size) {
    DTI_ASSERT(item_size % sizeof(void *) == 0 && item_size >= sizeof(dvmm_slot));
    *slots = (dvmm_slots){.item_size = (uint32_t)item_size};
}

void dvmm_slots_fini(dvmm_slots *slots) {
    for (uint32_t i = 0; i < slots->n_chunks; i++) {
        free(slots->chunks[i]);
    }
    free(slots->chunks);
    *slots = (dvmm_slots){.item_size = slots->item_size};
}

static dvmm_slot *slot_at(const dvmm_slots *slots, uint32_t number) {
    uint32_t index = number - 1;
    size_t offset = (size_t)(index % ITEMS_PER_CHUNK) * slots->item_size;
    return (dvmm_slot *)(void *)(slots->chunks[index / ITEMS_PER_CHUNK] + offset);
}

static bool add_chunk(dvmm_slots *slots) {
    char **chunks = realloc(slots->chunks, (slots->n_chunks + 1) * sizeof(*chunks));
    if (chunks == NULL) {
        return false;
    }
    slots->chunks = chunks;
    chunks[slots->n_chunks] = calloc(ITEMS_PER_CHUNK, slots->item_size);
    if (chunks[slots->n_chunks] == NULL) {
        return false;
    }
    slots->n_chunks++;
    return true;
}

static dvmm_slot *new_slot(dvmm_slots *slots) {
    if (slots->n_used == slots->n_chunks * ITEMS_PER_CHUNK && !add_chunk(slots)) {
        return NULL;
    }
    dvmm_slot *slot = slot_at(slots, ++slots->n_used);
    slot->number = slots->n_used;
    return slot;
}

static dvmm_slot *reused_slot(dvmm_slots *slots) {
    dvmm_slot *slot = slot_at(slots, slots->first_free);
    dvmm_slot kept = *slot;
    slots->first_free = slot->next_free;
    memset(slot, 0, slots->item_size);
    slot->number = kept.number;
    slot->generation = kept.generation;
    return slot;
}

void *dvmm_slots_take(dvmm_slots *slots) {
    dvmm_slot *slot = slots->first_free != 0 ? reused_slot(slots) : new_slot(slots);
    if (slot == NULL) {
        return NULL;
    }
    slot->generation++;
    slots->n_live++;
    return slot;
}

void dvmm_slots_give(dvmm_slots *slots, void *item) {
    dvmm_slot *slot = item;
    DTI_ASSERT(slot->generation % 2 == 1);
    slot->generation++;
    slot->next_free = slots->first_free;
    slots->first_free = slot->number;
    slots->n_live--;
}

void *dvmm_slots_find(const dvmm_slots *slots, uint64_t number) {
    if (number == 0 || number > slots->n_used) {
        return NULL;
    }
    dvmm_slot *slot = slot_at(slots, (uint32_t)number);
    return slot->generation % 2 == 1 ? slot : NULL;
}

void *dvmm_slots_handle(const void *item) {
    const dvmm_slot *slot = item;
    return (void *)((uintptr_t)slot->number * HANDLE_STEP);
}

void *dvmm_slots_find_handle(const dvmm_slots *slots, const void *handle) {
    uintptr_t value = (uintptr_t)handle;
    return value % HANDLE_STEP == 0 ? dvmm_slots_find(slots, value / HANDLE_STEP) : NULL;
}

void *dvmm_slots_next(const dvmm_slots *slots, uint32_t number) {
    for (; number <= slots->n_used; number++) {
        dvmm_slot *slot = slot_at(slots, number);
        if (slot->generation % 2 == 1) {
            return slot;
        }
    }
    return NULL;
}
