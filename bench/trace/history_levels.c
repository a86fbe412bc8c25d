/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/history_levels.h"

#include "bench/trace/trace.h"

static const char is_odd[] = "an entry is not as PyTorch writes it";

/* ---- What an entry changes ----------------------------------------------------------------- */

/* For each of its bytes. */
static history_level effect_of(const history_levels *l, const history_entry *e) {
    switch ((history_action)e->action) {
    case HISTORY_ALLOC:
        return (history_level){.live = 1};
    case HISTORY_FREE:
        return (history_level){.live = -1, .pending = 1};
    case HISTORY_COMPLETE:
        return l->has_both_frees ? (history_level){.pending = -1} : (history_level){.live = -1};
    case HISTORY_SEGMENT_ALLOC:
    case HISTORY_SEGMENT_MAP:
        return (history_level){.held = 1};
    case HISTORY_SEGMENT_FREE:
    case HISTORY_SEGMENT_UNMAP:
        return (history_level){.held = -1};
    case HISTORY_REFUSAL:
    case HISTORY_OTHER:
        break;
    }
    return (history_level){0};
}

/* Unsigned: what a file says may be anything. */
static int64_t moved(int64_t from, int64_t factor, uint64_t size) {
    return (int64_t)((uint64_t)from + (uint64_t)factor * size);
}

static history_level move(const history_levels *l, history_level from, const history_entry *e,
                          int64_t sign) {
    history_level by = effect_of(l, e);
    return (history_level){.held = moved(from.held, sign * by.held, e->size),
                           .live = moved(from.live, sign * by.live, e->size),
                           .pending = moved(from.pending, sign * by.pending, e->size)};
}

history_level history_level_next(const history_levels *l, history_level before,
                                 const history_entry *e) {
    return move(l, before, e, 1);
}

/* ---- What was held at the end -------------------------------------------------------------- */

static const char *add_block(const pickle_value *block, history_level *sum) {
    const pickle_value *state = pickle_find(block, "state");
    uint64_t size;
    if (state == NULL || (!pickle_get_unsigned(pickle_find(block, "requested_size"), &size) &&
                          !pickle_get_unsigned(pickle_find(block, "size"), &size))) {
        return is_odd;
    }
    if (pickle_is_string(state, "active_allocated")) {
        sum->live = moved(sum->live, 1, size);
    } else if (pickle_is_string(state, "active_pending_free") ||
               pickle_is_string(state, "active_awaiting_free")) {
        sum->pending = moved(sum->pending, 1, size);
    }
    return NULL;
}

static const char *add_segment(const pickle_value *segment, uint64_t gpu, uint64_t *n_blocks,
                               history_level *sum) {
    const pickle_value *blocks = pickle_find(segment, "blocks");
    uint64_t device = 0;
    uint64_t total;
    (void)pickle_get_unsigned(pickle_find(segment, "device"), &device);
    if (!pickle_get_unsigned(pickle_find(segment, "total_size"), &total) || blocks == NULL) {
        return is_odd;
    }
    if (device != gpu) {
        return NULL;
    }
    sum->held = moved(sum->held, 1, total);
    const char *reason = NULL;
    for (size_t i = 0; reason == NULL && i < pickle_count(blocks); i++) {
        reason = (*n_blocks)-- == 0 ? "more blocks in the segments than the file can hold"
                                    : add_block(pickle_item(blocks, i), sum);
    }
    return reason;
}

static const char *add_segments(const pickle_value *segments, uint64_t gpu, uint64_t most_blocks,
                                history_level *sum) {
    const char *reason = NULL;
    for (size_t i = 0; reason == NULL && i < pickle_count(segments); i++) {
        reason = add_segment(pickle_item(segments, i), gpu, &most_blocks, sum);
    }
    return reason;
}

/* ---- The whole ----------------------------------------------------------------------------- */

static bool changes(const history_entry *e) {
    return e->action != HISTORY_OTHER && e->action != HISTORY_REFUSAL;
}

static const char *check_entry(const history_entry *e) {
    if (e == NULL || (changes(e) && (!e->has_size || e->size > TRACE_MAX_SIZE))) {
        return is_odd;
    }
    if (!e->has_time) {
        return "its history has no times, since an early PyTorch wrote it";
    }
    return e->time_us > INT64_MAX / 1000 ? is_odd : NULL;
}

static const char *check(const history *h, const pickle_value *entries, history_levels *out) {
    for (size_t i = 0; i < pickle_count(entries); i++) {
        const history_entry *e = history_at(h, entries, i);
        const char *reason = check_entry(e);
        if (reason != NULL) {
            return reason;
        }
        out->has_both_frees = out->has_both_frees || e->action == HISTORY_FREE;
        out->first_us = i == 0 ? e->time_us : out->first_us;
        out->last_us = e->time_us;
    }
    return NULL;
}

const char *history_levels_find(const history *h, const pickle_value *entries,
                                const pickle_value *segments, uint64_t gpu, uint64_t most_blocks,
                                history_levels *out) {
    *out = (history_levels){0};
    const char *reason = check(h, entries, out);
    if (reason != NULL || pickle_count(segments) == 0) {
        return reason;
    }
    reason = add_segments(segments, gpu, most_blocks, &out->start);
    for (size_t i = 0; reason == NULL && i < pickle_count(entries); i++) {
        out->start = move(out, out->start, history_at(h, entries, i), -1);
    }
    return reason;
}
