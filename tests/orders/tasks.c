/* SPDX-License-Identifier: Apache-2.0 */
/* What one thread of a small program does: a few calls that keep the contract, whatever the others
 * do meanwhile. */
#include "tests/orders/shared_state.h"
#include "tests/support/audit.h"
#include "tests/support/json_check.h"
#include "tests/support/limits.h"

#include <ductile_elastic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_TASKS = 64 };

task tasks[MOST_TASKS];
size_t n_tasks;

/* The head of a task. */
#define TASK(function, name, marks)                                                                \
    static const char *function(test_thread *self);                                                \
    __attribute__((constructor)) static void add_##function(void) {                                \
        tasks[n_tasks++] = (task){name, function, marks};                                          \
    }                                                                                              \
    static const char *function(test_thread *self)

/* Another one in each turn under stress. */
#define CAPTURE_POOL(self) ((ductile_pool_id){1 + (self)->n_turns, 10 + (self)->number})

static ductile_allocator *of(const test_thread *self) {
    return self->s->t.f.allocator;
}

static ductile_stream common(const test_thread *self, unsigned i) {
    return self->s->t.f.streams[i];
}

static const char *may_be(const char *call, ductile_status status, ductile_status other) {
    NEED(status == DUCTILE_OK || status == other, "%s: %s", call, ductile_status_name(status));
    return NULL;
}

/* A request that others may keep from being served. */
static const char *may_lack(const test_thread *self, const char *call, ductile_status status) {
    bool is_asleep = status == DUCTILE_ERR_ASLEEP && has_mark(self->s, DEFAULT_SLEEPS);
    bool is_refused = status == DUCTILE_ERR_OUT_OF_MEMORY && has_mark(self->s, STARVES);
    return may_be(call, status, is_asleep || is_refused ? status : DUCTILE_OK);
}

/* ---- Blocks -------------------------------------------------------------------------------- */

static const char *make_and_keep(test_thread *self, uint64_t size, unsigned stream) {
    held h;
    TRY(make(self, size, common(self, stream), &h));
    return keep(self, &h);
}

TASK(hit, "hit", 0) {
    held h;
    TRY(make(self, SMALL, common(self, 0), &h));
    TRY(give(self, &h));
    return make_and_keep(self, SMALL, 0);
}

/* Beside a live block: memory that no other stream can get. */
TASK(hit_apart, "hit_apart", IS_APART) {
    held h;
    TRY(make(self, SMALL, common(self, N_COMMON), &h));
    TRY(give(self, &h));
    TRY(make(self, 2 * SMALL, common(self, N_COMMON), &h));
    return give(self, &h);
}

TASK(grow, "grow", 0) {
    return make_and_keep(self, 5 * FIXTURE_GRANULE, 0);
}

/* More than the stream has: what was freed on the other one may move here. */
TASK(recycle, "recycle", 0) {
    return make_and_keep(self, 4 * FIXTURE_GRANULE, 1);
}

TASK(churn, "churn", 0) {
    TRY(give(self, &self->large));
    TRY(make_and_keep(self, 2 * FIXTURE_GRANULE, 0));
    return give(self, &self->small);
}

TASK(dedicated, "dedicated", 0) {
    held h = {.size = 2 * FIXTURE_GRANULE, .stream = common(self, 0)};
    ductile_status status = ductile_alloc_dedicated(of(self), h.size, h.stream, &h.address);
    TRY(may_lack(self, "alloc_dedicated", status));
    if (status == DUCTILE_OK) {
        TRY(take(self, &h));
        TRY(give(self, &h));
    }
    return NULL;
}

TASK(free_given, "free", 0) {
    TRY(give(self, &self->small));
    return give(self, &self->large);
}

TASK(free_in_pool, "free_in_pool", 0) {
    return give(self, &self->in_pool);
}

TASK(free_on, "free_on", 0) {
    held h = self->small;
    self->small.size = 0;
    TRY(use_on(self->s, &h, common(self, 1)));
    TRY(let_go(self->s, &h));
    ductile_stream user = common(self, 1);
    NEED_OK(ductile_free_ex(of(self), h.address, &user, 1, NULL));
    return NULL;
}

