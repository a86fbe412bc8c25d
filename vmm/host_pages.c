/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/host_pages.h"

#include "vmm/base/align.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_THREADS = 16, SHARE_LEFT = 16 };

static const uint64_t bytes_per_thread = UINT64_C(128) << 20; /* at least */
static const uint64_t least_margin_bytes = UINT64_C(1) << 30;

/* ---- Control groups ------------------------------------------------------------------------ */

/* What the files of a version are called. */
typedef struct interface {
    const char *limit, *used, *inactive_file, *active_file;
} interface;

static const interface version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                    "total_inactive_file", "total_active_file"};
static const interface version_2 = {"memory.max", "memory.current", "inactive_file", "active_file"};

enum { PATH_BYTES = 4096 };

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

/* Of the group and of those it lies in. A container may see another path than there is; then only
 * the upper folders exist, and the topmost is its own. */
static uint64_t rest_upwards(const char *root, const char *group, const interface *v) {
    char folder[PATH_BYTES];
    (void)snprintf(folder, sizeof folder, "%s%s", root, group);
    uint64_t least = rest_of(folder, v); /* where it is cut off, no file is called so */
    const size_t top = strlen(root);
    while (least != 0 && strlen(folder) > top) {
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

/* ---- How much there is --------------------------------------------------------------------- */

uint64_t dvmm_host_pages_total(void) {
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES);
    return dti_round_up(pages * (uint64_t)sysconf(_SC_PAGESIZE), DVMM_HUGE_PAGE);
}

/* Of the machine. Where the kernel does not say, all of it. */
static uint64_t available_bytes(void) {
    uint64_t kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL) {
        unsigned long long found = 0;
        if (sscanf(line, "MemAvailable: %llu kB", &found) == 1) {
            kib = found;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return kib != 0 ? kib << 10 : dvmm_host_pages_total();
}

/* To touch more than there is, or than the process may have, ends it. */
static bool may_take(uint64_t size) {
    return size <= available_bytes() &&
           size <= dvmm_control_group_rest("/proc/self/cgroup", "/sys/fs/cgroup");
}

static bool leaves(uint64_t bytes, uint64_t size, uint64_t margin) {
    return bytes > margin && size <= bytes - margin;
}

/* A group may be a small part of a machine: what stays free of it is no share of that. */
bool dvmm_host_room_has(const dvmm_host_room *room, uint64_t size, uint64_t before) {
    bool is_limited = room->group_rest != UINT64_MAX;
    uint64_t group = room->group_rest - (is_limited ? dti_min(room->group_rest, before) : 0);
    uint64_t margin = dti_max(room->total / SHARE_LEFT, least_margin_bytes);
    return leaves(room->available, size, margin) && leaves(group, size, least_margin_bytes);
}

bool dvmm_host_pages_may_lock(uint64_t size, uint64_t before) {
    const dvmm_host_room room = {
        .total = dvmm_host_pages_total(),
        .available = available_bytes(),
        .group_rest = dvmm_control_group_rest("/proc/self/cgroup", "/sys/fs/cgroup")};
    return dvmm_host_room_has(&room, size, before);
}

/* ---- Addresses ----------------------------------------------------------------------------- */

uint8_t *dvmm_host_pages_reserve(uint64_t size) {
    uint64_t room = size + DVMM_HUGE_PAGE;
    uint8_t *got = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) {
        return NULL;
    }
    uint64_t lead = dti_round_up((uint64_t)(uintptr_t)got, DVMM_HUGE_PAGE) - (uintptr_t)got;
    if (lead > 0) {
        (void)munmap(got, lead);
    }
    (void)munmap(got + lead + size, DVMM_HUGE_PAGE - lead);
    return got + lead;
}

void dvmm_host_pages_unreserve(uint8_t *base, uint64_t size) {
    (void)munmap(base, size);
}

/* ---- Touching ------------------------------------------------------------------------------ */

typedef struct stretch {
    uint8_t *from;
    uint64_t size;
} stretch;

/* A kernel before 5.14 cannot populate; a page that is there already keeps its zeros. */
static void *touch(void *arg) {
    const stretch *s = arg;
#ifdef MADV_POPULATE_WRITE
    if (madvise(s->from, s->size, MADV_POPULATE_WRITE) == 0) {
        return NULL;
    }
#endif
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint64_t at = 0; at < s->size; at += page) {
        *(volatile uint8_t *)(s->from + at) = 0;
    }
    return NULL;
}

/* Of the processors that this thread may use. */
static uint64_t count_threads(uint64_t size) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    uint64_t most = dti_min((uint64_t)(n > 0 ? n : 1), MOST_THREADS);
    return dti_max(dti_min(most, size / bytes_per_thread), 1);
}

/* The program's signal handlers run on its own threads. */
static bool start(pthread_t *thread, stretch *part) {
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    bool is_started = pthread_create(thread, NULL, touch, part) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_started;
}

/* Where no thread can be made, this one does all. */
static void touch_all(uint8_t *memory, uint64_t size) {
    pthread_t threads[MOST_THREADS];
    stretch parts[MOST_THREADS];
    bool is_started[MOST_THREADS] = {false};
    uint64_t n = count_threads(size);
    uint64_t share = dti_round_up(size / n, DVMM_HUGE_PAGE);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t from = dti_min(i * share, size);
        parts[i] = (stretch){memory + from, i + 1 < n ? dti_min(share, size - from) : size - from};
        is_started[i] = i > 0 && start(&threads[i], &parts[i]);
    }
    for (uint64_t i = 0; i < n; i++) {
        if (is_started[i]) {
            (void)pthread_join(threads[i], NULL);
        } else {
            (void)touch(&parts[i]);
        }
    }
}

/* ---- Memory -------------------------------------------------------------------------------- */

bool dvmm_host_pages_make(uint8_t *memory, uint64_t size) {
    if (!may_take(size) || mprotect(memory, size, PROT_READ | PROT_WRITE) != 0) {
        return false;
    }
    (void)madvise(memory, size, MADV_HUGEPAGE);
    (void)madvise(memory, size, MADV_DONTFORK);
    touch_all(memory, size);
    return true;
}

void dvmm_host_pages_drop(uint8_t *memory, uint64_t size) {
    (void)madvise(memory, size, MADV_DOFORK);
    (void)madvise(memory, size, MADV_DONTNEED);
    (void)mprotect(memory, size, PROT_NONE);
}
