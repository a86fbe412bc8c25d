/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/orders/shared_state.h"

#include "tests/support/audit.h"
#include "vmm/captures.h"

#include <ductile_elastic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLE = 64 };

bool has_mark(const shared_state *s, unsigned mark) {
    return (s->marks & mark) != 0;
}

void count(uint64_t *counter) {
    scheduler_mute();
    ++*counter;
    scheduler_unmute();
}

/* ---- Contents ------------------------------------------------------------------------------ */

/* Many threads at once look at contents and write some, but not while it changes what they may. */
static void begin_use(shared_state *s) {
    if (scheduler_chooses) {
        scheduler_mute();
    } else {
        (void)pthread_rwlock_rdlock(&s->use);
    }
}

static void end_use(shared_state *s) {
    if (scheduler_chooses) {
        scheduler_unmute();
    } else {
        (void)pthread_rwlock_unlock(&s->use);
    }
}

void change_use(shared_state *s, unsigned *what, int by) {
    if (scheduler_chooses) {
        scheduler_mute();
    } else {
        (void)pthread_rwlock_wrlock(&s->use);
    }
    *what += (unsigned)by;
    end_use(s);
}

static bool may_touch(const shared_state *s, const held *h) {
    return s->n_dozing == 0 || (!h->is_in_plain && !has_mark(s, DEFAULT_SLEEPS));
}

static const char *write_to(shared_state *s, held *h, ductile_stream stream) {
    const uint64_t size = s->is_stress ? h->size : SAMPLE;
    if (may_touch(s, h)) {
        NEED_OK(ductile_virtual_fill(s->t.f.gpu, h->address, h->pattern, size, stream));
        h->life = s->life;
    }
    return NULL;
}

const char *woken(shared_state *s, ductile_status status, bool drops) {
    bool is_refused = status == DUCTILE_ERR_OUT_OF_MEMORY && has_mark(s, STARVES);
    NEED(status == DUCTILE_OK || is_refused, "wake: %s", ductile_status_name(status));
    scheduler_mute();
    s->is_asleep = is_refused; /* no other thread can wake it, or put it to sleep again */
    s->drops = drops;
    scheduler_unmute();
    if (!is_refused) {
        change_use(s, &s->life, drops);
        change_use(s, &s->n_dozing, -1);
    }
    return NULL;
}

const char *wake_what_was_refused(shared_state *s) {
    scheduler_mute();
    bool is_mine = s->is_asleep;
    s->is_asleep = false;
    scheduler_unmute();
    const ductile_pool_id all[] = {{0, 0}, PLAIN_POOL};
    const ductile_sleep_request set = {
        .struct_size = sizeof set, .pools = all, .n_pools = 2, .lenient = 1};
    ductile_status status = DUCTILE_ERR_BUSY;
    while (is_mine && status == DUCTILE_ERR_BUSY) { /* another thread promotes the default pool */
        status = ductile_wake_set(s->t.f.allocator, &set, NULL);
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
    }
    return is_mine ? woken(s, status, s->drops) : NULL;
}

static const char *verify_at(const shared_state *s, const held *h, uint64_t offset) {
    uint8_t bytes[SAMPLE];
    NEED_OK(
        ductile_virtual_read_back(s->t.f.gpu, bytes, h->address + offset, sizeof bytes, h->stream));
    for (size_t i = 0; i < sizeof bytes; i++) {
        NEED(bytes[i] == h->pattern, "block %llx of %s holds %02x at %llu, not %02x", h->address,
             h->is_in_plain ? "the pool" : "no pool", bytes[i], (unsigned long long)(offset + i),
             h->pattern);
    }
    return NULL;
}

static const char *verify_all(const shared_state *s, const held *h) {
    TRY(verify_at(s, h, 0));
    if (s->is_stress) {
        TRY(verify_at(s, h, h->size / 2));
        TRY(verify_at(s, h, h->size - SAMPLE));
    }
    return NULL;
}

/* A copy to the host would break the capture of another thread. */
const char *verify_held(shared_state *s, const held *h) {
    begin_use(s);
    bool is_there = h->is_in_plain ? h->life == s->life : h->life != 0;
    const char *why = s->n_captures == 0 && is_there && may_touch(s, h) ? verify_all(s, h) : NULL;
    end_use(s);
    return why;
}

/* ---- Blocks -------------------------------------------------------------------------------- */

