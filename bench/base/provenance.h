/* SPDX-License-Identifier: Apache-2.0 */
/* What rows begin with, and where a result comes from: machine, driver, version, commit, command
 * line. */
#ifndef DUCTILE_BENCH_BASE_PROVENANCE_H
#define DUCTILE_BENCH_BASE_PROVENANCE_H

#include "bench/base/device.h"
#include "vmm/base/json.h"

#include <stdio.h>

/* Remembers the command line as the user wrote it. Pre: argv lives as long as the program. */
void provenance_set_command(int argc, char **argv);

/* A few lines above a table. */
void provenance_print_heading(FILE *out, const bench_device *device);

/* Begins a line of --json, an object: the number of its format comes first. The number is raised
 * where a member changes its meaning; python/ductile_gpu/commands.schema.json names the members. */
dti_json provenance_begin_row(FILE *out);

/* Members of the object that is open: device, driver, version, commit, command; conf when
 * DUCTILE_CONF is set, since it changes what Ductile does. */
void provenance_json(dti_json *j, const bench_device *device);

#endif
