/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtual GPU with an allocator and some streams on it. Closing it destroys the allocator and
 * passes the leak gate: nothing of the allocator is left on the device, and the device saw no
 * mistake.
 */
#ifndef TESTS_SUPPORT_FIXTURE_VIRTUAL_H
#define TESTS_SUPPORT_FIXTURE_VIRTUAL_H

#include <ductile_virtual.h>

#include <stddef.h>
#include <stdint.h>

#define FIXTURE_MAX_STREAMS 64
#define FIXTURE_GRANULE ((uint64_t)2 << 20)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* Zero means: 256 MiB, all addresses, eager, no lag, no seed, no log, one stream, defaults. */
typedef struct fixture_setup {
    uint64_t capacity_bytes;
    uint64_t granule_bytes; /* 0: 2 MiB */
    uint64_t address_bytes;
    ductile_schedule schedule;
    uint64_t lag;
    uint64_t seed;
    uint64_t log_calls;
    size_t n_streams;
    uint32_t n_devices; /* of the machine */
    int no_context_events;
    uint64_t host_bytes; /* 0: 128 GiB */
    int no_host_handles;
    const char *conf; /* options, as in DUCTILE_CONF */
    ductile_log_fn log;
    void *log_user;
} fixture_setup;

/* Owner: one test. `allocator` is NULL before it is made and after it was destroyed. */
typedef struct fixture {
    ductile_virtual_gpu *gpu;
    ductile_allocator *allocator;
    ductile_stream streams[FIXTURE_MAX_STREAMS];
    size_t n_streams;
    uint64_t capacity_bytes;
    uint64_t own_streams; /* streams the device has by itself */
} fixture;

/* Makes all of it; setup may be NULL. NULL, or what failed (then everything is gone again). */
const char *fixture_open(fixture *f, const fixture_setup *setup);

/* Only the device and its streams, for tests that make their allocators themselves. */
const char *fixture_open_device(fixture *f, const fixture_setup *setup);

/* Makes another allocator on the device of `f`. */
const char *fixture_add_allocator(const fixture *f, const fixture_setup *setup,
                                  ductile_allocator **out);

/* Destroys all of it and returns what the leak gate says. */
const char *fixture_close(fixture *f);

/* Destroys the streams and the device and checks nothing: for tests that lose memory on purpose. */
void fixture_abandon(fixture *f);

/* NULL when no handle, mapping, reservation, event or allocation is left and no violation was
 * seen. The streams of the test may still be there. */
const char *fixture_leak_gate(const fixture *f);

ductile_virtual_state fixture_state(const fixture *f);
ductile_stats fixture_stats(ductile_allocator *allocator);

/* Waits for every stream of the fixture, and then for the device. */
const char *fixture_sync_all(const fixture *f);

/* Completes all work of the device, also of streams that are gone, and the events behind it, which
 * a lazy schedule holds back otherwise. Breaks captures under way. */
const char *fixture_finish_work(const fixture *f);

#endif
