/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A registration cache as a library would keep it: a table of what map callbacks have told, and
 * nothing else. It complains at once of what no order of events may bring: memory that comes where
 * some is, that goes where none is, a handle at two addresses, an address that is not open when it
 * is announced or not mapped any more when it leaves.
 */
#ifndef TESTS_SUPPORT_SHADOW_H
#define TESTS_SUPPORT_SHADOW_H

#include <ductile_share.h>
#include <ductile_virtual.h>

#include <pthread.h>

enum { SHADOW_SLOTS = 1 << 14 };

typedef struct shadow_entry {
    ductile_addr address; /* 0: none */
    uint64_t size;
    uint64_t handle;
} shadow_entry;

typedef struct shadow {
    ductile_virtual_gpu *gpu;
    pthread_mutex_t lock;
    shadow_entry entries[SHADOW_SLOTS]; /* in no order */
    size_t n;
    uint64_t n_mapped; /* events */
    uint64_t n_left;
    char complaint[256]; /* the first; empty: none */
    uint64_t id;         /* of the callback */
    /* Called in every event, without the lock; NULL: nothing. */
    void (*beside)(void *user, ductile_allocator *a, const ductile_map_event *event);
    void *user;
} shadow;

/* Begins to listen. `s` is all zeros but for beside and user. */
const char *shadow_open(shadow *s, ductile_allocator *a, ductile_virtual_gpu *gpu);

/* NULL when every byte of the span was announced. */
const char *shadow_covers(shadow *s, ductile_addr address, uint64_t size);

/* No call is under way: the table is what the allocator's segments and the device hold. */
const char *shadow_is_true(shadow *s, ductile_allocator *a);

/* The same of the segments alone: after failures the device may hold what is not used. */
const char *shadow_matches_segments(shadow *s, ductile_allocator *a);

/* What was complained of so far. */
const char *shadow_complaint(shadow *s);

#endif