TASK(use_elsewhere, "use_elsewhere", 0) {
    ductile_stream theirs = self->s->theirs;
    TRY(record_on(self->s, &self->large, theirs != NULL ? theirs : common(self, 0)));
    return give(self, &self->large);
}

/* Everybody's large block is recorded on it;
 * a thread that frees one later does not name it again. */
TASK(end_stream, "end_stream", 0) {
    held h;
    TRY(make(self, SMALL, self->own, &h));
    TRY(give(self, &h));
    return end_stream_of(self->s, &self->own);
}

/* Only together with itself: no thread may allocate between two frees of one address. */
TASK(free_twice, "free_twice", IN_ORDERS) {
    shared_state *s = self->s;
    scheduler_mute();
    bool is_first = model_find(&s->live, s->twice.address) < s->live.n;
    const char *why = is_first ? let_go(s, &s->twice) : NULL;
    scheduler_unmute();
    TRY(why);
    ductile_status status = ductile_free(of(self), s->twice.address);
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_NOT_LIVE, "second free: %s",
         ductile_status_name(status));
    scheduler_mute();
    s->n_freed_twice += status == DUCTILE_OK;
    scheduler_unmute();
    return NULL;
}

/* ---- Elastic ranges ------------------------------------------------------------------------ */

static ductile_status commit(const test_thread *self, ductile_elastic *range, uint64_t first,
                             uint64_t n, held *out) {
    *out = (held){.address = ductile_elastic_address(range) + first * FIXTURE_GRANULE,
                  .size = n * FIXTURE_GRANULE,
                  .stream = common(self, 0)};
    return ductile_elastic_commit(range, first * FIXTURE_GRANULE, out->size);
}

/* Units that are one block for the model. */
static const char *hold_units(test_thread *self, ductile_elastic *range, uint64_t first, uint64_t n,
                              held *out) {
    ductile_status status = commit(self, range, first, n, out);
    TRY(may_lack(self, "elastic_commit", status));
    out->size = status == DUCTILE_OK ? out->size : 0;
    return status == DUCTILE_OK ? take(self, out) : NULL;
}

static const char *leave_units(test_thread *self, ductile_elastic *range, held *h,
                               const ductile_stream *user) {
    if (h->size == 0) {
        return NULL;
    }
    TRY(user != NULL ? use_on(self->s, h, *user) : NULL);
    TRY(verify_held(self->s, h));
    TRY(let_go(self->s, h));
    uint64_t offset = h->address - ductile_elastic_address(range);
    NEED_OK(ductile_elastic_decommit(range, offset, h->size, user, user != NULL));
    h->size = 0;
    return NULL;
}

static const char *open_units(test_thread *self, uint64_t n, ductile_elastic **out) {
    return may_lack(
        self, "elastic_open",
        ductile_elastic_open(of(self), n * FIXTURE_GRANULE, common(self, 0), NULL, out));
}

/* Parts that overlap come and go, one of them after work of another stream. */
TASK(elastic_parts, "elastic_parts", 0) {
    const ductile_stream user = common(self, 1);
    ductile_elastic *range = NULL;
    held low, high;
    TRY(open_units(self, 6, &range));
    if (range == NULL) {
        return NULL; /* the pool sleeps */
    }
    TRY(hold_units(self, range, 0, 2, &low));
    TRY(hold_units(self, range, 4, 1, &high));
    TRY(leave_units(self, range, &low, &user));
    TRY(hold_units(self, range, 1, 2, &low));
    TRY(leave_units(self, range, &high, NULL));
    TRY(leave_units(self, range, &low, NULL));
    NEED_OK(ductile_elastic_close(range));
    return NULL;
}

/* All threads have one range: each has units of its own there, and one is everybody's, committed by
 * any of them, and decommitted by the last that needs it. */
TASK(elastic_shared, "elastic_shared", 0) {
    shared_state *s = self->s;
    held own, all;
    count(&s->n_committers);
    ductile_status status = commit(self, s->range, 0, 1, &all);
    TRY(hold_units(self, s->range, 1 + 2 * self->number, 2, &own));
    TRY(leave_units(self, s->range, &own, NULL));
    TRY(hold_units(self, s->range, 1 + 2 * self->number, 1, &own));
    TRY(leave_units(self, s->range, &own, NULL));
    scheduler_mute();
    bool is_last = --s->n_committers == 0;
    ductile_status left =
        is_last ? ductile_elastic_decommit(s->range, 0, all.size, NULL, 0) : DUCTILE_OK;
    scheduler_unmute();
    NEED_OK(left);
    return may_lack(self, "elastic_commit", status);
}

