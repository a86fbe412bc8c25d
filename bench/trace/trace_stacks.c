/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_stacks.h"

#include "vmm/base/array.h"

#include <stdlib.h>
#include <string.h>

static bool is_text(const trace_stacks *s, uintptr_t number, const char *text, size_t length) {
    const char *known = s->texts[number - 1];
    return strlen(known) == length && memcmp(known, text, length) == 0;
}

/* Sets *hash to where the text is, or would be. Returns its number, or 0. */
static uintptr_t find(const trace_stacks *s, const char *text, size_t length, uint64_t *hash) {
    uintptr_t number;
    *hash = hash_map_key_of(text, length);
    while ((number = hash_map_find(&s->numbers, *hash)) != 0 && !is_text(s, number, text, length)) {
        ++*hash;
    }
    return number;
}

bool trace_stacks_add(trace_stacks *s, const char *text, size_t length, uint32_t *number) {
    uint64_t hash;
    *number = (uint32_t)find(s, text, length, &hash);
    if (*number != 0 || length == 0 || length > TRACE_STACKS_MAX_BYTES - s->bytes) {
        return true;
    }
    char *copy = dti_have_room(&s->texts, sizeof *s->texts, &s->capacity, s->n + 1)
                     ? strndup(text, length)
                     : NULL;
    if (copy == NULL || !hash_map_put(&s->numbers, hash, s->n + 1)) {
        free(copy);
        return false;
    }
    s->texts[s->n++] = copy;
    s->bytes += length;
    *number = (uint32_t)s->n;
    return true;
}

bool trace_stacks_note(trace_stacks *s, uint32_t block, uint32_t number) {
    if (number == 0) {
        return true;
    }
    if (block >= s->capacity_blocks &&
        !spill_reserve(&s->of_block_file, &s->of_block, sizeof *s->of_block, &s->capacity_blocks,
                       (size_t)block + 1)) {
        return false;
    }
    while (s->n_blocks <= block) {
        s->of_block[s->n_blocks++] = 0;
    }
    s->of_block[block] = number;
    return true;
}

uint32_t trace_stacks_of(const trace_stacks *s, uint32_t block) {
    return block < s->n_blocks ? s->of_block[block] : 0;
}

void trace_stacks_drop(trace_stacks *s) {
    for (size_t i = 0; i < s->n; i++) {
        free(s->texts[i]);
    }
    free(s->texts);
    spill_free(&s->of_block_file, s->of_block);
    hash_map_drop(&s->numbers);
    *s = (trace_stacks){0};
}