/* The device takes it for a mistake that the memory of a live block goes. */
static bool is_announced(const shared_state *s, const held *h) {
    return !has_mark(s, h->is_in_plain ? PLAIN_SLEEPS : DEFAULT_SLEEPS);
}

const char *take(test_thread *self, held *h) {
    static uint8_t next_pattern;
    shared_state *s = self->s;
    const model_block block = {
        .address = h->address, .requested = h->size, .size = model_rounded(h->size)};
    scheduler_mute();
    h->pattern = ++next_pattern;
    const char *why = model_add(&s->live, &block);
    scheduler_unmute();
    TRY(why);
    if (s->listener != NULL && is_announced(s, h)) {
        TRY(shadow_covers(s->listener, h->address, h->size));
    }
    begin_use(s);
    if (is_announced(s, h)) {
        ductile_virtual_block_begin(s->t.f.gpu, h->address, h->size);
    }
    why = write_to(s, h, h->stream);
    end_use(s);
    return why;
}

/* The report is this thread's own. */
static const char *report_adds_up(shared_state *s, uint64_t size) {
    ductile_oom_report o = {.struct_size = sizeof o};
    count(&s->n_refused);
    NEED_OK(ductile_get_oom_report(s->t.f.allocator, &o));
    NEED(o.number > 0 && o.requested_bytes == size, "the report is about %llu bytes, not %llu",
         (unsigned long long)o.requested_bytes, (unsigned long long)size);
    NEED(o.held_bytes + o.spilled_bytes ==
             o.live_bytes + o.free_bytes + o.pending_bytes + o.cached_bytes + o.quarantined_bytes,
         "held is not the sum of its parts");
    NEED(ductile_oom_report_format(&o, DUCTILE_REPORT_TEXT, NULL, 0) > 200,
         "the report says little");
    return NULL;
}

/* Under stress sizes vary. */
static const char *request(test_thread *self, held *out) {
    shared_state *s = self->s;
    if (s->is_stress) {
        out->size = out->size - out->size / 2 + rng_below(&self->r, out->size);
    }
    ductile_status status = ductile_alloc(s->t.f.allocator, out->size, out->stream, &out->address);
    uint64_t wanted = out->size;
    if (status == DUCTILE_OK) {
        return take(self, out);
    }
    out->size = 0;
    if (status == DUCTILE_ERR_ASLEEP &&
        has_mark(s, out->is_in_plain ? PLAIN_SLEEPS : DEFAULT_SLEEPS)) {
        return NULL;
    }
    NEED(status == DUCTILE_ERR_OUT_OF_MEMORY && has_mark(s, STARVES), "alloc of %llu bytes: %s",
         (unsigned long long)wanted, ductile_status_name(status));
    return report_adds_up(s, wanted);
}

const char *make(test_thread *self, uint64_t size, ductile_stream stream, held *out) {
    *out = (held){.size = size, .stream = stream};
    return request(self, out);
}

const char *make_in_plain(test_thread *self, uint64_t size, ductile_stream stream, held *out) {
    ductile_allocator *a = self->s->t.f.allocator;
    *out = (held){.size = size, .stream = stream, .is_in_plain = true};
    NEED_OK(ductile_pool_begin(a, PLAIN_POOL, NULL, NULL));
    const char *why = request(self, out);
    NEED_OK(ductile_pool_end(a, PLAIN_POOL));
    NEED_OK(ductile_pool_release(a, PLAIN_POOL)); /* that of begin */
    return why;
}

const char *let_go(shared_state *s, const held *h) {
    scheduler_mute();
    size_t i = model_find(&s->live, h->address);
    bool is_known = i < s->live.n;
    if (is_known) {
        (void)model_remove(&s->live, i);
        ductile_virtual_block_end(s->t.f.gpu, h->address);
    }
    scheduler_unmute();
    NEED(is_known, "block %llx is not known", h->address);
    return NULL;
}

const char *give(test_thread *self, held *h) {
    shared_state *s = self->s;
    if (h->size == 0) {
        return NULL;
    }
    if (!s->is_stress || h->pattern % 4 == 0) { /* a look waits for the stream */
        TRY(verify_held(s, h));
    }
    TRY(let_go(s, h));
    h->size = 0;
    ductile_status status = ductile_free(s->t.f.allocator, h->address);
    NEED(status == DUCTILE_OK, "free: %s", ductile_status_name(status));
    return NULL;
}

const char *keep(test_thread *self, const held *h) {
    if (h->size != 0) {
        self->kept[self->n_kept++] = *h;
    }
    return NULL;
}

