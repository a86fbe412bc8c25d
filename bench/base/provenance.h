/* SPDX-License-Identifier: Apache-2.0 */
/* Where a result comes from: machine, driver, version, commit, command line. */
#ifndef DUCTILE_BENCH_BASE_PROVENANCE_H
#define DUCTILE_BENCH_BASE_PROVENANCE_H

#include "bench/base/device.h"
#include "vmm/base/json.h"

#include <stdio.h>

/* Remembers the command line as the user wrote it. Pre: argv lives as long as the program. */
void provenance_set_command(int argc, char **argv);

/* A few lines above a table. */
void provenance_print_heading(FILE *out, const bench_device *device);

/* Members of the object that is open: device, driver, version, commit, command; conf when
 * DUCTILE_CONF is set, since it changes what Ductile does. */
void provenance_json(dti_json *j, const bench_device *device);

#endif
