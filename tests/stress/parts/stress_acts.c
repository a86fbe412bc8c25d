/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that allocate and free, one that looks, one that changes how much memory there is. */
#include "tests/stress/parts/stress_stage.h"

#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/json_check.h"
#include "tests/support/limits.h"

#include <stdlib.h>

enum { LIFE_OPS = 400 }; /* until a thread dies, and leaves its blocks to others */

/* ---- Threads that allocate ----------------------------------------------------------------- */

static const char *make_one(actor *self) {
    held *h = NULL;
    TRY(make(self, self->s->plan.pools && rng_percent(&self->r, 50), &h));
    return h != NULL ? hand_on(self, h) : NULL;
}

static const char *use_one(actor *self) {
    held *h = take_any(self);
    bool used = false;
    TRY(h != NULL ? with_memory(self->s, h, fill_locked, &used) : NULL);
    return h != NULL ? hand_on(self, h) : NULL;
}

static const char *record_on_next(stage *s, held *h) {
    bool is_theirs = s->theirs != NULL && h->pattern % 2 != 0;
    ductile_stream other = is_theirs ? s->theirs : s->t.f.streams[(h->stream + 1) % s->n_common];
    TRY(fill_locked(s, h));
    NEED_OK(ductile_virtual_stream_wait(s->t.f.gpu, other, s->t.f.streams[h->stream]));
    TRY(fill_on(s, h, other));
    NEED_OK(ductile_record_stream(allocator_of(s), h->address, other));
    return NULL;
}

static const char *free_one(actor *self) {
    held *h = take_any(self);
    bool used = false;
    if (h == NULL) {
        return NULL;
    }
    TRY(rng_percent(&self->r, 40) ? with_memory(self->s, h, record_on_next, &used) : NULL);
    return give(self->s, h);
}

static const char *misuse(actor *self) {
    ductile_status status = ductile_free(allocator_of(self->s), 1);
    NEED(status == DUCTILE_ERR_FOREIGN_POINTER, "free of a wrong address: %s",
         ductile_status_name(status));
    return NULL;
}

/* Pinned across the free, and back. */
static const char *pin_and_free(actor *self) {
    held *h = take_any(self);
    if (h == NULL) {
        return NULL;
    }
    ductile_addr address = h->address;
    NEED_OK(ductile_pin(allocator_of(self->s), address));
    TRY(give(self->s, h));
    NEED_OK(ductile_unpin(allocator_of(self->s), address));
    return NULL;
}

static const char *change_peer(actor *self) {
    ductile_allocator *a = allocator_of(self->s);
    NEED_OK(rng_percent(&self->r, 50) ? ductile_enable_peer(a, 1) : ductile_disable_peer(a, 1));
    return NULL;
}

static const char *one_operation(actor *self) {
    uint64_t dice = rng_below(&self->r, 100);
    if (self->s->plan.share && dice < 10) {
        return dice < 8 ? pin_and_free(self) : change_peer(self);
    }
    if (dice < 50) {
        return make_one(self);
    }
    if (dice < 68) {
        return use_one(self);
    }
    if (dice < 93) {
        return free_one(self);
    }
    if (dice < 95) {
        return misuse(self);
    }
    ductile_virtual_advance(self->s->t.f.gpu, rng_between(&self->r, 1, 5));
    return NULL;
}

static void *live(void *user) {
    actor *self = user;
    const char *why = NULL;
    for (size_t i = 0; i < LIFE_OPS && why == NULL && !ending_is_over(&self->s->the_end); i++) {
        why = one_operation(self);
        atomic_fetch_add(&self->s->n_ops, 1);
    }
    ending_because(&self->s->the_end, why);
    return NULL;
}

const char *live_and_die(actor *self) {
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, live, self) == 0, "a thread cannot be made");
    (void)pthread_join(thread, NULL);
    atomic_fetch_add(&self->s->n_lives, 1);
    return NULL;
}

/* ---- The one that looks --------------------------------------------------------------------- */

static const char *snapshot_is_json(stage *s) {
    text_sink sink = {.text = NULL};
    NEED_OK(ductile_snapshot_json(allocator_of(s), text_sink_write, &sink));
    const char *why = json_check(sink.text);
    free(sink.text);
    return why;
}

static const char *look(stage *s) {
    ductile_pool_info info = {.struct_size = sizeof info};
    if (s->plan.pools) {
        NEED_OK(ductile_pool_query(allocator_of(s), PAUSED_POOL, &info));
    }
    TRY(s->plan.callbacks ? shadow_complaint(&s->listener) : NULL);
    TRY(audit_at_any_time(allocator_of(s)));
    NEED(fixture_stats(allocator_of(s)).quarantined_bytes == 0, "quarantined without a fault");
    return NULL;
}

static const char *trim_pool(stage *s) {
    ductile_status status = ductile_pool_trim(allocator_of(s), PAUSED_POOL, NULL);
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_BUSY || status == DUCTILE_ERR_ASLEEP ||
             (status == DUCTILE_ERR_INVALID_ARGUMENT && !s->plan.pools),
         "pool trim: %s", ductile_status_name(status));
    return NULL;
}

static const char *change_limit(actor *self) {
    uint64_t capacity = self->s->plan.capacity_mib * MIB;
    uint64_t limit = rng_percent(&self->r, 70) ? 0 : capacity / 2 + rng_below(&self->r, capacity);
    NEED_OK(set_limit(allocator_of(self->s), limit));
    return NULL;
}

