/* SPDX-License-Identifier: Apache-2.0 */
/* Callbacks that are asked for memory before a request is refused. */
#ifndef DUCTILE_POOL_PRESSURE_OOM_CALLBACKS_H
#define DUCTILE_POOL_PRESSURE_OOM_CALLBACKS_H

#include "pool/base/callback_list.h"

/* How far one request has come. Zero is the start. */
typedef struct dpool_oom_walk {
    dpool_callback_place at;
    unsigned n_asked; /* times that the callback there was asked; 0: it is not asked again */
} dpool_oom_walk;

/* Asks the callback of the walk once more, or the next ones, until one has given something back.
 * False when there is none left, or this thread is inside such a callback already. No lock held. */
bool dpool_oom_callbacks_ask(ductile_allocator *a, dpool_oom_walk *walk, uint64_t missing,
                             ductile_stream stream);

#endif
