/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the bytes of a physical handle are. A handle's contents are pieces that tile it, each of
 * one value throughout or with bytes of its own, so that filling a whole device costs the host
 * next to nothing, and every address that maps the handle sees the same:
 *
 *     |0 0 0 0 0 0|7 7 7 7|b y t e s|0 0 0 0 0 0 0 0|
 */
#include "vmm/virtual/addresses/content.h"

#include "vmm/base/align.h"
#include "vmm/base/array.h"
#include "vmm/virtual/addresses/addresses.h"
#include "vmm/virtual/state/state.h"

#include <stdlib.h>
#include <string.h>

/* What to write: `bytes`, or `value` throughout where that is NULL. */
typedef struct source {
    const uint8_t *bytes;
    uint8_t value;
} source;

/* ---- Pieces -------------------------------------------------------------------------------- */

void dvmm_vgpu_content_fini(vgpu_content *content) {
    for (size_t i = 0; i < content->n_pieces; i++) {
        free(content->pieces[i].bytes);
    }
    free(content->pieces);
    *content = (vgpu_content){0};
}

static uint64_t piece_end(const vgpu_phys *phys, size_t i) {
    const vgpu_content *content = &phys->content;
    return i + 1 < content->n_pieces ? content->pieces[i + 1].start : phys->size;
}