/* Its pool may fall asleep at any moment, and the units with it. */
TASK(elastic_in_pool, "elastic_in_pool", PLAIN_SLEEPS) {
    ductile_elastic *range = NULL;
    NEED_OK(ductile_pool_begin(of(self), PLAIN_POOL, NULL, NULL));
    ductile_status status =
        ductile_elastic_open(of(self), 4 * FIXTURE_GRANULE, common(self, 0), NULL, &range);
    NEED_OK(ductile_pool_end(of(self), PLAIN_POOL));
    NEED_OK(ductile_pool_release(of(self), PLAIN_POOL));
    for (uint64_t i = 0; i < 3 && status == DUCTILE_OK; i++) {
        status = ductile_elastic_commit(range, i * FIXTURE_GRANULE, 2 * FIXTURE_GRANULE);
        NEED_OK(ductile_elastic_decommit(range, i * FIXTURE_GRANULE, FIXTURE_GRANULE, NULL, 0));
    }
    NEED_OK(ductile_elastic_close(range));
    bool is_refused = status == DUCTILE_ERR_OUT_OF_MEMORY && has_mark(self->s, STARVES);
    return may_be("elastic", status, is_refused ? status : DUCTILE_ERR_ASLEEP);
}

/* ---- Pools and captures -------------------------------------------------------------------- */

TASK(plain_pool, "pool", 0) {
    held h;
    NEED_OK(ductile_pool_begin(of(self), CAPTURE_POOL(self), NULL, NULL));
    NEED(ductile_pool_set_kind(of(self), CAPTURE_POOL(self), DUCTILE_POOL_PLAIN) ==
             DUCTILE_ERR_BUSY,
         "an open pool changes its kind");
    TRY(make(self, SMALL, common(self, 1), &h));
    NEED_OK(ductile_pool_end(of(self), CAPTURE_POOL(self)));
    TRY(give(self, &h));
    NEED_OK(ductile_pool_release(of(self), CAPTURE_POOL(self)));
    return NULL;
}

static int is_own(void *user, ductile_stream stream) {
    test_thread *self = user;
    if (self->is_removed) {
        scheduler_found("wrong", "a filter is called after its pool has ended");
    }
    return stream == self->own;
}

TASK(filtered_pool, "filtered_pool", 0) {
    held h;
    NEED_OK(ductile_pool_begin(of(self), CAPTURE_POOL(self), is_own, self));
    TRY(make(self, SMALL, self->own, &h));
    NEED_OK(ductile_pool_end(of(self), CAPTURE_POOL(self)));
    self->is_removed = true;
    NEED_OK(ductile_pool_release(of(self), CAPTURE_POOL(self)));
    return give(self, &h);
}

static const char *begin_capture(test_thread *self, bool announces) {
    if (announces) {
        ductile_capture_begin();
    }
    change_use(self->s, &self->s->n_captures, 1);
    NEED_OK(ductile_virtual_capture_begin(self->s->t.f.gpu, self->own, DUCTILE_CAPTURE_GLOBAL));
    return NULL;
}

static const char *end_capture(test_thread *self, bool announces, ductile_virtual_graph **out) {
    NEED_OK(ductile_virtual_capture_end(self->s->t.f.gpu, self->own, out));
    change_use(self->s, &self->s->n_captures, -1);
    if (announces) {
        ductile_capture_end();
    }
    return NULL;
}

static const char *record_graph(test_thread *self, ductile_virtual_graph **out) {
    held h;
    TRY(begin_capture(self, self->s->announces));
    TRY(make(self, FIXTURE_GRANULE + SMALL, self->own, &h));
    if (h.size != 0) {
        TRY(let_go(self->s, &h));
        NEED_OK(ductile_free(of(self), h.address));
    }
    return end_capture(self, self->s->announces, out);
}

