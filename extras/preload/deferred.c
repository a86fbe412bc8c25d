/* SPDX-License-Identifier: Apache-2.0 */
#include "deferred.h"

#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

typedef struct kept {
    struct kept *next;
    ductile_addr address;
    int device;
    bool is_waited_for; /* a thread waits for the device, to free it then */
} kept;

/* The list and its elements are guarded by the lock. Most processes never have one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept *all;
static atomic_int n_kept;
static atomic_int n_captures;
static atomic_int n_on_device[DPRE_N_DEVICES]; /* of those */
static atomic_int n_holders;                   /* captures begin behind them */

/* ---- Captures ------------------------------------------------------------------------------ */

bool dpre_is_capture_known(void) {
    return atomic_load(&n_captures) > 0;
}

bool dpre_hold_captures(void) {
    atomic_fetch_add(&n_holders, 1);
    bool holds = !dpre_is_capture_known();
    if (!holds) {
        dpre_release_captures();
    }
    return holds;
}

void dpre_release_captures(void) {
    atomic_fetch_sub(&n_holders, 1);
}

static void wait_for_holders(void) {
    const struct timespec moment = {.tv_nsec = 1000};
    while (atomic_load(&n_holders) > 0) {
        (void)nanosleep(&moment, NULL);
    }
}

void dpre_capture_begins(int device) {
    atomic_fetch_add(&n_captures, 1); /* threads that hold it up already are the last */
    if (device >= 0) {
        atomic_fetch_add(&n_on_device[device], 1);
    }
    ductile_capture_begin();
    wait_for_holders();
}

static void end_one(void) {
    ductile_capture_end();
    if (atomic_fetch_sub(&n_captures, 1) == 1) {
        dpre_free_deferred();
    }
}

void dpre_capture_ended(int device) {
    if (device >= 0) {
        atomic_fetch_sub(&n_on_device[device], 1);
    }
    end_one();
}

void dpre_captures_gone(int device) {
    if (device < 0 || device >= DPRE_N_DEVICES) {
        return;
    }
    for (int n = atomic_exchange(&n_on_device[device], 0); n > 0; n--) {
        end_one();
    }
}

/* ---- Keeping ------------------------------------------------------------------------------- */

/* Pre: the lock. */
static bool has(ductile_addr address) {
    const kept *k = all;
    while (k != NULL && k->address != address) {
        k = k->next;
    }
    return k != NULL;
}

bool dpre_is_deferred(ductile_addr address) {
    if (atomic_load(&n_kept) == 0) {
        return false;
    }
    pthread_mutex_lock(&lock);
    bool is_kept = has(address);
    pthread_mutex_unlock(&lock);
    return is_kept;
}

/* Pre: the lock. */
static cu_result keep(int device, ductile_addr address) {
    if (has(address)) {
        return CU_INVALID_VALUE;
    }
    kept *k = malloc(sizeof(*k));
    if (k == NULL) {
        return CU_OUT_OF_MEMORY;
    }
    *k = (kept){.next = all, .address = address, .device = device};
    all = k;
    atomic_fetch_add(&n_kept, 1);
    return CU_SUCCESS;
}

cu_result dpre_defer(int device, ductile_addr address) {
    pthread_mutex_lock(&lock);
    cu_result code = keep(device, address);
    pthread_mutex_unlock(&lock);
    dpre_free_deferred(); /* the capture may have ended meanwhile */
    return code;
}

/* ---- Freeing ------------------------------------------------------------------------------- */

/* One for this thread to wait for. False: there is none. */
static bool claim(kept *out) {
    pthread_mutex_lock(&lock);
    kept *k = all;
    while (k != NULL && k->is_waited_for) {
        k = k->next;
    }
    if (k != NULL) {
        k->is_waited_for = true;
        *out = *k;
    }
    pthread_mutex_unlock(&lock);
    return k != NULL;
}

static void unclaim(ductile_addr address) {
    pthread_mutex_lock(&lock);
    for (kept *k = all; k != NULL; k = k->next) {
        k->is_waited_for = k->is_waited_for && k->address != address;
    }
    pthread_mutex_unlock(&lock);
}

/* Drops those of an address, or with address 0 those of a device. */
static void drop(int device, ductile_addr address) {
    pthread_mutex_lock(&lock);
    for (kept **at = &all; *at != NULL;) {
        kept *k = *at;
        if (address != 0 ? k->address != address : k->device != device) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        free(k);
        atomic_fetch_sub(&n_kept, 1);
    }
    pthread_mutex_unlock(&lock);
}

/* False: the device cannot be waited for now. It is freed for the program until the wait is over:
 * from then on the address may be another block's. */
static bool free_one(const kept *k) {
    dpre_device *d = dpre_enter_open(k->device);
    bool is_done = d == NULL || dpre_wait(d) == CU_SUCCESS;
    if (is_done) {
        drop(k->device, k->address);
    }
    if (d != NULL && is_done) {
        (void)ductile_free(dpre_allocator(d), k->address);
    }
    dpre_leave(d);
    return is_done;
}

static bool free_next(void) {
    kept k;
    if (!claim(&k)) {
        return false;
    }
    bool is_done = free_one(&k);
    if (!is_done) {
        unclaim(k.address);
    }
    return is_done;
}

void dpre_free_deferred(void) {
    bool is_more = true;
    while (is_more && dpre_hold_captures()) {
        is_more = free_next();
        dpre_release_captures();
    }
}

void dpre_forget_deferred(int device) {
    drop(device, 0);
}

/* ---- Forks --------------------------------------------------------------------------------- */

static void renew_lock(void) {
    pthread_mutex_init(&lock, NULL);
    atomic_store(&n_holders, 0);
}

__attribute__((constructor)) static void follow_forks(void) {
    (void)pthread_atfork(NULL, NULL, renew_lock);
}