void exchange(shared_state *s, size_t place, held *h) {
    scheduler_mute();
    held there = s->left[place];
    s->left[place] = *h;
    *h = there;
    scheduler_unmute();
}

static const char *use_between(shared_state *s, held *h, ductile_stream stream) {
    NEED_OK(ductile_virtual_stream_wait(s->t.f.gpu, stream, h->stream));
    TRY(write_to(s, h, stream));
    NEED_OK(ductile_virtual_stream_wait(s->t.f.gpu, h->stream, stream));
    return NULL;
}

const char *use_on(shared_state *s, held *h, ductile_stream stream) {
    begin_use(s);
    const char *why = use_between(s, h, stream);
    end_use(s);
    return why;
}

const char *launch(shared_state *s, ductile_virtual_graph *graph, ductile_stream stream) {
    begin_use(s);
    bool may = s->n_dozing == 0 || !has_mark(s, DEFAULT_SLEEPS);
    ductile_status status = may ? ductile_virtual_graph_launch(graph, stream) : DUCTILE_OK;
    end_use(s);
    NEED_OK(status);
    return NULL;
}

const char *record_on(shared_state *s, held *h, ductile_stream stream) {
    TRY(use_on(s, h, stream));
    NEED_OK(ductile_record_stream(s->t.f.allocator, h->address, stream));
    return NULL;
}

/* ---- Before -------------------------------------------------------------------------------- */

static const char *leave_free(test_thread *self, uint64_t size, ductile_stream stream) {
    held h;
    TRY(make(self, size, stream, &h));
    return give(self, &h);
}

static const char *make_blocks_of(test_thread *self) {
    shared_state *s = self->s;
    TRY(make(self, SMALL, s->t.f.streams[0], &self->small));
    TRY(make(self, FIXTURE_GRANULE, s->t.f.streams[1], &self->large));
    for (unsigned i = 0; i < s->n_threads; i++) {
        TRY(record_on(s, &self->large, s->threads[i].own));
    }
    return NULL;
}

static const char *make_blocks(shared_state *s) {
    test_thread *first = &s->threads[0];
    for (unsigned i = 0; i < s->n_threads; i++) {
        NEED_OK(ductile_virtual_stream_create(s->t.f.gpu, &s->threads[i].own));
    }
    for (unsigned i = 0; i < s->n_threads; i++) {
        TRY(make_blocks_of(&s->threads[i]));
    }
    TRY(make(first, SMALL, s->t.f.streams[0], &s->twice));
    if (has_mark(s, IS_APART)) {
        TRY(make(first, SMALL, s->t.f.streams[N_COMMON], &s->apart));
    }
    for (unsigned i = 0; i < s->n_threads; i++) {
        test_thread *a = &s->threads[i];
        TRY(make_in_plain(a, SMALL, s->t.f.streams[0], &a->in_pool));
    }
    TRY(leave_free(first, 3 * FIXTURE_GRANULE, s->t.f.streams[0]));
    return leave_free(first, 2 * FIXTURE_GRANULE + SMALL, s->t.f.streams[1]);
}

const char *shared_prepare(shared_state *s, const fixture_setup *setup) {
    char conf[200];
    fixture_setup with = *setup;
    bool shares = has_mark(s, SHARES);
    bool is_more = shares && *setup->conf != '\0';
    (void)snprintf(conf, sizeof conf, "%s%s%s", setup->conf, is_more ? "," : "",
                   shares ? "shareable:fd" : "");
    with.conf = conf;
    with.n_streams = N_COMMON + has_mark(s, IS_APART);
    with.n_devices = has_mark(s, HAS_PEER) ? 2 : 1;
    s->announces = strstr(conf, ":announced") != NULL;
    s->life = 1;
    (void)pthread_rwlock_init(&s->use, NULL);
    model_init(&s->live);
    for (unsigned i = 0; i < s->n_threads; i++) {
        s->threads[i] = (test_thread){.s = s, .task = s->threads[i].task, .number = i};
    }
    TRY(shares ? two_ends_open(&s->t, &with, SOCK_STREAM) : fixture_open(&s->t.f, &with));
    NEED_OK(ductile_pool_retain(s->t.f.allocator, PLAIN_POOL));
    NEED_OK(ductile_pool_set_kind(s->t.f.allocator, PLAIN_POOL, DUCTILE_POOL_PLAIN));
    NEED_OK(ductile_elastic_open(s->t.f.allocator, (1 + 2 * MOST_THREADS) * FIXTURE_GRANULE,
                                 s->t.f.streams[0], NULL, &s->range));
    return NULL;
}

