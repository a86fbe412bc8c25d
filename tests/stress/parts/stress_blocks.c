/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/stress/parts/stress_stage.h"

#include "tests/support/complain.h"
#include "tests/support/model.h"

#include <stdlib.h>
#include <time.h>

enum { SAMPLE_BYTES = 64 };

void rest_a_moment(void) {
    const struct timespec moment = {.tv_nsec = 300000};
    (void)nanosleep(&moment, NULL);
}

ductile_allocator *allocator_of(stage *s) {
    return s->t.f.allocator;
}

/* ---- Contents ------------------------------------------------------------------------------ */

const char *fill_on(stage *s, const held *h, ductile_stream stream) {
    NEED_OK(ductile_virtual_fill(s->t.f.gpu, h->address, h->pattern, h->size, stream));
    return NULL;
}

const char *fill_locked(stage *s, held *h) {
    if (h->life != 0) {
        h->life = s->life;
    }
    return fill_on(s, h, s->t.f.streams[h->stream]);
}

static const char *verify_at(stage *s, const held *h, uint64_t offset) {
    uint8_t bytes[SAMPLE_BYTES];
    NEED_OK(ductile_virtual_read_back(s->t.f.gpu, bytes, h->address + offset, sizeof bytes,
                                      s->t.f.streams[h->stream]));
    for (size_t i = 0; i < sizeof bytes; i++) {
        NEED(bytes[i] == h->pattern, "block %llx of %s holds %02x at %llu, not %02x", h->address,
             h->life != 0 ? "the pool" : "no pool", bytes[i], (unsigned long long)(offset + i),
             h->pattern);
    }
    return NULL;
}

static const char *verify_locked(stage *s, held *h) {
    if (h->life != 0 && h->life != s->life) {
        return NULL;
    }
    TRY(verify_at(s, h, 0));
    TRY(verify_at(s, h, h->size / 2 / DUCTILE_ALIGNMENT * DUCTILE_ALIGNMENT));
    return verify_at(s, h, h->size - SAMPLE_BYTES);
}

const char *with_memory(stage *s, held *h, const char *(*use)(stage *s, held *h), bool *used) {
    bool in_pool = h->life != 0;
    *used = !in_pool || pthread_rwlock_tryrdlock(&s->use) == 0;
    const char *why = *used ? use(s, h) : NULL;
    if (in_pool && *used) {
        (void)pthread_rwlock_unlock(&s->use);
    }
    return why;
}

/* ---- Requests ------------------------------------------------------------------------------ */

uint64_t any_size(actor *self) {
    const uint64_t capacity = self->s->plan.capacity_mib * MIB;
    rng *r = &self->r;
    if (self->s->plan.crunch) {
        return rng_between(r, 1, rng_percent(r, 30) ? capacity : capacity / 12);
    }
    uint64_t dice = rng_below(r, 100);
    return rng_between(r, 1, dice < 60 ? 40000 : (dice < 90 ? 1 : 6) * FIXTURE_GRANULE);
}

static const char *report_adds_up(stage *s, uint64_t size) {
    ductile_oom_report o = {.struct_size = sizeof o};
    NEED_OK(ductile_get_oom_report(allocator_of(s), &o));
    NEED(o.number > 0 && o.requested_bytes == size, "the report is about %llu bytes, not %llu",
         (unsigned long long)o.requested_bytes, (unsigned long long)size);
    NEED(o.held_bytes ==
             o.live_bytes + o.free_bytes + o.pending_bytes + o.cached_bytes + o.quarantined_bytes,
         "held is not the sum of its parts");
    NEED(ductile_oom_report_text(&o, NULL, 0) > 200, "the report says little");
    return NULL;
}

static ductile_status request(actor *self, held *h, uint64_t size, bool in_pool) {
    ductile_allocator *a = allocator_of(self->s);
    ductile_stream stream = self->s->t.f.streams[h->stream];
    if (in_pool && ductile_pool_begin(a, PAUSED_POOL, NULL, NULL) != DUCTILE_OK) {
        return DUCTILE_ERR_CORRUPT;
    }
    bool is_dedicated = self->s->plan.share && rng_percent(&self->r, 10);
    ductile_status status = is_dedicated ? ductile_alloc_dedicated(a, size, stream, &h->address)
                                         : ductile_alloc(a, size, stream, &h->address);
    if (in_pool && ductile_pool_end(a, PAUSED_POOL) != DUCTILE_OK) {
        return DUCTILE_ERR_CORRUPT;
    }
    return status;
}

/* Blocks of a pool that pauses, and comes back with others behind its addresses, are not announced.
 */
static bool is_announced(const stage *s) {
    return !s->plan.pools;
}

static const char *admit(stage *s, const held *h) {
    TRY(claims_take(s->claims, h->address, h->size));
    if (s->plan.callbacks && h->life == 0) {
        TRY(shadow_covers(&s->listener, h->address, h->size));
    }
    if (is_announced(s)) {
        ductile_virtual_block_begin(s->t.f.gpu, h->address, h->size);
    }
    return NULL;
}

static const char *fill_or_give(stage *s, held *mine, held **out) {
    bool used = false;
    TRY(with_memory(s, mine, fill_locked, &used));
    *out = used ? mine : NULL; /* else the pool was paused meanwhile */
    return used ? NULL : give(s, mine);
}

const char *make(actor *self, bool in_pool, held **out) {
    stage *s = self->s;
    uint64_t size = any_size(self);
    held h = {.size = model_rounded(size),
              .stream = (size_t)rng_below(&self->r, s->n_common),
              .life = in_pool,
              .pattern = (uint8_t)rng_next(&self->r)};
    *out = NULL;
    ductile_status status = request(self, &h, size, in_pool);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        atomic_fetch_add(&s->n_refused, 1);
        return in_pool ? NULL : report_adds_up(s, size);
    }
    if (in_pool && status == DUCTILE_ERR_ASLEEP) {
        return NULL;
    }
    NEED(status == DUCTILE_OK, "alloc: %s", ductile_status_name(status));
    TRY(admit(s, &h));
    held *mine = malloc(sizeof h);
    NEED(mine != NULL, "no host memory for the test");
    *mine = h;
    atomic_fetch_add(&s->n_blocks, 1);
    return fill_or_give(s, mine, out);
}

/* ---- Changing hands ------------------------------------------------------------------------ */

/* Gives the claim back before the block: after the free the bytes may be any thread's. */
const char *give(stage *s, held *h) {
    held gone = *h;
    free(h);
    TRY(claims_give(s->claims, gone.address, gone.size));
    if (is_announced(s)) {
        ductile_virtual_block_end(s->t.f.gpu, gone.address);
    }
    NEED_OK(ductile_free(allocator_of(s), gone.address));
    return NULL;
}

const char *hand_on(actor *self, held *h) {
    held *before = atomic_exchange(&self->s->slots[rng_below(&self->r, N_SLOTS)], h);
    if (before == NULL) {
        return NULL;
    }
    bool used = false;
    TRY(rng_percent(&self->r, 25) ? with_memory(self->s, before, verify_locked, &used) : NULL);
    return give(self->s, before);
}

held *take_any(actor *self) {
    held *h = NULL;
    for (size_t i = 0; i < N_HANDED_ON && h == NULL && self->s->plan.pools; i++) {
        h = atomic_exchange(&self->s->ending[i], NULL);
    }
    return h != NULL ? h : atomic_exchange(&self->s->slots[rng_below(&self->r, N_SLOTS)], NULL);
}
