/* SPDX-License-Identifier: Apache-2.0 */
/* What one thread of a small program does: a few calls that keep the contract, whatever the others
 * do meanwhile. */
#include "tests/orders/stage.h"
#include "tests/support/audit.h"
#include "tests/support/limits.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAPTURE_POOL(self) ((ductile_pool_id){1, 10 + (self)->number})

static ductile_allocator *of(const actor *self) {
    return self->s->f.allocator;
}

static ductile_stream common(const actor *self, unsigned i) {
    return self->s->f.streams[i];
}

static const char *may_be(const char *call, ductile_status status, ductile_status other) {
    NEED(status == DUCTILE_OK || status == other, "%s: %s", call, ductile_status_name(status));
    return NULL;
}

/* ---- Blocks -------------------------------------------------------------------------------- */

static const char *make_and_keep(actor *self, uint64_t size, unsigned stream) {
    held h;
    TRY(make(self, size, common(self, stream), &h));
    return keep(self, &h);
}

static const char *hit(actor *self) {
    held h;
    TRY(make(self, SMALL, common(self, 0), &h));
    TRY(give(self, &h));
    return make_and_keep(self, SMALL, 0);
}

/* Beside a live block: memory that no other stream can get. */
static const char *hit_apart(actor *self) {
    held h;
    TRY(make(self, SMALL, common(self, N_COMMON), &h));
    TRY(give(self, &h));
    TRY(make(self, 2 * SMALL, common(self, N_COMMON), &h));
    return give(self, &h);
}

static const char *grow(actor *self) {
    return make_and_keep(self, 5 * FIXTURE_GRANULE, 0);
}

/* More than the stream has: what was freed on the other one may move here. */
static const char *recycle(actor *self) {
    return make_and_keep(self, 4 * FIXTURE_GRANULE, 1);
}

static const char *churn(actor *self) {
    TRY(give(self, &self->large));
    TRY(make_and_keep(self, 2 * FIXTURE_GRANULE, 0));
    return give(self, &self->small);
}

static const char *dedicated(actor *self) {
    held h = {.size = 2 * FIXTURE_GRANULE, .stream = common(self, 0)};
    ductile_status status = ductile_alloc_dedicated(of(self), h.size, h.stream, &h.address);
    TRY(may_be("alloc_dedicated", status,
               has_mark(self->s, STARVES) ? DUCTILE_ERR_OUT_OF_MEMORY : DUCTILE_OK));
    if (status == DUCTILE_OK) {
        TRY(take(self, &h));
        TRY(give(self, &h));
    }
    return NULL;
}

static const char *free_given(actor *self) {
    TRY(give(self, &self->small));
    return give(self, &self->large);
}

static const char *free_in_pool(actor *self) {
    return give(self, &self->in_pool);
}

static const char *free_on(actor *self) {
    held h = self->small;
    self->small.size = 0;
    TRY(use_on(self->s, &h, common(self, 1)));
    TRY(let_go(self->s, &h));
    NEED_OK(ductile_free_on(of(self), h.address, common(self, 1)));
    return NULL;
}

static const char *use_elsewhere(actor *self) {
    TRY(use_on(self->s, &self->large, common(self, 0)));
    NEED_OK(ductile_record_stream(of(self), self->large.address, common(self, 0)));
    return give(self, &self->large);
}

/* Everybody's large block is recorded on it; a thread that frees one later does not name it again.
 */
static const char *end_stream(actor *self) {
    held h;
    TRY(make(self, SMALL, self->own, &h));
    TRY(give(self, &h));
    NEED_OK(ductile_stream_done(of(self), self->own));
    NEED_OK(ductile_virtual_stream_destroy(self->s->f.gpu, self->own));
    self->own = NULL;
    return NULL;
}

