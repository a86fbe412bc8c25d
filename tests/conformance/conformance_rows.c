/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all rows, and where the virtual GPU is meant to differ. */
#include "tests/conformance/conformance_lab.h"

#include <stdlib.h>
#include <string.h>

void add_row(lab_rows *rows, conformance_row row) {
    if (rows->n == LAB_MOST_ROWS) {
        abort();
    }
    rows->all[rows->n++] = row;
}

const conformance_row *conformance_row_at(size_t index) {
    const lab_rows *const topics[] = {&memory_rows,  &share_rows,   &alloc_rows,
                                      &stream_rows,  &context_rows, &capture_life_rows,
                                      &capture_rows, &fault_rows};
    for (size_t i = 0; i < COUNT_OF(topics); i++) {
        if (index < topics[i]->n) {
            return &topics[i]->all[index];
        }
        index -= topics[i]->n;
    }
    return NULL;
}

/* A row that is meant to differ, and why. One '*' in a name stands for any text. */
typedef struct conformance_difference {
    const char *name;
    const char *why;
} conformance_difference;

static const conformance_difference differences[] = {
    {"peer.next*", "depends on how many devices the machine has, and which reach each other"},
    {"create.fabric", "depends on the machine: exporting to the fabric needs a running service"},
    {"async.*", "the virtual GPU has no stream-ordered pool"},
    {"capture.*.mem_alloc_async", "the virtual GPU has no stream-ordered pool"},
    {"capture.*.mem_free_async", "the virtual GPU has no stream-ordered pool"},
    {"capture.*.async_pool_info", "the virtual GPU has no stream-ordered pool"},
    {"capture.*.async_pool_trim", "the virtual GPU has no stream-ordered pool"},
    {"context.elsewhere.*", "other contexts are made by calls that the virtual GPU does not have"},
    {"map.across_two", "when the file was made, the row before had left a mapping in the way"},
    {"misuse.map_released", "the driver crashes; the virtual GPU answers with an error"},
};

static bool matches(const char *pattern, const char *name) {
    const char *star = strchr(pattern, '*');
    if (star == NULL) {
        return strcmp(pattern, name) == 0;
    }
    size_t head = (size_t)(star - pattern);
    size_t tail = strlen(star + 1);
    size_t length = strlen(name);
    return length >= head + tail && strncmp(pattern, name, head) == 0 &&
           strcmp(star + 1, name + length - tail) == 0;
}

const char *conformance_why_different(const char *row_name) {
    for (size_t i = 0; i < COUNT_OF(differences); i++) {
        if (matches(differences[i].name, row_name)) {
            return differences[i].why;
        }
    }
    return NULL;
}
