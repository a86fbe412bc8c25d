/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocator under test beside its model: the verbs of a user, each of which does the call,
 * holds the answer against the model and complains. Contents mode fills every block with a byte of
 * its own, in stream order, and reads it back: two blocks that share memory cannot both have
 * theirs, whichever of them the device serves last.
 */
#ifndef TESTS_SUPPORT_WORLD_H
#define TESTS_SUPPORT_WORLD_H

#include "tests/support/fixture_virtual.h"
#include "tests/support/model.h"

#include <stdbool.h>

/* Owner: one test, one thread. */
typedef struct world {
    fixture f;
    model m;
    uint64_t limit_bytes;    /* physical memory the allocator may hold: device, others, cap */
    uint64_t cap_bytes;      /* the allocator's own; 0: none                               */
    uint64_t external_bytes; /* what another process holds                                 */
    bool has_contents;       /* fill and verify                                            */
    bool expects_faults;     /* any status may come; what must not change is still checked */
    uint64_t reserved_bytes; /* at the latest audit */
    bool may_refuse;         /* out of memory is believed, not recounted                 */
    uint64_t handle_bytes;   /* the largest handle; 0: one granule                       */
    ductile_status status;   /* of the latest call                                         */
    uint8_t next_pattern;
    const char *(*mend)(struct world *w); /* runs once a fault is gone; NULL: nothing */
} world;

const char *world_open(world *w, const fixture_setup *setup, bool has_contents);

/* To be called before a world's allocator is destroyed by hand: blocks that are left end with it.
 */
void world_end_blocks(world *w);

/* Closes and passes the leak gate; live blocks may be left. */
const char *world_close(world *w);

/* Allocates. Complains about an address that is not admissible and about running out of memory
 * while enough whole granules hold no live byte. The status is in w->status, the block in the
 * model. */
const char *world_alloc(world *w, uint64_t size, size_t stream);

/* The same with a dedicated block. */
const char *world_alloc_dedicated(world *w, uint64_t size, size_t stream);

/* The same as world_alloc, and complains when it does not succeed. */
const char *world_must_alloc(world *w, uint64_t size, size_t stream);

/* Frees the block at index i of the model. */
const char *world_free(world *w, size_t i);
const char *world_free_on(world *w, size_t i, size_t stream);
const char *world_free_all(world *w);

/* Work on another stream that uses the block: ordered after the block's own, then recorded. */
const char *world_use_on(world *w, size_t i, size_t stream);

const char *world_trim(world *w, uint64_t keep_bytes);

/* The block still has its contents, as seen by its own stream. Waits for that stream. */
const char *world_verify(world *w, size_t i);

/* Waits for every stream and verifies every block. */
const char *world_verify_all(world *w);

/* audit_fixture, and that the limit is kept. */
const char *world_audit(world *w);

/* Sets the allocator's cap; 0 removes it. */
const char *world_set_limit(world *w, uint64_t limit);

/* Another process takes memory of the device or gives it back, so that it holds `bytes`: as many
 * as the device has left, at most. */
const char *world_set_external(world *w, uint64_t bytes);

#endif
