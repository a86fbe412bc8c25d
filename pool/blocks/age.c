/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/age.h"

#include "vmm/base/align.h"

/* Writes the ages of the granules of b down. The first and the last may be shared with a neighbour,
 * and what stands there of an earlier time is not younger than the youngest neighbour. */
static inline void write_down(dpool_block *b) {
    if (b->is_mixed) {
        return;
    }
    const uint64_t age = b->age; /* not read again behind each store, which might change it */
    uint64_t *ages = b->region->ages;
    uint32_t first = dseg_granule(b->region->seg, b->addr);
    uint32_t last = dseg_granule(b->region->seg, dpool_end(b) - 1);
    ages[first] = dti_max(ages[first], age);
    ages[last] = dti_max(ages[last], age);
    for (uint32_t g = first + 1; g < last; g++) {
        ages[g] = age;
    }
}

/* Is there no whole granule in the older block that the younger one would hide? */
static bool hides_nothing(const dpool_block *b, const dpool_block *gone) {
    const dpool_block *older = b->age < gone->age ? b : gone;
    return !b->is_mixed && !gone->is_mixed &&
           older->size < older->region->seg->store->granule_bytes;
}

void dpool_mix_ages(dpool_block *b, dpool_block *gone) {
    const uint64_t age = dti_max(b->age, gone->age);
    bool is_mixed = !hides_nothing(b, gone);
    if (is_mixed) {
        write_down(b);
        write_down(gone);
    }
    b->is_mixed = is_mixed;
    b->age = age & DPOOL_AGE_MASK;
}

dseg_span dpool_older_part(const dpool_block *b, dseg_span s, uint64_t below) {
    if (b->age < below) {
        return s;
    }
    const uint64_t *ages = b->region->ages;
    while (b->is_mixed && !dseg_is_empty(s) && ages[s.end - 1] >= below) {
        s.end--;
    }
    if (!b->is_mixed || dseg_is_empty(s)) {
        return (dseg_span){s.first, s.first};
    }
    uint32_t first = s.end - 1;
    while (first > s.first && ages[first - 1] < below) {
        first--;
    }
    return (dseg_span){first, s.end};
}

uint64_t dpool_age_of(const dpool_block *b) {
    const dpool_region *r = b->region;
    uint64_t age = dpool_least_age(r->arena);
    if (!b->is_mixed) {
        return dti_max(age, b->age);
    }
    dseg_span s = dseg_granules_in(r->seg, b->addr, dpool_end(b));
    for (uint32_t g = s.first; g < s.end; g++) {
        age = dti_max(age, r->ages[g]);
    }
    return age;
}
