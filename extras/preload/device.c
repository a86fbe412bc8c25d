/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "counts.h"
#include "real.h"

#include <dlfcn.h>
#include <ductile_process.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 512 };

/* What is not atomic is guarded by the lock, or constant while the allocator is there. */
struct dpre_device {
    _Atomic(ductile_allocator *) allocator;
    _Atomic(cu_context) context;
    atomic_int n_users;
    unsigned long long given[DPRE_N_ACCESS]; /* a bit for each device */
    atomic_ullong peers;                     /* those that have access */
    int ordinal;
    ductile_stream plain_stream;
    bool plain_works;
    cu_mem_pool default_pool;
    bool is_lent;           /* adapters use the allocator */
    atomic_bool is_refused; /* none can be made           */
    _Atomic(ductile_log_fn) log;
    _Atomic(void *) log_user; /* stored before the function is */
};

static dpre_device devices[DPRE_N_DEVICES];
static atomic_int n_devices;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Opening may run code of others, such as a profiler's, which may allocate: not from us. */
static _Thread_local bool is_opening;

/* ---- What is wanted ------------------------------------------------------------------------ */

static dpre_mode read_mode(void) {
    const char *text = secure_getenv("DUCTILE_PRELOAD");
    if (text == NULL || *text == '\0' || strcmp(text, "all") == 0) {
        return DPRE_ALL;
    }
    if (strcmp(text, "async") == 0) {
        return DPRE_STREAM_ORDERED;
    }
    if (strcmp(text, "off") != 0) {
        dpre_note("DUCTILE_PRELOAD is all, async or off: with anything else nothing is served");
    }
    return DPRE_OFF;
}

dpre_mode dpre_served(void) {
    static atomic_int kept = -1;
    int mode = atomic_load_explicit(&kept, memory_order_relaxed);
    if (mode < 0) {
        mode = (int)read_mode();
        atomic_store_explicit(&kept, mode, memory_order_relaxed);
    }
    return (dpre_mode)mode;
}

/* ---- Contexts ------------------------------------------------------------------------------ */

static bool push(cu_context context) {
    return dpre_real()->cuCtxPushCurrent_v2(context) == CU_SUCCESS;
}

static void pop(void) {
    cu_context popped = NULL;
    (void)dpre_real()->cuCtxPopCurrent_v2(&popped);
}

static cu_context current_context(void) {
    const dpre_driver *real = dpre_real();
    cu_context context = NULL;
    return real != NULL && real->cuCtxGetCurrent != NULL &&
                   real->cuCtxGetCurrent(&context) == CU_SUCCESS
               ? context
               : NULL;
}

static int device_of(cu_context context) {
    cu_device device = -1;
    if (push(context)) {
        if (dpre_real()->cuCtxGetDevice(&device) != CU_SUCCESS) {
            device = -1;
        }
        pop();
    }
    return device < DPRE_N_DEVICES ? device : -1;
}

int dpre_current_device(void) {
    cu_device device = -1;
    return dpre_real()->cuCtxGetDevice(&device) == CU_SUCCESS && device < DPRE_N_DEVICES ? device
                                                                                         : -1;
}

/* The primary context of a device that has one; a device without one gets none. */
static cu_context primary_of(int device) {
    const dpre_driver *real = dpre_real();
    unsigned int flags = 0;
    int is_active = 0;
    cu_context primary = NULL;
    if (real->cuDevicePrimaryCtxGetState(device, &flags, &is_active) == CU_SUCCESS && is_active &&
        real->cuDevicePrimaryCtxRetain(&primary, device) == CU_SUCCESS) {
        (void)real->cuDevicePrimaryCtxRelease_v2(device);
    }
    return primary;
}

/* ---- Opening ------------------------------------------------------------------------------- */

static void pass_on(void *user, ductile_log_level level, const char *text) {
    dpre_device *d = user;
    ductile_log_fn log = atomic_load(&d->log);
    if (log != NULL) {
        log(atomic_load(&d->log_user), level, text);
    }
}

/* Captures are announced, since this library sees them begin and end. */
static ductile_options options_of(dpre_device *d, const ductile_options *wanted) {
    ductile_options options;
    ductile_options_init(&options);
    if (wanted != NULL) {
        options = *wanted;
    }
    options.device = d->ordinal;
    options.captures = DUCTILE_CAPTURES_ANNOUNCED;
    options.log = pass_on;
    options.log_user = d;
    return options;
}

