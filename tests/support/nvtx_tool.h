/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that look at what a tool was told: names it, as a profiler does for its program. */
#ifndef TESTS_SUPPORT_NVTX_TOOL_H
#define TESTS_SUPPORT_NVTX_TOOL_H

#include "tests/fake_nvtx/fake_nvtx.h"
#include "tests/support/expect.h"

#include <dlfcn.h>
#include <stdlib.h>

static fake_nvtx_control *tool; /* of the file that includes this */

static inline void name_tool(const char *path) {
    cr_assert_eq(setenv("NVTX_INJECTION64_PATH", path, 1), 0);
}

/* The test loads it first, so that what Ductile loads is the same. */
static inline void load_tool(const char *path) {
    name_tool(path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(library, "%s", dlerror());
    tool = dlsym(library, "fake_nvtx");
    cr_assert_not_null(tool);
}

#endif
