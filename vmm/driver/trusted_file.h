/* SPDX-License-Identifier: Apache-2.0 */
/* Whether code may be loaded from a file that was found, rather than named by the program. */
#ifndef DUCTILE_VMM_DRIVER_TRUSTED_FILE_H
#define DUCTILE_VMM_DRIVER_TRUSTED_FILE_H

#include <stdbool.h>
#include <sys/types.h>

/* Could every user who may put the file there, or exchange it, do that with the running code, too?
 * True when the file, its folder and, for a link, the folder of what it leads to belong to this
 * user, to root, or to `owner`, who owns the file that holds the running code, and not everyone may
 * write to them. A group may: where it writes to the folder, it could exchange that file, too. */
bool dvmm_is_trusted_file(const char *path, uid_t owner);

#endif
