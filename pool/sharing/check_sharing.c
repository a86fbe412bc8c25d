/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/sharing/check_sharing.h"

#include "pool/sharing/import.h"
#include "pool/sharing/pin.h"

#include "segments/granules.h"

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
static void check_pins(const ductile_allocator *a, dti_fault *fault) {
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

static void check_imports(const ductile_allocator *a, dti_fault *fault) {
    const dpool_imports *all = &a->imports;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        const dpool_import *import = all->items[i];
        dti_expect_equal(fault, "P11", "an import's range", import->in.range.size,
                         import->in.mapped_bytes, import->addr);
        bytes += import->in.mapped_bytes;
    }
    dti_expect_equal(fault, "P11", "imported bytes", a->counts.imported, bytes, 0);
}

void dpool_sharing_check_locked(const ductile_allocator *a, dti_fault *fault) {
    DTI_ASSERT_HELD(&a->index_lock);
    check_pins(a, fault);
    check_imports(a, fault);
}
