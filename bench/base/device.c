/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/base/device.h"

#include "vmm/cuda/open.h"
#include "vmm/driver/open_virtual.h"

#include <stdio.h>

static void describe(dvmm_driver *driver, bench_device *out) {
    out->caps = *dvmm_get_caps(driver);
    out->is_virtual = out->caps.is_virtual;
    dvmm_close(driver);
}

static bool find_cuda(int ordinal, bench_device *out, char *reason, size_t reason_size) {
    dvmm_driver *driver = NULL;
    if (dvmm_open_cuda(ordinal, &driver, reason, reason_size) != DUCTILE_OK) {
        return false;
    }
    describe(driver, out);
    return true;
}

static bool find_virtual(bench_device *out, char *reason, size_t reason_size) {
    dvmm_driver *driver = NULL;
    ductile_status status = dvmm_open_virtual(NULL, &driver, NULL, 0);
    if (status != DUCTILE_OK) {
        (void)snprintf(reason, reason_size, "virtual GPU: %s", ductile_status_string(status));
        return false;
    }
    describe(driver, out);
    return true;
}

bool bench_device_find(bench_device_kind kind, int ordinal, bench_device *out, char *reason,
                       size_t reason_size) {
    switch (kind) {
    case BENCH_DEVICE_CUDA:
        return find_cuda(ordinal, out, reason, reason_size);
    case BENCH_DEVICE_AUTO:
        if (find_cuda(ordinal, out, reason, reason_size)) {
            return true;
        }
        break;
    case BENCH_DEVICE_VIRTUAL:
        break;
    }
    return find_virtual(out, reason, reason_size);
}

bool bench_device_model(const bench_device *device, bench_device *out, char *reason,
                        size_t reason_size) {
    *out = *device;
    if (device->is_virtual) {
        return true;
    }
    bench_device found;
    if (!bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &found, reason, reason_size)) {
        return false;
    }
    if (found.caps.granule_bytes == device->caps.granule_bytes) {
        *out = found;
    }
    return true;
}

ductile_status bench_device_open(const bench_device *device, ductile_virtual_gpu *gpu,
                                 bool is_timed, dvmm_driver **out) {
    ductile_status status = gpu != NULL ? dvmm_open_virtual(gpu, out, NULL, 0)
                                        : dvmm_open_cuda(device->caps.ordinal, out, NULL, 0);
    if (status == DUCTILE_OK && is_timed) {
        dvmm_time_calls(*out);
    }
    return status;
}