TASK(capture, "capture", CAPTURES) {
    ductile_virtual_graph *graph = NULL;
    NEED_OK(ductile_pool_begin(of(self), CAPTURE_POOL(self), NULL, NULL));
    TRY(record_graph(self, &graph));
    NEED_OK(ductile_pool_end(of(self), CAPTURE_POOL(self)));
    TRY(launch(self->s, graph, common(self, 0)));
    ductile_virtual_graph_destroy(graph);
    NEED_OK(ductile_pool_release(of(self), CAPTURE_POOL(self)));
    return NULL;
}

/* A capture without memory, which every allocator of the process hears of. */
TASK(announce, "announce", CAPTURES) {
    TRY(begin_capture(self, true));
    NEED_OK(ductile_virtual_launch(self->s->t.f.gpu, self->own, NULL, 0));
    return end_capture(self, true, NULL);
}

/* Others may have it asleep, or be about to. */
static const char *may_sleep(ductile_status status) {
    bool is_known = status == DUCTILE_ERR_CAPTURING || status == DUCTILE_ERR_ASLEEP;
    return may_be("sleep", status, is_known ? status : DUCTILE_ERR_BUSY);
}

/* Under stress contents are kept now and then, and the others go on meanwhile. */
static bool keeps_contents(test_thread *self) {
    return self->s->is_stress && rng_percent(&self->r, 25);
}

static const char *has_slept(test_thread *self, ductile_status status) {
    if (status != DUCTILE_OK) {
        change_use(self->s, &self->s->n_dozing, -1);
        return may_sleep(status);
    }
    count(&self->s->n_slept);
    if (self->s->is_stress) {
        (void)usleep(300);
    }
    return NULL;
}

TASK(sleep_pool, "sleep", PLAIN_SLEEPS) {
    bool keeps = keeps_contents(self);
    change_use(self->s, &self->s->n_dozing, 1);
    ductile_status status =
        ductile_sleep(of(self), PLAIN_POOL, keeps ? DUCTILE_CONTENTS_KEEP : DUCTILE_CONTENTS_DROP);
    TRY(has_slept(self, status));
    return status == DUCTILE_OK ? woken(self->s, ductile_wake(of(self), PLAIN_POOL), !keeps) : NULL;
}

/* A set: a pool of this thread's own, the one that all share, and the default one, maybe. */
static const char *sleep_and_wake(test_thread *self, unsigned n_pools, ductile_pool_id bypass) {
    const ductile_pool_id pools[] = {CAPTURE_POOL(self), PLAIN_POOL, {0, 0}};
    const bool keeps = keeps_contents(self);
    const ductile_sleep_request set = {.struct_size = sizeof set,
                                       .pools = pools,
                                       .n_pools = n_pools,
                                       .contents =
                                           keeps ? DUCTILE_CONTENTS_KEEP : DUCTILE_CONTENTS_POLICY,
                                       .bypass = bypass};
    ductile_pool_info own = {.struct_size = sizeof own};
    change_use(self->s, &self->s->n_dozing, 1);
    ductile_status status = ductile_sleep_set(of(self), &set, NULL);
    TRY(has_slept(self, status));
    if (status == DUCTILE_OK) {
        status = ductile_wake_set(of(self), &set, NULL);
        TRY(woken(self->s, status, !keeps));
    }
    NEED_OK(ductile_list_pools(of(self), &pools[0], &own, 1, NULL));
    NEED(own.asleep == (status == DUCTILE_ERR_OUT_OF_MEMORY), "the own pool is in state %d",
         (int)own.state);
    return NULL;
}

static const char *with_own_pool(test_thread *self, unsigned n_pools, ductile_pool_id bypass) {
    held h = {.size = SMALL};
    NEED_OK(ductile_pool_begin(of(self), CAPTURE_POOL(self), NULL, NULL));
    ductile_status made = ductile_alloc(of(self), h.size, common(self, 1), &h.address);
    NEED_OK(ductile_pool_end(of(self), CAPTURE_POOL(self)));
    TRY(may_lack(self, "alloc", made));
    TRY(sleep_and_wake(self, n_pools, bypass));
    NEED_OK(ductile_free(of(self), h.address));
    NEED_OK(ductile_pool_release(of(self), CAPTURE_POOL(self)));
    return NULL;
}

TASK(sleep_set, "sleep_set", PLAIN_SLEEPS) {
    return with_own_pool(self, 2, (ductile_pool_id){0, 0});
}

