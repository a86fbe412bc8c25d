/* SPDX-License-Identifier: Apache-2.0 */
/* A pool that is paused, graphs that are captured, and streams that end, each by a thread of its
 * own. */
#include "tests/stress/parts/stress_stage.h"

#include "tests/support/complain.h"

enum { N_CAPTURED = 6, MOST_CAPTURED_BYTES = 4 << 20 };

/* ---- Pausing ------------------------------------------------------------------------------- */

/* Others free blocks of the pool meanwhile, and ask it for some without success. */
static const char *resume(stage *s) {
    ductile_status status = DUCTILE_ERR_OUT_OF_MEMORY;
    while (status == DUCTILE_ERR_OUT_OF_MEMORY && !ending_is_over(&s->the_end)) {
        rest_a_moment();
        status = ductile_resume(allocator_of(s), PAUSED_POOL);
    }
    s->is_left_paused = status == DUCTILE_ERR_OUT_OF_MEMORY;
    NEED(status == DUCTILE_OK || s->is_left_paused, "resume: %s", ductile_status_name(status));
    return NULL;
}

static const char *pause_once(actor *self) {
    stage *s = self->s;
    bool keeps = rng_percent(&self->r, 60);
    ductile_status status = ductile_pause(allocator_of(s), PAUSED_POOL,
                                          keeps ? DUCTILE_CONTENTS_KEEP : DUCTILE_CONTENTS_DROP);
    if (status == DUCTILE_ERR_BUSY || status == DUCTILE_ERR_ASLEEP ||
        status == DUCTILE_ERR_CAPTURING) {
        atomic_fetch_add(&s->n_refused_pauses, 1);
        return NULL;
    }
    NEED(status == DUCTILE_OK, "pause: %s", ductile_status_name(status));
    s->life += !keeps;
    atomic_fetch_add(&s->n_pauses, 1);
    return resume(s);
}

const char *pause_and_resume(actor *self) {
    rest_a_moment();
    (void)pthread_rwlock_wrlock(&self->s->use);
    const char *why = pause_once(self);
    if (!self->s->is_left_paused) {
        (void)pthread_rwlock_unlock(&self->s->use);
    }
    return why;
}

/* ---- Capturing ----------------------------------------------------------------------------- */

static const char *record_graph(actor *self, ductile_virtual_graph **out) {
    stage *s = self->s;
    ductile_stream stream = s->t.f.streams[s->n_common];
    NEED_OK(ductile_virtual_capture_begin(s->t.f.gpu, stream, DUCTILE_CAPTURE_RELAXED));
    for (int i = 0; i < N_CAPTURED; i++) {
        held h = {.size = rng_between(&self->r, 1, MOST_CAPTURED_BYTES), .pattern = (uint8_t)i};
        ductile_status status = ductile_alloc(allocator_of(s), h.size, stream, &h.address);
        if (status == DUCTILE_OK) {
            TRY(fill_on(s, &h, stream));
            NEED_OK(ductile_free(allocator_of(s), h.address));
        }
        NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY, "alloc in capture: %s",
             ductile_status_name(status));
    }
    NEED_OK(ductile_virtual_capture_end(s->t.f.gpu, stream, out));
    return NULL;
}

const char *capture(actor *self) {
    stage *s = self->s;
    const ductile_pool_id pool = {1 + rng_below(&self->r, 1000000), 1};
    ductile_virtual_graph *graph = NULL;
    NEED_OK(ductile_pool_begin(allocator_of(s), pool, NULL, NULL));
    const char *why = record_graph(self, &graph);
    NEED_OK(ductile_pool_end(allocator_of(s), pool));
    for (int i = 0; i < 3 && why == NULL; i++) {
        ductile_stream stream = s->t.f.streams[rng_below(&self->r, s->n_common)];
        NEED_OK(ductile_virtual_graph_launch(graph, stream));
        rest_a_moment();
    }
    ductile_virtual_graph_destroy(graph);
    NEED_OK(ductile_pool_release(allocator_of(s), pool));
    atomic_fetch_add(&s->n_graphs, 1);
    return why;
}

/* ---- Streams that end ---------------------------------------------------------------------- */

static const char *use_on(stage *s, held *h, ductile_stream stream) {
    ductile_stream own = s->t.f.streams[h->stream];
    NEED_OK(ductile_virtual_stream_wait(s->t.f.gpu, stream, own));
    TRY(fill_on(s, h, stream));
    NEED_OK(ductile_record_stream(allocator_of(s), h->address, stream));
    NEED_OK(ductile_virtual_stream_wait(s->t.f.gpu, own, stream));
    return NULL;
}

static const char *leave_on(actor *self, ductile_stream stream, int i) {
    held *h = NULL;
    TRY(make(self, false, &h));
    if (h != NULL) {
        TRY(use_on(self->s, h, stream));
        h = atomic_exchange(&self->s->ending[i], h);
    }
    return h != NULL ? hand_on(self, h) : NULL;
}

/* Others free the blocks, and trim, while the stream is ended. */
const char *begin_and_end_stream(actor *self) {
    stage *s = self->s;
    ductile_stream stream = NULL;
    ductile_addr own = 0;
    bool is_theirs = s->theirs != NULL && rng_percent(&self->r, 50);
    NEED_OK(ductile_virtual_stream_create_on(s->t.f.gpu, is_theirs, &stream));
    if (!is_theirs && ductile_alloc(allocator_of(s), any_size(self), stream, &own) == DUCTILE_OK) {
        NEED_OK(ductile_free(allocator_of(s), own));
    }
    for (int i = 0; i < N_HANDED_ON; i++) {
        TRY(leave_on(self, stream, i));
    }
    NEED_OK(ductile_stream_done(allocator_of(s), stream));
    NEED_OK(ductile_virtual_stream_destroy(s->t.f.gpu, stream));
    atomic_fetch_add(&s->n_streams, 1);
    return NULL;
}
