/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns at something that serves one at a time, first come, first served, where its own lock may
 * let one thread keep others waiting. Who waits looks for a while, then sleeps in the kernel.
 *
 * Taken last of all: who has a turn makes one call, and takes no other lock of ours.
 */
#ifndef DUCTILE_VMM_BASE_TURNS_H
#define DUCTILE_VMM_BASE_TURNS_H

#include <stdatomic.h>
#include <stdint.h>

/* Zero is ready. */
typedef struct dti_turns {
    _Atomic uint32_t next;     /* the number of the thread that comes next   */
    _Atomic uint32_t serving;  /* whose turn it is                           */
    _Atomic uint32_t sleepers; /* threads that sleep, or are about to        */
} dti_turns;

/* Returns when all that came before have ended their turn. Not recursive. */
void dti_turn_take(dti_turns *t);
void dti_turn_end(dti_turns *t);

#endif
