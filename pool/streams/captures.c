/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/captures.h"

void dpool_note_unmarked(ductile_allocator *a) {
    atomic_store(&a->has_unmarked, true);
}

static bool is_unmarked(const dpool_use *use) {
    return use->marker == NULL && !use->is_gone;
}

/* True when a use is left that could not be marked. */
static bool mark_uses(ductile_allocator *a, dpool_use *uses, ductile_stream stream, bool all) {
    bool is_left = false;
    for (dpool_use *use = uses; use != NULL; use = use->next) {
        if (!is_unmarked(use)) {
            continue;
        }
        bool is_named = all || use->stream == stream;
        if (is_named && dpool_may_name(use->stream, use->thread)) {
            dpool_use_mark(a, use);
        }
        is_left |= use->marker == NULL;
    }
    return is_left;
}

/* The list is taken out meanwhile, as in every poll: others read markers of blocks in it. */
static bool mark_arena(ductile_allocator *a, dpool_arena *arena, ductile_stream stream, bool all) {
    bool is_left = false;
    uint64_t context_epoch;
    dpool_pending_list waiting = dpool_pending_take(a, arena, &context_epoch);
    for (dpool_use *uses = waiting.first; uses != NULL; uses = uses->pending_next) {
        is_left |= mark_uses(a, uses, stream, all);
    }
    dpool_pending_put_back(a, arena, waiting);
    return is_left;
}

void dpool_mark_unmarked(ductile_allocator *a, ductile_stream stream, bool all) {
    if (!atomic_exchange(&a->has_unmarked, false)) {
        return;
    }
    bool is_left = false;
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        is_left |= mark_arena(a, arena, stream, all);
    }
    if (is_left) {
        dpool_note_unmarked(a);
    }
}
