/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/frames.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of Python are files that end in .py, and code without a file: "<string>". */
static bool is_compiled(const pickle_value *frame) {
    const pickle_value *file = pickle_find(frame, "filename");
    if (file == NULL || file->kind != PICKLE_STRING || file->length == 0) {
        return true;
    }
    bool is_source = file->length >= 3 && memcmp(file->as.text + file->length - 3, ".py", 3) == 0;
    return !is_source && file->as.text[0] != '<';
}

static bool has_others(const pickle_value *frames) {
    for (size_t i = 0; i < pickle_count(frames); i++) {
        if (!is_compiled(pickle_item(frames, i))) {
            return true;
        }
    }
    return false;
}

/* The end of a path says more than its beginning. */
static void add_text(frames_reader *r, const pickle_value *text, bool keeps_end) {
    if (text == NULL || text->kind != PICKLE_STRING) {
        return;
    }
    size_t length = text->length < FRAMES_MAX_TEXT ? text->length : FRAMES_MAX_TEXT;
    const char *from = text->as.text + (keeps_end ? text->length - length : 0);
    for (size_t i = 0; i < length; i++) {
        r->text[r->length++] = from[i] == '\n' || from[i] == '\0' ? ' ' : from[i];
    }
}

static void add_frame(frames_reader *r, const pickle_value *frame) {
    uint64_t line = 0;
    if (r->length > 0) {
        r->text[r->length++] = '\n';
    }
    add_text(r, pickle_find(frame, "name"), false);
    if (!pickle_is_string(pickle_find(frame, "filename"), "??")) {
        r->text[r->length++] = ' ';
        add_text(r, pickle_find(frame, "filename"), true);
        (void)pickle_get_unsigned(pickle_find(frame, "line"), &line);
        r->length += (size_t)sprintf(r->text + r->length, ":%" PRIu32, (uint32_t)line);
    }
}

static void write_text(frames_reader *r, const pickle_value *frames) {
    bool skips = has_others(frames);
    size_t n = 0;
    r->length = 0;
    for (size_t i = 0; i < pickle_count(frames) && n < FRAMES_MAX; i++) {
        const pickle_value *frame = pickle_item(frames, i);
        if (!skips || !is_compiled(frame)) {
            add_frame(r, frame);
            n++;
        }
    }
}

bool frames_read(frames_reader *r, const pickle_value *frames, trace_stacks *stacks,
                 uint32_t *number) {
    *number = 0;
    if (pickle_count(frames) == 0) {
        return true;
    }
    uint64_t key = (uintptr_t)frames->as.node;
    uintptr_t known = hash_map_find(&r->known, key);
    if (known != 0) {
        *number = (uint32_t)(known - 1);
        return true;
    }
    write_text(r, frames);
    return trace_stacks_add(stacks, r->text, r->length, number) &&
           hash_map_put(&r->known, key, (uintptr_t)*number + 1);
}

void frames_drop(frames_reader *r) {
    hash_map_drop(&r->known);
}
