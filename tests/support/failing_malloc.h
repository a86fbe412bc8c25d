/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A malloc family that can be told to fail, for test programs with one file. It stands before the C
 * library's, and counts what was not given back. The sanitizers have theirs in the same place, so
 * under them nothing fails, and NEEDS_FAILURES leaves the test out.
 */
#ifndef TESTS_SUPPORT_FAILING_MALLOC_H
#define TESTS_SUPPORT_FAILING_MALLOC_H

#include <ductile.h>

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Only the test's thread plans, and only between arm and disarm does anything fail. */
static _Thread_local uint64_t fails_at; /* the request, counted from 1, that fails; 0: none */
static _Thread_local uint64_t requests;
static _Thread_local bool fails_all; /* from here on */
static _Thread_local bool has_failed;
static _Thread_local uint64_t n_empty; /* a caller will write behind them */
/* Happens before the request that would have failed, which succeeds. */
static __attribute__((unused)) void (*instead)(void);

/* What malloc gave and free did not get back, of this thread. */
static _Thread_local int64_t n_held;

static inline void arm(uint64_t nth) {
    requests = 0;
    has_failed = false;
    fails_at = nth;
}

static inline bool disarm(void) {
    fails_at = 0;
    fails_all = false;
    return has_failed;
}

#if !IS_SANITIZED && defined(__GLIBC__)
#define CAN_FAIL 1

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static inline bool must_fail(size_t size) {
    n_empty += fails_at != 0 && size == 0;
    if (fails_all) {
        has_failed = true;
        errno = ENOMEM;
        return true;
    }
    if (fails_at == 0 || ++requests != fails_at) {
        return false;
    }
    has_failed = true;
    if (instead != NULL) {
        instead();
        return false;
    }
    errno = ENOMEM;
    return true;
}

static inline void *counted(void *memory) {
    n_held += memory != NULL;
    return memory;
}

void *malloc(size_t size) {
    return must_fail(size) ? NULL : counted(__libc_malloc(size));
}

void *calloc(size_t n, size_t size) {
    return must_fail(n * size) ? NULL : counted(__libc_calloc(n, size));
}

void *realloc(void *memory, size_t size) {
    void *moved = must_fail(size) ? NULL : __libc_realloc(memory, size);
    n_held += memory == NULL && moved != NULL;
    return moved;
}

void *aligned_alloc(size_t alignment, size_t size) {
    return must_fail(size) ? NULL : counted(__libc_memalign(alignment, size));
}

/* Tables come from here (vmm/base/array.h). The C library's own mappings do not. */
void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    return must_fail(size) ? MAP_FAILED
                           : (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}

void free(void *memory) {
    n_held -= memory != NULL;
    __libc_free(memory);
}
#else
#define CAN_FAIL 0
#endif

#define NEEDS_FAILURES()                                                                           \
    do {                                                                                           \
        if (!CAN_FAIL) {                                                                           \
            cr_skip_test("no malloc of our own beside a sanitizer's or another C library's");      \
        }                                                                                          \
    } while (0)

static inline int64_t pieces_held(void) {
    return n_held;
}

static inline uint64_t requests_for_nothing(void) {
    return n_empty;
}

/* The virtual GPU asks for host memory too; where it gets none it is a driver that fails. */
static inline bool is_for_lack_of_memory(ductile_status status) {
    return status == DUCTILE_ERR_OUT_OF_HOST_MEMORY || status == DUCTILE_ERR_OUT_OF_MEMORY ||
           status == DUCTILE_ERR_OUT_OF_ADDRESSES || status == DUCTILE_ERR_DRIVER;
}

#endif