/* Only together with itself: no thread may allocate between two frees of one address. */
static const char *free_twice(actor *self) {
    stage *s = self->s;
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

/* ---- Pools and captures -------------------------------------------------------------------- */

static const char *plain_pool(actor *self) {
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
    actor *self = user;
    if (self->is_removed) {
        scheduler_found("wrong", "a filter is called after its pool has ended");
    }
    return stream == self->own;
}

static const char *filtered_pool(actor *self) {
    held h;
    NEED_OK(ductile_pool_begin(of(self), CAPTURE_POOL(self), is_own, self));
    TRY(make(self, SMALL, self->own, &h));
    NEED_OK(ductile_pool_end(of(self), CAPTURE_POOL(self)));
    self->is_removed = true;
    NEED_OK(ductile_pool_release(of(self), CAPTURE_POOL(self)));
    return give(self, &h);
}

static const char *begin_capture(actor *self, bool announces) {
    if (announces) {
        ductile_capture_begin();
    }
    scheduler_mute();
    self->s->n_captures++;
    scheduler_unmute();
    NEED_OK(ductile_virtual_capture_begin(self->s->f.gpu, self->own, DUCTILE_CAPTURE_GLOBAL));
    return NULL;
}

static const char *end_capture(actor *self, bool announces, ductile_virtual_graph **out) {
    NEED_OK(ductile_virtual_capture_end(self->s->f.gpu, self->own, out));
    scheduler_mute();
    self->s->n_captures--;
    scheduler_unmute();
    if (announces) {
        ductile_capture_end();
    }
    return NULL;
}

static const char *record_graph(actor *self, ductile_virtual_graph **out) {
    held h;
    TRY(begin_capture(self, self->s->announces));
    TRY(make(self, FIXTURE_GRANULE + SMALL, self->own, &h));
    if (h.size != 0) {
        TRY(let_go(self->s, &h));
        NEED_OK(ductile_free(of(self), h.address));
    }
    return end_capture(self, self->s->announces, out);
}

static const char *capture(actor *self) {
    ductile_virtual_graph *graph = NULL;
    NEED_OK(ductile_pool_begin(of(self), CAPTURE_POOL(self), NULL, NULL));
    TRY(record_graph(self, &graph));
    NEED_OK(ductile_pool_end(of(self), CAPTURE_POOL(self)));
    NEED_OK(ductile_virtual_graph_launch(graph, common(self, 0)));
    ductile_virtual_graph_destroy(graph);
    NEED_OK(ductile_pool_release(of(self), CAPTURE_POOL(self)));
    return NULL;
}

/* A capture without memory, which every allocator of the process hears of. */
static const char *announce(actor *self) {
    TRY(begin_capture(self, true));
    ductile_virtual_use use = {self->small.address, SMALL, 0};
    NEED_OK(ductile_virtual_launch(self->s->f.gpu, self->own, &use, 1));
    return end_capture(self, true, NULL);
}

const char *resume_pool(stage *s) {
    ductile_status status = ductile_resume(s->f.allocator, PLAIN_POOL);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && has_mark(s, STARVES)) {
        s->is_paused = true; /* no other thread can resume it, or pause it again */
        return NULL;
    }
    NEED(status == DUCTILE_OK, "resume: %s", ductile_status_name(status));
    return NULL;
}

/* Others may have it asleep, or be about to. */
static const char *may_sleep(ductile_status status) {
    bool is_known = status == DUCTILE_ERR_CAPTURING || status == DUCTILE_ERR_ASLEEP;
    return may_be("pause", status, is_known ? status : DUCTILE_ERR_BUSY);
}

static const char *pause_pool(actor *self) {
    ductile_status status = ductile_pause(of(self), PLAIN_POOL, DUCTILE_CONTENTS_DROP);
    TRY(may_sleep(status));
    return status == DUCTILE_OK ? resume_pool(self->s) : NULL;
}

