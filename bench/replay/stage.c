/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/stage.h"
#include "vmm/base/status.h"

#include "vmm/base/align.h"

#include <ductile_virtual.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A capacity above the device's makes a larger device: that is how runs recorded on one are
 * replayed. */
static ductile_status make_gpu(stage *s, const stage_plan *plan) {
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
    return ductile_virtual_create(&s->gpu, &options);
}

static ductile_status make_streams(stage *s, size_t n, const ductile_stream *given) {
    s->streams = calloc(n, sizeof *s->streams);
    if (s->streams == NULL && n > 0) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    if (given != NULL) {
        memcpy(s->streams, given, n * sizeof *given);
        return DUCTILE_OK;
    }
    while (s->n_streams < n) {
        DTI_TRY(dvmm_stream_create(s->driver, &s->streams[s->n_streams]));
        s->n_streams++;
    }
    return DUCTILE_OK;
}

static ductile_status open_device(stage *s, const stage_plan *plan) {
    bool is_timed = !plan->is_untimed;
    DTI_TRY(plan->device->is_virtual ? make_gpu(s, plan) : DUCTILE_OK);
    DTI_TRY(bench_device_open(plan->device, s->gpu, is_timed, &s->driver));
    DTI_TRY(bench_device_open(plan->device, s->gpu, is_timed, &s->contender_driver));
    return make_streams(s, plan->n_streams, plan->streams);
}

static ductile_status start_contender(stage *s, const stage_plan *plan, char *message,
                                      size_t message_size) {
    contender_env env = {
        .driver = s->contender_driver,
        .gpu = s->gpu,
        .device = plan->device->caps.ordinal,
        .capacity_bytes = plan->capacity_bytes,
        .settings = plan->settings,
        .n_settings = plan->n_settings,
        .is_untimed = plan->is_untimed,
    };
    s->ops = plan->contender;
    return s->ops->init(&env, &s->contender, message, message_size);
}

ductile_status stage_open(stage *s, const stage_plan *plan, char *message, size_t message_size) {
    *s = (stage){.pace = plan->pace};
    ductile_status status = open_device(s, plan);
    if (status != DUCTILE_OK) {
        (void)snprintf(message, message_size, "the device cannot be opened: %s",
                       ductile_status_string(status));
    } else {
        status = start_contender(s, plan, message, message_size);
    }
    if (status != DUCTILE_OK) {
        stage_close(s);
    }
    return status;
}

ductile_status stage_renew_stream(stage *s, size_t index) {
    ductile_status status = dvmm_stream_destroy(s->driver, s->streams[index]);
    s->streams[index] = NULL;
    return status == DUCTILE_OK ? dvmm_stream_create(s->driver, &s->streams[index]) : status;
}

void stage_end_contender(stage *s) {
    if (s->contender != NULL) {
        s->ops->fini(s->contender);
        s->contender = NULL;
    }
}

void stage_close(stage *s) {
    stage_end_contender(s);
    while (s->n_streams > 0) {
        ductile_stream stream = s->streams[--s->n_streams];
        if (stream != NULL) { /* else it could not be made */
            (void)dvmm_stream_destroy(s->driver, stream);
        }
    }
    free(s->streams);
    if (s->contender_driver != NULL) {
        dvmm_close(s->contender_driver);
    }
    if (s->driver != NULL) {
        dvmm_close(s->driver);
    }
    if (s->gpu != NULL) {
        ductile_virtual_destroy(s->gpu);
    }
    *s = (stage){0};
}

ductile_status stage_launch_lazy(const stage *s, ductile_stream stream,
                                 const ductile_virtual_use *use) {
    ductile_virtual_set_schedule(s->gpu, DUCTILE_SCHEDULE_LAZY, 0);
    ductile_status status = ductile_virtual_launch(s->gpu, stream, use, use != NULL);
    ductile_virtual_set_schedule(s->gpu, s->pace.schedule, s->pace.lag);
    return status;
}

uint64_t stage_violations(const stage *s, char *last, size_t size) {
    ductile_virtual_state state = {.struct_size = sizeof state};
    last[0] = '\0';
    if (s->gpu == NULL || ductile_virtual_get_state(s->gpu, &state) != DUCTILE_OK) {
        return 0;
    }
    if (state.violations > 0) {
        ductile_virtual_last_violation(s->gpu, last, size);
    }
    return state.violations;
}
