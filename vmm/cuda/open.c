/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a device through libcuda, or says in one sentence why there is none. */
#include "vmm/cuda/open.h"

#include "vmm/cuda/backend.h"
#include "vmm/cuda/load.h"
#include "vmm/driver/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OLDEST_VERSION = 11020 };

/* ---- Reasons ------------------------------------------------------------------------------- */

/* Why the driver does not start. Each has its own cure, so each has its own sentence. */
typedef struct start_refusal {
    int code;
    ductile_status status;
    const char *sentence;
} start_refusal;

static const start_refusal start_refusals[] = {
    {3, DUCTILE_ERR_FORKED,
     "the driver was already in use when this process was forked, and cannot start again in it"},
    {34, DUCTILE_ERR_NO_LIBRARY,
     "libcuda.so.1 is the toolkit's stub, not a driver: take the stubs directory out of the "
     "library path"},
    {36, DUCTILE_ERR_DRIVER_TOO_OLD, "the installed libcuda.so.1 needs a newer kernel driver"},
    {46, DUCTILE_ERR_NO_DEVICE, "another process uses the device exclusively"},
    {100, DUCTILE_ERR_NO_DEVICE,
     "the driver sees no device (is CUDA_VISIBLE_DEVICES set to hide it?)"},
    {102, DUCTILE_ERR_NO_DEVICE, "the device has no licence for compute work"},
    {802, DUCTILE_ERR_NO_DEVICE,
     "the system is not ready yet: a service the devices need (the fabric manager) is not running"},
    {803, DUCTILE_ERR_NO_DEVICE,
     "libcuda.so.1 and the kernel driver are of different versions: reload the driver or reboot"},
    {804, DUCTILE_ERR_NO_DEVICE,
     "the forward-compatibility libcuda.so.1 does not support this device: use the driver's own"},
    {805, DUCTILE_ERR_NO_DEVICE, "the MPS control daemon cannot be reached"},
    {806, DUCTILE_ERR_NO_DEVICE, "the MPS server failed to answer"},
    {807, DUCTILE_ERR_NO_DEVICE, "the MPS server is not ready to accept clients"},
    {808, DUCTILE_ERR_NO_DEVICE, "the MPS server accepts no more clients"},
    {809, DUCTILE_ERR_NO_DEVICE, "the MPS server has no connections left"},
};

static ductile_status refuse_start(const char *call, int code, dvmm_reason why) {
    for (size_t i = 0; i < sizeof(start_refusals) / sizeof(start_refusals[0]); i++) {
        const start_refusal *r = &start_refusals[i];
        if (r->code == code) {
            return dvmm_refuse(r->status, why, "%s (%s returned %d)", r->sentence, call, code);
        }
    }
    return dvmm_refuse(DUCTILE_ERR_DRIVER, why, "the driver does not start: %s failed with %s (%d)",
                       call, dvmm_code_name(code), code);
}

/* ---- Steps --------------------------------------------------------------------------------- */

/* Remembers which process started the driver: a forked child must not call it at all. */
static _Atomic pid_t starter;

static ductile_status start_driver(const cu_api *api, dvmm_reason why) {
    pid_t started_by = atomic_load(&starter);
    if (started_by != 0 && started_by != getpid()) {
        return refuse_start("cuInit", DVMM_NOT_INITIALIZED, why);
    }
    int code = api->cuInit(0);
    if (code != DVMM_SUCCESS) {
        return refuse_start("cuInit", code, why);
    }
    atomic_store(&starter, getpid());
    return DUCTILE_OK;
}

static ductile_status check_version(const cu_api *api, int *version, dvmm_reason why) {
    int code = api->cuDriverGetVersion(version);
    if (code != DVMM_SUCCESS) {
        return refuse_start("cuDriverGetVersion", code, why);
    }
    if (*version < OLDEST_VERSION) {
        return dvmm_refuse(DUCTILE_ERR_DRIVER_TOO_OLD, why,
                           "the driver is too old: it supports CUDA %d.%d, and %d.%d or newer "
                           "is needed",
                           *version / 1000, *version % 1000 / 10, OLDEST_VERSION / 1000,
                           OLDEST_VERSION % 1000 / 10);
    }
    return DUCTILE_OK;
}

