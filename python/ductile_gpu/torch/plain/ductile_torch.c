/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that PyTorch's pluggable interface (CUDAPluggableAllocator) takes: for places
 * without a C++ compiler, and for torch.cuda.MemPool.
 *
 * One allocator per device, made when first asked. PyTorch's checks are C++ exceptions, which C
 * cannot throw: a refused request is passed to a function of PyTorch's that does, when one was
 * given; otherwise it is NULL.
 */
#include "ductile_torch.h"

#include <ductile_process.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#pragma weak ductile_process_open

/* c10::detail::torchCheckFail(function, file, line, message): throws, never returns. */
typedef void (*raise_fn)(const char *function, const char *file, uint32_t line,
                         const char *message);

static _Atomic(ductile_allocator *) allocators[MAX_DEVICES];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(raise_fn) raise_error;
static char given_options[1024];         /* guarded by `opening` */
static uint64_t own_limits[MAX_DEVICES]; /* written before the allocator is; 0: none */

/* That of all libraries, where one of the process serves them all; NULL otherwise. */
static ductile_allocator *open_of_process(int device, const ductile_options *options) {
    ductile_status (*create)(ductile_allocator **, const ductile_options *) = ductile_create;
    const void *ours;
    memcpy(&ours, &create, sizeof ours);
    return ductile_process_open != NULL ? ductile_process_open(ours, device, options) : NULL;
}

static ductile_allocator *open_device(int device) {
    ductile_options options;
    ductile_allocator *a = NULL;
    ductile_options_init(&options);
    options.device = device;
    options.captures = DUCTILE_CAPTURES_UNANNOUNCED; /* this interface announces none */
    if (ductile_options_parse(&options, given_options, NULL, 0) != DUCTILE_OK) {
        return NULL;
    }
    a = open_of_process(device, &options);
    return a != NULL || ductile_create(&a, &options) == DUCTILE_OK ? a : NULL;
}

static ductile_limits limits_of(ductile_allocator *a) {
    ductile_limits limits = {.struct_size = sizeof limits};
    return a != NULL && ductile_get_limits(a, &limits) == DUCTILE_OK ? limits : (ductile_limits){0};
}

ductile_allocator *ductile_torch_allocator_of(int device) {
    if (device < 0 || device >= MAX_DEVICES) {
        return NULL;
    }
    ductile_allocator *a = atomic_load_explicit(&allocators[device], memory_order_acquire);
    if (a == NULL) {
        (void)pthread_mutex_lock(&opening);
        a = atomic_load_explicit(&allocators[device], memory_order_acquire);
        if (a == NULL) {
            a = open_device(device);
            own_limits[device] = limits_of(a).limit_bytes;
            atomic_store_explicit(&allocators[device], a, memory_order_release);
        }
        (void)pthread_mutex_unlock(&opening);
    }
    return a;
}

/* The allocator of a device, made if need be; NULL when it cannot be. For the Python side. */
TORCH_API ductile_allocator *ductile_torch_plain_open(int device) {
    return ductile_torch_allocator_of(device);
}

/* The allocator of a device that was used already; NULL otherwise. */
static ductile_allocator *used_allocator(int device) {
    return device >= 0 && device < MAX_DEVICES
               ? atomic_load_explicit(&allocators[device], memory_order_acquire)
               : NULL;
}

/* Whether it has an allocator. For the Python side. */
TORCH_API int ductile_torch_plain_is_used(int device) {
    return used_allocator(device) != NULL;
}

/* Options as in DUCTILE_CONF, for devices that are still to be used. 0 when they are refused. */
TORCH_API int ductile_torch_plain_set_options(const char *text) {
    ductile_options probe;
    ductile_options_init(&probe);
    if (strlen(text) >= sizeof given_options ||
        ductile_options_parse(&probe, text, NULL, 0) != DUCTILE_OK) {
        return 0;
    }
    (void)pthread_mutex_lock(&opening);
    memcpy(given_options, text, strlen(text) + 1);
    (void)pthread_mutex_unlock(&opening);
    return 1;
}

TORCH_API void ductile_torch_plain_set_raise(raise_fn function) {
    atomic_store(&raise_error, function);
}

/* ---- What PyTorch calls -------------------------------------------------------------------- */

