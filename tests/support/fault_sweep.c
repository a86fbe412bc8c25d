/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fault_sweep.h"
#include "vmm/driver/open_virtual.h"

#include "tests/support/complain.h"

#define ULL(x) ((unsigned long long)(x))

/* ---- What the failed calls were about ------------------------------------------------------ */

/* Physical memory that the failed calls may have cost. */
static uint64_t bytes_at_stake(const world *w, const failed_calls *failed) {
    uint64_t each = w->handle_bytes != 0 ? w->handle_bytes : FIXTURE_GRANULE;
    return failed->unmap_bytes + failed->releases * each;
}

/* ---- One run ------------------------------------------------------------------------------- */

static const char *plan(world *w, const fault_kind *kind, uint64_t nth) {
    ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                   .call = kind->call,
                                   .nth = nth,
                                   .code = kind->code,
                                   .persistent = kind->persistent,
                                   .effect = kind->effect};
    NEED_OK(ductile_virtual_inject(w->f.gpu, &fault));
    w->expects_faults = true;
    return NULL;
}

/* Nothing is lost without a call that failed to take it back. */
static const char *loss_is_explained(const world *w) {
    failed_calls failed = failed_calls_get();
    uint64_t quarantined = fixture_stats(w->f.allocator).quarantined_bytes;
    NEED(quarantined <= bytes_at_stake(w, &failed),
         "%llu bytes are quarantined, though failed calls were about %llu", ULL(quarantined),
         ULL(bytes_at_stake(w, &failed)));
    return NULL;
}

/* With the fault gone, the allocator is as good as before, less what is quarantined. */
static const char *recovers(world *w) {
    NEED_OK(ductile_virtual_inject(w->f.gpu, NULL));
    if (w->mend != NULL) {
        TRY(w->mend(w));
    }
    TRY(world_audit(w));
    TRY(world_verify_all(w));
    TRY(loss_is_explained(w));
    w->expects_faults = false;
    failed_calls failed = failed_calls_get();
    /* A range stays reserved; an unmap that was done and failed is in nobody's count. */
    bool has_loss = fixture_stats(w->f.allocator).quarantined_bytes > 0 ||
                    failed.address_frees > 0 || failed.unmap_bytes > 0;
    TRY(world_alloc(w, 3 * FIXTURE_GRANULE + 512, 0));
    TRY(world_alloc(w, 512, w->f.n_streams - 1));
    TRY(world_free_all(w));
    TRY(world_alloc(w, w->f.capacity_bytes / 2, 0));
    w->expects_faults = has_loss;
    TRY(world_audit(w));
    return world_verify_all(w);
}

/* What is left after destroy is covered by failed calls, and destroy or the log has said so. A wait
 * that failed has proven nothing: all may be left; `by_marks`: waits of destroy need marks. */
static const char *remains_are_explained(const world *w, uint64_t segments, uint64_t quarantined,
                                         ductile_status destroyed, bool by_marks) {
    failed_calls failed = failed_calls_get();
    failed.syncs += by_marks ? failed.marks : 0;
    ductile_virtual_state v = fixture_state(&w->f);
    uint64_t at_stake = bytes_at_stake(w, &failed);
    bool has_lost = at_stake > 0 || failed.syncs > 0;
    char violation[256] = "";
    ductile_virtual_last_violation(w->f.gpu, violation, sizeof violation);
    NEED(v.violations == 0, "the device saw %llu violations, the last: %s", ULL(v.violations),
         violation);
    if (failed.syncs == 0) {
        NEED(v.used_bytes <= at_stake, "%llu bytes are left, failed calls were about %llu",
             ULL(v.used_bytes), ULL(at_stake));
    }
    NEED(v.mappings == 0 || has_lost, "%llu mappings are left", ULL(v.mappings));
    NEED(v.reservations <= failed.address_frees + (has_lost ? segments : 0),
         "%llu reservations are left", ULL(v.reservations));
    NEED(v.events <= failed.event_destroys || failed.syncs > 0, "%llu events are left",
         ULL(v.events));
    NEED(v.used_bytes == 0 || quarantined > 0 || destroyed != DUCTILE_OK,
         "%llu bytes are left and nobody said so", ULL(v.used_bytes));
    return NULL;
}

