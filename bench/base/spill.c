/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/base/spill.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Smaller arrays stay in memory. A file grows by this much. */
enum { STEP = 1 << 20 };

static int open_nameless(void) {
    const char *folder = getenv("TMPDIR");
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/ductile-bench-XXXXXX",
                   folder != NULL && folder[0] != '\0' ? folder : "/tmp");
    int file = mkostemp(path, O_CLOEXEC);
    if (file >= 0) {
        (void)unlink(path);
    }
    return file;
}

static size_t round_up(size_t bytes) {
    return (bytes + STEP - 1) / STEP * STEP;
}

/* The disk gives the space now, or refuses it: later it would end the process. */
static bool enlarge_file(int file, size_t from, size_t to) {
    return posix_fallocate(file, (off_t)from, (off_t)(to - from)) == 0;
}

static bool map_new(spill *s, size_t bytes) {
    int file = open_nameless();
    if (file < 0) {
        return false;
    }
    void *base = MAP_FAILED;
    if (enlarge_file(file, 0, bytes)) {
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (base == MAP_FAILED) {
        (void)close(file);
        return false;
    }
    s->file = file;
    s->bytes = bytes;
    s->base = base;
    return true;
}

static bool map_more(spill *s, size_t bytes) {
    if (!enlarge_file(s->file, s->bytes, bytes)) {
        return false;
    }
    void *base = mremap(s->base, s->bytes, bytes, MREMAP_MAYMOVE);
    if (base == MAP_FAILED) {
        return false;
    }
    s->base = base;
    s->bytes = bytes;
    return true;
}

static void unmap(spill *s) {
    if (s->bytes > 0) {
        (void)munmap(s->base, s->bytes);
        (void)close(s->file);
    }
    s->bytes = 0;
    s->base = NULL;
}

/* ---- Growing ------------------------------------------------------------------------------- */

static bool grow_in_memory(void **elements, size_t bytes, size_t *capacity, size_t wanted) {
    size_t more = 2 * *capacity > wanted ? 2 * *capacity : wanted;
    void *grown = reallocarray(*elements, more > 256 ? more : 256, bytes);
    if (grown == NULL) {
        return false;
    }
    *elements = grown;
    *capacity = more > 256 ? more : 256;
    return true;
}

static bool move_to_file(spill *s, void **elements, size_t used, size_t bytes) {
    if (!map_new(s, bytes)) {
        s->is_wanted = false; /* and is not asked for again */
        return false;
    }
    if (used > 0) {
        memcpy(s->base, *elements, used);
    }
    free(*elements);
    *elements = s->base;
    return true;
}

/* The disk has no room for more. */
static bool move_to_memory(spill *s, void **elements, size_t used, size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) {
        return false;
    }
    memcpy(memory, s->base, used);
    unmap(s);
    s->is_wanted = false;
    *elements = memory;
    return true;
}

static bool grow_in_file(spill *s, void **elements, size_t used, size_t bytes) {
    if (s->bytes == 0) {
        return move_to_file(s, elements, used, bytes);
    }
    if (!map_more(s, bytes)) {
        return move_to_memory(s, elements, used, bytes);
    }
    *elements = s->base;
    spill_rest(s);
    return true;
}

bool spill_reserve(spill *s, void *array, size_t bytes, size_t *capacity, size_t wanted) {
    void *elements = NULL;
    size_t total;
    memcpy(&elements, array, sizeof elements);
    if (wanted <= *capacity) {
        return true;
    }
    if (__builtin_mul_overflow(wanted, bytes, &total) || total > SIZE_MAX / 4) {
        return false;
    }
    bool in_file = s->is_wanted && (s->bytes > 0 || total > STEP);
    if (in_file && grow_in_file(s, &elements, *capacity * bytes, round_up(total))) {
        *capacity = round_up(total) / bytes;
    } else if (s->bytes > 0 || !grow_in_memory(&elements, bytes, capacity, wanted)) {
        return false;
    }
    memcpy(array, &elements, sizeof elements);
    return true;
}

/* ---- Whole arrays -------------------------------------------------------------------------- */

void *spill_zeros(spill *s, size_t n, size_t bytes) {
    size_t total;
    if (__builtin_mul_overflow(n, bytes, &total) || total > SIZE_MAX / 4) {
        return NULL;
    }
    if (s->is_wanted && total > STEP && map_new(s, round_up(total))) {
        return s->base;
    }
    return calloc(n > 0 ? n : 1, bytes);
}

void spill_rest(const spill *s) {
    if (s->bytes > 0) {
        (void)madvise(s->base, s->bytes, MADV_DONTNEED);
    }
}

void spill_free(spill *s, void *array) {
    if (s->bytes > 0) {
        unmap(s);
    } else {
        free(array);
    }
}
