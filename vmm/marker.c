/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/marker.h"

#include "vmm/captures.h"

#include <stdlib.h>

void dvmm_markers_init(dvmm_marker_pool *pool, dvmm_driver *driver) {
    *pool = (dvmm_marker_pool){.driver = driver};
    dti_lock_init(&pool->lock, DTI_RANK_LEAF);
}

static dvmm_marker *pop_idle(dvmm_marker_pool *pool) {
    dti_lock_acquire(&pool->lock);
    dvmm_marker *m = pool->idle;
    if (m != NULL) {
        pool->idle = m->next;
    }
    dti_lock_release(&pool->lock);
    return m;
}

static void push_idle(dvmm_marker_pool *pool, dvmm_marker *m) {
    dti_lock_acquire(&pool->lock);
    m->next = pool->idle;
    pool->idle = m;
    dti_lock_release(&pool->lock);
}

ductile_status dvmm_markers_fini(dvmm_marker_pool *pool) {
    ductile_status first = DUCTILE_OK;
    dvmm_marker *m;
    while ((m = pop_idle(pool)) != NULL) {
        first = dti_first_error(first, dvmm_event_destroy(pool->driver, m->event));
        free(m);
    }
    return first;
}

static ductile_status new_marker(dvmm_marker_pool *pool, dvmm_marker **out) {
    dvmm_marker *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = dvmm_event_create(pool->driver, &m->event);
    if (status != DUCTILE_OK) {
        free(m);
        return status;
    }
    *out = m;
    return DUCTILE_OK;
}

static ductile_status take_marker(dvmm_marker_pool *pool, dvmm_marker **out) {
    *out = pop_idle(pool);
    return *out != NULL ? DUCTILE_OK : new_marker(pool, out);
}

/* Another thread may have begun a capture on the stream between the question and the record. Then
 * the event belongs to the graph: a query of it would break the capture, a new record does not. */
static bool met_capture(const dvmm_marker_pool *pool, ductile_stream stream) {
    return atomic_load_explicit(&pool->expects_captures, memory_order_acquire) &&
           dvmm_is_capturing(pool->driver, stream);
}

/* Hands out a marker that was recorded, or takes back one that was not. */
static ductile_status give_out(dvmm_marker_pool *pool, dvmm_marker *m, bool is_of_context,
                               ductile_status recorded, dvmm_marker **out) {
    if (recorded != DUCTILE_OK) {
        push_idle(pool, m);
        return recorded;
    }
    atomic_store_explicit(&m->refs, 1, memory_order_relaxed);
    atomic_store_explicit(&m->done, false, memory_order_relaxed);
    m->is_of_context = is_of_context;
    *out = m;
    return DUCTILE_OK;
}

ductile_status dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                  dvmm_marker **out) {
    dvmm_marker *m = NULL;
    *out = NULL;
    if (dvmm_is_capturing(pool->driver, stream)) {
        return DUCTILE_ERR_CAPTURING;
    }
    DTI_TRY(take_marker(pool, &m));
    ductile_status status = dvmm_event_record(pool->driver, m->event, stream);
    if (status == DUCTILE_OK && met_capture(pool, stream)) {
        status = DUCTILE_ERR_CAPTURING;
    }
    return give_out(pool, m, false, status, out);
}

ductile_status dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out) {
    dvmm_marker *m = NULL;
    *out = NULL;
    ductile_status status = take_marker(pool, &m);
    return status != DUCTILE_OK
               ? status
               : give_out(pool, m, true, dvmm_context_record(pool->driver, m->event), out);
}

/* Refused inside a capture: not known, never "done". */
static ductile_status learn_from(dvmm_marker *m, ductile_status answer) {
    if (answer == DUCTILE_OK) {
        atomic_store_explicit(&m->done, true, memory_order_release);
    }
    return answer == DUCTILE_ERR_CAPTURING ? DUCTILE_ERR_NOT_READY : answer;
}

ductile_status dvmm_marker_query(dvmm_marker_pool *pool, dvmm_marker *m) {
    return dvmm_marker_is_done(m) ? DUCTILE_OK
                                  : learn_from(m, dvmm_event_query(pool->driver, m->event));
}

ductile_status dvmm_marker_wait(dvmm_marker_pool *pool, dvmm_marker *m) {
    if (dvmm_marker_is_done(m)) {
        return DUCTILE_OK;
    }
    ductile_status status = dvmm_event_sync(pool->driver, m->event);
    if (status == DUCTILE_OK) {
        atomic_store_explicit(&m->done, true, memory_order_release);
    }
    return status;
}

ductile_status dvmm_marker_wait_on(dvmm_marker_pool *pool, ductile_stream stream, dvmm_marker *m) {
    if (dvmm_marker_query(pool, m) == DUCTILE_OK) {
        return DUCTILE_OK;
    }
    if (dvmm_is_capturing(pool->driver, stream)) {
        return DUCTILE_ERR_CAPTURING;
    }
    return dvmm_stream_wait_event(pool->driver, stream, m->event);
}

ductile_status dvmm_markers_wait_all(dvmm_marker_pool *pool) {
    return dvmm_context_sync(pool->driver);
}

void dvmm_marker_hold(dvmm_marker *m) {
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
}

void dvmm_marker_drop(dvmm_marker_pool *pool, dvmm_marker *m) {
    if (m != NULL && atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) == 1) {
        push_idle(pool, m);
    }
}

bool dvmm_markers_cover(const dvmm_marker_pool *pool, ductile_stream stream) {
    return dvmm_stream_is_ours(pool->driver, stream);
}
