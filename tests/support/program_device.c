/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program_device.h"

#include "tests/support/command.h"
#include "tests/support/leak_gate.h"
#include "vmm/cuda/open.h"
#include "vmm/driver/open_virtual.h"

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
