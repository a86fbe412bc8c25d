/* SPDX-License-Identifier: Apache-2.0 */
/* Exports all blocks of the pools with a tag as one message. */
#include "pool/base/guards.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"
#include "pool/services/sharing/outgoing.h"
#include "pool/services/sharing/tag_wire.h"
#include "pool/sharing/pin.h"

#include "vmm/base/array.h"

#include <stdlib.h>
#include <string.h>

/* An export under way, on the stack. */
typedef struct tag_request {
    ductile_allocator *a;
    const char *tag;
    const ductile_tag_name *names;
    size_t n_names;
    dpool_tag_export *record; /* the addresses, ascending: what is pinned once the survey is done */
    dpool_pinned *blocks;     /* record->n of them          */
    dpool_outgoing_span *spans;
    uint64_t *span_offsets; /* of each span, in what is sent */
    size_t n_spans;
    dpool_outgoing out;
    dpool_tag_head head;
    dpool_tag_table table;
} tag_request;

/* ---- Which blocks -------------------------------------------------------------------------- */

static bool is_of_tag(const dpool_private_pool *pool, const char *tag) {
    return strncmp(pool->tag, tag, sizeof pool->tag) == 0;
}

static ductile_status check_pools_locked(const ductile_allocator *a, const char *tag) {
    DTI_ASSERT_HELD(&a->index_lock);
    ductile_status status = DUCTILE_ERR_INVALID_ARGUMENT;
    for (const dpool_private_pool *pool = a->pools; pool != NULL; pool = pool->next) {
        if (!is_of_tag(pool, tag)) {
            continue;
        }
        DTI_TRY(dpool_need_awake(pool));
        status = DUCTILE_OK;
    }
    return status;
}

/* Lists the addresses of live blocks into the record as far as it has room; returns how many there
 * are. */
static uint64_t list_region(const dpool_region *region, dpool_tag_export *record, uint64_t room,
                            uint64_t n) {
    for (const dpool_block *b = region->first; b != NULL; b = b->next) {
        if (b->state == DPOOL_LIVE) {
            if (n < room) {
                record->addrs[n] = b->addr;
            }
            n++;
        }
    }
    return n;
}

static uint64_t list_blocks_locked(tag_request *r, uint64_t room) {
    DTI_ASSERT_HELD(&r->a->index_lock);
    uint64_t n = 0;
    for (const dpool_private_pool *pool = r->a->pools; pool != NULL; pool = pool->next) {
        if (is_of_tag(pool, r->tag)) {
            dpool_region *region = dpool_next_region(r->a, pool, NULL);
            for (; region != NULL; region = dpool_next_region(r->a, pool, region)) {
                n = list_region(region, r->record, room, n);
            }
        }
    }
    return n;
}

static int by_address(const void *a, const void *b) {
    ductile_addr first = *(const ductile_addr *)a;
    ductile_addr second = *(const ductile_addr *)b;
    return (first > second) - (first < second);
}

/* Memory for the list is taken without the index lock, so there may be more when it is back. */
static ductile_status list_blocks(tag_request *r) {
    ductile_allocator *a = r->a;
    uint64_t room = 0;
    for (;;) {
        dti_lock_acquire(&a->index_lock);
        ductile_status status = check_pools_locked(a, r->tag);
        uint64_t n = status == DUCTILE_OK ? list_blocks_locked(r, room) : 0;
        dti_lock_release(&a->index_lock);
        if (status != DUCTILE_OK || n == 0) {
            return status != DUCTILE_OK ? status : DUCTILE_ERR_NOT_LIVE;
        }
        if (n <= room) {
            r->record->n = n;
            qsort(r->record->addrs, n, sizeof *r->record->addrs, by_address);
            return DUCTILE_OK;
        }
        room = n + n / 8;
        free(r->record);
        r->record = calloc(1, sizeof *r->record + room * sizeof *r->record->addrs);
        if (r->record == NULL) {
            return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
        }
    }
}

/* ---- Pins ---------------------------------------------------------------------------------- */

static void drop_pins(ductile_allocator *a, const dpool_tag_export *record, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        (void)dpool_pin_drop(a, record->addrs[i], DPOOL_PIN_EXPORT);
    }
}

