/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a program that allocates and frees, for tests of the recording: a window of live blocks,
 * each freed before its place is taken again. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <time.h>

typedef void (*before_fn)(void);
typedef void (*event_fn)(int action, int device, uint64_t address, uint64_t size, uint64_t stream,
                         const uint64_t *pool);

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
    static const uint64_t no_pool[] = {0, 0};
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < n; i++) {
        before();
        (void)pthread_mutex_lock(&allocator);
        if (i >= LIVE) {
            event(FREE_REQUESTED, device, address_of(i), size_of(i - LIVE), 0, no_pool);
            event(FREE_COMPLETED, device, address_of(i), size_of(i - LIVE), 0, no_pool);
        }
        event(ALLOC, device, address_of(i), size_of(i), 0, no_pool);
        (void)pthread_mutex_unlock(&allocator);
    }
    return now_ns() - start;
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
