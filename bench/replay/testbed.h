/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run of one contender needs: a fresh virtual GPU or, on CUDA, a fresh driver object; the
 * streams that blocks are used on; and a fresh contender.
 *
 * The bench's own driver is apart from the contender's, so that streams and gates are not counted
 * among what the contender did.
 */
#ifndef DUCTILE_BENCH_REPLAY_TESTBED_H
#define DUCTILE_BENCH_REPLAY_TESTBED_H

#include "bench/base/device.h"
#include "bench/contenders/contender.h"

#include <ductile_virtual.h>

/* Virtual GPU: when work completes, and which events tell.
 * All zero: at once, by the newest driver. */
typedef struct bench_pace {
    ductile_schedule schedule;
    uint64_t lag;        /* LAGGING: advances from issue to completion */
    uint64_t seed;       /* RANDOM */
    bool has_old_driver; /* whose events stand behind one stream, never behind a context */
} bench_pace;

typedef struct testbed_plan {
    const bench_device *device;
    const contender_ops *contender;
    const char *const *settings; /* as contender_env */
    size_t n_settings;
    uint64_t capacity_bytes; /* 0: what the device has */
    bench_pace pace;
    bool is_untimed; /* the driver's times stay 0 */
    bool detects;    /* virtual GPU: misuse of memory is a violation, whatever the schedule */
    size_t n_streams;
    const ductile_stream *streams; /* of the caller, so many; NULL: the testbed makes its own */
} testbed_plan;

/* What the contender can have. */
static inline uint64_t testbed_capacity(const testbed_plan *plan) {
    return plan->capacity_bytes != 0 ? plan->capacity_bytes : plan->device->caps.total_bytes;
}

/* All zero is closed. Owned by one thread. */
typedef struct testbed {
    ductile_virtual_gpu *gpu; /* NULL on CUDA */
    dvmm_driver *driver;      /* the bench's own */
    dvmm_driver *contender_driver;
    bench_pace pace;
    ductile_stream *streams; /* unless they are the caller's, none is the default stream */
    size_t n_streams;        /* that were made here */
    const contender_ops *ops;
    void *contender;
} testbed;

typedef enum run_outcome {
    RUN_COMPLETED,
    RUN_OUT_OF_MEMORY, /* a result: the capacity does not suffice */
    RUN_ABSENT,        /* the contender does not exist on this device */
    RUN_FAILED         /* anything else */
} run_outcome;

/* The outcome when the testbed did not open, and when the contender returned a status. */
static inline run_outcome run_outcome_unopened(ductile_status status) {
    return status == DUCTILE_ERR_UNSUPPORTED ? RUN_ABSENT : RUN_FAILED;
}
static inline run_outcome run_outcome_of(ductile_status status) {
    return status == DUCTILE_OK                  ? RUN_COMPLETED
           : status == DUCTILE_ERR_OUT_OF_MEMORY ? RUN_OUT_OF_MEMORY
                                                 : RUN_FAILED;
}

/* ERR_UNSUPPORTED: this contender is absent on this device. On failure message holds one line and
 * everything is closed again. */
ductile_status testbed_open(testbed *bed, const testbed_plan *plan, char *message,
                            size_t message_size);
void testbed_close(testbed *bed);

/* Destroys a stream and makes a new one in its place. Work under way there still ends. */
ductile_status testbed_renew_stream(testbed *bed, size_t index);

/* Launches a kernel that completes only when it is waited for; later work keeps the testbed's pace.
 * use: the memory that the kernel uses; NULL: none. Pre: the device is the virtual GPU. */
ductile_status testbed_launch_lazy(const testbed *bed, ductile_stream stream,
                                   const ductile_virtual_use *use);

/* How many violations the virtual GPU has recorded, and the last one as text; 0 and "" on CUDA. */
uint64_t testbed_violations(const testbed *bed, char *last, size_t size);

/* Ends the contender alone, so that what it left behind can be seen before testbed_close. */
void testbed_end_contender(testbed *bed);

#endif