const char *audit(actor *self) {
    stage *s = self->s;
    rest_a_moment();
    atomic_fetch_add(&s->n_audits, 1);
    switch (rng_below(&self->r, 9)) {
    case 0:
        NEED_OK(
            ductile_trim(allocator_of(s), rng_below(&self->r, s->plan.capacity_mib * MIB), NULL));
        return NULL;
    case 1:
        NEED_OK(ductile_empty_cache(allocator_of(s)));
        return NULL;
    case 2:
        return s->plan.crunch ? NULL : change_limit(self);
    case 3:
        return snapshot_is_json(s);
    case 4:
        ductile_reset_peaks(allocator_of(s));
        return NULL;
    case 5:
        return trim_pool(s);
    default:
        return look(s);
    }
}

/* ---- Callbacks, and how much memory there is --------------------------------------------------
 */

/* Frees what some thread left, and sometimes allocates. Called by any thread. */
uint64_t free_what_lies_about(void *user, ductile_allocator *a, uint64_t missing,
                              ductile_stream stream) {
    stage *s = user;
    actor self = {.s = s, .r = rng_seeded(missing + atomic_fetch_add(&s->n_asked, 1))};
    held *h = NULL;
    for (size_t i = 0; i < N_SLOTS && h == NULL; i++) {
        h = take_any(&self);
    }
    uint64_t bytes = h != NULL ? h->size : 0;
    const char *why = h != NULL ? give(s, h) : NULL;
    ductile_addr address = 0;
    if (why == NULL && rng_percent(&self.r, 20) &&
        ductile_alloc(a, rng_between(&self.r, 1, 4 * MIB), stream, &address) == DUCTILE_OK &&
        ductile_free(a, address) != DUCTILE_OK) {
        why = "a callback could not free its own block";
    }
    ending_because(&s->the_end, why);
    return bytes;
}

/* Inside a map callback only what a free block serves is given. */
void ask_inside(void *user, ductile_allocator *a, const ductile_map_event *e) {
    stage *s = user;
    ductile_addr address = 0;
    ductile_status status =
        ductile_alloc(a, 512, s->t.f.streams[e->address / e->size % s->n_common], &address);
    if (status == DUCTILE_OK) {
        (void)ductile_free(a, address);
    } else if (status == DUCTILE_ERR_BUSY || status == DUCTILE_ERR_ASLEEP) {
        atomic_fetch_add(&s->n_refused_inside, 1);
    } else {
        ending_because(&s->the_end, "a request in a map callback");
    }
}

static uint64_t give_nothing(void *user, ductile_allocator *a, uint64_t missing,
                             ductile_stream stream) {
    (void)a, (void)missing, (void)stream;
    *(_Atomic bool *)user = true; /* freed memory, if a thread is still inside after the removal */
    return 0;
}

static const char *come_and_go(actor *self) {
    _Atomic bool *was_asked = malloc(sizeof *was_asked);
    uint64_t id = 0;
    NEED(was_asked != NULL, "no host memory for the test");
    NEED_OK(ductile_add_oom_callback(allocator_of(self->s), give_nothing, (void *)was_asked,
                                     (int)rng_below(&self->r, 5) - 2, &id));
    rest_a_moment();
    NEED_OK(ductile_remove_oom_callback(allocator_of(self->s), id));
    free((void *)was_asked);
    return NULL;
}

/* While the device has less left, nothing changes. */
static const char *breathe(stage *s, uint64_t bytes) {
    ductile_status status = ductile_virtual_set_external_bytes(s->t.f.gpu, bytes);
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY, "the other process: %s",
         ductile_status_name(status));
    return NULL;
}

const char *disturb(actor *self) {
    uint64_t capacity = self->s->plan.capacity_mib * MIB;
    ductile_allocator *a = allocator_of(self->s);
    switch (rng_below(&self->r, 6)) {
    case 0:
        NEED_OK(set_soft_limit(a, rng_below(&self->r, capacity)));
        return NULL;
    case 1:
        NEED_OK(set_limit(a, DUCTILE_SHARE((double)rng_between(&self->r, 5, 10) / 10)));
        return NULL;
    case 2:
        return breathe(self->s, rng_below(&self->r, capacity / 2));
    default:
        return come_and_go(self);
    }
}

/* ---- Memory that another allocator gets -------------------------------------------------------
 */

const char *pass_one(actor *self) {
    stage *s = self->s;
    ductile_allocator *a = allocator_of(s);
    ductile_addr address = 0;
    uint64_t size = 4096 * (1 + rng_below(&self->r, 2500));
    ductile_status status = ductile_alloc(a, size, s->t.f.streams[0], &address);
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY, "alloc to pass: %s",
         ductile_status_name(status));
    if (address == 0) {
        return NULL;
    }
    passed p = two_ends_pass(&s->t, address);
    NEED_OK(p.exported);
    NEED_OK(p.imported);
    NEED_OK(ductile_free(a, address));
    NEED_OK(ductile_import_close(s->t.importer, p.addr));
    NEED_OK(ductile_unexport(a, address));
    atomic_fetch_add(&s->n_passed, 1);
    return NULL;
}
