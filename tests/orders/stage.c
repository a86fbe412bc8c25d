/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/orders/stage.h"

#include "tests/support/audit.h"
#include "vmm/capture_gate.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SAMPLE = 64 };

bool has_mark(const stage *s, unsigned mark) {
    return (s->marks & mark) != 0;
}

/* ---- Blocks -------------------------------------------------------------------------------- */

static const char *write_to(const stage *s, const held *h, ductile_stream stream) {
    scheduler_mute();
    ductile_status status = ductile_virtual_fill(s->f.gpu, h->address, h->pattern, SAMPLE, stream);
    scheduler_unmute();
    NEED_OK(status);
    return NULL;
}

/* A copy to the host would break the capture of another thread. */
static const char *verify(const stage *s, const held *h) {
    uint8_t bytes[SAMPLE];
    scheduler_mute();
    bool may_copy = s->n_captures == 0;
    ductile_status status =
        may_copy ? ductile_virtual_read_back(s->f.gpu, bytes, h->address, sizeof bytes, h->stream)
                 : DUCTILE_OK;
    scheduler_unmute();
    NEED_OK(status);
    NEED(!may_copy || (bytes[0] == h->pattern && bytes[SAMPLE - 1] == h->pattern),
         "block %llx has lost its contents", h->address);
    return NULL;
}

/* The device takes it for a mistake that the memory of a live block goes. */
static bool is_hidden(const actor *self, const held *h) {
    return h == &self->in_pool && has_mark(self->s, PAUSES);
}

const char *take(actor *self, held *h) {
    static uint8_t next_pattern;
    model_block block = {
        .address = h->address, .requested = h->size, .size = model_rounded(h->size)};
    scheduler_mute();
    h->pattern = ++next_pattern;
    const char *why = model_add(&self->s->live, &block);
    scheduler_unmute();
    TRY(why);
    if (is_hidden(self, h)) {
        return NULL;
    }
    scheduler_mute();
    ductile_virtual_block_begin(self->s->f.gpu, h->address, h->size);
    scheduler_unmute();
    return write_to(self->s, h, h->stream);
}

const char *make(actor *self, uint64_t size, ductile_stream stream, held *out) {
    *out = (held){.size = size, .stream = stream};
    ductile_status status = ductile_alloc(self->s->f.allocator, size, stream, &out->address);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && has_mark(self->s, STARVES)) {
        out->size = 0;
        return NULL;
    }
    NEED(status == DUCTILE_OK, "alloc of %llu bytes: %s", (unsigned long long)size,
         ductile_status_name(status));
    return take(self, out);
}

const char *let_go(stage *s, const held *h) {
    scheduler_mute();
    size_t i = model_find(&s->live, h->address);
    bool is_known = i < s->live.n;
    if (is_known) {
        (void)model_remove(&s->live, i);
        ductile_virtual_block_end(s->f.gpu, h->address);
    }
    scheduler_unmute();
    NEED(is_known, "block %llx is not known", h->address);
    return NULL;
}

const char *give(actor *self, held *h) {
    stage *s = self->s;
    if (h->size == 0) {
        return NULL;
    }
    if (!is_hidden(self, h)) {
        TRY(verify(s, h));
    }
    TRY(let_go(s, h));
    h->size = 0;
    ductile_status status = ductile_free(s->f.allocator, h->address);
    NEED(status == DUCTILE_OK, "free: %s", ductile_status_name(status));
    return NULL;
}

const char *keep(actor *self, const held *h) {
    if (h->size != 0) {
        self->kept[self->n_kept++] = *h;
    }
    return NULL;
}

const char *use_on(stage *s, const held *h, ductile_stream stream) {
    scheduler_mute();
    ductile_status before = ductile_virtual_stream_wait(s->f.gpu, stream, h->stream);
    const char *why = write_to(s, h, stream);
    ductile_status behind = ductile_virtual_stream_wait(s->f.gpu, h->stream, stream);
    scheduler_unmute();
    NEED_OK(before);
    NEED_OK(behind);
    return why;
}

/* ---- Before -------------------------------------------------------------------------------- */