/* Others are refused meanwhile, or served by a pool that goes when the default one is back. */
TASK(sleep_all, "sleep_all", PLAIN_SLEEPS | DEFAULT_SLEEPS) {
    uint64_t number = self->number % 2 == 0 ? 0 : 20 + self->number;
    return with_own_pool(self, 3, (ductile_pool_id){number, 0});
}

/* A sleep that nothing outlasts: with memory of the host, if the options let others have some. */
TASK(promote, "promote", PLAIN_SLEEPS | DEFAULT_SLEEPS) {
    change_use(self->s, &self->s->n_dozing, 1);
    ductile_status status = ductile_promote(of(self), NULL);
    change_use(self->s, &self->s->n_dozing, -1);
    return may_sleep(status);
}

/* With another one, where the host's memory is enough for one of them: that one is served. */
TASK(spill, "spill", STARVES | IN_ORDERS) {
    ductile_addr address = 0;
    ductile_status status =
        ductile_alloc(of(self), 50 * FIXTURE_GRANULE, common(self, 0), &address);
    TRY(may_lack(self, "alloc", status));
    scheduler_mute();
    self->s->n_spillers++;
    self->s->n_spilled += status == DUCTILE_OK;
    scheduler_unmute();
    NEED_OK(status == DUCTILE_OK ? ductile_free(of(self), address) : DUCTILE_OK);
    return NULL;
}

static bool may_spill(const test_thread *self) {
    ductile_options o = {.struct_size = sizeof o};
    ductile_get_options(of(self), &o);
    return o.spill_bytes > 0;
}

/* What sleeps, or has spilled, is not pinned. */
static const char *pin_awake(test_thread *self, const held *h, bool *is_pinned) {
    ductile_status status = ductile_pin(of(self), h->address);
    ductile_status other = may_spill(self) ? DUCTILE_ERR_UNSUPPORTED : DUCTILE_OK;
    *is_pinned = status == DUCTILE_OK;
    return status == DUCTILE_ERR_ASLEEP ? may_lack(self, "pin", status)
                                        : may_be("pin", status, other);
}

/* Pinned memory that is freed asleep is all that is left of a pool. */
TASK(leave_pinned, "leave_pinned", PLAIN_SLEEPS | IN_STRESS) {
    ductile_pool_id pool = CAPTURE_POOL(self);
    ductile_addr address = 0;
    NEED_OK(ductile_pool_begin(of(self), pool, NULL, NULL));
    ductile_status made = ductile_alloc(of(self), FIXTURE_GRANULE, common(self, 1), &address);
    NEED_OK(ductile_pool_end(of(self), pool));
    TRY(may_lack(self, "alloc", made));
    bool is_pinned = false;
    if (made == DUCTILE_OK) {
        TRY(pin_awake(self, &(held){.address = address}, &is_pinned));
        TRY(may_sleep(ductile_sleep(of(self), pool, DUCTILE_CONTENTS_KEEP)));
        NEED_OK(ductile_free(of(self), address));
    }
    NEED_OK(ductile_pool_release(of(self), pool));
    NEED_OK(ductile_trim(of(self), NULL, 0, NULL));
    NEED_OK(is_pinned ? ductile_unpin(of(self), address) : DUCTILE_OK);
    return NULL;
}

TASK(alloc_in_pool, "alloc_in_pool", 0) {
    held h;
    TRY(make_in_plain(self, SMALL, common(self, 0), &h));
    return give(self, &h);
}

TASK(grow_in_pool, "grow_in_pool", 0) {
    held h;
    TRY(make_in_plain(self, 3 * FIXTURE_GRANULE, common(self, 1), &h));
    return keep(self, &h);
}

/* Others may have taken the memory, or put it to sleep. */
TASK(alloc_at, "alloc_at", 0) {
    const ductile_addr address = self->in_pool.address;
    const uint64_t size = self->in_pool.size;
    int is_pending = 0;
    if (size == 0) {
        return NULL; /* it slept */
    }
    TRY(give(self, &self->in_pool));
    ductile_status status = ductile_pool_alloc_at(of(self), PLAIN_POOL, address, size);
    if (status == DUCTILE_OK) {
        NEED_OK(ductile_free_ex(of(self), address, NULL, 0, &is_pending));
    }
    return may_be("pool_alloc_at", status,
                  status == DUCTILE_ERR_FOREIGN_POINTER || status == DUCTILE_ERR_ASLEEP
                      ? status
                      : DUCTILE_ERR_BUSY);
}

