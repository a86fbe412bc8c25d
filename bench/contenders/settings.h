/* SPDX-License-Identifier: Apache-2.0 */
/* --set key=value: options of Ductile, by the names that DUCTILE_CONF knows; planned.key=value: of
 * the contender `planned`. */
#ifndef DUCTILE_BENCH_CONTENDERS_SETTINGS_H
#define DUCTILE_BENCH_CONTENDERS_SETTINGS_H

#include <ductile.h>

#include <stdbool.h>
#include <stddef.h>

#define SETTINGS_OF_PLANNED "planned."

#define SETTINGS_PLANNED_TAKES "planned takes moves=1, handle_mib=1..999 and foresight=1"

typedef struct settings_planned {
    bool moves, foresight;
    unsigned handle_mib; /* 0: nothing was said */
} settings_planned;

bool settings_is_of_planned(const char *setting);
/* Those of planned. False: one of them is none that it takes. */
bool settings_read_planned(settings_planned *out, const char *const *settings, size_t n_settings);
/* Those of Ductile. False: message holds one line that names the key; options may be half changed.
 */
bool settings_apply(ductile_options *options, const char *const *settings, size_t n_settings,
                    char *message, size_t message_size);

#endif