static const char *share_both_ways(stage *s, const fixture_setup *setup) {
    const struct timeval limit = {.tv_sec = 300};
    TRY(fixture_add_allocator(&s->f, setup, &s->importer));
    NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s->sockets) == 0, "no sockets");
    for (int i = 0; i < 2; i++) {
        (void)setsockopt(s->sockets[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        (void)setsockopt(s->sockets[i], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    }
    return NULL;
}

static const char *leave_free(actor *self, uint64_t size, ductile_stream stream) {
    held h;
    TRY(make(self, size, stream, &h));
    return give(self, &h);
}

static const char *fill_pool(stage *s) {
    ductile_allocator *a = s->f.allocator;
    NEED_OK(ductile_pool_retain(a, PLAIN_POOL));
    NEED_OK(ductile_pool_set_kind(a, PLAIN_POOL, DUCTILE_POOL_PLAIN));
    NEED_OK(ductile_pool_begin(a, PLAIN_POOL, NULL, NULL));
    for (unsigned i = 0; i < s->n_actors; i++) {
        TRY(make(&s->actors[i], SMALL, s->f.streams[0], &s->actors[i].in_pool));
    }
    NEED_OK(ductile_pool_end(a, PLAIN_POOL));
    NEED_OK(ductile_pool_release(a, PLAIN_POOL)); /* that of begin */
    return NULL;
}

static const char *give_actor(actor *self) {
    stage *s = self->s;
    TRY(make(self, SMALL, s->f.streams[0], &self->small));
    TRY(make(self, FIXTURE_GRANULE, s->f.streams[1], &self->large));
    for (unsigned i = 0; i < s->n_actors; i++) {
        TRY(use_on(s, &self->large, s->actors[i].own));
        NEED_OK(ductile_record_stream(s->f.allocator, self->large.address, s->actors[i].own));
    }
    return NULL;
}

static const char *furnish(stage *s) {
    actor *first = &s->actors[0];
    for (unsigned i = 0; i < s->n_actors; i++) {
        NEED_OK(ductile_virtual_stream_create(s->f.gpu, &s->actors[i].own));
    }
    for (unsigned i = 0; i < s->n_actors; i++) {
        TRY(give_actor(&s->actors[i]));
    }
    TRY(make(first, SMALL, s->f.streams[0], &s->twice));
    if (has_mark(s, IS_APART)) {
        TRY(make(first, SMALL, s->f.streams[N_COMMON], &s->apart));
    }
    TRY(fill_pool(s));
    TRY(leave_free(first, 3 * FIXTURE_GRANULE, s->f.streams[0]));
    return leave_free(first, 2 * FIXTURE_GRANULE + SMALL, s->f.streams[1]);
}

const char *stage_open(stage *s, const manner *m) {
    char conf[200];
    const unsigned n = s->n_actors;
    for (unsigned i = 0; i < n; i++) {
        actor *a = &s->actors[i];
        *a = (actor){.s = s, .act = a->act, .number = i};
        s->marks |= a->act->marks;
    }
    bool is_more = has_mark(s, SHARES) && *m->conf != '\0';
    (void)snprintf(conf, sizeof conf, "%s%s%s", m->conf, is_more ? "," : "",
                   has_mark(s, SHARES) ? "shareable:fd" : "");
    fixture_setup setup = {.capacity_bytes = 40 * FIXTURE_GRANULE,
                           .n_streams = N_COMMON + has_mark(s, IS_APART),
                           .schedule = m->schedule,
                           .lag = 3,
                           .n_devices = has_mark(s, HAS_PEER) ? 2 : 1,
                           .conf = conf};
    s->announces = strstr(m->conf, ":announced") != NULL;
    model_init(&s->live);
    TRY(fixture_open(&s->f, &setup));
    if (has_mark(s, SHARES)) {
        TRY(share_both_ways(s, &setup));
    }
    return furnish(s);
}

/* ---- During and after ---------------------------------------------------------------------- */

void stage_play(void *user, unsigned number) {
    stage *s = user;
    actor *self = &s->actors[number];
    const char *why = self->act->play(self);
    scheduler_mute();
    if (why != NULL && s->wrong[0] == '\0') {
        (void)snprintf(s->wrong, sizeof s->wrong, "thread %u, %s: %s", number + 1, self->act->name,
                       why);
    }
    scheduler_unmute();
}

static const char *end_actor(actor *self) {
    stage *s = self->s;
    TRY(give(self, &self->small));
    TRY(give(self, &self->large));
    TRY(give(self, &self->in_pool));
    for (size_t i = 0; i < self->n_kept; i++) {
        TRY(give(self, &self->kept[i]));
    }
    if (self->own != NULL) {
        NEED_OK(ductile_virtual_stream_sync(s->f.gpu, self->own));
        NEED_OK(ductile_stream_done(s->f.allocator, self->own));
        NEED_OK(ductile_virtual_stream_destroy(s->f.gpu, self->own));
    }
    return NULL;
}

static const char *end_sharing(stage *s) {
    if (s->importer != NULL) {
        NEED_OK(ductile_destroy(s->importer));
        (void)close(s->sockets[0]);
        (void)close(s->sockets[1]);
    }
    return NULL;
}

static const char *end_twice(stage *s) {
    NEED(s->n_freed_twice <= 1, "a block was freed %u times with success", s->n_freed_twice);
    return s->n_freed_twice == 0 ? give(&s->actors[0], &s->twice) : NULL;
}

/* Of the whole process: the next program would find it as well. */
static const char *no_capture_is_left(void) {
    bool is_open = dvmm_captures_hold(false);
    NEED(is_open, "a capture is taken to be under way that has ended");
    dvmm_captures_release(false);
    return NULL;
}

/* With nothing live and all work done, nothing is left. */
static const char *empty(stage *s) {
    ductile_allocator *a = s->f.allocator;
    TRY(fixture_sync_all(&s->f));
    NEED_OK(ductile_empty_cache(a));
    ductile_stats left = fixture_stats(a);
    NEED(left.reserved_bytes == 0 && left.live_blocks == 0,
         "%llu bytes stay reserved with nothing live", (unsigned long long)left.reserved_bytes);
    return audit_fixture(&s->f, &s->live);
}

const char *stage_close(stage *s) {
    NEED(s->wrong[0] == '\0', "%s", s->wrong);
    if (s->is_paused) {
        s->is_paused = false;
        TRY(resume_pool(s));
        NEED(!s->is_paused, "the pool cannot be resumed");
    }
    TRY(audit_allocator(s->f.allocator, has_mark(s, PAUSES) ? NULL : &s->live));
    TRY(no_capture_is_left());
    TRY(end_twice(s));
    TRY(give(&s->actors[0], &s->apart));
    for (unsigned i = 0; i < s->n_actors; i++) {
        TRY(end_actor(&s->actors[i]));
    }
    TRY(end_sharing(s));
    NEED_OK(ductile_pool_release(s->f.allocator, PLAIN_POOL));
    TRY(empty(s));
    model_fini(&s->live);
    return fixture_close(&s->f);
}
