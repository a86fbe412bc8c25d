/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for libnvidia-ml.so.1, which does what FAKE_NVML says when it is called: "denied", may
 * not be used; "elsewhere", does not know the GPU; "silent", does not say who uses it; or who does:
 * "4711:1073741824 self:2097152 17:?", processes with their bytes, of which "?" are not told.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    DONE = 0,
    UNINITIALIZED = 1,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    TOO_SMALL = 7,
    UNKNOWN = 999
};

typedef struct process_info {
    unsigned pid;
    unsigned long long used_bytes;
} process_info;

#define NVML __attribute__((visibility("default")))

NVML int nvmlInit_v2(void);
NVML int nvmlDeviceGetHandleByPciBusId_v2(const char *pci_bus_id, void **device);
NVML int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, process_info *out);

static int is_open;

static const char *wanted(void) {
    const char *text = getenv("FAKE_NVML");
    return text != NULL ? text : "";
}

int nvmlInit_v2(void) {
    if (strcmp(wanted(), "denied") == 0) {
        return NO_PERMISSION;
    }
    is_open = 1;
    return DONE;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci_bus_id, void **device) {
    *device = &is_open;
    return !is_open                                                        ? UNINITIALIZED
           : strlen(pci_bus_id) < 12 || strcmp(wanted(), "elsewhere") == 0 ? NOT_FOUND
                                                                           : DONE;
}

static process_info read_one(const char *word) {
    const char *bytes = strchr(word, ':') + 1;
    int is_self = strncmp(word, "self", 4) == 0;
    return (process_info){is_self ? (unsigned)getpid() : (unsigned)strtoul(word, NULL, 10),
                          *bytes == '?' ? ~0ULL : strtoull(bytes, NULL, 10)};
}

int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, process_info *out) {
    char text[4096];
    char *rest = NULL;
    unsigned n = 0;
    if (device != &is_open || strcmp(wanted(), "silent") == 0) {
        return UNKNOWN;
    }
    (void)snprintf(text, sizeof text, "%s", wanted());
    for (char *w = strtok_r(text, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
        if (n < *count) {
            out[n] = read_one(w);
        }
        n++;
    }
    int is_enough = n <= *count;
    *count = n;
    return is_enough ? DONE : TOO_SMALL;
}
