/* SPDX-License-Identifier: Apache-2.0 */
/* --set key=value, or key:value: options of Ductile, as DUCTILE_CONF has them. */
#ifndef DUCTILE_BENCH_CONTENDERS_SETTINGS_H
#define DUCTILE_BENCH_CONTENDERS_SETTINGS_H

#include <ductile.h>

#include <stdbool.h>
#include <stddef.h>

/* False: message holds one line that names the key; options may be half changed. */
bool settings_apply(ductile_options *options, const char *const *settings, size_t n_settings,
                    char *message, size_t message_size);

#endif