static void write_refusal(int device, size_t size, ductile_status status, char *out, size_t room) {
    ductile_refusal asleep = {.struct_size = sizeof asleep};
    ductile_allocator *a = ductile_torch_allocator_of(device);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        (void)snprintf(out, room,
                       "CUDA out of memory. Tried to allocate %.2f MiB. GPU %d; see "
                       "torch.cuda.memory_summary()",
                       (double)size / (1 << 20), device);
    } else if (status == DUCTILE_ERR_ASLEEP && ductile_sleep_refusal(a, &asleep) == DUCTILE_OK) {
        (void)snprintf(out, room,
                       "Ductile: %zu bytes on GPU %d belong to '%s', which sleeps: wake it "
                       "first, or allocate outside of it",
                       size, device, asleep.tag[0] != '\0' ? asleep.tag : "the default pool");
    } else if (a == NULL && *ductile_create_error() != '\0') {
        (void)snprintf(out, room, "Ductile cannot open device %d: %.400s", device,
                       ductile_create_error());
    } else {
        (void)snprintf(out, room, "Ductile: allocating %zu bytes on GPU %d: %s", size, device,
                       ductile_status_string(status));
    }
}

void ductile_torch_refuse(int device, size_t size, ductile_status status) {
    raise_fn fail = atomic_load(&raise_error);
    if (fail == NULL) {
        return;
    }
    char message[512];
    write_refusal(device, size, status, message, sizeof message);
    fail("ductile_torch_malloc", "ductile", 0, message);
}

static void refuse_unless(bool done, int device) {
    if (!done) {
        ductile_torch_refuse(device, 0, DUCTILE_ERR_INVALID_ARGUMENT);
    }
}

TORCH_API void *ductile_torch_malloc(size_t size, int device, ductile_stream stream) {
    ductile_addr address = 0;
    if (size == 0) {
        return NULL;
    }
    ductile_allocator *a = ductile_torch_allocator_of(device);
    ductile_status status =
        a != NULL ? ductile_alloc(a, size, stream, &address) : DUCTILE_ERR_NO_DEVICE;
    if (status != DUCTILE_OK) {
        ductile_torch_refuse(device, size, status);
        return NULL;
    }
    return (void *)(uintptr_t)address;
}

/* The library orders the memory after the stream's work by itself. */
TORCH_API void ductile_torch_free(void *ptr, size_t size, int device, ductile_stream stream) {
    (void)size;
    (void)stream;
    ductile_allocator *a = used_allocator(device);
    if (ptr != NULL && a != NULL) {
        (void)ductile_free(a, (ductile_addr)(uintptr_t)ptr);
    }
}

TORCH_API void ductile_torch_reset(void) {
    for (int i = 0; i < MAX_DEVICES; i++) {
        ductile_allocator *a = used_allocator(i);
        if (a != NULL) {
            ductile_status status = ductile_trim(a, NULL, 0, NULL);
            (void)status; /* what could not go back stays cached */
        }
    }
}

/* Beside the limit that the options set: the smaller holds. The library's 0 is none. */
TORCH_API void ductile_torch_memory_fraction(double fraction, int device) {
    ductile_allocator *a = ductile_torch_allocator_of(device);
    if (a == NULL) {
        return;
    }
    ductile_limits limits = limits_of(a);
    uint64_t bytes = (uint64_t)(fraction * (double)limits.device_bytes);
    bytes = bytes < own_limits[device] ? bytes : own_limits[device];
    limits.limit_bytes = bytes > 0 ? bytes : 1;
    limits.soft_limit_bytes = DUCTILE_LIMIT_KEEP;
    refuse_unless(ductile_set_limits(a, &limits) == DUCTILE_OK, device);
}

TORCH_API void ductile_torch_record_stream(void *ptr, ductile_stream stream) {
    for (int i = 0; i < MAX_DEVICES; i++) {
        ductile_allocator *a = used_allocator(i);
        if (a != NULL &&
            ductile_record_stream(a, (ductile_addr)(uintptr_t)ptr, stream) == DUCTILE_OK) {
            return;
        }
    }
}

/* ---- Private pools -------------------------------------------------------------------------- */

/*
 * The third argument of begin is a C++ function object, which C cannot call. Requests of the
 * calling thread belong to the pool: right for use_mem_pool, and for a capture whose memory is
 * asked for by the thread that captures.
 */
TORCH_API void ductile_torch_begin_pool(int device, ductile_pool_id id, void *filter) {
    (void)filter;
    ductile_allocator *a = ductile_torch_allocator_of(device);
    refuse_unless(a != NULL && ductile_pool_begin(a, id, NULL, NULL) == DUCTILE_OK, device);
}

TORCH_API void ductile_torch_end_pool(int device, ductile_pool_id id) {
    ductile_allocator *a = ductile_torch_allocator_of(device);
    refuse_unless(a == NULL || ductile_pool_end(a, id) == DUCTILE_OK, device);
}

TORCH_API void ductile_torch_release_pool(int device, ductile_pool_id id) {
    ductile_allocator *a = ductile_torch_allocator_of(device);
    refuse_unless(a == NULL || ductile_pool_release(a, id) == DUCTILE_OK, device);
}
