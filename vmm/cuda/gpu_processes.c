/* SPDX-License-Identifier: Apache-2.0 */
/* Asks NVML, the driver's management library, which processes use memory of a GPU. */
#include <ductile_pressure.h>

#include "vmm/base/align.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum { MOST = 512, DONE = 0 }; /* processes of one GPU; what each call returns */

/* NVML's own, in the first version, which each later one has kept. */
typedef struct process_info {
    unsigned pid;
    unsigned long long used_bytes;
} process_info;

#define NOT_TOLD (~0ULL) /* the bytes of a process that may not be known */

typedef struct nvml {
    int (*init)(void);
    int (*find)(const char *pci_bus_id, void **device);
    int (*list)(void *device, unsigned *count, process_info *out);
} nvml;

/* ISO C has no conversion from an object pointer to a function pointer; POSIX promises that the
 * bytes are the same. */
static bool find_function(void *library, const char *name, void *slot) {
    void *found = dlsym(library, name);
    memcpy(slot, &found, sizeof found);
    return found != NULL;
}

static bool load(nvml *n) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    return library != NULL && find_function(library, "nvmlInit_v2", &n->init) &&
           find_function(library, "nvmlDeviceGetHandleByPciBusId_v2", &n->find) &&
           find_function(library, "nvmlDeviceGetComputeRunningProcesses", &n->list) &&
           n->init() == DONE;
}

/* Once for the process, and never closed. A failure is not kept: its cause may go. */
static const nvml *open_nvml(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static nvml loaded;
    static bool is_loaded;
    (void)pthread_mutex_lock(&lock);
    is_loaded = is_loaded || load(&loaded);
    bool is_there = is_loaded;
    (void)pthread_mutex_unlock(&lock);
    return is_there ? &loaded : NULL;
}

ductile_status ductile_list_gpu_processes(const char *pci_bus_id, ductile_gpu_process *out,
                                          size_t room, size_t *found) {
    if (found == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *found = 0;
    if (pci_bus_id == NULL || (out == NULL && room > 0)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    const nvml *n = open_nvml();
    void *device = NULL;
    if (n == NULL || n->find(pci_bus_id, &device) != DONE) {
        return DUCTILE_ERR_UNSUPPORTED;
    }
    process_info all[MOST];
    unsigned count = MOST;
    if (n->list(device, &count, all) != DONE) {
        return DUCTILE_ERR_DRIVER;
    }
    for (unsigned i = 0; i < dti_min(count, MOST); i++) {
        if (all[i].used_bytes == NOT_TOLD) {
            continue;
        }
        if (*found < room) {
            out[*found] = (ductile_gpu_process){all[i].pid, all[i].used_bytes};
        }
        (*found)++;
    }
    return DUCTILE_OK;
}
