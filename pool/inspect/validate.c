/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile_check: recounts everything that is cached, and reports which invariant of
 * docs/dev/invariants.md does not hold, with both values. Each room recounts its own data; here the
 * totals are compared with what the rooms found. Both locks are held, so no plan is under way: no
 * block is BUSY.
 */
#include "pool/inspect/validate.h"

#include "pool/base/guards.h"
#include "pool/base/log.h"
#include "pool/blocks/check_blocks.h"
#include "pool/blocks/wait_spans.h"
#include "pool/sharing/import.h"
#include "pool/sharing/pin.h"
#include "pool/streams/marks.h"
#include "pool/streams/pending.h"

#include "segments/check.h"

#include <inttypes.h>
#include <stdio.h>

static void check_totals(const ductile_allocator *a, const dpool_block_sums *all,
                         dti_fault *fault) {
    const dpool_counts *n = &a->counts;
    const dvmm_store_totals *store = &a->store.totals;
    dti_expect_equal(fault, "P1", "allocated bytes", n->allocated, all->live, 0);
    dti_expect_equal(fault, "P1", "requested bytes", n->requested, all->requested, 0);
    dti_expect_equal(fault, "P1", "pending bytes", n->pending, all->pending, 0);
    dti_expect_equal(fault, "P1", "mapped bytes", n->mapped, all->mapped, 0);
    dti_expect_equal(fault, "P1", "retiring bytes", n->retiring, all->retiring, 0);
    dti_expect_equal(fault, "P1", "pending blocks", n->pending_blocks, all->pending_blocks, 0);
    dti_expect_equal(fault, "P1", "sleeping bytes", n->asleep, all->asleep, 0);
    dti_expect_equal(fault, "P1", "sleeping blocks", n->asleep_blocks, all->asleep_blocks, 0);
    dti_expect_equal(fault, "P2", "entries of the address map", a->map.count,
                     all->live_blocks + all->asleep_blocks, 0);
    dti_expect_equal(fault, "P3", "physical memory held", store->held_bytes + store->spilled_bytes,
                     n->mapped + store->cached_bytes + store->lost_bytes, 0);
}

static void check_handles(const ductile_allocator *a, dti_fault *fault) {
    dseg_handle_sums sums;
    (void)dseg_check_handles(&a->segments, &a->store, &sums, fault);
    dti_expect_equal(fault, "P10", "pinned bytes", a->store.totals.pinned_bytes, sums.pinned_bytes,
                     0);
    dti_expect_equal(fault, "P10", "exported bytes", a->store.totals.exported_bytes,
                     sums.exported_bytes, 0);
}

static uint64_t count_regions(const dpool_arena *arena) {
    uint64_t n = 0;
    for (const dpool_region *r = arena->blocks.regions; r != NULL; r = r->next) {
        n++;
    }
    return n;
}

static void check_all(const ductile_allocator *a, dti_fault *fault) {
    dpool_block_sums all = {0};
    uint64_t n_regions = 0;
    dpool_marks_check_locked(a, fault);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        dpool_arena_check_locked(a, arena, &all, fault);
        dpool_pending_check_locked(a, arena, fault);
        n_regions += count_regions(arena);
    }
    dti_expect_equal(fault, "P5", "segments in the set", a->segments.count, n_regions, 0);
    for (const dpool_private_pool *pool = a->pools; pool != NULL; pool = pool->next) {
        dpool_private_pool_check_locked(a, pool, fault);
    }
    dti_expect(fault, "W1", dpool_wait_check_locked(a), "the map of waits", 0, 1, 0);
    check_totals(a, &all, fault);
    if (dti_is_sound(fault)) { /* a broken pointer may point anywhere */
        check_handles(a, fault);
    }
    if (dti_is_sound(fault)) {
        dpool_pins_check_locked(a, fault);
        dpool_imports_check_locked(a, fault);
    }
}

static void print_fault(const dti_fault *fault, char *report, size_t size) {
    if (report == NULL || size == 0) {
        return;
    }
    report[0] = '\0';
    if (!dti_is_sound(fault)) {
        (void)snprintf(report, size, "%s: %s: is %" PRIu64 ", should be %" PRIu64 ", at 0x%" PRIx64,
                       fault->invariant, fault->what, fault->is, fault->should, fault->where);
    }
}

ductile_status ductile_check(ductile_allocator *a, char *report, size_t report_size) {
    dti_fault fault = {0};
    print_fault(&fault, report, report_size);
    DTI_TRY(dpool_may_read(a));
    dpool_lock_both(a);
    if (a->n_announcing == 0) { /* otherwise a plan is under way */
        check_all(a, &fault);
    }
    dpool_unlock_both(a);
    print_fault(&fault, report, report_size);
    return dti_is_sound(&fault) ? DUCTILE_OK : DUCTILE_ERR_CORRUPT;
}

/* ---- By itself ----------------------------------------------------------------------------- */

void dpool_audit_now(ductile_allocator *a) {
    char report[256];
    if (ductile_check(a, report, sizeof report) == DUCTILE_OK) {
        return;
    }
    dpool_log(a, DUCTILE_LOG_ERROR, "invariant broken: %s", report);
    if (DUCTILE_CHECK >= 3) {
        dti_fail("", report, __FILE__, __LINE__);
    }
}
