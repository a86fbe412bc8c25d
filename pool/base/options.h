/* SPDX-License-Identifier: Apache-2.0 */
/* Options: one table of keys for defaults, text in and text out. */
#ifndef DUCTILE_POOL_BASE_OPTIONS_H
#define DUCTILE_POOL_BASE_OPTIONS_H

#include <ductile.h>

#include <stdbool.h>

/* Copies what the caller set over the defaults, applies DUCTILE_CONF, checks every value.
 * ERR_INVALID_ARGUMENT or ERR_UNSUPPORTED, with one line in message. */
ductile_status dpool_options_resolve(const ductile_options *given, ductile_options *out,
                                     char *message, size_t message_size);

/* Behind a refusal of options that were read: what DUCTILE_CONF had among them, if it is set and
 * the line does not name it. */
void dpool_name_environment(char *message, size_t message_size);

/* Is a limit a DUCTILE_SHARE, and of how much? */
bool dpool_is_share(uint64_t limit);
double dpool_share_of(uint64_t limit);

/* False for a share of nothing, or above 1. */
bool dpool_is_limit(uint64_t limit);

#endif