static ductile_status refuse_ordinal(const cu_api *api, int ordinal, dvmm_reason why) {
    int count = 0;
    if (api->cuDeviceGetCount(&count) != DVMM_SUCCESS) {
        return dvmm_refuse(DUCTILE_ERR_NO_DEVICE, why, "there is no device %d", ordinal);
    }
    return dvmm_refuse(DUCTILE_ERR_NO_DEVICE, why,
                       "there is no device %d: the driver sees %d, numbered from 0", ordinal,
                       count);
}

static ductile_status find_device(const cu_api *api, int ordinal, cu_device *device,
                                  dvmm_reason why) {
    int code = api->cuDeviceGet(device, ordinal);
    if (code == DVMM_INVALID_DEVICE) {
        return refuse_ordinal(api, ordinal, why);
    }
    if (code != DVMM_SUCCESS) {
        return refuse_start("cuDeviceGet", code, why);
    }
    return DUCTILE_OK;
}

/* An attribute that the driver does not know counts as 0. */
static bool device_has(const cuda_backend *b, cu_device_attribute which) {
    int value = 0;
    return b->api->cuDeviceGetAttribute(&value, which, b->device) == DVMM_SUCCESS && value != 0;
}

static void find_host(cuda_backend *b) {
    int node = -1;
    bool is_known = device_has(b, CU_HAS_HOST_NUMA_VMM) &&
                    b->api->cuDeviceGetAttribute(&node, CU_NUMA_NODE, b->device) == DVMM_SUCCESS &&
                    node >= 0;
    b->host =
        is_known ? (cu_location){CU_LOCATION_HOST_NUMA, node} : (cu_location){CU_LOCATION_HOST, 0};
}

/* ---- Capabilities -------------------------------------------------------------------------- */

/* The version of the kernel driver is optional: some systems do not tell it. */
static void read_kernel_version(char *out, size_t size) {
    out[0] = '\0';
    FILE *file = fopen("/sys/module/nvidia/version", "r");
    if (file == NULL) {
        return;
    }
    if (fgets(out, (int)size, file) == NULL) {
        out[0] = '\0';
    }
    (void)fclose(file);
    out[strcspn(out, "\n")] = '\0';
}

static void write_version(dvmm_caps *caps, int version) {
    char kernel[16];
    read_kernel_version(kernel, sizeof(kernel));
    int major = version / 1000;
    int minor = version % 1000 / 10;
    if (kernel[0] == '\0') {
        (void)snprintf(caps->driver_version, sizeof(caps->driver_version), "%d.%d", major, minor);
    } else {
        (void)snprintf(caps->driver_version, sizeof(caps->driver_version), "%d.%d (%s)", major,
                       minor, kernel);
    }
}

static ductile_status read_caps(const cuda_backend *b, int version, dvmm_caps *caps,
                                dvmm_reason why) {
    size_t granule = 0;
    size_t total = 0;
    const dvmm_phys_props plain = {0};
    const cu_phys_props props = dvmm_cuda_props(b, &plain);
    const char *call = "cuMemGetAllocationGranularity";
    int code = b->api->cuMemGetAllocationGranularity(&granule, &props, CU_GRANULARITY_MINIMUM);
    if (code == DVMM_SUCCESS) {
        call = "cuDeviceTotalMem";
        code = b->api->cuDeviceTotalMem(&total, b->device);
    }
    if (code != DVMM_SUCCESS) {
        return refuse_start(call, code, why);
    }
    caps->granule_bytes = granule;
    caps->total_bytes = total;
    caps->share_types = (device_has(b, CU_HAS_SHARED_FD) ? DVMM_SHARE_FD : 0) |
                        (device_has(b, CU_HAS_SHARED_FABRIC) ? DVMM_SHARE_FABRIC : 0);
    caps->has_rdma = device_has(b, CU_HAS_RDMA);
    caps->has_context_events = b->api->cuCtxRecordEvent != NULL;
    caps->has_batches = b->api->cuMemcpyBatchAsync != NULL;
    write_version(caps, version);
    if (b->api->cuDeviceGetName(caps->name, (int)sizeof(caps->name), b->device) != DVMM_SUCCESS) {
        caps->name[0] = '\0';
    }
    return DUCTILE_OK;
}

