/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/driver/open_virtual.h"

#include "vmm/driver/probe.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* NULL in a program that brings no virtual GPU. */
#pragma weak ductile_virtual_backend

#define LIBRARY_NAME "libductile_virtual.so." DVMM_SERIES

/* ---- Trusted files ------------------------------------------------------------------------- */

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

/* ---- The library --------------------------------------------------------------------------- */

/* Reads the line of /proc/self/maps that says which file holds this code. What the loader calls the
 * file may be relative to a folder that the program has left since. */
static bool find_own_line(char *line, int size) {
    static const char here;
    bool is_found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && !is_found && fgets(line, size, maps) != NULL) {
        uintptr_t start = 0;
        uintptr_t end = 0;
        is_found = sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end) == 2 &&
                   start <= (uintptr_t)&here && (uintptr_t)&here < end;
    }
    if (maps != NULL) {
        (void)fclose(maps);
    }
    return is_found;
}

/* A file that was exchanged meanwhile has no owner any more. */
static uid_t owner_of(const char *own) {
    struct stat found;
    return stat(own, &found) == 0 ? found.st_uid : geteuid();
}

/* The path of the library beside that file, and who owns that file; false when none is there. */
static bool find_beside(char *path, size_t size, uid_t *owner) {
    char line[PATH_MAX + 128]; /* 128: for the addresses before the path */
    char *own = find_own_line(line, sizeof line) ? strchr(line, '/') : NULL;
    if (own == NULL) {
        return false;
    }
    own[strcspn(own, "\n")] = '\0';
    *owner = owner_of(own);
    int folder = (int)(strrchr(own, '/') - own);
    int length = snprintf(path, size, "%.*s/" LIBRARY_NAME, folder, own);
    return length > 0 && (size_t)length < size && access(path, R_OK) == 0;
}

static ductile_status refuse_library(dvmm_reason why) {
    const char *cause = dlerror();
    return dvmm_refuse(
        DUCTILE_ERR_NO_LIBRARY, why,
        "the virtual GPU is a library of its own, which cannot be opened: install " LIBRARY_NAME
        " beside libductile, or link the program with it (CMake: ductile::virtual, pkg-config: "
        "ductile_virtual) (%s)",
        cause != NULL ? cause : "no reason given");
}

/* ISO C has no conversion from an object pointer to a function pointer; POSIX promises that the
 * bytes are the same. */
static ductile_status load_backend(const char *path, const dvmm_backend **out, dvmm_reason why) {
    const dvmm_backend *(*get)(void) = NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* never closed: GPUs live in it */
    void *found = library != NULL ? dlsym(library, "ductile_virtual_backend") : NULL;
    if (found == NULL) {
        return refuse_library(why);
    }
    memcpy(&get, &found, sizeof get);
    *out = get();
    return DUCTILE_OK;
}

static ductile_status load_beside_or_installed(const dvmm_backend **out, dvmm_reason why) {
    char path[PATH_MAX];
    uid_t owner = 0;
    if (!find_beside(path, sizeof path, &owner)) {
        return load_backend(LIBRARY_NAME, out, why);
    }
    if (!dvmm_is_trusted_file(path, owner)) {
        return dvmm_refuse(DUCTILE_ERR_NO_LIBRARY, why,
                           "%s is not opened, because it or its folder belongs to another user, or "
                           "everyone can write to it: take that right away, or install both "
                           "libraries in a folder of your own",
                           path);
    }
    return load_backend(path, out, why);
}

/* ---- Opening ------------------------------------------------------------------------------- */

/* A GPU brings its backend along. Linked in comes before installed: it is what the program was
 * built with. */
static ductile_status find_backend(const ductile_virtual_gpu *gpu, const dvmm_backend **out,
                                   dvmm_reason why) {
    if (gpu != NULL) {
        *out = ((const dvmm_virtual_head *)gpu)->backend;
        return DUCTILE_OK;
    }
    if (ductile_virtual_backend != NULL) {
        *out = ductile_virtual_backend();
        return DUCTILE_OK;
    }
    return load_beside_or_installed(out, why);
}

static ductile_status check_version(const dvmm_backend *backend, dvmm_reason why) {
    if (strcmp(backend->version, DVMM_VERSION) != 0) {
        return dvmm_refuse(DUCTILE_ERR_NO_LIBRARY, why,
                           "libductile is version " DVMM_VERSION ", libductile_virtual is %s: "
                           "install both of one version",
                           backend->version);
    }
    if (backend->shape != DVMM_SHAPE) {
        return dvmm_refuse(DUCTILE_ERR_NO_LIBRARY, why,
                           "libductile and libductile_virtual were built from different sources of "
                           "version " DVMM_VERSION ": build both from the same");
    }
    return DUCTILE_OK;
}

ductile_status dvmm_open_virtual(ductile_virtual_gpu *gpu, dvmm_driver **out, char *reason_text,
                                 size_t reason_size) {
    dvmm_reason why = {reason_text, reason_size};
    const dvmm_backend *backend = NULL;
    dvmm_opened opened;
    *out = NULL;
    DTI_TRY(find_backend(gpu, &backend, why));
    ductile_status status = check_version(backend, why);
    if (status == DUCTILE_OK) {
        status = backend->open(gpu, &opened);
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    status = dvmm_driver_new(opened.ops, opened.ctx, &opened.caps, out);
    if (status != DUCTILE_OK) {
        opened.ops->close(opened.ctx);
    }
    return status;
}
