/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rows need and the seam has no call for: host functions, graphs that are launched, blocking
 * streams, other contexts of the device. On hardware these are calls of the driver library itself,
 * on the virtual GPU its own equal, where it has one.
 */
#ifndef TESTS_CONFORMANCE_LAB_OUTSIDE_H
#define TESTS_CONFORMANCE_LAB_OUTSIDE_H

#include "tests/conformance/conformance_lab.h"

/* Later work of the stream waits for a host function, which ends once *word is 1. The virtual GPU
 * has no host functions: there the stream waits for the word. */
void hold_by_host_function(lab *l, ductile_stream stream, uint64_t *word);

/* A stream that the legacy default stream waits for, and that waits for it. */
ductile_stream new_blocking_stream(lab *l);

/* A graph that can be launched. */
void *end_capture_as_graph(lab *l, ductile_stream stream);
void launch_graph(lab *l, void *graph, ductile_stream stream);
void destroy_graph(lab *l, void *graph);

elsewhere open_elsewhere(lab *l, bool is_green);
/* Pre: its stream is done. */
void close_elsewhere(lab *l, const elsewhere *e);
void hold_elsewhere(lab *l, const elsewhere *e, uint64_t *word);
void begin_capture_elsewhere(lab *l, const elsewhere *e);
/* The code of the end. */
int end_capture_elsewhere(lab *l, const elsewhere *e);
/* Which context its stream says that it is of: "primary", "own", or "!CODE". */
const char *context_word(lab *l, const elsewhere *e);

#endif
