/* SPDX-License-Identifier: Apache-2.0 */
/* The callbacks that are called for memory before a request is refused. */
#ifndef DUCTILE_POOL_PRESSURE_OOM_CALLBACKS_H
#define DUCTILE_POOL_PRESSURE_OOM_CALLBACKS_H

#include "pool/base/callback_list.h"

/* The progress of one request through the callbacks. Zero is the start. */
typedef struct dpool_oom_walk {
    dpool_callback_place at;
    unsigned n_asked; /* calls of that callback; 0: it is not called again */
} dpool_oom_walk;

/* Calls the current callback again, or the next ones, until one has released something. False when
 * none is left, or when this thread is inside such a callback already. No lock held. */
bool dpool_oom_callbacks_ask(ductile_allocator *a, dpool_oom_walk *walk, uint64_t missing,
                             ductile_stream stream);

#endif
