/* SPDX-License-Identifier: Apache-2.0 */
/* Which device a bench runs on. */
#ifndef DUCTILE_BENCH_BASE_DEVICE_H
#define DUCTILE_BENCH_BASE_DEVICE_H

#include "vmm/driver/driver.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum bench_device_kind {
    BENCH_DEVICE_AUTO, /* a CUDA device if there is one, else the virtual GPU */
    BENCH_DEVICE_VIRTUAL,
    BENCH_DEVICE_CUDA
} bench_device_kind;

/* What was found. Nothing is held open. */
typedef struct bench_device {
    bool is_virtual;
    dvmm_caps caps;
} bench_device;

/* False: there is no such device; reason holds one sentence. */
bool bench_device_find(bench_device_kind kind, int ordinal, bench_device *out, char *reason,
                       size_t reason_size);

/* Where many replays are quick that take minutes on a GPU, whose handles are really made: the
 * virtual GPU, where its granule is the device's; else the device itself. False: as
 * bench_device_find. */
bool bench_device_model(const bench_device *device, bench_device *out, char *reason,
                        size_t reason_size);

/* Opens a driver object, whose calls are timed or not: on `gpu`, or on the CUDA device found if
 * that is NULL. */
ductile_status bench_device_open(const bench_device *device, ductile_virtual_gpu *gpu,
                                 bool is_timed, dvmm_driver **out);

#endif