/* All, or none. A block that was freed since it was listed is no error of the pointer's. */
static ductile_status pin_blocks(tag_request *r) {
    r->blocks = calloc(r->record->n, sizeof *r->blocks);
    if (r->blocks == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    for (uint64_t i = 0; i < r->record->n; i++) {
        ductile_status status =
            dpool_pin_add(r->a, r->record->addrs[i], DPOOL_PIN_EXPORT, &r->blocks[i]);
        if (status != DUCTILE_OK) {
            drop_pins(r->a, r->record, i);
            bool is_final = status == DUCTILE_ERR_OUT_OF_HOST_MEMORY ||
                            status == DUCTILE_ERR_UNSUPPORTED; /* it is spilled */
            return is_final ? status : DUCTILE_ERR_BUSY;
        }
    }
    return DUCTILE_OK;
}

/* ---- Where they lie ------------------------------------------------------------------------ */

/* Blocks may lie in one handle: their spans are united, so that it is sent once. */
static uint64_t place_block(tag_request *r, const dpool_pinned *b, uint64_t *end) {
    dpool_outgoing_span *last = r->n_spans > 0 ? &r->spans[r->n_spans - 1] : NULL;
    uint64_t granule = r->a->granule;
    if (last == NULL || last->seg != b->seg || b->first > last->end) {
        last = &r->spans[r->n_spans];
        *last = (dpool_outgoing_span){b->seg, b->first, b->first};
        r->span_offsets[r->n_spans++] = *end;
    }
    if (b->end > last->end) {
        *end += (b->end - last->end) * granule;
        last->end = b->end;
    }
    return r->span_offsets[r->n_spans - 1] + b->addr - dseg_addr(b->seg, last->first);
}

static void place_blocks(tag_request *r) {
    uint64_t end = 0;
    for (uint64_t i = 0; i < r->record->n; i++) {
        const dpool_pinned *b = &r->blocks[i];
        r->table.blocks[i] = (dpool_tag_span){place_block(r, b, &end), b->size};
    }
}

/* The block that holds the span; record->n when none does. */
static uint64_t find_block(const tag_request *r, ductile_addr addr, uint64_t size) {
    uint64_t at = 0;
    DTI_FIRST(at, r->record->n, r->blocks[at].addr > addr);
    const dpool_pinned *b = at > 0 ? &r->blocks[at - 1] : NULL;
    bool holds = b != NULL && size != 0 && size <= b->size && addr - b->addr <= b->size - size;
    return holds ? at - 1 : r->record->n;
}

static ductile_status place_names(tag_request *r) {
    uint64_t text = 0;
    for (size_t i = 0; i < r->n_names; i++) {
        const ductile_tag_name *name = &r->names[i];
        uint64_t b = find_block(r, name->address, name->size);
        if (b == r->record->n) {
            return DUCTILE_ERR_INVALID_ARGUMENT;
        }
        uint64_t offset = r->table.blocks[b].offset + name->address - r->blocks[b].addr;
        r->table.labels[i] = (dpool_tag_label){{offset, name->size}, text};
        size_t length = strlen(name->name) + 1;
        memcpy(r->table.texts + text, name->name, length);
        text += length;
    }
    return DUCTILE_OK;
}

static uint64_t count_text(const tag_request *r) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->n_names; i++) {
        bytes += strlen(r->names[i].name) + 1;
    }
    return bytes;
}