static int visit(void *user, const ductile_block_info *block) {
    *(uint64_t *)user += block->state == DUCTILE_BLOCK_LIVE;
    return 0;
}

static int count_kept(void *user, const ductile_pool_info *pool) {
    *(uint64_t *)user += pool->kept_bytes;
    return 0;
}

TASK(pool_views, "pool_views", 0) {
    ductile_stats stats = {.struct_size = sizeof stats};
    ductile_pool_info info = {.struct_size = sizeof info};
    uint64_t n_live = 0;
    uint64_t n_kept = 0;
    NEED_OK(ductile_get_stats(of(self), &PLAIN_POOL, &stats));
    NEED_OK(ductile_list_pools(of(self), &PLAIN_POOL, &info, 1, NULL));
    NEED(info.references >= 1, "the pool has lost its reference");
    NEED_OK(ductile_walk_pools(of(self), count_kept, &n_kept));
    NEED_OK(ductile_walk(of(self), &PLAIN_POOL, visit, &n_live));
    TRY(may_be("pool_trim", ductile_trim(of(self), &PLAIN_POOL, 0, NULL), DUCTILE_ERR_BUSY));
    return NULL;
}

/* ---- The whole ----------------------------------------------------------------------------- */

TASK(look, "look", 0) {
    TRY(self->s->listener != NULL ? shadow_complaint(self->s->listener) : NULL);
    TRY(audit_at_any_time(of(self)));
    NEED(fixture_stats(of(self)).quarantined_bytes == 0, "quarantined without a fault");
    return NULL;
}

static const char *snapshot_is_json(test_thread *self) {
    text_sink sink = {.text = NULL};
    NEED_OK(ductile_snapshot_json(of(self), text_sink_write, &sink));
    const char *why = json_check(sink.text);
    free(sink.text);
    return why;
}

TASK(views, "views", 0) {
    ductile_block_info block = {.struct_size = sizeof block};
    ductile_limits limits = {.struct_size = sizeof limits};
    TRY(snapshot_is_json(self));
    NEED_OK(ductile_query_block(of(self), self->small.address, &block));
    NEED(block.address == self->small.address && block.requested_size == self->small.size,
         "a live block is described as another one");
    NEED(ductile_free(of(self), 1) == DUCTILE_ERR_FOREIGN_POINTER, "what is no block is freed");
    NEED_OK(ductile_get_limits(of(self), &limits));
    ductile_reset_peaks(of(self));
    ductile_oom_report report = {.struct_size = sizeof report};
    char text[64];
    NEED_OK(ductile_get_oom_report(of(self), &report));
    (void)ductile_oom_report_format(&report, DUCTILE_REPORT_TEXT, text, sizeof text);
    (void)ductile_oom_report_format(&report, DUCTILE_REPORT_JSON, text, sizeof text);
    ductile_options options;
    ductile_get_options(of(self), &options);
    (void)ductile_options_format(&options, text, sizeof text);
    return NULL;
}

/* What another program on the device takes. */
TASK(balloon, "balloon", STARVES) {
    ductile_virtual_gpu *gpu = self->s->t.f.gpu;
    TRY(may_be("the other program", ductile_virtual_set_external_bytes(gpu, 20 * FIXTURE_GRANULE),
               DUCTILE_ERR_OUT_OF_MEMORY));
    TRY(make_and_keep(self, 3 * FIXTURE_GRANULE, 1));
    NEED_OK(ductile_virtual_set_external_bytes(gpu, 0));
    return NULL;
}

TASK(trim, "trim", 0) {
    NEED_OK(ductile_trim(of(self), NULL, 0, NULL));
    return NULL;
}

TASK(trim_some, "trim_some", 0) {
    NEED_OK(ductile_trim(of(self), NULL, FIXTURE_GRANULE, NULL));
    NEED_OK(ductile_trim(of(self), NULL, 0, NULL));
    return NULL;
}

