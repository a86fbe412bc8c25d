/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/model.h"

#include "tests/support/complain.h"

#include <stdlib.h>
#include <string.h>

void model_init(model *m) {
    memset(m, 0, sizeof *m);
}

void model_fini(model *m) {
    free(m->blocks);
    model_init(m);
}

uint64_t model_rounded(uint64_t size) {
    uint64_t highest = UINT64_MAX - (DUCTILE_ALIGNMENT - 1);
    if (size > highest) {
        return highest;
    }
    return (size + DUCTILE_ALIGNMENT - 1) / DUCTILE_ALIGNMENT * DUCTILE_ALIGNMENT;
}

/* Index of the first block that starts above `address`. */
static size_t first_above(const model *m, ductile_addr address) {
    size_t low = 0;
    size_t high = m->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (m->blocks[middle].address > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

size_t model_find(const model *m, ductile_addr address) {
    size_t i = first_above(m, address);
    return i > 0 && m->blocks[i - 1].address == address ? i - 1 : m->n;
}

static const char *inadmissible(const model *m, const model_block *b, size_t at) {
    NEED(b->address != 0, "a block of %llu bytes has address 0", (unsigned long long)b->requested);
    NEED(b->address % DUCTILE_ALIGNMENT == 0, "address %llx is not aligned", b->address);
    NEED(b->address + b->size > b->address, "block at %llx wraps around", b->address);
    if (at > 0) {
        const model_block *below = &m->blocks[at - 1];
        NEED(below->address + below->size <= b->address, "block %llx overlaps live block %llx",
             b->address, below->address);
    }
    if (at < m->n) {
        const model_block *above = &m->blocks[at];
        NEED(b->address + b->size <= above->address, "block %llx overlaps live block %llx",
             b->address, above->address);
    }
    return NULL;
}

static const char *make_room(model *m) {
    if (m->n < m->capacity) {
        return NULL;
    }
    size_t capacity = m->capacity == 0 ? 64 : 2 * m->capacity;
    model_block *blocks = realloc(m->blocks, capacity * sizeof *blocks);
    NEED(blocks != NULL, "the model is out of host memory");
    m->blocks = blocks;
    m->capacity = capacity;
    return NULL;
}

const char *model_add(model *m, const model_block *block) {
    size_t at = first_above(m, block->address);
    TRY(inadmissible(m, block, at));
    TRY(make_room(m));
    memmove(&m->blocks[at + 1], &m->blocks[at], (m->n - at) * sizeof *m->blocks);
    m->blocks[at] = *block;
    m->n++;
    m->requested_bytes += block->requested;
    return NULL;
}

model_block model_remove(model *m, size_t i) {
    model_block gone = m->blocks[i];
    m->n--;
    memmove(&m->blocks[i], &m->blocks[i + 1], (m->n - i) * sizeof *m->blocks);
    m->requested_bytes -= gone.requested;
    return gone;
}

uint64_t model_pinned_granules(const model *m, uint64_t granule) {
    uint64_t n = 0;
    uint64_t next = 0; /* first granule not counted yet */
    for (size_t i = 0; i < m->n; i++) {
        uint64_t first = m->blocks[i].address / granule;
        uint64_t last = (m->blocks[i].address + m->blocks[i].size - 1) / granule;
        if (first < next) {
            first = next;
        }
        if (last >= first) {
            n += last - first + 1;
            next = last + 1;
        }
    }
    return n;
}
