/* SPDX-License-Identifier: Apache-2.0 */
/* A play in which driver calls fail: when that begins, and what has to hold at the end. */
#include "tests/model/player.h"
#include "tests/support/audit.h"

#include <stdio.h>

#define ULL(x) ((unsigned long long)(x))

/* From here on the planned call may fail: at the beginning, or where the scenario says so. */
VERB(play_may_fail, "may_fail") {
    const play_fault *f = &p->how.fault;
    const ductile_virtual_fault it = {.struct_size = sizeof it,
                                      .call = f->call,
                                      .nth = f->nth,
                                      .code = f->code,
                                      .persistent = f->persistent,
                                      .effect = f->effect};
    (void)w;
    fault_sites_record(p->how.sites);
    NEED_OK(ductile_virtual_inject(p->s.f.gpu, f->nth > 0 ? &it : NULL));
    return NULL;
}

/* ---- What failed calls may cost -------------------------------------------------------------- */

static uint64_t bytes_at_stake(const failed_calls *failed) {
    return failed->unmap_bytes + failed->releases * failed->largest_handle;
}

/* Nothing is lost without a call that failed to take it back. */
static const char *loss_is_explained(const player *p, const failed_calls *failed) {
    uint64_t quarantined = fixture_stats(p->s.f.allocator).quarantined_bytes;
    NEED(quarantined <= bytes_at_stake(failed),
         "%llu bytes are quarantined, though failed calls were about %llu", ULL(quarantined),
         ULL(bytes_at_stake(failed)));
    return NULL;
}

/* What is left of an allocator that is gone is covered by failed calls, and destroy or the
 * statistics have said so. A wait that failed has proven nothing: all may be left; so it is with
 * marks, by which destroy waits for other GPUs, and where no call works. */
static const char *remains_are_explained(const player *p, const ductile_stats *last,
                                         ductile_status destroyed) {
    failed_calls failed = failed_calls_get();
    ductile_virtual_state v = fixture_state(&p->s.f);
    uint64_t at_stake = bytes_at_stake(&failed);
    bool may_all_be_left =
        p->how.fault.call == NULL || failed.syncs > 0 || (p->how.fault.stays && failed.marks > 0);
    bool has_lost = at_stake > 0 || may_all_be_left;
    NEED(may_all_be_left || v.used_bytes <= at_stake,
         "%llu bytes are left, failed calls were about %llu", ULL(v.used_bytes), ULL(at_stake));
    NEED(v.mappings == 0 || has_lost, "%llu mappings are left", ULL(v.mappings));
    NEED(v.reservations <= failed.address_frees + (has_lost ? last->segments : 0),
         "%llu ranges are left", ULL(v.reservations));
    NEED(v.events <= failed.event_destroys || may_all_be_left, "%llu events are left",
         ULL(v.events));
    NEED(v.used_bytes == 0 || last->quarantined_bytes > 0 || destroyed != DUCTILE_OK,
         "%llu bytes are left, and nothing said so", ULL(v.used_bytes));
    return NULL;
}

/* ---- The end --------------------------------------------------------------------------------- */

/* A map callback hears of all that leaves, and of nothing that a destroy which cannot wait leaves
 * where it is. */
static const char *leaving_was_told(subject *s) {
    TRY(shadow_complaint(&s->listener));
    NEED(s->listener.n == 0 || fixture_state(&s->f).mappings > 0,
         "%zu mappings were never said to leave", s->listener.n);
    return NULL;
}

/* With its live blocks. */
static const char *destroy_now(player *p) {
    subject *s = &p->s;
    uint64_t lost =
        s->ends.importer != NULL ? fixture_stats(s->ends.importer).quarantined_bytes : 0;
    ductile_status shared = play_end_sharing(p);
    ductile_stats last = fixture_stats(s->f.allocator);
    last.quarantined_bytes += lost;
    last.segments += p->n_passed; /* each has a range of its own there */
    bool was_lost = fixture_state(&s->f).poisoned != 0;
    for (size_t i = 0; i < s->m.n; i++) {
        ductile_virtual_block_end(s->f.gpu, s->m.blocks[i].address);
    }
    ductile_status status = ductile_destroy(s->f.allocator);
    s->f.allocator = NULL;
    p->has_failed = ductile_virtual_faults_fired(s->f.gpu) > 0;
    bool is_lost = fixture_state(&s->f).poisoned != 0;
    bool may_be_unsure = is_lost ? s->has_peer && !was_lost : p->has_failed;
    NEED(status == (is_lost ? DUCTILE_ERR_DEVICE_LOST : DUCTILE_OK) ||
             (may_be_unsure && status == DUCTILE_ERR_DRIVER),
         "destroy: %s", ductile_status_name(status));
    TRY(no_violation(s));
    TRY(is_lost || !s->is_listening ? NULL : leaving_was_told(s));
    status = status == DUCTILE_OK ? shared : status;
    TRY(is_lost ? NULL : remains_are_explained(p, &last, status));
    subject_abandon(s);
    return NULL;
}

/* Nothing calls the driver any more, and every call says why. */
static const char *end_lost(player *p) {
    ductile_allocator *a = p->s.f.allocator;
    ductile_addr address = 1;
    if (p->s.ends.importer != NULL) { /* which may have met it alone */
        (void)!ductile_alloc(a, 16 * MIB, p->s.slots[0].stream, &address);
    }
    uint64_t calls = fixture_state(&p->s.f).calls;
    char report[256] = "";
    for (uint64_t size = 512; size < 64 * MIB; size <<= 8) {
        ductile_status status = ductile_alloc(a, size, p->s.slots[0].stream, &address);
        NEED(status == DUCTILE_ERR_DEVICE_LOST && address == 0, "alloc on a lost device: %s",
             ductile_status_name(status));
    }
    NEED(ductile_trim(a, NULL, 0, NULL) == DUCTILE_ERR_DEVICE_LOST, "trim on a lost device");
    if (p->s.m.n > 0 && !p->s.m.blocks[0].is_asleep) {
        TRY(free_block(&p->s, 0, 0));
    }
    NEED(fixture_state(&p->s.f).calls == calls, "the driver was called on a lost device");
    NEED(ductile_check(a, report, sizeof report) == DUCTILE_OK, "check: %s", report);
    return destroy_now(p);
}

/* The driver works again. Unless something was lost, the allocator is as good as new, and all rules
 * of the model hold. */
static const char *end_mended(player *p) {
    subject *s = &p->s;
    TRY(sync_all(s));
    TRY(p->n_passed > 0 ? play_pass_once_more(p) : NULL);
    (void)play_end_sharing(p);
    TRY(audit_reset_capture_mode(&s->f));
    TRY(subject_audit(s));
    failed_calls failed = failed_calls_get();
    /* Then the context cannot be entered either, and an undoing has not even begun. */
    bool has_all_failed = p->how.fault.call == NULL;
    TRY(has_all_failed ? NULL : loss_is_explained(p, &failed));
    s->is_scripted = false;
    s->is_faulty = has_all_failed || bytes_at_stake(&failed) > 0 || failed.address_frees > 0 ||
                   failed.event_destroys > 0 || failed.syncs > 0;
    return subject_close(s);
}

const char *play_end_after_fault(player *p) {
    fault_sites_mark_end();
    if (fixture_state(&p->s.f).poisoned != 0) {
        return end_lost(p);
    }
    bool ends_now = p->how.fault.stays || p->how.sites != NULL;
    return ends_now ? destroy_now(p) : end_mended(p);
}
