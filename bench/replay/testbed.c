/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/testbed.h"
#include "vmm/base/status.h"

#include "vmm/base/align.h"

#include <ductile_virtual.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A capacity above the device's makes a larger device: that is how runs recorded on one are
 * replayed. */
static ductile_status make_gpu(testbed *bed, const testbed_plan *plan) {
    const dvmm_caps *caps = &plan->device->caps;
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    if (plan->capacity_bytes > caps->total_bytes) {
        options.capacity_bytes = dti_round_up(plan->capacity_bytes, caps->granule_bytes);
    }
    options.schedule = plan->pace.schedule;
    options.lag = plan->pace.lag;
    options.no_context_events = plan->pace.has_old_driver;
    options.detect = plan->detects;
    options.seed = plan->pace.schedule == DUCTILE_SCHEDULE_RANDOM ? plan->pace.seed : 0;
    return ductile_virtual_create(&bed->gpu, &options);
}

static ductile_status make_streams(testbed *bed, size_t n, const ductile_stream *given) {
    bed->streams = calloc(n, sizeof *bed->streams);
    if (bed->streams == NULL && n > 0) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    if (given != NULL) {
        memcpy(bed->streams, given, n * sizeof *given);
        return DUCTILE_OK;
    }
    while (bed->n_streams < n) {
        DTI_TRY(dvmm_stream_create(bed->driver, &bed->streams[bed->n_streams]));
        bed->n_streams++;
    }
    return DUCTILE_OK;
}

static ductile_status open_device(testbed *bed, const testbed_plan *plan) {
    bool is_timed = !plan->is_untimed;
    DTI_TRY(plan->device->is_virtual ? make_gpu(bed, plan) : DUCTILE_OK);
    DTI_TRY(bench_device_open(plan->device, bed->gpu, is_timed, &bed->driver));
    DTI_TRY(bench_device_open(plan->device, bed->gpu, is_timed, &bed->contender_driver));
    return make_streams(bed, plan->n_streams, plan->streams);
}

static ductile_status start_contender(testbed *bed, const testbed_plan *plan, char *message,
                                      size_t message_size) {
    contender_env env = {
        .driver = bed->contender_driver,
        .gpu = bed->gpu,
        .device = plan->device->caps.ordinal,
        .capacity_bytes = plan->capacity_bytes,
        .settings = plan->settings,
        .n_settings = plan->n_settings,
        .is_untimed = plan->is_untimed,
    };
    bed->ops = plan->contender;
    return bed->ops->init(&env, &bed->contender, message, message_size);
}

ductile_status testbed_open(testbed *bed, const testbed_plan *plan, char *message,
                            size_t message_size) {
    *bed = (testbed){.pace = plan->pace};
    ductile_status status = open_device(bed, plan);
    if (status != DUCTILE_OK) {
        (void)snprintf(message, message_size, "the device cannot be opened: %s",
                       ductile_status_string(status));
    } else {
        status = start_contender(bed, plan, message, message_size);
    }
    if (status != DUCTILE_OK) {
        testbed_close(bed);
    }
    return status;
}

ductile_status testbed_renew_stream(testbed *bed, size_t index) {
    ductile_status status = dvmm_stream_destroy(bed->driver, bed->streams[index]);
    bed->streams[index] = NULL;
    return status == DUCTILE_OK ? dvmm_stream_create(bed->driver, &bed->streams[index]) : status;
}

void testbed_end_contender(testbed *bed) {
    if (bed->contender != NULL) {
        bed->ops->fini(bed->contender);
        bed->contender = NULL;
    }
}

void testbed_close(testbed *bed) {
    testbed_end_contender(bed);
    while (bed->n_streams > 0) {
        ductile_stream stream = bed->streams[--bed->n_streams];
        if (stream != NULL) { /* else it could not be made */
            (void)dvmm_stream_destroy(bed->driver, stream);
        }
    }
    free(bed->streams);
    if (bed->contender_driver != NULL) {
        dvmm_close(bed->contender_driver);
    }
    if (bed->driver != NULL) {
        dvmm_close(bed->driver);
    }
    if (bed->gpu != NULL) {
        ductile_virtual_destroy(bed->gpu);
    }
    *bed = (testbed){0};
}

ductile_status testbed_launch_lazy(const testbed *bed, ductile_stream stream,
                                   const ductile_virtual_use *use) {
    ductile_virtual_set_schedule(bed->gpu, DUCTILE_SCHEDULE_LAZY, 0);
    ductile_status status = ductile_virtual_launch(bed->gpu, stream, use, use != NULL);
    ductile_virtual_set_schedule(bed->gpu, bed->pace.schedule, bed->pace.lag);
    return status;
}

uint64_t testbed_violations(const testbed *bed, char *last, size_t size) {
    ductile_virtual_state state = {.struct_size = sizeof state};
    last[0] = '\0';
    if (bed->gpu == NULL || ductile_virtual_get_state(bed->gpu, &state) != DUCTILE_OK) {
        return 0;
    }
    if (state.violations > 0) {
        ductile_virtual_last_violation(bed->gpu, last, size);
    }
    return state.violations;
}
