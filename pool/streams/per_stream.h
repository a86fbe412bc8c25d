/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses grouped by their streams. The marker with the highest number proves what the others of its
 * stream prove (U11), so one query or one wait suffices for a stream, however many blocks it is
 * recorded on.
 */
#ifndef DUCTILE_POOL_STREAMS_PER_STREAM_H
#define DUCTILE_POOL_STREAMS_PER_STREAM_H

#include "pool/blocks/use_store.h"

enum { DPOOL_MOST_STREAMS = 64 };

typedef struct dpool_per_stream {
    ductile_stream stream;
    uint64_t thread;
    bool is_gone;      /* kept apart from a later stream with the same handle */
    bool wants_marker; /* some use has no marker yet: a new one covers it */
    uint32_t n_undone; /* markers not known done                                                 */
    dvmm_marker *latest;
    uint64_t latest_number;
    uint64_t done_upto;   /* known: markers up to this number are done   */
    uint64_t undone_from; /* known: one is not, nor then those after it  */
} dpool_per_stream;

typedef struct dpool_stream_list {
    dpool_per_stream all[DPOOL_MOST_STREAMS];
    uint32_t n;
} dpool_stream_list;

static inline bool dpool_is_use_of(const dpool_per_stream *at, const dpool_use *use) {
    return at->stream == use->stream && at->thread == use->thread && at->is_gone == use->is_gone;
}

static inline dpool_per_stream dpool_stream_of_use(const dpool_use *use) {
    return (dpool_per_stream){.stream = use->stream,
                              .thread = use->thread,
                              .is_gone = use->is_gone,
                              .latest = use->marker,
                              .latest_number = use->number,
                              .undone_from = UINT64_MAX};
}

/* The stream of a use, added when it is new; NULL when there is no room. Entries do not move. */
dpool_per_stream *dpool_find_stream(dpool_stream_list *l, const dpool_use *use);

/* Holds the latest markers, for the caller to wait for. Index lock held. */
void dpool_hold_markers_locked(const ductile_allocator *a, const dpool_stream_list *l);

/* Records that the marker of the use is not known to be done. */
static inline void dpool_record_undone(dpool_per_stream *at, const dpool_use *use) {
    if (at->latest == NULL || use->number > at->latest_number) {
        at->latest = use->marker;
        at->latest_number = use->number;
    }
    at->n_undone++;
}

#endif