/* Memory that adapters can pass to other processes, where the driver has that. */
static ductile_status create(ductile_allocator **out, const ductile_options *options) {
    ductile_options shareable = *options;
    if (options->shareable == 0) {
        shareable.shareable = 1;
        if (ductile_create(out, &shareable) == DUCTILE_OK) {
            return DUCTILE_OK;
        }
    }
    return ductile_create(out, options);
}

static bool make_plain_stream(dpre_device *d) {
    if (!push(d->context)) {
        return false;
    }
    bool is_made = dpre_real()->cuStreamCreate(&d->plain_stream, CU_NON_BLOCKING) == CU_SUCCESS;
    pop();
    return is_made;
}

static void read_options(dpre_device *d, ductile_allocator *a) {
    ductile_options options;
    ductile_options_init(&options);
    ductile_get_options(a, &options);
    d->plain_works = options.zero != 0 || options.reuse == DUCTILE_REUSE_WAIT ||
                     options.record_stream == DUCTILE_RECORD_WAIT;
}

static void find_default_pool(dpre_device *d) {
    const dpre_driver *real = dpre_real();
    d->default_pool = NULL;
    if (real->cuDeviceGetDefaultMemPool != NULL) {
        (void)real->cuDeviceGetDefaultMemPool(&d->default_pool, d->ordinal);
    }
}

static void allow_peers(dpre_device *d, ductile_allocator *a) {
    for (int other = 0; other < DPRE_N_DEVICES; other++) {
        if ((d->peers >> other & 1) != 0 && ductile_enable_peer(a, other) != DUCTILE_OK) {
            dpre_note("another GPU was to have access to memory of Ductile, and could not get it");
        }
    }
}

static void refuse(dpre_device *d, ductile_status status) {
    char sentence[TEXT_BYTES];
    const char *why =
        *ductile_create_error() != '\0' ? ductile_create_error() : ductile_status_string(status);
    (void)snprintf(sentence, sizeof(sentence), "device %d is served by the driver: %.400s",
                   d->ordinal, why);
    dpre_note(sentence);
    d->is_refused = true;
}

static ductile_allocator *open_locked(dpre_device *d, cu_context context,
                                      const ductile_options *wanted) {
    ductile_allocator *a = atomic_load(&d->allocator);
    if (a != NULL || d->is_refused) {
        return a;
    }
    d->ordinal = (int)(d - devices);
    atomic_store(&d->context, context);
    ductile_options options = options_of(d, wanted);
    ductile_status status = create(&a, &options);
    if (status == DUCTILE_OK && !make_plain_stream(d)) {
        (void)ductile_destroy(a);
        status = DUCTILE_ERR_DRIVER;
    }
    if (status != DUCTILE_OK) {
        atomic_store(&d->context, NULL);
        refuse(d, status);
        return NULL;
    }
    read_options(d, a);
    find_default_pool(d);
    allow_peers(d, a);
    atomic_store(&d->allocator, a);
    if (d->ordinal >= n_devices) {
        n_devices = d->ordinal + 1;
    }
    return a;
}

static void open_device(int device, cu_context context) {
    is_opening = true;
    pthread_mutex_lock(&lock);
    (void)open_locked(&devices[device], context, NULL);
    pthread_mutex_unlock(&lock);
    is_opening = false;
}

/* ---- Entering and leaving ------------------------------------------------------------------ */

int dpre_n_devices(void) {
    return atomic_load(&n_devices);
}

void dpre_leave(dpre_device *device) {
    if (device != NULL) {
        atomic_fetch_sub(&device->n_users, 1);
    }
}

dpre_device *dpre_enter_open(int device) {
    dpre_device *d = &devices[device];
    atomic_fetch_add(&d->n_users, 1);
    if (atomic_load(&d->allocator) != NULL) {
        return d;
    }
    dpre_leave(d);
    return NULL;
}

static dpre_device *enter_known(cu_context context) {
    for (int i = 0; i < dpre_n_devices(); i++) {
        dpre_device *d = atomic_load(&devices[i].context) == context ? dpre_enter_open(i) : NULL;
        if (d != NULL && atomic_load(&d->context) == context) {
            return d;
        }
        dpre_leave(d);
    }
    return NULL;
}

static dpre_device *enter(cu_context context) {
    if (context == NULL || dpre_served() == DPRE_OFF || is_opening) {
        return NULL;
    }
    dpre_device *d = enter_known(context);
    int device = d == NULL ? device_of(context) : -1;
    if (device < 0 || devices[device].is_refused || primary_of(device) != context) {
        return d;
    }
    open_device(device, context);
    return enter_known(context);
}

