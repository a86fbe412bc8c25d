/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Markers: proof of progress of a stream, or of all streams of the context. A marker is an event
 * recorded there, with a count of its references: it is never recorded again while there is one
 * (U4). Events of one device and context are pooled, because creating them under load is slow.
 *
 * Threads: safe. Every call may make a driver call, so no index lock may be held, except for
 * dvmm_marker_hold and dvmm_marker_drop, which make none.
 */
#ifndef DUCTILE_VMM_MARKER_H
#define DUCTILE_VMM_MARKER_H

#include "vmm/base/lock.h"
#include "vmm/driver/driver.h"

typedef struct dvmm_marker {
    dvmm_event event;
    _Atomic uint32_t refs;
    _Atomic bool done;        /* known complete: no further query is made */
    bool is_of_context;       /* behind all streams of the context; else behind one */
    struct dvmm_marker *next; /* idle: the pool's list */
} dvmm_marker;

typedef struct dvmm_marker_pool {
    dvmm_driver *driver;           /* constant */
    _Atomic bool expects_captures; /* set before a capture may begin beside a record */
    dti_lock lock;                 /* guards the rest */
    dvmm_marker *idle;
} dvmm_marker_pool;

void dvmm_markers_init(dvmm_marker_pool *pool, dvmm_driver *driver);

/* Destroys idle events; returns the first error. Markers that still have references are the
 * caller's mistake and leak. */
ductile_status dvmm_markers_fini(dvmm_marker_pool *pool);

/*
 * Records a marker on the stream; the caller holds one reference.
 * ERR_CAPTURING when the stream is being captured: the event would belong to the graph and never
 * prove anything (U6). On failure *out is NULL, which never means "done" (U1).
 */
ductile_status dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream, dvmm_marker **out);

/*
 * Records a marker behind all work of the context: of every stream, known to the caller or not; the
 * caller holds one reference. No stream is asked whether it is captured, since none has to be
 * known. ERR_CAPTURING when one is, in any mode: then all captures of the context are invalidated.
 * ERR_UNSUPPORTED where dvmm_has_context_events says no. On failure *out is NULL, which never means
 * "done" (U1). Pre: no capture is known to be under way.
 */
ductile_status dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out);

/* DUCTILE_OK when the work before the marker has completed; ERR_NOT_READY when it has not, or when
 * that is not known. */
ductile_status dvmm_marker_query(dvmm_marker_pool *pool, dvmm_marker *marker);

/* Waits on the host for the work before the marker. */
ductile_status dvmm_marker_wait(dvmm_marker_pool *pool, dvmm_marker *marker);

/*
 * Makes later work of the stream wait for the work of the marker; no call is made when that is
 * known to be done. Pre: inside a call that names this stream (U7). ERR_CAPTURING when the stream
 * is being captured: its graph cannot wait for work outside of it.
 */
ductile_status dvmm_marker_wait_on(dvmm_marker_pool *pool, ductile_stream stream,
                                   dvmm_marker *marker);

/* Waits on the host for all work of the device. Pre: no capture is known to be under way. */
ductile_status dvmm_markers_wait_all(dvmm_marker_pool *pool);

/* Is the marker known to be done? Makes no driver call. */
static inline bool dvmm_marker_is_done(const dvmm_marker *marker) {
    return atomic_load_explicit(&marker->done, memory_order_acquire);
}

void dvmm_marker_hold(dvmm_marker *marker);

/* Drops a reference; the last one makes the marker idle. Makes no driver call.
 * NULL: does nothing. */
void dvmm_marker_drop(dvmm_marker_pool *pool, dvmm_marker *marker);

/* Does a marker of the context cover the work of the stream? False when the driver cannot tell. */
bool dvmm_markers_cover(const dvmm_marker_pool *pool, ductile_stream stream);

#endif