/* A refusal means the system cannot do it; anything else may be different next time. */
static ductile_status status_of_failure(int code) {
    bool is_refusal = code == DVMM_NOT_SUPPORTED || code == DVMM_NOT_PERMITTED;
    return is_refusal ? DUCTILE_ERR_NO_VMM : DUCTILE_ERR_DRIVER;
}

static ductile_status probe_plain(cuda_backend *b, const dvmm_caps *caps, dvmm_reason why) {
    const dvmm_phys_props plain = {0};
    dvmm_probe_failure failure;
    if (dvmm_probe(&dvmm_cuda_ops, b, caps->granule_bytes, &plain, &failure)) {
        return DUCTILE_OK;
    }
    return dvmm_refuse(status_of_failure(failure.code), why,
                       "device %d cannot map memory on demand: %s failed with %s (%d)",
                       caps->ordinal, failure.call, dvmm_code_name(failure.code), failure.code);
}

/* ---- Opening ------------------------------------------------------------------------------- */

/* One opening under way, on the stack. */
typedef struct opening {
    cuda_backend *backend; /* owned until the driver object takes it */
    dvmm_caps caps;
    int version;
    dvmm_reason why;
} opening;

static ductile_status open_capable(opening *o, dvmm_driver **out) {
    find_host(o->backend);
    ductile_status status = read_caps(o->backend, o->version, &o->caps, o->why);
    if (status == DUCTILE_OK) {
        status = probe_plain(o->backend, &o->caps, o->why);
    }
    if (status == DUCTILE_OK) {
        status = dvmm_driver_new(&dvmm_cuda_ops, o->backend, &o->caps, out);
        (void)dvmm_refuse(status, o->why, "%s", ductile_status_string(status));
    }
    return status;
}

static ductile_status open_context(opening *o, dvmm_driver **out) {
    cuda_backend *b = o->backend;
    if (!device_has(b, CU_HAS_VMM)) {
        return dvmm_refuse(DUCTILE_ERR_NO_VMM, o->why,
                           "device %d does not support virtual memory management", o->caps.ordinal);
    }
    int code = b->api->cuDevicePrimaryCtxRetain(&b->context, b->device);
    if (code != DVMM_SUCCESS) {
        return refuse_start("cuDevicePrimaryCtxRetain", code, o->why);
    }
    ductile_status status = open_capable(o, out);
    if (status != DUCTILE_OK) {
        (void)b->api->cuDevicePrimaryCtxRelease(b->device);
    }
    return status;
}

static ductile_status open_device(opening *o, dvmm_driver **out) {
    cuda_backend *b = o->backend;
    DTI_TRY(dvmm_cuda_load(&b->api, o->why));
    DTI_TRY(start_driver(b->api, o->why));
    DTI_TRY(check_version(b->api, &o->version, o->why));
    DTI_TRY(find_device(b->api, o->caps.ordinal, &b->device, o->why));
    return open_context(o, out);
}

ductile_status dvmm_open_cuda(int ordinal, dvmm_driver **out, char *reason, size_t reason_size) {
    opening o = {.caps.ordinal = ordinal, .why = {reason, reason_size}};
    *out = NULL;
    o.backend = calloc(1, sizeof(*o.backend));
    if (o.backend == NULL) {
        return dvmm_refuse(DUCTILE_ERR_OUT_OF_HOST_MEMORY, o.why, "%s",
                           ductile_status_string(DUCTILE_ERR_OUT_OF_HOST_MEMORY));
    }
    ductile_status status = open_device(&o, out);
    if (status == DUCTILE_OK) {
        return dvmm_refuse(DUCTILE_OK, o.why, "%s", "");
    }
    free(o.backend);
    return status;
}
