/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/sharing/pin.h"

#include "pool/base/guards.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"
#include "pool/streams/marks.h"

#include "segments/granules.h"
#include "vmm/base/array.h"

#include <ductile_share.h>

#include <stdlib.h>
#include <string.h>

/* ---- Records ------------------------------------------------------------------------------- */

/* The first record at or above addr. */
static uint32_t lower_bound(const dpool_pins *pins, ductile_addr addr) {
    uint32_t at = 0;
    DTI_FIRST(at, pins->count, pins->items[at].addr >= addr);
    return at;
}

static dpool_pin *find_record(const dpool_pins *pins, ductile_addr addr) {
    uint32_t i = lower_bound(pins, addr);
    return i < pins->count && pins->items[i].addr == addr ? &pins->items[i] : NULL;
}

static dpool_pin *insert_record(dpool_pins *pins, ductile_addr addr) {
    uint32_t i = lower_bound(pins, addr);
    dti_insert(pins->items, sizeof *pins->items, &pins->count, i, &(dpool_pin){.addr = addr});
    return &pins->items[i];
}

static void remove_record(dpool_pins *pins, dpool_pin *pin) {
    dti_remove(pins->items, sizeof *pin, &pins->count, (uint32_t)(pin - pins->items));
}

void dpool_pins_fini(ductile_allocator *a) {
    while (a->pins.tags != NULL) {
        dpool_tag_export *tag = a->pins.tags;
        a->pins.tags = tag->next;
        free(tag);
    }
    free(a->pins.items);
    a->pins = (dpool_pins){.count = 0};
}

/* ---- What a record covers ------------------------------------------------------------------ */

static dseg_span span_of(const dpool_block *b) {
    return dseg_granules_over(b->region->seg, b->addr, dpool_end(b));
}

static void visit(dpool_pin *pin, uint32_t first, uint32_t n_granules, dseg_handle_fn what) {
    if (n_granules > 0) {
        dseg_each_handle(pin->seg, first, n_granules, what);
    }
}

/* Widens the record to the span: blocks that start at one address differ only in their ends. */
static void cover(dpool_pin *pin, dseg_segment *seg, dseg_span s) {
    uint32_t covered = pin->seg == NULL ? s.first : pin->first + pin->n_granules;
    pin->seg = seg;
    pin->first = s.first;
    if (s.end > covered) {
        visit(pin, covered, s.end - covered, dvmm_handle_pin);
        if (pin->n_exports > 0) {
            visit(pin, covered, s.end - covered, dvmm_handle_add_export);
        }
        pin->n_granules = s.end - pin->first;
    }
}

static void count_up(dpool_pin *pin, dpool_pin_kind kind) {
    if (kind == DPOOL_PIN_PLACE) {
        pin->n_pins++;
    } else if (pin->n_exports++ == 0) {
        visit(pin, pin->first, pin->n_granules, dvmm_handle_add_export);
    }
}

/* Libraries that had registered the memory may have used it until now, on any stream. */
static void record_last_use_locked(ductile_allocator *a, const dpool_pin *pin) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_region *region = pin->seg->owner;
    region->arena->proofs.not_before = a->age;
    dpool_want_mark_locked(a);
}

static void count_down(dpool_pin *pin, dpool_pin_kind kind) {
    if (kind == DPOOL_PIN_PLACE) {
        pin->n_pins--;
    } else if (--pin->n_exports == 0) {
        visit(pin, pin->first, pin->n_granules, dvmm_handle_drop_export);
    }
    if (pin->n_pins == 0 && pin->n_exports == 0) {
        visit(pin, pin->first, pin->n_granules, dvmm_handle_unpin);
    }
}

/* ---- Pinning ------------------------------------------------------------------------------- */

static dpool_pinned describe_pinned(const dpool_block *b) {
    dseg_segment *seg = b->region->seg;
    /* whole handles, so that records that end in one handle all count it */
    dseg_span s = dseg_widen_to_handles(seg, span_of(b));
    return (dpool_pinned){b->addr, b->size, seg, s.first, s.end};
}

static void pin_block_locked(ductile_allocator *a, const dpool_pinned *what, dpool_pin_kind kind) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_pin *pin = find_record(&a->pins, what->addr);
    pin = pin != NULL ? pin : insert_record(&a->pins, what->addr);
    cover(pin, what->seg, (dseg_span){what->first, what->end});
    count_up(pin, kind);
}

ductile_status dpool_pin_add(ductile_allocator *a, ductile_addr addr, dpool_pin_kind kind,
                             dpool_pinned *out) {
    dpool_pins *pins = &a->pins;
    if (!dti_have_room(&pins->items, sizeof *pins->items, &pins->capacity, pins->count + 1)) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = DUCTILE_OK;
    dti_lock_acquire(&a->index_lock);
    const dpool_block *b = dpool_map_find(&a->map, addr);
    if (b != NULL && b->state != DPOOL_LIVE) {
        status = DUCTILE_ERR_ASLEEP;
    } else if (b != NULL && dpool_device_bytes(b) < b->size) {
        status = DUCTILE_ERR_UNSUPPORTED; /* libraries take it for memory of the device */
    } else if (b != NULL) {
        *out = describe_pinned(b);
        pin_block_locked(a, out, kind);
    } else {
        status = dpool_explain_miss_locked(a, addr);
    }
    dti_lock_release(&a->index_lock);
    return status;
}