TASK(limit, "limit", STARVES) {
    NEED_OK(set_limit(of(self), 6 * FIXTURE_GRANULE));
    TRY(make_and_keep(self, 3 * FIXTURE_GRANULE, 1));
    NEED_OK(set_limit(of(self), DUCTILE_SHARE(0.5)));
    NEED_OK(set_limit(of(self), 0));
    NEED_OK(set_limit(of(self), DUCTILE_SHARE(1.0)));
    return NULL;
}

TASK(soft_limit, "soft_limit", 0) {
    NEED_OK(set_soft_limit(of(self), 4 * FIXTURE_GRANULE));
    TRY(make_and_keep(self, 3 * FIXTURE_GRANULE, 0));
    NEED_OK(set_soft_limit(of(self), 0));
    return NULL;
}

/* A callback may ask for what a free block serves. */
static const char *ask_inside(test_thread *self, ductile_allocator *a, ductile_stream stream) {
    ductile_addr address = 0;
    ductile_status status = ductile_alloc(a, 512, stream, &address);
    if (status == DUCTILE_OK) {
        NEED_OK(ductile_free(a, address));
        return NULL;
    }
    count(&self->s->n_refused_inside);
    NEED(status == DUCTILE_ERR_BUSY || status == DUCTILE_ERR_ASLEEP ||
             status == DUCTILE_ERR_OUT_OF_MEMORY,
         "alloc in a callback: %s", ductile_status_name(status));
    return NULL;
}

static uint64_t give_small(void *user, ductile_allocator *a, uint64_t missing,
                           ductile_stream stream) {
    test_thread *self = user;
    (void)missing;
    if (self->is_removed) {
        scheduler_found("wrong", "a callback is called after it was removed");
    }
    held h = {.size = 0};
    scheduler_mute(); /* another thread may ask as well */
    self->s->n_asked++;
    if (self->n_kept > 0) {
        h = self->kept[--self->n_kept];
    }
    scheduler_unmute();
    for (size_t i = 0; i < N_LEFT && h.size == 0 && self->s->is_stress; i++) {
        exchange(self->s, i, &h);
    }
    const uint64_t size = h.size;
    const char *why = give(self, &h);
    why = why == NULL ? ask_inside(self, a, stream) : why;
    why = self->is_removed ? "a callback is removed while a thread is inside" : why;
    if (why != NULL) {
        scheduler_found("wrong", why);
    }
    return size;
}

/* More than there is, so that the callbacks are asked: everybody's. */
TASK(run_out, "run_out", STARVES) {
    uint64_t id = 0;
    held h;
    TRY(make_and_keep(self, 2 * FIXTURE_GRANULE, 1));
    NEED_OK(ductile_add_oom_callback(of(self), give_small, self, 0, &id));
    TRY(make(self, 30 * FIXTURE_GRANULE, common(self, 0), &h));
    NEED_OK(ductile_remove_oom_callback(of(self), id));
    self->is_removed = true;
    return give(self, &h);
}

/* It may free, look a block up, and allocate what a free block serves. */
static void hear(void *user, ductile_allocator *a, const ductile_map_event *event) {
    test_thread *self = user;
    ductile_block_info block = {.struct_size = sizeof block};
    (void)event;
    if (self->is_removed) {
        scheduler_found("wrong", "a callback is called after it was removed");
    }
    if (ductile_query_block(a, self->large.address, &block) != DUCTILE_OK) {
        scheduler_found("wrong", "a live block is not known inside a map callback");
    }
    if (ductile_trim(a, NULL, 0, NULL) != DUCTILE_ERR_BUSY) {
        scheduler_found("wrong", "a trim inside a map callback is not refused");
    }
    const char *why = ask_inside(self, a, common(self, 1));
    why = self->is_removed ? "a callback is removed while a thread is inside" : why;
    if (why != NULL) {
        scheduler_found("wrong", why);
    }
}

TASK(listen_to_maps, "listen", 0) {
    uint64_t id = 0;
    NEED_OK(ductile_add_map_callback(of(self), hear, self, 0, &id));
    TRY(make_and_keep(self, 4 * FIXTURE_GRANULE, 0));
    NEED_OK(ductile_remove_map_callback(of(self), id));
    self->is_removed = true;
    return NULL;
}

TASK(set_captures, "set_captures", CAPTURES) {
    NEED_OK(ductile_set_captures(of(self), DUCTILE_CAPTURES_UNANNOUNCED));
    TRY(make_and_keep(self, 4 * FIXTURE_GRANULE, 1));
    NEED_OK(ductile_set_captures(of(self), DUCTILE_CAPTURES_POOLS));
    return NULL;
}

