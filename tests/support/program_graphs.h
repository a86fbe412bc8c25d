/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of the programs in tests/gpu. Functions return NULL or a complaint. */
#ifndef TESTS_SUPPORT_PROGRAM_GRAPHS_H
#define TESTS_SUPPORT_PROGRAM_GRAPHS_H

#include "tests/support/program_device.h"

/* A capture that ends in a graph, which is launched and destroyed. */
const char *program_graph(const program_device *p, ductile_stream captured, void **graph);
const char *program_launch(const program_device *p, void *graph, ductile_stream stream);
const char *program_drop_graph(const program_device *p, void *graph);

#endif