dpre_device *dpre_enter_current(void) {
    return enter(current_context());
}

bool dpre_is_default_stream(ductile_stream stream) {
    return stream == NULL || stream == CU_LEGACY_STREAM || stream == CU_PER_THREAD_STREAM;
}

static cu_context context_of(ductile_stream stream) {
    cu_context context = NULL;
    if (dpre_is_default_stream(stream)) {
        return current_context();
    }
    return dpre_real()->cuStreamGetCtx(stream, &context) == CU_SUCCESS ? context : NULL;
}

dpre_device *dpre_enter_stream(ductile_stream stream) {
    return enter(context_of(stream));
}

int dpre_stream_device(ductile_stream stream) {
    return dpre_real() != NULL ? dpre_primary_device(context_of(stream)) : -1;
}

dpre_device *dpre_enter_owner(ductile_addr address, ductile_block_info *block) {
    for (int i = 0; i < dpre_n_devices(); i++) {
        dpre_device *d = dpre_enter_open(i);
        memset(block, 0, sizeof(*block));
        block->struct_size = sizeof(*block);
        ductile_status status = d != NULL ? ductile_query_block(d->allocator, address, block)
                                          : DUCTILE_ERR_FOREIGN_POINTER;
        if (status == DUCTILE_OK || status == DUCTILE_ERR_INTERIOR_POINTER) {
            return d;
        }
        dpre_leave(d);
    }
    return NULL;
}

/* ---- Of an entered device ------------------------------------------------------------------ */

ductile_allocator *dpre_allocator(const dpre_device *device) {
    return atomic_load(&device->allocator);
}

cu_context dpre_context(const dpre_device *device) {
    return atomic_load(&device->context);
}

bool dpre_is_current(const dpre_device *device) {
    return current_context() == dpre_context(device);
}

int dpre_ordinal(const dpre_device *device) {
    return device->ordinal;
}

ductile_stream dpre_plain_stream(const dpre_device *device) {
    return device->plain_stream;
}

bool dpre_plain_works(const dpre_device *device) {
    return device->plain_works;
}

bool dpre_is_default_pool(const dpre_device *device, cu_mem_pool pool) {
    return pool != NULL && pool == device->default_pool;
}

bool dpre_default_is_current(const dpre_device *device) {
    const dpre_driver *real = dpre_real();
    cu_mem_pool current = NULL;
    return real->cuDeviceGetMemPool != NULL &&
           real->cuDeviceGetMemPool(&current, device->ordinal) == CU_SUCCESS &&
           dpre_is_default_pool(device, current);
}

bool dpre_give_back(int device) {
    uint64_t given = 0;
    for (int i = 0; i < dpre_n_devices(); i++) {
        dpre_device *d = device == i || device == DPRE_EVERY_DEVICE ? dpre_enter_open(i) : NULL;
        uint64_t released = 0;
        if (d != NULL) {
            (void)!ductile_trim(d->allocator, NULL, 0, &released);
        }
        given += released;
        dpre_leave(d);
    }
    return given > 0;
}

static cu_result wait_for(cu_context context) {
    cu_result code = dpre_real()->cuCtxPushCurrent_v2(context);
    if (code == CU_SUCCESS) {
        code = dpre_sync_context();
        pop();
    }
    return code;
}

cu_result dpre_wait(const dpre_device *device) {
    cu_result code = wait_for(dpre_context(device));
    unsigned long long peers = atomic_load(&device->peers);
    for (int i = 0; peers != 0 && code == CU_SUCCESS; i++, peers >>= 1) {
        cu_context context = (peers & 1) != 0 ? primary_of(i) : NULL;
        code = context != NULL ? wait_for(context) : CU_SUCCESS;
    }
    return code;
}

/* ---- Peers and resets ---------------------------------------------------------------------- */

static cu_result set_peer_locked(dpre_device *d, int other, bool is_allowed) {
    ductile_allocator *a = atomic_load(&d->allocator);
    ductile_status status = a == NULL    ? DUCTILE_OK
                            : is_allowed ? ductile_enable_peer(a, other)
                                         : ductile_disable_peer(a, other);
    if (status != DUCTILE_OK && status != DUCTILE_ERR_EXITING) {
        dpre_note("access of another GPU to memory of Ductile could not be changed");
        return CU_NO_PEER_ACCESS;
    }
    return CU_SUCCESS;
}