static bool has(const dpool_pin *pin, dpool_pin_kind kind) {
    return pin != NULL && (kind == DPOOL_PIN_PLACE ? pin->n_pins : pin->n_exports) > 0;
}

/* A live block without a pin is an error like an address without a block. */
static ductile_status explain_no_pin_locked(const ductile_allocator *a, ductile_addr addr) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (dpool_map_find(&a->map, addr) != NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    return dpool_explain_miss_locked(a, addr);
}

ductile_status dpool_pin_drop(ductile_allocator *a, ductile_addr addr, dpool_pin_kind kind) {
    ductile_status status = DUCTILE_OK;
    dpool_pin *pin = find_record(&a->pins, addr);
    dti_lock_acquire(&a->index_lock);
    if (has(pin, kind)) {
        count_down(pin, kind);
        record_last_use_locked(a, pin);
    } else {
        status = explain_no_pin_locked(a, addr);
    }
    dti_lock_release(&a->index_lock);
    if (status == DUCTILE_OK && pin->n_pins == 0 && pin->n_exports == 0) {
        remove_record(&a->pins, pin);
    }
    return status;
}

/* While the index lock is held, no thread changes the granules or the pins of a block, unless the
 * block is BUSY, has no memory, or is being woken. */
uint32_t dpool_pin_flags_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool has_memory = b->state == DPOOL_LIVE || b->state == DPOOL_FREE || b->state == DPOOL_PENDING;
    if (!has_memory || dpool_is_away(b->region->arena->pool)) {
        return 0;
    }
    dseg_ties ties = dseg_ties_of(b->region->seg, span_of(b));
    return (ties.pinned ? (uint32_t)DUCTILE_BLOCK_PINNED : 0u) |
           (ties.exported ? (uint32_t)DUCTILE_BLOCK_EXPORTED : 0u);
}

/* ---- Recounting ---------------------------------------------------------------------------- */

static void check_record(const dpool_pin *pin, ductile_addr above, dti_fault *fault) {
    dti_expect(fault, "P9", pin->addr > above, "a pin's place in the list", pin->addr, above,
               pin->addr);
    dti_expect(fault, "P9", pin->n_pins + pin->n_exports > 0, "a pin's count", 0, 1, pin->addr);
    for (uint32_t g = pin->first; g < pin->first + pin->n_granules && dti_is_sound(fault); g++) {
        dti_expect_equal(fault, "P9", "state of a pinned granule", dseg_state_at(pin->seg, g),
                         DSEG_MAPPED, dseg_addr(pin->seg, g));
    }
}

/* Adds to the counts of every handle that the record covers. */
static void add_to_pins(const dpool_pin *pin, uint32_t change) {
    for (uint32_t g = pin->first; g < pin->first + pin->n_granules;) {
        dvmm_handle *h = dseg_handle_at(pin->seg, g);
        h->n_pins += change;
        h->n_exports += pin->n_exports > 0 ? change : 0;
        g += h->n_granules;
    }
}

static void add_all_to_pins(const dpool_pins *pins, uint32_t change) {
    for (uint32_t i = 0; i < pins->count; i++) {
        add_to_pins(&pins->items[i], change);
    }
}

static void expect_no_pins(const dseg_segment *seg, dti_fault *fault) {
    for (uint32_t g = dseg_next_mapped(seg, 0); g < seg->n_granules && dti_is_sound(fault);
         g = dseg_next_mapped(seg, g + 1)) {
        const dvmm_handle *h = dseg_handle_at(seg, g);
        dti_expect_equal(fault, "P9", "a handle's pins, records deducted", h->n_pins, 0,
                         dseg_addr(seg, g));
        dti_expect_equal(fault, "P9", "a handle's exports, records deducted", h->n_exports, 0,
                         dseg_addr(seg, g));
    }
}

/* Deducts every record from the handles' own counts for a moment, which needs no memory. */
void dpool_pins_check_locked(const ductile_allocator *a, dti_fault *fault) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_pins *pins = &a->pins;
    for (uint32_t i = 0; i < pins->count && dti_is_sound(fault); i++) {
        check_record(&pins->items[i], i > 0 ? pins->items[i - 1].addr : 0, fault);
    }
    if (!dti_is_sound(fault)) {
        return;
    }
    add_all_to_pins(pins, UINT32_MAX); /* minus 1 */
    for (uint32_t i = 0; i < a->segments.count; i++) {
        expect_no_pins(a->segments.items[i], fault);
    }
    add_all_to_pins(pins, 1);
}

/* ---- The public calls ---------------------------------------------------------------------- */

ductile_status ductile_pin(ductile_allocator *a, ductile_addr address) {
    DTI_TRY(dpool_may_change(a));
    dpool_pinned ignored;
    dti_lock_acquire(&a->grow_lock);
    ductile_status status = dpool_pin_add(a, address, DPOOL_PIN_PLACE, &ignored);
    dti_lock_release(&a->grow_lock);
    return status;
}

ductile_status dpool_pin_end(ductile_allocator *a, ductile_addr address, dpool_pin_kind kind) {
    DTI_TRY(dpool_may_let_go(a));
    dti_lock_acquire(&a->grow_lock);
    ductile_status status = dpool_pin_drop(a, address, kind);
    dti_lock_release(&a->grow_lock);
    return status;
}

ductile_status ductile_unpin(ductile_allocator *a, ductile_addr address) {
    return dpool_pin_end(a, address, DPOOL_PIN_PLACE);
}
