/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the whole state as JSON. Copies the blocks under the lock, and writes them without it. */
#include "pool/base/allocator.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct block_copy {
    ductile_block_info *items;
    size_t count;
    size_t capacity;
} block_copy;

typedef struct writer {
    ductile_write_fn write;
    void *user;
    int ended;
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (w->ended == 0 && n > 0) {
        size_t length = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
        w->ended = w->write(w->user, text, length);
    }
}

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
    case DUCTILE_BLOCK_PAUSED:
        return "paused";
    }
    return "unknown";
}

static void put_options(ductile_allocator *a, writer *w) {
    ductile_options o = {.struct_size = sizeof o};
    char text[1024];
    ductile_get_options(a, &o);
    (void)ductile_options_format(&o, text, sizeof text);
    put(w, "{\"version\":\"%s\",\"options\":\"", ductile_version());
    for (const char *piece = text; *piece != '\0';) {
        size_t n = strnlen(piece, 256);
        put(w, "%.*s", (int)n, piece);
        piece += n;
    }
    put(w, "\",\"statistics\":{");
}

static void put_statistics(ductile_allocator *a, writer *w) {
    ductile_stats s = {.struct_size = sizeof s};
    if (ductile_get_stats(a, NULL, &s) != DUCTILE_OK) {
        return;
    }
    const char *comma = "";
#define PUT_STAT(name, meaning)                                                                    \
    put(w, "%s\"" #name "\":%" PRIu64, comma, s.name);                                             \
    comma = ",";
    DUCTILE_STATS_MAP(PUT_STAT)
#undef PUT_STAT
    put(w, "},\"segments\":[");
}

static void put_segment_head(writer *w, const ductile_block_info *b, bool first) {
    put(w, "%s{\"address\":%llu,\"size\":%" PRIu64 ",\"stream\":%" PRIuPTR, first ? "" : "]},",
        b->segment, b->segment_bytes, (uintptr_t)b->stream);
    put(w, ",\"pool\":[%" PRIu64 ",%" PRIu64 "],\"blocks\":[", b->pool.first, b->pool.second);
}

static void put_flags(writer *w, uint32_t flags) {
    if ((flags & DUCTILE_BLOCK_PINNED) != 0) {
        put(w, ",\"pinned\":true");
    }
    if ((flags & DUCTILE_BLOCK_EXPORTED) != 0) {
        put(w, ",\"exported\":true");
    }
}

static void put_blocks(writer *w, const block_copy *copy) {
    ductile_addr segment = 0;
    for (size_t i = 0; i < copy->count; i++) {
        const ductile_block_info *b = &copy->items[i];
        bool opens = i == 0 || b->segment != segment;
        if (opens) {
            put_segment_head(w, b, i == 0);
            segment = b->segment;
        }
        put(w, "%s{\"address\":%llu,\"size\":%" PRIu64 ",\"state\":\"%s\"", opens ? "" : ",",
            b->address, b->size, state_name(b->state));
        if (b->state == DUCTILE_BLOCK_LIVE) {
            put(w, ",\"requested_size\":%" PRIu64, b->requested_size);
        }
        put_flags(w, b->flags);
        put(w, "}");
    }
    put(w, "%s]}\n", copy->count > 0 ? "]}" : "");
}

ductile_status ductile_snapshot_json(ductile_allocator *a, ductile_write_fn write, void *user) {
    if (a == NULL || write == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    block_copy copy = {0};
    ductile_status status = copy_blocks(a, &copy);
    if (status == DUCTILE_OK) {
        writer w = {write, user, 0};
        put_options(a, &w);
        put_statistics(a, &w);
        put_blocks(&w, &copy);
    }
    free(copy.items);
    return status;
}
