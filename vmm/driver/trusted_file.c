/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/driver/trusted_file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_trusted(const char *path, uid_t owner) {
    struct stat found;
    return stat(path, &found) == 0 &&
           (found.st_uid == geteuid() || found.st_uid == 0 || found.st_uid == owner) &&
           (found.st_mode & S_IWOTH) == 0;
}

static bool is_in_trusted_folder(const char *path, uid_t owner) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash != NULL ? (size_t)(slash - path) : 0;
    if (slash == NULL || length >= sizeof folder) {
        return false;
    }
    memcpy(folder, path, length);
    folder[length] = '\0';
    return is_trusted(length > 0 ? folder : "/", owner);
}

bool dvmm_is_trusted_file(const char *path, uid_t owner) {
    char leads_to[PATH_MAX];
    return realpath(path, leads_to) != NULL && is_trusted(leads_to, owner) &&
           is_in_trusted_folder(leads_to, owner) && is_in_trusted_folder(path, owner);
}