const char *shared_open(shared_state *s, const run_settings *m) {
    const fixture_setup setup = {
        .capacity_bytes = 40 * FIXTURE_GRANULE, .schedule = m->schedule, .lag = 3, .conf = m->conf};
    for (unsigned i = 0; i < s->n_threads; i++) {
        s->marks |= s->threads[i].task->marks;
    }
    TRY(shared_prepare(s, &setup));
    return make_blocks(s);
}

/* ---- During and after ---------------------------------------------------------------------- */

void shared_run_task(void *user, unsigned number) {
    shared_state *s = user;
    test_thread *self = &s->threads[number];
    const char *why = self->task->run(self);
    scheduler_mute();
    if (why != NULL && s->wrong[0] == '\0') {
        (void)snprintf(s->wrong, sizeof s->wrong, "thread %u, %s: %s", number + 1, self->task->name,
                       why);
    }
    scheduler_unmute();
}

/* Others may have blocks that were recorded on it. */
const char *end_stream_of(shared_state *s, ductile_stream *stream) {
    if (*stream != NULL) {
        NEED_OK(ductile_stream_done(s->t.f.allocator, *stream));
        NEED_OK(ductile_virtual_stream_destroy(s->t.f.gpu, *stream));
    }
    *stream = NULL;
    return NULL;
}

static const char *end_thread(test_thread *self) {
    shared_state *s = self->s;
    TRY(give(self, &self->small));
    TRY(give(self, &self->large));
    TRY(give(self, &self->in_pool));
    for (size_t i = 0; i < self->n_kept; i++) {
        TRY(give(self, &self->kept[i]));
    }
    if (self->own != NULL) {
        NEED_OK(ductile_virtual_stream_sync(s->t.f.gpu, self->own));
    }
    return end_stream_of(s, &self->own);
}

static const char *end_sharing(shared_state *s) {
    if (s->t.importer != NULL) {
        NEED_OK(ductile_destroy(s->t.importer));
        (void)close(s->t.out);
        (void)close(s->t.in);
    }
    return NULL;
}

static const char *any_has_spilled(const shared_state *s) {
    NEED(s->n_spillers == 0 || s->n_spilled > 0,
         "all were refused, though the host has memory enough for one");
    return NULL;
}

static const char *end_twice(shared_state *s) {
    NEED(s->n_freed_twice <= 1, "a block was freed %u times with success", s->n_freed_twice);
    return s->n_freed_twice == 0 ? give(&s->threads[0], &s->twice) : NULL;
}

/* Of the whole process: the next program would find it as well. */
static const char *no_capture_is_left(void) {
    bool is_open = dvmm_captures_hold(false);
    NEED(is_open, "a capture is taken to be under way that has ended");
    dvmm_captures_release(false);
    return NULL;
}

/* With nothing live and all work done, nothing is left. */
static const char *empty(shared_state *s) {
    ductile_allocator *a = s->t.f.allocator;
    TRY(fixture_sync_all(&s->t.f));
    NEED_OK(ductile_trim(a, NULL, 0, NULL));
    ductile_stats left = fixture_stats(a);
    NEED(left.reserved_bytes == 0 && left.live_blocks == 0,
         "%llu bytes stay reserved with nothing live", (unsigned long long)left.reserved_bytes);
    return audit_fixture(&s->t.f, &s->live);
}

const char *shared_close(shared_state *s) {
    NEED(s->wrong[0] == '\0', "%s", s->wrong);
    TRY(wake_what_was_refused(s));
    NEED(!s->is_asleep, "the pool cannot be woken");
    TRY(audit_allocator(s->t.f.allocator, has_mark(s, PLAIN_SLEEPS) ? NULL : &s->live));
    TRY(no_capture_is_left());
    TRY(any_has_spilled(s));
    TRY(end_twice(s));
    TRY(give(&s->threads[0], &s->apart));
    for (unsigned i = 0; i < s->n_threads; i++) {
        TRY(end_thread(&s->threads[i]));
    }
    TRY(end_sharing(s));
    NEED_OK(ductile_elastic_close(s->range));
    NEED_OK(ductile_pool_release(s->t.f.allocator, PLAIN_POOL));
    TRY(empty(s));
    model_fini(&s->live);
    return fixture_close(&s->t.f);
}
