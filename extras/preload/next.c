/* SPDX-License-Identifier: Apache-2.0 */
#include "next.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

/* Since glibc 2.34 dlsym is part of libc; before, its version was the oldest of the machine. */
static const char *const dlsym_versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};

dpre_dlsym_function dpre_dlsym(void) {
    static _Atomic(dpre_dlsym_function) kept;
    dpre_dlsym_function next = atomic_load_explicit(&kept, memory_order_relaxed);
    for (size_t i = 0; next == NULL && i < sizeof(dlsym_versions) / sizeof(dlsym_versions[0]);
         i++) {
        void *found = dlvsym(RTLD_NEXT, "dlsym", dlsym_versions[i]);
        memcpy(&next, &found, sizeof(next));
    }
    atomic_store_explicit(&kept, next, memory_order_relaxed);
    return next;
}
