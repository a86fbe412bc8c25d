/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The call stacks of a PyTorch snapshot: lists of dicts with name, filename and line, the innermost
 * first. Frames of compiled code are left out where the stack has frames of Python.
 *
 * Cost: linear in the input, though a file may name one list, or one text, many times: a list is
 * read once, at most FRAMES_MAX frames and FRAMES_MAX_TEXT bytes of each text are.
 */
#ifndef DUCTILE_BENCH_TRACE_FRAMES_H
#define DUCTILE_BENCH_TRACE_FRAMES_H

#include "bench/trace/pickle.h"
#include "bench/trace/trace_stacks.h"

enum { FRAMES_MAX = 64, FRAMES_MAX_TEXT = 240 };

/* All zero is ready to read. */
typedef struct frames_reader {
    hash_map known; /* from a list to its stack's number + 1 */
    char text[FRAMES_MAX * (2 * FRAMES_MAX_TEXT + 32)];
    size_t length;
} frames_reader;

/* frames: NULL, or anything else that is no list of frames, has the number 0. False: no host
 * memory. */
bool frames_read(frames_reader *r, const pickle_value *frames, trace_stacks *stacks,
                 uint32_t *number);
void frames_drop(frames_reader *r);

#endif