/* A set of two: the pool that all share, and one of this thread's own. */
static const char *sleep_set(actor *self) {
    held h;
    const ductile_pool_id both[] = {PLAIN_POOL, CAPTURE_POOL(self)};
    const ductile_sleep_request set = {.struct_size = sizeof set, .pools = both, .n_pools = 2};
    ductile_pool_info own = {.struct_size = sizeof own};
    NEED_OK(ductile_pool_begin(of(self), both[1], NULL, NULL));
    ductile_status made = ductile_alloc(of(self), SMALL, common(self, 1), &h.address);
    NEED_OK(ductile_pool_end(of(self), both[1]));
    TRY(may_be("alloc", made, has_mark(self->s, STARVES) ? DUCTILE_ERR_OUT_OF_MEMORY : DUCTILE_OK));
    ductile_status status = ductile_pause_set(of(self), &set, NULL);
    TRY(may_sleep(status));
    if (status == DUCTILE_OK) {
        status = ductile_resume_set(of(self), &set, NULL);
        bool is_refused = status == DUCTILE_ERR_OUT_OF_MEMORY && has_mark(self->s, STARVES);
        if (is_refused) { /* no other thread can pause the plain pool now */
            self->s->is_paused = true;
        }
        NEED(status == DUCTILE_OK || is_refused, "resume: %s", ductile_status_name(status));
    }
    NEED_OK(ductile_pool_query(of(self), both[1], &own));
    NEED(own.paused == (status == DUCTILE_ERR_OUT_OF_MEMORY), "the own pool is in state %d",
         (int)own.state);
    NEED_OK(ductile_free(of(self), h.address));
    NEED_OK(ductile_pool_release(of(self), both[1]));
    return NULL;
}

static const char *alloc_in_pool(actor *self) {
    held h = {.size = SMALL, .stream = common(self, 0)};
    NEED_OK(ductile_pool_begin(of(self), PLAIN_POOL, NULL, NULL));
    ductile_status status = ductile_alloc(of(self), h.size, h.stream, &h.address);
    NEED_OK(ductile_pool_end(of(self), PLAIN_POOL));
    NEED_OK(ductile_pool_release(of(self), PLAIN_POOL));
    if (status == DUCTILE_OK) {
        NEED_OK(ductile_free(of(self), h.address));
    }
    return may_be("alloc in a pool", status,
                  has_mark(self->s, PAUSES) ? DUCTILE_ERR_ASLEEP : DUCTILE_OK);
}