/* ---- Others -------------------------------------------------------------------------------- */

TASK(pin, "pin", 0) {
    const ductile_addr small = self->small.address;
    bool has_large = false;
    bool has_small = false;
    TRY(pin_awake(self, &self->large, &has_large));
    TRY(pin_awake(self, &self->small, &has_small));
    TRY(use_on(self->s, &self->large, common(self, 0)));
    NEED_OK(has_large ? ductile_unpin(of(self), self->large.address) : DUCTILE_OK);
    TRY(give(self, &self->small)); /* across its free */
    NEED_OK(has_small ? ductile_unpin(of(self), small) : DUCTILE_OK);
    return NULL;
}

TASK(peer, "peer", HAS_PEER) {
    NEED_OK(ductile_enable_peer(of(self), 1));
    TRY(make_and_keep(self, FIXTURE_GRANULE, 0));
    NEED_OK(ductile_disable_peer(of(self), 1));
    return NULL;
}

/* Together with import_block. */
TASK(export_block, "export", SHARES | IN_ORDERS) {
    NEED_OK(ductile_export(of(self), self->large.address, self->s->t.out));
    NEED_OK(ductile_unexport(of(self), self->large.address));
    return give(self, &self->large);
}

TASK(import_block, "import", SHARES | IN_ORDERS) {
    ductile_addr address = 0;
    uint64_t size = 0;
    shared_state *s = self->s;
    NEED_OK(ductile_import(s->t.importer, s->t.in, common(self, 1), &address, &size));
    NEED_OK(ductile_import_close(s->t.importer, address));
    return NULL;
}

/* One thread at a time: a message of another one would come between. */
TASK(pass, "pass", SHARES | IN_STRESS) {
    shared_state *s = self->s;
    scheduler_mute();
    bool is_first = !s->is_passing;
    s->is_passing = true;
    scheduler_unmute();
    if (!is_first) {
        return NULL;
    }
    const ductile_addr address = self->large.address;
    passing p = two_ends_pass(&s->t, address);
    NEED_OK(p.exported);
    NEED_OK(p.imported);
    TRY(give(self, &self->large));
    NEED_OK(ductile_import_close(s->t.importer, p.addr));
    NEED_OK(ductile_unexport(of(self), address));
    scheduler_mute();
    s->is_passing = false;
    scheduler_unmute();
    return NULL;
}

TASK(second, "second", 0) {
    ductile_allocator *a = NULL;
    ductile_addr address = 0;
    TRY(fixture_add_allocator(&self->s->t.f, NULL, &a));
    ductile_status status = ductile_alloc(a, SMALL, common(self, 0), &address);
    NEED_OK(ductile_destroy(a));
    return may_be("alloc of another allocator", status,
                  has_mark(self->s, STARVES) ? DUCTILE_ERR_OUT_OF_MEMORY : DUCTILE_OK);
}

/* Whatever locks the other threads hold at this moment. */
static int live_in_child(const test_thread *self) {
    ductile_addr address = 0;
    ductile_stats stats = {.struct_size = sizeof stats};
    bool is_told =
        ductile_alloc(of(self), SMALL, common(self, 0), &address) == DUCTILE_ERR_FORKED &&
        ductile_free(of(self), self->small.address) == DUCTILE_ERR_FORKED &&
        ductile_trim(of(self), NULL, 0, NULL) == DUCTILE_ERR_FORKED &&
        ductile_get_stats(of(self), NULL, &stats) == DUCTILE_ERR_FORKED &&
        ductile_pool_retain(of(self), PLAIN_POOL) == DUCTILE_ERR_FORKED;
    (void)ductile_destroy(of(self));
    return is_told ? 0 : 1;
}

TASK(fork_child, "fork", IS_SLOW) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        scheduler_forked();
        _exit(live_in_child(self));
    }
    NEED(child > 0 && waitpid(child, &status, 0) == child, "no child");
    NEED(status != FORKED_CHILD_WAITS << 8, "a forked child waits for a lock");
    NEED(status == 0, "a forked child ended with %x", (unsigned)status);
    return give(self, &self->small);
}