static const char *destroy(world *w, bool by_marks) {
    ductile_stats s = fixture_stats(w->f.allocator);
    world_end_blocks(w);
    ductile_status status = ductile_destroy(w->f.allocator);
    w->f.allocator = NULL;
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_DRIVER, "destroy: %s",
         ductile_status_name(status));
    TRY(remains_are_explained(w, s.segments, s.quarantined_bytes, status, by_marks));
    return NULL;
}

/* A restore that failed leaves this thread's capture mode relaxed; the next run is not to notice.
 */
static const char *reset_capture_mode(world *w) {
    dvmm_driver *d = NULL;
    dvmm_capture_mode mode = DVMM_CAPTURE_GLOBAL;
    NEED_OK(dvmm_open_virtual(w->f.gpu, &d, NULL, 0));
    NEED_OK(dvmm_capture_exchange_mode(d, &mode));
    dvmm_close(d);
    return NULL;
}

/* *fired is read before the plan is taken back. sites may be NULL. */
static const char *faulted_life(world *w, const fault_scenario *scenario, const fault_kind *kind,
                                uint64_t nth, fault_sites *sites, bool *fired) {
    if (scenario->prepare != NULL) {
        TRY(scenario->prepare(w));
    }
    TRY(reset_capture_mode(w));
    TRY(plan(w, kind, nth));
    fault_sites_record(sites);
    TRY(scenario->run(w));
    fault_sites_mark_end();
    *fired = ductile_virtual_faults_fired(w->f.gpu) > 0;
    if (!kind->in_destroy) {
        TRY(recovers(w));
        return destroy(w, false);
    }
    const char *why = destroy(w, scenario->setup.n_devices > 1); /* U12 */
    *fired = ductile_virtual_faults_fired(w->f.gpu) > 0;
    return why;
}

/* One run from an empty device to an empty device; *fired says whether the fault was met. */
static const char *one_run(const fault_scenario *scenario, const fault_kind *kind, uint64_t nth,
                           fault_sites *sites, bool *fired) {
    fixture_setup setup = scenario->setup;
    setup.address_bytes = 512 * 1024 * MIB; /* a small table of them: many devices are made */
    world w;
    failed_calls_reset();
    TRY(world_open(&w, &setup, true));
    const char *why = faulted_life(&w, scenario, kind, nth, sites, fired);
    fault_sites_record(NULL);
    if (why == NULL && !*fired) {
        why = fixture_leak_gate(&w.f);
    }
    (void)ductile_destroy(w.f.allocator); /* there still, when a complaint cut the run short */
    model_fini(&w.m);
    fixture_abandon(&w.f);
    return why;
}

const char *fault_find_sites(const fault_scenario *scenario, fault_sites *sites) {
    bool fired = false;
    fault_kind none = {.code = DVMM_UNKNOWN};
    TRY(one_run(scenario, &none, UINT64_MAX, NULL, &fired));
    none.in_destroy = true;
    TRY(one_run(scenario, &none, UINT64_MAX, sites, &fired));
    NEED(sites->n > 0 && sites->n < N_FAULT_SITES_MAX, "%s makes %zu calls", scenario->name,
         sites->n);
    return NULL;
}

const char *fault_run(const fault_scenario *scenario, const fault_kind *kind, uint64_t nth) {
    bool fired = false;
    const char *why = one_run(scenario, kind, nth, NULL, &fired);
    if (why == NULL && !fired) {
        why = "the call was never made";
    }
    NEED(why == NULL, "%s, call %llu of %s answers %d%s, effect %d%s: %s", scenario->name, ULL(nth),
         kind->call, kind->code, kind->persistent ? " from then on" : "", kind->effect,
         kind->in_destroy ? ", also in destroy" : "", why);
    return NULL;
}
