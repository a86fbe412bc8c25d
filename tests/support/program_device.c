/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program_device.h"

#include "tests/support/command.h"
#include "tests/support/in_child.h"
#include "tests/support/leak_gate.h"
#include "vmm/cuda/open.h"
#include "vmm/driver/open_virtual.h"

#include <stdlib.h>

const char *program_open(const ductile_virtual_options *options, int device,
                         ductile_virtual_gpu **gpu, dvmm_driver **driver) {
    char reason[512] = "";
    *gpu = NULL;
    if (options != NULL) {
        NEED_OK(ductile_virtual_create(gpu, options));
        NEED_OK(dvmm_open_virtual(*gpu, driver, NULL, 0));
    } else if (dvmm_open_cuda(device, driver, reason, sizeof reason) != DUCTILE_OK) {
        command_skip(reason);
    }
    return NULL;
}

const char *program_map(dvmm_driver *driver, uint64_t size, ductile_addr *out) {
    const dvmm_phys_props props = {0};
    dvmm_phys handle = 0;
    NEED_OK(dvmm_address_reserve(driver, size, out));
    NEED_OK(dvmm_phys_create(driver, size, &props, &handle));
    NEED_OK(dvmm_map(driver, *out, size, handle));
    NEED_OK(dvmm_set_access(driver, *out, size, DVMM_ACCESS_RW));
    return NULL;
}

enum { IS_SEEN = 42 }; /* as the status of a child */

static const char *(*unmap_in_child)(bool *is_seen);

static int control(void) {
    bool is_seen = false;
    const char *why = unmap_in_child(&is_seen);
    if (why != NULL) {
        return command_end(why);
    }
    return is_seen ? IS_SEEN : COMMAND_BROKEN;
}

const char *program_control(const char *(*unmap)(bool *is_seen)) {
    unmap_in_child = unmap;
    int status = in_child(control);
    if (status == COMMAND_SKIPPED) {
        exit(COMMAND_SKIPPED); /* the child has said why */
    }
    NEED(status == IS_SEEN, "memory was unmapped under work on it, and nothing was seen");
    command_figure("control_seen", 1);
    return NULL;
}

const char *program_allocator(ductile_virtual_gpu *gpu, int device, uint64_t limit_bytes,
                              ductile_allocator **out) {
    ductile_options options;
    ductile_options_init(&options);
    options.driver = gpu != NULL ? DUCTILE_DRIVER_VIRTUAL : DUCTILE_DRIVER_CUDA;
    options.virtual_gpu = gpu;
    options.device = device;
    options.limit_bytes = limit_bytes;
    NEED_OK(ductile_create(out, &options));
    return NULL;
}

const char *program_close_virtual(ductile_virtual_gpu *gpu) {
    if (gpu == NULL) {
        return NULL;
    }
    ductile_virtual_state state = {.struct_size = sizeof state};
    char violation[256] = "";
    TRY(leak_gate(gpu));
    NEED_OK(ductile_virtual_get_state(gpu, &state));
    ductile_virtual_last_violation(gpu, violation, sizeof violation);
    NEED(state.violations == 0, "%llu violations, the last: %s",
         (unsigned long long)state.violations, violation);
    ductile_virtual_destroy(gpu);
    return NULL;
}
