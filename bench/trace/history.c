/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/history.h"

#include "bench/base/array.h"

#include <stdlib.h>
#include <string.h>

/* Of what a snapshot's objects may take; entries of the history lie in a file. */
#define MEMORY_LIMIT ((uint64_t)8 << 30)

static const char *const action_names[] = {
    [HISTORY_ALLOC] = "alloc",
    [HISTORY_FREE] = "free_requested",
    [HISTORY_COMPLETE] = "free_completed",
    [HISTORY_REFUSAL] = "oom",
    [HISTORY_SEGMENT_ALLOC] = "segment_alloc",
    [HISTORY_SEGMENT_MAP] = "segment_map",
    [HISTORY_SEGMENT_FREE] = "segment_free",
    [HISTORY_SEGMENT_UNMAP] = "segment_unmap",
};

static history_action action_of(const pickle_value *name) {
    for (size_t i = HISTORY_ALLOC; i <= HISTORY_SEGMENT_UNMAP; i++) {
        if (pickle_is_string(name, action_names[i])) {
            return (history_action)i;
        }
    }
    return HISTORY_OTHER; /* annotations, and what later versions may add */
}

/* What is read of an entry; NULL: it is not there. */
typedef struct fields {
    const pickle_value *action, *address, *device_free, *size, *stream, *time_us, *frames, *pool;
} fields;

static void read_field(fields *f, const pickle_value *key, const pickle_value *value) {
    static const struct {
        size_t length;
        const char *name;
        size_t offset;
    } known[] = {
        {6, "action", offsetof(fields, action)},
        {4, "addr", offsetof(fields, address)},
        {4, "size", offsetof(fields, size)},
        {6, "stream", offsetof(fields, stream)},
        {7, "time_us", offsetof(fields, time_us)},
        {6, "frames", offsetof(fields, frames)},
        {7, "pool_id", offsetof(fields, pool)},
        {11, "device_free", offsetof(fields, device_free)},
    };
    for (size_t i = 0; key->kind == PICKLE_STRING && i < sizeof known / sizeof known[0]; i++) {
        if (key->length == known[i].length &&
            memcmp(key->as.text, known[i].name, known[i].length) == 0) {
            memcpy((char *)f + known[i].offset, &value, sizeof value);
            return;
        }
    }
}

static fields read_fields(const pickle_value *dict) {
    fields f = {0};
    size_t n;
    const pickle_value *pairs = pickle_pairs(dict, &n);
    for (size_t i = 0; n <= PICKLE_MAX_SEARCH && i < n; i++) {
        read_field(&f, &pairs[2 * i], &pairs[2 * i + 1]);
    }
    return f;
}

static bool find_stream(history *h, uint64_t stream, uint32_t *index) {
    uintptr_t known = hash_map_find(&h->stream_numbers, stream);
    if (known == 0) {
        if (!hash_map_put(&h->stream_numbers, stream, h->n_streams + 1) ||
            !array_add(&h->streams, sizeof stream, &h->streams_capacity, &h->n_streams, &stream)) {
            return false;
        }
        known = h->n_streams;
    }
    *index = (uint32_t)(known - 1);
    return true;
}

uint16_t history_pool(history *h, const pickle_value *id) {
    ductile_pool_id pool;
    uint16_t number;
    bool is_said = pickle_count(id) == 2 && pickle_get_unsigned(pickle_item(id, 0), &pool.first) &&
                   pickle_get_unsigned(pickle_item(id, 1), &pool.second);
    bool is_known = is_said && trace_pools_add(&h->pools, pool, &number) == NULL;
    return is_known ? number : HISTORY_POOL_UNKNOWN;
}

/* Old versions wrote what was free on the device in place of the address. */
static history_entry read_entry(const fields *f, uint64_t *stream) {
    history_entry e = {.action = (uint8_t)action_of(f->action)};
    bool is_refusal = e.action == HISTORY_REFUSAL && f->device_free != NULL;
    bool has_address = pickle_get_unsigned(is_refusal ? f->device_free : f->address, &e.address);
    e.frames = pickle_count(f->frames) > 0 ? f->frames->as.node : NULL;
    e.has_size = pickle_get_unsigned(f->size, &e.size);
    e.has_time = pickle_get_unsigned(f->time_us, &e.time_us);
    e.has_block = pickle_get_unsigned(f->stream, stream) && has_address && e.has_size;
    return e;
}

static pickle_taking take(void *user, const pickle_value *dict) {
    history *h = user;
    uint64_t stream = 0;
    const fields f = read_fields(dict);
    if (f.action == NULL || f.action->kind != PICKLE_STRING) {
        return PICKLE_NOT_WANTED;
    }
    history_entry e = read_entry(&f, &stream);
    e.pool = history_pool(h, f.pool);
    if (!find_stream(h, stream, &e.stream) ||
        !spill_has_room(&h->file, &h->entries, sizeof *h->entries, &h->capacity, h->n)) {
        return PICKLE_NO_MEMORY;
    }
    h->entries[h->n++] = e;
    return PICKLE_TAKEN;
}

pickle_document *history_open(history *h, input *in, pickle_error *error) {
    const pickle_taker taker = {.take = take, .user = h};
    return pickle_open(in, &taker, MEMORY_LIMIT, error);
}

void history_drop(history *h) {
    spill_free(&h->file, h->entries);
    free(h->streams);
    hash_map_drop(&h->stream_numbers);
    trace_pools_drop(&h->pools);
    *h = (history){0};
}

history_entry *history_at(const history *h, const pickle_value *entries, size_t index) {
    uint64_t record;
    if (!pickle_record(entries, index, &record)) {
        return NULL;
    }
    if (spill_is_time(index)) {
        spill_rest(&h->file);
    }
    return &h->entries[record];
}
