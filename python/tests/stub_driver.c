/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a driver by which GPUs are listed, for tests of what is said of them.
 * STUB_CUDA, STUB_GPUS, STUB_VMM: its version, how many there are, what they can. */
#include <stdlib.h>
#include <string.h>

#define DO(name, parameters, ...)                                                                  \
    __attribute__((visibility("default"))) int name parameters {                                   \
        __VA_ARGS__;                                                                               \
        return 0;                                                                                  \
    }

static int number(const char *name, int usual) {
    const char *value = getenv(name);
    return value != NULL ? atoi(value) : usual;
}

DO(cuInit, (unsigned flags), (void)flags)
DO(cuDriverGetVersion, (int *version), *version = number("STUB_CUDA", 13000))
DO(cuDeviceGetCount, (int *count), *count = number("STUB_GPUS", 2))
DO(cuDeviceGet, (int *device, int ordinal), *device = ordinal)
DO(cuDeviceGetName, (char *name, int size, int device), (void)device;
   strncpy(name, "Stub GPU", (size_t)size))
DO(cuDeviceTotalMem_v2, (size_t *bytes, int device), (void)device; *bytes = (size_t)1 << 34)
DO(cuDeviceGetAttribute, (int *value, int attribute, int device), (void)attribute; (void)device;
   *value = number("STUB_VMM", 1))