static ductile_status make_table(tag_request *r) {
    r->head = dpool_tag_new_head(r->tag, r->record->n, r->n_names, count_text(r));
    r->spans = calloc(r->record->n, sizeof *r->spans);
    r->span_offsets = calloc(r->record->n, sizeof *r->span_offsets);
    if (r->spans == NULL || r->span_offsets == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = dpool_tag_table_make(&r->head, &r->table);
    if (status == DUCTILE_OK) {
        place_blocks(r);
        status = place_names(r);
    }
    return status;
}

/* ---- The message --------------------------------------------------------------------------- */

static ductile_status fill_message(tag_request *r) {
    ductile_status status = make_table(r);
    if (status == DUCTILE_OK) {
        status = dpool_outgoing_list(r->a, r->spans, r->n_spans, &r->out);
    }
    if (status == DUCTILE_OK) {
        r->out.head.size = r->out.head.total_bytes;
        r->head.handles = r->out.head;
        r->head.layout = dpool_tag_layout(&r->head, &r->table);
    }
    return status;
}

/* Pins the blocks, lists their handles and makes the table. */
static ductile_status prepare(tag_request *r) {
    dti_lock_acquire(&r->a->grow_lock);
    ductile_status status = list_blocks(r);
    if (status == DUCTILE_OK) {
        status = pin_blocks(r);
    }
    if (status == DUCTILE_OK) {
        status = fill_message(r);
        if (status != DUCTILE_OK) {
            drop_pins(r->a, r->record, r->record->n);
        }
    }
    dti_lock_release(&r->a->grow_lock);
    return status;
}

static ductile_status send(const tag_request *r, int socket) {
    DTI_TRY(dpool_outgoing_need_descriptors(r->a, &r->out));
    DTI_TRY(dpool_tag_send(socket, &r->head, &r->table));
    return dpool_outgoing_send(r->a, &r->out, socket);
}

/* The allocator keeps the record of what was sent. */
static void finish_export(tag_request *r, ductile_status status, uint64_t *id) {
    dpool_pins *pins = &r->a->pins;
    dti_lock_acquire(&r->a->grow_lock);
    if (status == DUCTILE_OK) {
        *id = r->record->id = ++pins->last_tag_id;
        r->record->next = pins->tags;
        pins->tags = r->record;
        r->record = NULL;
    } else {
        drop_pins(r->a, r->record, r->record->n);
    }
    dti_lock_release(&r->a->grow_lock);
}

static void free_request(tag_request *r) {
    free(r->record);
    free(r->blocks);
    free(r->spans);
    free(r->span_offsets);
    dpool_tag_table_free(&r->table);
    dpool_outgoing_free(&r->out);
}

static ductile_status export_request(tag_request *r, int socket, uint64_t *id, uint64_t *layout) {
    ductile_status status = prepare(r);
    if (status == DUCTILE_OK) {
        if (layout != NULL) {
            *layout = r->head.layout;
        }
        status = send(r, socket);
        finish_export(r, status, id);
    }
    free_request(r);
    return status;
}

/* ---- The public calls ---------------------------------------------------------------------- */

static bool are_names(const ductile_tag_name *names, size_t n) {
    bool are = names != NULL || n == 0;
    for (size_t i = 0; i < n && are; i++) {
        are = names[i].name != NULL;
    }
    return are;
}

ductile_status ductile_export_tag(ductile_allocator *a, const char *tag,
                                  const ductile_tag_name *names, size_t n_names, int socket,
                                  uint64_t *id, uint64_t *layout) {
    if (id != NULL) {
        *id = 0;
    }
    if (layout != NULL) {
        *layout = 0;
    }
    bool is_good = id != NULL && tag != NULL && tag[0] != '\0' && are_names(names, n_names);
    DTI_TRY(is_good ? dpool_may_export(a) : DUCTILE_ERR_INVALID_ARGUMENT);
    tag_request r = {.a = a, .tag = tag, .names = names, .n_names = n_names};
    return export_request(&r, socket, id, layout);
}

static dpool_tag_export *unlink_export(ductile_allocator *a, uint64_t id) {
    DTI_ASSERT_HELD(&a->grow_lock);
    dpool_tag_export **link = &a->pins.tags;
    while (*link != NULL && (*link)->id != id) {
        link = &(*link)->next;
    }
    dpool_tag_export *found = *link;
    if (found != NULL) {
        *link = found->next;
    }
    return found;
}

ductile_status ductile_unexport_tag(ductile_allocator *a, uint64_t id) {
    DTI_TRY(dpool_may_let_go(a));
    dti_lock_acquire(&a->grow_lock);
    dpool_tag_export *record = unlink_export(a, id);
    if (record != NULL) {
        drop_pins(a, record, record->n);
    }
    dti_lock_release(&a->grow_lock);
    free(record);
    return record != NULL ? DUCTILE_OK : DUCTILE_ERR_INVALID_ARGUMENT;
}
