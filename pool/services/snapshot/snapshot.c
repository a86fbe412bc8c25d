/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the whole state as JSON. Copies the blocks under the lock, and writes them without it. */
#include <ductile.h>

#include "vmm/base/align.h"
#include "vmm/base/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct block_copy {
    ductile_block_info *items;
    size_t count;
    size_t capacity;
} block_copy;

/* ---- Copying ------------------------------------------------------------------------------- */

static int count_block(void *user, const ductile_block_info *block) {
    (void)block;
    (*(size_t *)user)++;
    return 0;
}

static int copy_block(void *user, const ductile_block_info *block) {
    block_copy *copy = user;
    if (copy->count < copy->capacity) {
        copy->items[copy->count] = *block;
    }
    copy->count++;
    return 0;
}

/* Other threads may add blocks between counting and copying; then it tries again with more room. */
static ductile_status copy_blocks(ductile_allocator *a, block_copy *copy) {
    size_t n = 0;
    ductile_status status = ductile_walk(a, NULL, count_block, &n);
    while (status == DUCTILE_OK) {
        free(copy->items);
        copy->capacity = n + n / 8 + 64;
        copy->count = 0;
        copy->items = calloc(copy->capacity, sizeof *copy->items);
        if (copy->items == NULL) {
            return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
        }
        status = ductile_walk(a, NULL, copy_block, copy);
        if (copy->count <= copy->capacity) {
            break;
        }
        n = copy->count;
    }
    return status;
}

/* ---- Writing ------------------------------------------------------------------------------- */

static const char *state_name(ductile_block_state state) {
    switch (state) {
    case DUCTILE_BLOCK_LIVE:
        return "live";
    case DUCTILE_BLOCK_FREE:
        return "free";
    case DUCTILE_BLOCK_PENDING:
        return "pending";
    case DUCTILE_BLOCK_BUSY:
        return "busy";
    case DUCTILE_BLOCK_GAP:
        return "gap";
    case DUCTILE_BLOCK_RETIRING:
        return "retiring";
    case DUCTILE_BLOCK_QUARANTINED:
        return "quarantined";
    case DUCTILE_BLOCK_IMPORTED:
        return "imported";
    case DUCTILE_BLOCK_ASLEEP:
        return "asleep";
    }
    return "unknown";
}

static void write_options(ductile_allocator *a, dti_json *j) {
    ductile_options o = {.struct_size = sizeof o};
    char text[1024];
    ductile_get_options(a, &o);
    (void)ductile_options_format(&o, text, sizeof text);
    dti_json_text(j, "version", ductile_version());
    dti_json_text(j, "options", text);
}

static void write_statistics(ductile_allocator *a, dti_json *j) {
    ductile_stats s = {.struct_size = sizeof s};
    if (ductile_get_stats(a, NULL, &s) != DUCTILE_OK) {
        return;
    }
    dti_json_open(j, "statistics", '{');
#define WRITE_STAT(name, meaning) dti_json_number(j, #name, s.name);
    DUCTILE_STATS_MAP(WRITE_STAT)
#undef WRITE_STAT
    dti_json_close(j, '}');
}

static void begin_segment(dti_json *j, const ductile_block_info *b) {
    const uint64_t pool[] = {b->pool.first, b->pool.second};
    dti_json_open(j, NULL, '{');
    dti_json_number(j, "address", b->segment);
    dti_json_number(j, "size", b->segment_bytes);
    dti_json_number(j, "stream", (uintptr_t)b->stream);
    dti_json_numbers(j, "pool", pool, 2);
    dti_json_open(j, "blocks", '[');
}

static void end_segment(dti_json *j) {
    dti_json_close(j, ']');
    dti_json_close(j, '}');
}

static void write_block(dti_json *j, const ductile_block_info *b) {
    dti_json_open(j, NULL, '{');
    dti_json_number(j, "address", b->address);
    dti_json_number(j, "size", b->size);
    dti_json_text(j, "state", state_name(b->state));
    if (b->state == DUCTILE_BLOCK_LIVE) {
        dti_json_number(j, "requested_size", b->requested_size);
    }
    if ((b->flags & DUCTILE_BLOCK_PINNED) != 0) {
        dti_json_bool(j, "pinned", true);
    }
    if ((b->flags & DUCTILE_BLOCK_EXPORTED) != 0) {
        dti_json_bool(j, "exported", true);
    }
    if ((b->flags & DUCTILE_BLOCK_ELASTIC) != 0) {
        dti_json_bool(j, "elastic", true);
    }
    if (b->spilled_bytes != 0) {
        dti_json_number(j, "spilled", b->spilled_bytes);
    }
    dti_json_close(j, '}');
}

static void write_blocks(dti_json *j, const block_copy *copy) {
    dti_json_open(j, "segments", '[');
    for (size_t i = 0; i < copy->count; i++) {
        const ductile_block_info *b = &copy->items[i];
        bool is_first = i == 0 || b->segment != b[-1].segment;
        if (is_first && i > 0) {
            end_segment(j);
        }
        if (is_first) {
            begin_segment(j, b);
        }
        write_block(j, b);
    }
    if (copy->count > 0) {
        end_segment(j);
    }
    dti_json_close(j, ']');
}

/* A caller's function may be costly to call, in another language say. */
typedef struct gathered {
    ductile_write_fn write;
    void *user;
    size_t length;
    int ended;
    char text[4096];
} gathered;

static void hand_on(gathered *g) {
    if (g->length > 0) {
        g->ended = g->write(g->user, g->text, g->length);
    }
    g->length = 0;
}

static int gather(void *user, const char *text, size_t length) {
    gathered *g = user;
    while (length > 0 && g->ended == 0) {
        size_t n = dti_min(length, sizeof g->text - g->length);
        memcpy(g->text + g->length, text, n);
        g->length += n;
        text += n;
        length -= n;
        if (g->length == sizeof g->text) {
            hand_on(g);
        }
    }
    return g->ended;
}

ductile_status ductile_snapshot_json(ductile_allocator *a, ductile_write_fn write, void *user) {
    if (a == NULL || write == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    block_copy copy = {0};
    ductile_status status = copy_blocks(a, &copy);
    if (status == DUCTILE_OK) {
        gathered g = {.write = write, .user = user};
        dti_json j = {.write = gather, .user = &g};
        dti_json_open(&j, NULL, '{');
        write_options(a, &j);
        write_statistics(a, &j);
        write_blocks(&j, &copy);
        dti_json_end_line(&j);
        hand_on(&g);
    }
    free(copy.items);
    return status;
}
