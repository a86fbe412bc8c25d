/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/snapshot_steps.h"

#include <string.h>

#define STEP_PREFIX "Optimizer.step#"

static bool begins_with(const pickle_value *value, const char *text) {
    size_t length = strlen(text);
    return value != NULL && value->kind == PICKLE_STRING && value->length >= length &&
           memcmp(value->as.text, text, length) == 0;
}

/* Whether an annotation is of the GPU: early versions of PyTorch name no device. */
static bool is_of(const pickle_value *mark, uint64_t gpu) {
    uint64_t device;
    return !pickle_get_unsigned(pickle_find(mark, "device"), &device) || device == gpu;
}

static bool is_step_end(const snapshot_steps *s, const pickle_value *mark) {
    return pickle_is_string(pickle_find(mark, "stage"), "END") &&
           begins_with(pickle_find(mark, "name"), STEP_PREFIX) && is_of(mark, s->gpu);
}

/* Moves past the annotations up to a time. */
static bool pass_until(snapshot_steps *s, uint64_t time_us) {
    bool has_ended = false;
    for (; s->next < pickle_count(s->annotations); s->next++) {
        const pickle_value *mark = pickle_item(s->annotations, s->next);
        uint64_t at;
        if (pickle_get_unsigned(pickle_find(mark, "time_us"), &at)) {
            if (at > time_us) {
                break;
            }
            has_ended = is_step_end(s, mark) || has_ended;
        }
    }
    return has_ended;
}

bool snapshot_steps_pass(snapshot_steps *s, uint64_t time_us) {
    return s->annotations != NULL && pass_until(s, time_us);
}

bool snapshot_steps_end(snapshot_steps *s) {
    return s->annotations != NULL && pass_until(s, UINT64_MAX);
}
