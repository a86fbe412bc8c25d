/* SPDX-License-Identifier: Apache-2.0 */
/* Whether code may be loaded from a file that was found, rather than named by the program. */
#ifndef DUCTILE_VMM_DRIVER_TRUSTED_FILE_H
#define DUCTILE_VMM_DRIVER_TRUSTED_FILE_H

#include <stdbool.h>

/* Can no other user have put the file there, or exchange it? True when the file, its folder and,
 * for a link, the folder of what it leads to belong to this user or root, and are writable by none
 * but their owner. */
bool dvmm_is_trusted_file(const char *path);

#endif