static void follow_given(dpre_device *d) {
    atomic_store(&d->peers, d->given[DPRE_OF_CONTEXT] | d->given[DPRE_OF_POOL]);
}

static cu_result give_locked(dpre_device *d, int other, dpre_access by, bool is_allowed) {
    unsigned long long bit = 1ull << other, by_other_call = d->given[!by] & bit;
    cu_result code = by_other_call == 0 ? set_peer_locked(d, other, is_allowed) : CU_SUCCESS;
    if (code == CU_SUCCESS) {
        d->given[by] = is_allowed ? d->given[by] | bit : d->given[by] & ~bit;
        follow_given(d);
    }
    return code;
}

int dpre_primary_device(cu_context context) {
    int device = context != NULL ? device_of(context) : -1;
    return device >= 0 && primary_of(device) == context ? device : -1;
}

int dpre_pool_device(cu_mem_pool pool) {
    const dpre_driver *real = dpre_real();
    cu_mem_pool found = NULL;
    for (int i = 0; i < DPRE_N_DEVICES; i++) {
        if (real->cuDeviceGetDefaultMemPool(&found, i) != CU_SUCCESS) {
            return -1;
        }
        if (found == pool) {
            return i;
        }
    }
    return -1;
}

cu_result dpre_set_peer(int owner, int device, dpre_access by, bool is_allowed) {
    if (dpre_served() == DPRE_OFF || owner < 0 || device < 0 || device >= DPRE_N_DEVICES ||
        owner == device) {
        return CU_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    cu_result code = give_locked(&devices[owner], device, by, is_allowed);
    pthread_mutex_unlock(&lock);
    return code;
}

bool dpre_close(int device) {
    if (device < 0 || device >= dpre_n_devices()) {
        return false;
    }
    dpre_device *d = &devices[device];
    pthread_mutex_lock(&lock);
    ductile_allocator *a = d->is_lent ? NULL : atomic_exchange(&d->allocator, NULL);
    if (a != NULL) {
        atomic_store(&d->context, NULL);
        memset(d->given, 0, sizeof(d->given));
        follow_given(d);
        while (atomic_load(&d->n_users) > 0) {
            (void)sched_yield();
        }
        (void)ductile_destroy(a); /* the plain stream goes with the context */
    }
    pthread_mutex_unlock(&lock);
    return a != NULL;
}

/* ---- Adapters ------------------------------------------------------------------------------ */

static bool is_our_library(const void *create_of_caller) {
    ductile_status (*function)(ductile_allocator **, const ductile_options *) = ductile_create;
    void *ours;
    memcpy(&ours, &function, sizeof(ours));
    return create_of_caller == ours;
}

/* An adapter may be the first to use the driver. It keeps the library open. */
static bool start_driver(void) {
    return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != NULL && dpre_real() != NULL &&
           dpre_real()->cuInit(0) == CU_SUCCESS;
}

static ductile_allocator *lend(dpre_device *d, cu_context context, const ductile_options *options) {
    is_opening = true;
    pthread_mutex_lock(&lock);
    if (options != NULL && options->log != NULL) {
        atomic_store(&d->log_user, options->log_user);
        atomic_store(&d->log, options->log);
    }
    ductile_allocator *a = open_locked(d, context, options);
    d->is_lent = d->is_lent || a != NULL;
    pthread_mutex_unlock(&lock);
    is_opening = false;
    return a;
}

PRELOAD_API ductile_allocator *ductile_process_open(const void *create_of_caller, int device,
                                                    const ductile_options *options) {
    cu_context context = NULL;
    if (device < 0 || device >= DPRE_N_DEVICES || dpre_served() == DPRE_OFF ||
        !is_our_library(create_of_caller) || !start_driver() ||
        dpre_real()->cuDevicePrimaryCtxRetain(&context, device) != CU_SUCCESS) {
        return NULL;
    }
    ductile_allocator *a = lend(&devices[device], context, options);
    (void)dpre_real()->cuDevicePrimaryCtxRelease_v2(device); /* the allocator has retained it */
    return a;
}

/* ---- Forks --------------------------------------------------------------------------------- */

/* Of the parent's threads the child has the one that forked, which is inside of no device. */
static void start_over(void) {
    pthread_mutex_init(&lock, NULL);
    for (int i = 0; i < DPRE_N_DEVICES; i++) {
        atomic_store(&devices[i].n_users, 0);
    }
}

__attribute__((constructor)) static void follow_forks(void) {
    (void)pthread_atfork(NULL, NULL, start_over);
}
