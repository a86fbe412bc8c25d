/* SPDX-License-Identifier: Apache-2.0 */
#include "counts.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <unwind.h>

enum { N_ROWS = 64, NAME_BYTES = 480, TEXT_BYTES = 512, FRAMES_LOOKED_AT = 32 };

/* The layout of the file. A row is a shared object that asked for memory; the last one stands for
 * all that find no row of their own. */
typedef struct counts_row {
    char name[NAME_BYTES];
    _Atomic uint64_t served_calls, served_bytes;
    _Atomic uint64_t native_calls, native_bytes;
} counts_row;

typedef struct counts_file {
    char magic[8];
    uint64_t pid;
    char command[TEXT_BYTES]; /* its words, each ended by a 0 */
    char note[TEXT_BYTES];
    counts_row rows[N_ROWS];
} counts_file;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(counts_file *) opened;
static atomic_bool is_tried;
static _Atomic(const void *) bases[N_ROWS]; /* of the object of each row */

/* ---- The file ------------------------------------------------------------------------------ */

static void fill_head(counts_file *file) {
    memcpy(file->magic, "DUCTPRE1", sizeof(file->magic));
    file->pid = (uint64_t)getpid();
    int from = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (from >= 0) {
        ssize_t n = read(from, file->command, sizeof(file->command) - 1);
        (void)n; /* without it the name stays empty */
        (void)close(from);
    }
}

/* A file beyond the limit would end the process with SIGXFSZ, and a file for which the disk has no
 * blocks with SIGBUS at the first count. */
static bool make_room(int file) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= sizeof(counts_file) &&
           posix_fallocate(file, 0, sizeof(counts_file)) == 0;
}

static counts_file *map_file(int file) {
    void *at = MAP_FAILED;
    if (make_room(file)) {
        at = mmap(NULL, sizeof(counts_file), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    return at != MAP_FAILED ? at : NULL;
}

static counts_file *make_file(const char *folder) {
    char path[4096];
    int length = snprintf(path, sizeof(path), "%s/%ld.XXXXXX", folder, (long)getpid());
    int file = length > 0 && (size_t)length < sizeof(path) ? mkostemp(path, O_CLOEXEC) : -1;
    if (file < 0) {
        return NULL;
    }
    counts_file *made = map_file(file);
    if (made != NULL) {
        fill_head(made);
    } else {
        (void)unlink(path);
    }
    (void)close(file);
    return made;
}

/* NULL: nothing is counted. A child that was forked counts in its parent's file. */
static counts_file *counts(void) {
    if (!atomic_load_explicit(&is_tried, memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        if (!atomic_load(&is_tried)) {
            const char *folder = secure_getenv("DUCTILE_PRELOAD_COUNTS");
            atomic_store(&opened, folder != NULL && *folder != '\0' ? make_file(folder) : NULL);
            atomic_store_explicit(&is_tried, true, memory_order_release);
        }
        pthread_mutex_unlock(&lock);
    }
    return atomic_load_explicit(&opened, memory_order_relaxed);
}

/* ---- Who asks ------------------------------------------------------------------------------ */

static bool is_runtime(const char *path) {
    const char *slash = strrchr(path, '/');
    return strncmp(slash != NULL ? slash + 1 : path, "libcudart", 9) == 0;
}

typedef struct search {
    Dl_info found;
    int n_frames;
} search;

static _Unwind_Reason_Code look_at(struct _Unwind_Context *frame, void *arg) {
    search *s = arg;
    Dl_info here, ours;
    const void *at = (const void *)_Unwind_GetIP(frame);
    bool is_other = dladdr(at, &here) != 0 && dladdr(&opened, &ours) != 0 &&
                    here.dli_fbase != ours.dli_fbase && here.dli_fname != NULL &&
                    !is_runtime(here.dli_fname);
    if (is_other) {
        s->found = here;
    }
    return is_other || ++s->n_frames == FRAMES_LOOKED_AT ? _URC_END_OF_STACK : _URC_NO_REASON;
}

/* The object of the caller; where that is the CUDA runtime, of who called the runtime. */
static bool find_object(const void *caller, Dl_info *out) {
    bool is_found = dladdr(caller, out) != 0 && out->dli_fname != NULL;
    if (is_found && is_runtime(out->dli_fname)) {
        search s = {.found = *out};
        (void)_Unwind_Backtrace(look_at, &s);
        *out = s.found;
    }
    return is_found;
}

/* ---- Counting ------------------------------------------------------------------------------ */

static counts_row *claim_row(counts_file *file, const Dl_info *object) {
    int row = 0;
    pthread_mutex_lock(&lock);
    while (row < N_ROWS - 1 && bases[row] != NULL && bases[row] != object->dli_fbase) {
        row++;
    }
    if (row < N_ROWS - 1 && bases[row] == NULL) {
        (void)snprintf(file->rows[row].name, NAME_BYTES, "%s", object->dli_fname);
        atomic_store_explicit(&bases[row], object->dli_fbase, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return &file->rows[row];
}

static counts_row *row_of(counts_file *file, const void *caller) {
    Dl_info object;
    if (!find_object(caller, &object)) {
        return &file->rows[N_ROWS - 1];
    }
    for (int i = 0; i < N_ROWS - 1; i++) {
        if (atomic_load_explicit(&bases[i], memory_order_acquire) == object.dli_fbase) {
            return &file->rows[i];
        }
    }
    return claim_row(file, &object);
}

void dpre_count(const void *caller, size_t size, bool is_served) {
    counts_file *file = counts();
    if (file != NULL) {
        counts_row *row = row_of(file, caller);
        atomic_fetch_add_explicit(is_served ? &row->served_calls : &row->native_calls, 1,
                                  memory_order_relaxed);
        atomic_fetch_add_explicit(is_served ? &row->served_bytes : &row->native_bytes, size,
                                  memory_order_relaxed);
    }
}

void dpre_note(const char *sentence) {
    counts_file *file = counts();
    if (file != NULL) {
        pthread_mutex_lock(&lock);
        (void)snprintf(file->note, sizeof(file->note), "%s", sentence);
        pthread_mutex_unlock(&lock);
    }
}

/* ---- Forks --------------------------------------------------------------------------------- */

static void renew_lock(void) {
    pthread_mutex_init(&lock, NULL);
}

__attribute__((constructor)) static void follow_forks(void) {
    (void)pthread_atfork(NULL, NULL, renew_lock);
}
