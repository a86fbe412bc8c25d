/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wakes that fail: a wait for copies does, once or as long as the call lasts, or a request for
 * host memory. Nothing is lost by it. The program tries again later, or gives up: it frees the
 * pool's blocks and its references, and then a trim gives all of the pool back.
 */
#include "tests/model/subject.h"

#include "tests/support/failing_malloc.h"

enum { MOST_REQUESTS = 16 };

/* Copies and fills need memory of the virtual GPU's own, and without that they never end; nor does
 * other work that is under way, so there is none then. */
static bool can_lack_host_memory(const subject *s, unsigned pool) {
    return CAN_FAIL && pool_info_of(s, pool).contents == DUCTILE_CONTENTS_DROP;
}

static hardship hardship_of(const subject *s, unsigned pool, const record *r) {
    bool lacks_memory = can_lack_host_memory(s, pool);
    return (hardship){.is_planned = true,
                      .lacks_memory_at = lacks_memory ? 1 + r->b % MOST_REQUESTS : 0,
                      .waits_fail = r->b % 2 == 0};
}

const char *hardship_begin(subject *s) {
    const ductile_virtual_fault wait = {.struct_size = sizeof wait,
                                        .call = "stream_sync",
                                        .nth = 1,
                                        .code = 999,
                                        .persistent = s->hardship.waits_fail};
    if (!s->hardship.is_planned) {
        return NULL;
    }
    NEED_OK(ductile_virtual_inject(s->f.gpu, s->hardship.lacks_memory_at > 0 ? NULL : &wait));
    arm(s->hardship.lacks_memory_at);
    return NULL;
}

void hardship_end(subject *s) {
    if (s->hardship.is_planned) {
        (void)disarm();
        plan_no_fault(s);
    }
}

/* What other faults have left may stay, and what is pinned. */
static const char *is_all_given_back(subject *s, unsigned pool) {
    ductile_stats left = {.struct_size = sizeof left};
    TRY(sync_all(s));
    ductile_status trimmed = ductile_trim(s->f.allocator, NULL, 0, NULL);
    TRY(may_be(s, "trim", trimmed, trimmed == DUCTILE_OK));
    ductile_status status = ductile_get_stats(s->f.allocator, &s->pools[pool].id, &left);
    bool is_excused = s->is_faulty || s->is_over || s->n_pins > 0 || s->ends.importer != NULL;
    NEED(status != DUCTILE_OK || left.reserved_bytes == left.quarantined_bytes || is_excused,
         "pool %u was given up after a wake that failed, and holds %llu bytes", pool,
         (unsigned long long)left.reserved_bytes);
    return NULL;
}

static const char *give_up(subject *s, unsigned pool) {
    TRY(free_blocks_of_pool(s, pool));
    while (s->pools[pool].n_refs > 0 && !s->is_over) {
        TRY(release_pool(s, pool));
    }
    say(s, "pool %u is given up after a wake that failed", pool);
    return pool_exists(s, pool) ? NULL : is_all_given_back(s, pool);
}

const char *fail_to_wake(subject *s, unsigned pool, const record *r) {
    if (s->is_armed || s->n_routes > 0) {
        return NULL;
    }
    hardship planned = hardship_of(s, pool, r);
    TRY(planned.lacks_memory_at > 0 ? sync_all(s) : NULL);
    s->hardship = planned;
    TRY(wake_pool(s, pool));
    s->hardship = (hardship){.is_planned = false};
    bool gives_up = s->pools[pool].is_asleep && pool != 0 && pool <= N_PLAIN_POOLS && r->d % 2 == 0;
    return gives_up && !s->is_over ? give_up(s, pool) : NULL;
}