/* Others may have taken the memory, or paused it. */
static const char *alloc_at(actor *self) {
    const ductile_addr address = self->in_pool.address;
    int is_pending = 0;
    TRY(give(self, &self->in_pool));
    ductile_status status = ductile_pool_alloc_at(of(self), PLAIN_POOL, address, SMALL);
    if (status == DUCTILE_OK) {
        NEED_OK(ductile_free_reporting(of(self), address, &is_pending));
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

static const char *pool_views(actor *self) {
    ductile_stats stats = {.struct_size = sizeof stats};
    ductile_pool_info info = {.struct_size = sizeof info};
    uint64_t n_live = 0;
    NEED_OK(ductile_pool_get_stats(of(self), PLAIN_POOL, &stats));
    NEED_OK(ductile_pool_query(of(self), PLAIN_POOL, &info));
    NEED(info.references >= 1, "the pool has lost its reference");
    NEED_OK(ductile_pool_walk(of(self), PLAIN_POOL, visit, &n_live));
    TRY(may_be("pool_trim", ductile_pool_trim(of(self), PLAIN_POOL, NULL), DUCTILE_ERR_BUSY));
    return NULL;
}

/* ---- The whole ----------------------------------------------------------------------------- */

static const char *look(actor *self) {
    return audit_at_any_time(of(self));
}

static int write_nothing(void *user, const char *text, size_t size) {
    (void)text;
    *(size_t *)user += size;
    return 0;
}

static const char *views(actor *self) {
    size_t n_written = 0;
    ductile_block_info block = {.struct_size = sizeof block};
    ductile_limits limits = {.struct_size = sizeof limits};
    NEED_OK(ductile_snapshot_json(of(self), write_nothing, &n_written));
    NEED_OK(ductile_query_block(of(self), self->small.address, &block));
    NEED(block.address == self->small.address && block.requested_size == SMALL,
         "a live block is described as another one");
    NEED_OK(ductile_get_limits(of(self), &limits));
    ductile_reset_peaks(of(self));
    ductile_oom_report report = {.struct_size = sizeof report};
    char text[64];
    NEED_OK(ductile_get_oom_report(of(self), &report));
    (void)ductile_oom_report_text(&report, text, sizeof text);
    (void)ductile_oom_report_json(&report, text, sizeof text);
    ductile_options options;
    ductile_get_options(of(self), &options);
    (void)ductile_options_format(&options, text, sizeof text);
    return NULL;
}

static const char *trim(actor *self) {
    NEED_OK(ductile_trim(of(self), 0, NULL));
    return NULL;
}

static const char *trim_some(actor *self) {
    NEED_OK(ductile_trim(of(self), FIXTURE_GRANULE, NULL));
    NEED_OK(ductile_empty_cache(of(self)));
    return NULL;
}

static const char *limit(actor *self) {
    NEED_OK(set_limit(of(self), 6 * FIXTURE_GRANULE));
    TRY(make_and_keep(self, 3 * FIXTURE_GRANULE, 1));
    NEED_OK(set_limit(of(self), DUCTILE_SHARE(0.5)));
    NEED_OK(set_limit(of(self), 0));
    NEED_OK(set_limit(of(self), DUCTILE_SHARE(1.0)));
    return NULL;
}

static const char *soft_limit(actor *self) {
    NEED_OK(set_soft_limit(of(self), 4 * FIXTURE_GRANULE));
    TRY(make_and_keep(self, 3 * FIXTURE_GRANULE, 0));
    NEED_OK(set_soft_limit(of(self), 0));
    return NULL;
}

static uint64_t give_small(void *user, ductile_allocator *a, uint64_t missing,
                           ductile_stream stream) {
    actor *self = user;
    (void)a, (void)missing, (void)stream;
    if (self->is_removed) {
        scheduler_found("wrong", "a callback is called after it was removed");
    }
    held h = {.size = 0};
    scheduler_mute(); /* another thread may ask as well */
    if (self->n_kept > 0) {
        h = self->kept[--self->n_kept];
    }
    scheduler_unmute();
    const uint64_t size = h.size;
    const char *why = give(self, &h);
    if (why != NULL) {
        scheduler_found("wrong", why);
    }
    return size;
}

/* More than there is, so that the callbacks are asked: everybody's. */
static const char *run_out(actor *self) {
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
    actor *self = user;
    ductile_block_info block = {.struct_size = sizeof block};
    (void)event;
    if (self->is_removed) {
        scheduler_found("wrong", "a callback is called after it was removed");
    }
    if (ductile_query_block(a, self->large.address, &block) != DUCTILE_OK) {
        scheduler_found("wrong", "a live block is not known inside a map callback");
    }
    if (ductile_trim(a, 0, NULL) != DUCTILE_ERR_BUSY) {
        scheduler_found("wrong", "a trim inside a map callback is not refused");
    }
}

static const char *listen_to_maps(actor *self) {
    if (!DUCTILE_WITH_CALLBACKS) {
        return NULL;
    }
    uint64_t id = 0;
    NEED_OK(ductile_add_map_callback(of(self), hear, self, 0, &id));
    TRY(make_and_keep(self, 4 * FIXTURE_GRANULE, 0));
    NEED_OK(ductile_remove_map_callback(of(self), id));
    self->is_removed = true;
    return NULL;
}

static const char *set_captures(actor *self) {
    NEED_OK(ductile_set_captures(of(self), DUCTILE_CAPTURES_UNANNOUNCED));
    TRY(make_and_keep(self, 4 * FIXTURE_GRANULE, 1));
    NEED_OK(ductile_set_captures(of(self), DUCTILE_CAPTURES_POOLS));
    return NULL;
}

/* ---- Others -------------------------------------------------------------------------------- */

static const char *pin(actor *self) {
    NEED_OK(ductile_pin(of(self), self->large.address));
    TRY(use_on(self->s, &self->large, common(self, 0)));
    NEED_OK(ductile_unpin(of(self), self->large.address));
    return give(self, &self->small);
}

static const char *peer(actor *self) {
    NEED_OK(ductile_enable_peer(of(self), 1));
    TRY(make_and_keep(self, FIXTURE_GRANULE, 0));
    NEED_OK(ductile_disable_peer(of(self), 1));
    return NULL;
}

/* Together with import_block. */
static const char *export_block(actor *self) {
    NEED_OK(ductile_export(of(self), self->large.address, self->s->sockets[0]));
    NEED_OK(ductile_unexport(of(self), self->large.address));
    return give(self, &self->large);
}

static const char *import_block(actor *self) {
    ductile_addr address = 0;
    uint64_t size = 0;
    stage *s = self->s;
    NEED_OK(ductile_import(s->importer, s->sockets[1], common(self, 1), &address, &size));
    NEED_OK(ductile_import_close(s->importer, address));
    return NULL;
}

static const char *second(actor *self) {
    ductile_allocator *a = NULL;
    ductile_addr address = 0;
    TRY(fixture_add_allocator(&self->s->f, NULL, &a));
    ductile_status status = ductile_alloc(a, SMALL, common(self, 0), &address);
    NEED_OK(ductile_destroy(a));
    return may_be("alloc of another allocator", status,
                  has_mark(self->s, STARVES) ? DUCTILE_ERR_OUT_OF_MEMORY : DUCTILE_OK);
}

/* Whatever locks the other threads hold at this moment. */
static int live_in_child(const actor *self) {
    ductile_addr address = 0;
    ductile_stats stats = {.struct_size = sizeof stats};
    bool is_told =
        ductile_alloc(of(self), SMALL, common(self, 0), &address) == DUCTILE_ERR_FORKED &&
        ductile_free(of(self), self->small.address) == DUCTILE_ERR_FORKED &&
        ductile_trim(of(self), 0, NULL) == DUCTILE_ERR_FORKED &&
        ductile_get_stats(of(self), &stats) == DUCTILE_ERR_FORKED &&
        ductile_pool_retain(of(self), PLAIN_POOL) == DUCTILE_ERR_FORKED;
    (void)ductile_destroy(of(self));
    return is_told ? 0 : 1;
}

static const char *fork_child(actor *self) {
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

const act acts[] = {
    {"hit", hit, 0},
    {"grow", grow, 0},
    {"recycle", recycle, 0},
    {"churn", churn, 0},
    {"dedicated", dedicated, 0},
    {"free", free_given, 0},
    {"free_in_pool", free_in_pool, 0},
    {"free_on", free_on, 0},
    {"use_elsewhere", use_elsewhere, 0},
    {"end_stream", end_stream, 0},
    {"pool", plain_pool, 0},
    {"filtered_pool", filtered_pool, 0},
    {"capture", capture, 0},
    {"announce", announce, 0},
    {"pause", pause_pool, PAUSES},
    {"sleep_set", sleep_set, PAUSES},
    {"alloc_in_pool", alloc_in_pool, 0},
    {"alloc_at", alloc_at, 0},
    {"pool_views", pool_views, 0},
    {"look", look, 0},
    {"views", views, 0},
    {"trim", trim, 0},
    {"trim_some", trim_some, 0},
    {"limit", limit, STARVES},
    {"soft_limit", soft_limit, 0},
    {"run_out", run_out, STARVES},
    {"listen", listen_to_maps, 0},
    {"set_captures", set_captures, 0},
    {"pin", pin, 0},
    {"peer", peer, HAS_PEER},
    {"second", second, 0},
    {"fork", fork_child, IS_SLOW},
    /* Not to be combined at random: */
    {"hit_apart", hit_apart, IS_APART},
    {"free_twice", free_twice, 0},
    {"export", export_block, SHARES},
    {"import", import_block, SHARES},
};
const size_t n_acts = sizeof acts / sizeof *acts;