/* The piece that holds the offset. */
static size_t piece_at(const vgpu_content *content, uint64_t offset) {
    size_t low = 0;
    size_t high = content->n_pieces;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (content->pieces[middle].start <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Fresh memory: one piece of zeros. Afterwards there is room for one write: two cuts. */
static bool prepare(vgpu_content *content) {
    if (!dti_have_room(&content->pieces, sizeof *content->pieces, &content->room,
                       content->n_pieces + 3)) {
        return false;
    }
    if (content->n_pieces == 0) {
        content->pieces[content->n_pieces++] = (vgpu_piece){0};
    }
    return true;
}

static uint8_t *copy_of(const uint8_t *bytes, uint64_t size) {
    uint8_t *copy = malloc(size);
    if (copy != NULL) {
        memcpy(copy, bytes, size);
    }
    return copy;
}

/* Makes a piece begin at the offset. Pre: room for one more. */
static bool cut(vgpu_phys *phys, uint64_t offset) {
    vgpu_content *content = &phys->content;
    size_t i = piece_at(content, offset);
    vgpu_piece *piece = &content->pieces[i];
    if (offset == phys->size || piece->start == offset) {
        return true;
    }
    vgpu_piece upper = {.start = offset, .value = piece->value};
    if (piece->bytes != NULL) {
        upper.bytes = copy_of(piece->bytes + (offset - piece->start), piece_end(phys, i) - offset);
        if (upper.bytes == NULL) {
            return false;
        }
    }
    dti_insert(content->pieces, sizeof upper, &content->n_pieces, (uint32_t)i + 1, &upper);
    return true;
}

static void remove_pieces(vgpu_content *content, size_t first, size_t n) {
    for (size_t i = first; i < first + n; i++) {
        free(content->pieces[i].bytes);
    }
    memmove(&content->pieces[first], &content->pieces[first + n],
            (content->n_pieces - first - n) * sizeof(*content->pieces));
    content->n_pieces -= (uint32_t)n;
}

static void merge_with_lower(vgpu_content *content, size_t i) {
    if (i == 0 || i >= content->n_pieces) {
        return;
    }
    const vgpu_piece *pieces = content->pieces;
    if (pieces[i - 1].bytes == NULL && pieces[i].bytes == NULL &&
        pieces[i - 1].value == pieces[i].value) {
        remove_pieces(content, i, 1);
    }
}

/* One handle's share of a write. Takes `bytes` over. */
static bool replace(vgpu_phys *phys, uint64_t offset, uint64_t size, uint8_t *bytes,
                    uint8_t value) {
    vgpu_content *content = &phys->content;
    if (!prepare(content) || !cut(phys, offset) || !cut(phys, offset + size)) {
        free(bytes);
        return false;
    }
    size_t i = piece_at(content, offset);
    size_t n = piece_at(content, offset + size - 1) - i + 1;
    free(content->pieces[i].bytes);
    content->pieces[i].bytes = bytes;
    content->pieces[i].value = value;
    remove_pieces(content, i + 1, n - 1);
    merge_with_lower(content, i + 1);
    merge_with_lower(content, i);
    return true;
}

/* ---- Spans --------------------------------------------------------------------------------- */

/* The part of a span that one handle holds. */
typedef struct share {
    vgpu_phys *phys;
    uint64_t offset;
    uint64_t size;
} share;

static share share_at(const vgpu *gpu, ductile_addr addr, uint64_t size) {
    vgpu_mapping *mapping = dvmm_vgpu_mapping_at(gpu, addr);
    uint64_t offset = addr - mapping->start;
    return (share){mapping->phys, offset, dti_min(size, mapping->phys->size - offset)};
}

/* The same, but no longer than the piece at its start; what the piece holds goes to *out. */
static share piece_share_at(const vgpu *gpu, ductile_addr addr, uint64_t size, source *out) {
    share part = share_at(gpu, addr, size);
    const vgpu_content *content = &part.phys->content;
    *out = (source){0};
    if (content->n_pieces == 0) {
        return part;
    }
    size_t i = piece_at(content, part.offset);
    const vgpu_piece *piece = &content->pieces[i];
    uint64_t skipped = part.offset - piece->start;
    *out = (source){piece->bytes != NULL ? piece->bytes + skipped : NULL, piece->value};
    part.size = dti_min(part.size, piece_end(part.phys, i) - part.offset);
    return part;
}

static bool write_share(share part, source from) {
    if (from.bytes == NULL) {
        return replace(part.phys, part.offset, part.size, NULL, from.value);
    }
    uint8_t *bytes = copy_of(from.bytes, part.size);
    return bytes != NULL && replace(part.phys, part.offset, part.size, bytes, 0);
}

static bool write_span(vgpu *gpu, ductile_addr to, source from, uint64_t size) {
    for (uint64_t done = 0; done < size;) {
        share part = share_at(gpu, to + done, size - done);
        if (!write_share(part, from)) {
            return false;
        }
        done += part.size;
        from.bytes = from.bytes != NULL ? from.bytes + part.size : NULL;
    }
    return true;
}

bool dvmm_vgpu_write_value(vgpu *gpu, ductile_addr to, uint8_t value, uint64_t size) {
    return write_span(gpu, to, (source){NULL, value}, size);
}

bool dvmm_vgpu_write_bytes(vgpu *gpu, ductile_addr to, const uint8_t *bytes, uint64_t size) {
    return write_span(gpu, to, (source){bytes, 0}, size);
}

/* One piece, and one handle written, at a time: a write may free the bytes it was copied from
 * where both lie in the same handle. As on hardware, overlapping spans give no defined result. */
bool dvmm_vgpu_copy_bytes(vgpu *gpu, ductile_addr to, ductile_addr from, uint64_t size) {
    for (uint64_t done = 0; done < size;) {
        source what;
        share into = share_at(gpu, to + done, size - done);
        into.size = piece_share_at(gpu, from + done, into.size, &what).size;
        if (!write_share(into, what)) {
            return false;
        }
        done += into.size;
    }
    return true;
}

void dvmm_vgpu_read_bytes(const vgpu *gpu, uint8_t *to, ductile_addr from, uint64_t size) {
    for (uint64_t done = 0; done < size;) {
        source what;
        share part = piece_share_at(gpu, from + done, size - done, &what);
        if (what.bytes != NULL) {
            memcpy(to + done, what.bytes, part.size);
        } else {
            memset(to + done, what.value, part.size);
        }
        done += part.size;
    }
}
