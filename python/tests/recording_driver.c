/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a program that allocates and frees, for tests of the recording: a window of live blocks,
 * each freed before its place is taken again. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

typedef void (*before_fn)(void);
typedef void (*event_fn)(int action, int device, uint64_t address, uint64_t size, uint64_t stream);

enum { ALLOC, FREE_REQUESTED, FREE_COMPLETED, LIVE = 1000 };

/* As PyTorch's: threads wait for it that hold Python's lock, because they free a tensor. */
static pthread_mutex_t allocator = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t address_of(uint64_t i) {
    return UINT64_C(0x7f0000000000) + (i % LIVE << 21);
}

static uint64_t size_of(uint64_t i) {
    return 512 + i * 7919 % 2000000;
}

/* n allocations, the last LIVE of which stay. Returns how long it took. As in PyTorch's allocators
 * `before` comes first, with nothing locked; Python's lock is not held. */
uint64_t play(event_fn event, before_fn before, uint64_t n, int device) {
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < n; i++) {
        before();
        (void)pthread_mutex_lock(&allocator);
        if (i >= LIVE) {
            event(FREE_REQUESTED, device, address_of(i), size_of(i - LIVE), 0);
            event(FREE_COMPLETED, device, address_of(i), size_of(i - LIVE), 0);
        }
        event(ALLOC, device, address_of(i), size_of(i), 0);
        (void)pthread_mutex_unlock(&allocator);
    }
    return now_ns() - start;
}

/* For comparison. */
void ignore(int action, int device, uint64_t address, uint64_t size, uint64_t stream) {
    (void)action;
    (void)device;
    (void)address;
    (void)size;
    (void)stream;
}

typedef struct run {
    event_fn event;
    before_fn before;
    uint64_t n;
    int device;
} run;

static void *play_run(void *user) {
    const run *r = user;
    (void)play(r->event, r->before, r->n, r->device);
    return NULL;
}

/* On a thread that does not know Python. */
void play_apart(event_fn event, before_fn before, uint64_t n, int device) {
    pthread_t thread;
    run r = {event, before, n, device};
    if (pthread_create(&thread, NULL, play_run, &r) == 0) {
        (void)pthread_join(thread, NULL);
    }
}

/* What a thread that plays and one that tells it to say to each other. */
atomic_int is_waiting, may_begin, has_ended;

/* Plays when the other function says so. Python's lock is not held. */
void play_when_told(event_fn event, before_fn before, uint64_t n, int device) {
    atomic_store(&has_ended, 0);
    atomic_store(&is_waiting, 1);
    while (atomic_exchange(&may_begin, 0) == 0) {
        (void)usleep(1000);
    }
    atomic_store(&is_waiting, 0);
    (void)play(event, before, n, device);
    atomic_store(&has_ended, 1);
}

/* Says so to a thread that waits, and waits for it: for so long at most. Returns whether it has
 * ended. Called with Python's lock held, which no other thread gets meanwhile. */
int tell_to_play(int milliseconds) {
    atomic_store(&may_begin, 1);
    for (int i = 0; i < milliseconds && atomic_load(&has_ended) == 0; i++) {
        (void)usleep(1000);
    }
    return atomic_load(&has_ended);
}
