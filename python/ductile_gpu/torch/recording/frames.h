/* SPDX-License-Identifier: Apache-2.0 */
/* This thread's Python frames, read as they lie in memory: no lock is waited for, no frame object
 * is made, and a frame costs a few nanoseconds. The interpreter's own functions make an object of
 * each frame, and want its lock.
 *
 * Only a thread itself changes its frames, and in a call from Python it does not: so it may read
 * them while others run. Where each field lies is known for each version of Python, and believed
 * only after it has agreed with the interpreter's functions on a whole stack. */
#ifndef DUCTILE_RECORDING_FRAMES_H
#define DUCTILE_RECORDING_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

/* Learns where the fields lie. False: frames of this Python cannot be read so; of one whose threads
 * have no lock in common they never can. Pre: this thread, whose state is given, has Python's lock.
 */
bool frames_learn(void *state);

/* Which code stands where, of at most `most` frames from the innermost on, as a number; 0: no
 * Python function is running. `state` is that of this thread. Pre: frames_learn has returned true.
 */
uint64_t frames_hash(void *state, int most);

/* Stirs a value into a hash. */
static inline uint64_t frames_mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 29);
}

#endif
