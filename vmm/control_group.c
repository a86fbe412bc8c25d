/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/control_group.h"

#include "vmm/base/align.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What the files of a version are called. */
typedef struct interface {
    const char *limit, *used, *inactive_file, *active_file;
} interface;

static const interface version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                    "total_inactive_file", "total_active_file"};
static const interface version_2 = {"memory.max", "memory.current", "inactive_file", "active_file"};

enum { PATH_BYTES = 4096 };

/* ---- One group ----------------------------------------------------------------------------- */

static FILE *open_in(const char *folder, const char *name) {
    char path[PATH_BYTES + 64];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}

/* False where there is no such file, or no number in it. */
static bool read_number(const char *folder, const char *name, uint64_t *out) {
    FILE *file = open_in(folder, name);
    bool is_read = file != NULL && fscanf(file, "%" SCNu64, out) == 1;
    if (file != NULL) {
        (void)fclose(file);
    }
    return is_read;
}

static uint64_t read_files(const char *folder, const interface *v) {
    uint64_t bytes = 0;
    char key[64];
    uint64_t value = 0;
    FILE *file = open_in(folder, "memory.stat");
    while (file != NULL && fscanf(file, "%63s %" SCNu64, key, &value) == 2) {
        bool is_file = strcmp(key, v->inactive_file) == 0 || strcmp(key, v->active_file) == 0;
        bytes += is_file ? value : 0;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return bytes;
}

static uint64_t rest_of(const char *folder, const interface *v) {
    uint64_t limit = 0;
    uint64_t used = 0;
    if (!read_number(folder, v->limit, &limit) || !read_number(folder, v->used, &used)) {
        return UINT64_MAX;
    }
    used -= dti_min(used, read_files(folder, v));
    return limit - dti_min(limit, used);
}

/* ---- All of them --------------------------------------------------------------------------- */

/* Of the group and of those it lies in. A container may see another path than there is; then only
 * the upper folders exist, and the topmost is its own. */
static uint64_t rest_upwards(const char *root, const char *group, const interface *v) {
    char folder[PATH_BYTES];
    int n = snprintf(folder, sizeof folder, "%s%s", root, group);
    uint64_t least = n > 0 && (size_t)n < sizeof folder ? rest_of(folder, v) : UINT64_MAX;
    const size_t top = strlen(root);
    while (least != 0 && n > 0 && (size_t)n < sizeof folder && strlen(folder) > top) {
        *strrchr(folder, '/') = '\0';
        least = dti_min(least, rest_of(folder, v));
    }
    return least;
}

static bool lists_memory(char *controllers) {
    char *rest = NULL;
    char *one = strtok_r(controllers, ",", &rest);
    while (one != NULL && strcmp(one, "memory") != 0) {
        one = strtok_r(NULL, ",", &rest);
    }
    return one != NULL;
}

/* A line: "number:controllers:path"; version 2 has no controllers. */
static uint64_t rest_of_line(const char *root, char *line) {
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':');
    char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (path == NULL || path[1] != '/') {
        return UINT64_MAX;
    }
    *path++ = '\0';
    if (*++controllers == '\0') {
        return rest_upwards(root, path, &version_2);
    }
    char folder[PATH_BYTES];
    (void)snprintf(folder, sizeof folder, "%s/memory", root);
    return lists_memory(controllers) ? rest_upwards(folder, path, &version_1) : UINT64_MAX;
}

uint64_t dvmm_control_group_rest(const char *groups, const char *root) {
    char line[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    FILE *file = fopen(groups, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        least = dti_min(least, rest_of_line(root, line));
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return least;
}
