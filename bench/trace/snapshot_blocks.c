/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/snapshot_blocks.h"

bool snapshot_block_is_active(const pickle_value *block) {
    const pickle_value *state = pickle_find(block, "state");
    return pickle_is_string(state, "active_allocated") ||
           pickle_is_string(state, "active_pending_free") ||
           pickle_is_string(state, "active_awaiting_free");
}

bool snapshot_block_size(const pickle_value *block, uint64_t *out) {
    return pickle_get_unsigned(pickle_find(block, "requested_size"), out) ||
           pickle_get_unsigned(pickle_find(block, "size"), out);
}

const pickle_value *snapshot_block_frames(const pickle_value *block) {
    const pickle_value *frames = pickle_find(block, "frames");
    const pickle_value *past = pickle_find(block, "history");
    if (pickle_count(frames) > 0 || pickle_count(past) == 0) {
        return frames;
    }
    return pickle_find(pickle_item(past, 0), "frames");
}

bool snapshot_is_expandable(const pickle_value *segment) {
    const pickle_value *found = pickle_find(segment, "is_expandable");
    return found != NULL && found->kind == PICKLE_BOOL && found->as.integer != 0;
}
