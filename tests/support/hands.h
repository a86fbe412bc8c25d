/* SPDX-License-Identifier: Apache-2.0 */
/* One GPU's hands on memory that two of them reach. Functions return NULL or a complaint. */
#ifndef TESTS_SUPPORT_HANDS_H
#define TESTS_SUPPORT_HANDS_H

#include "tests/support/painter.h"

typedef struct hands {
    int device;
    dvmm_driver *driver;
    painter painter;
    ductile_stream stream;
    dvmm_event event; /* recorded where the other one is to go on */
} hands;

/* `device` and `driver` are the caller's. gpu: on a virtual GPU, whose machine has the device; NULL
 * on CUDA. */
const char *hands_open(hands *h, ductile_virtual_gpu *gpu);
const char *hands_close(hands *h);

/* What `to` does from now on comes after what `from` has done. */
const char *let_go_on(const hands *from, const hands *to);

/* The peer's own memory; on a virtual GPU, whose other devices have none, memory that both reach.
 */
const char *far_open(const hands *owner, const hands *peer, uint64_t size, ductile_addr *out);
const char *far_close(const hands *owner, const hands *peer, uint64_t size, ductile_addr far);

/* ---- Work that is late --------------------------------------------------------------------- */

/* Of a stream of the second GPU, recorded on a block of the first one's memory that is to go. */
typedef struct late_work {
    hands *owner;
    hands *peer;
    uint64_t id;     /* of the next pattern                                       */
    uint64_t n_late; /* times that the work was not done when the memory was to go */
} late_work;

/* A pool is paused while the peer has yet to write to a block of it. Afterwards that is done, and
 * what it wrote is there when the contents were kept. */
const char *late_before_pause(late_work *l, ductile_allocator *a, ductile_contents contents);

/* The allocator is destroyed meanwhile; with `is_freed` the block was freed before. */
const char *late_before_destroy(late_work *l, ductile_allocator *a, bool is_freed);

#endif
