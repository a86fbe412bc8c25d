/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fixture_virtual.h"

#include "tests/support/complain.h"
#include "vmm/driver/driver.h"
#include "vmm/driver/open_virtual.h"

#include <stdlib.h>
#include <string.h>

static const fixture_setup all_defaults;

ductile_virtual_state fixture_state(const fixture *f) {
    ductile_virtual_state state = {.struct_size = sizeof state};
    if (ductile_virtual_get_state(f->gpu, &state) != DUCTILE_OK) {
        memset(&state, 0xFF, sizeof state); /* no check that follows can pass */
    }
    return state;
}

ductile_stats fixture_stats(ductile_allocator *allocator) {
    ductile_stats stats = {.struct_size = sizeof stats};
    if (ductile_get_stats(allocator, NULL, &stats) != DUCTILE_OK) {
        memset(&stats, 0xFF, sizeof stats);
    }
    return stats;
}

static const char *make_device(fixture *f, const fixture_setup *setup) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.capacity_bytes = setup->capacity_bytes != 0 ? setup->capacity_bytes : 256 * MIB;
    options.granule_bytes = setup->granule_bytes;
    options.address_bytes = setup->address_bytes;
    options.schedule = setup->schedule;
    options.lag = setup->lag;
    options.seed = setup->seed;
    options.log_calls = setup->log_calls;
    options.n_devices = setup->n_devices;
    options.no_context_events = setup->no_context_events;
    options.host_bytes = setup->host_bytes;
    options.no_host_handles = setup->no_host_handles;
    options.detect = 1;
    f->capacity_bytes = options.capacity_bytes;
    NEED_OK(ductile_virtual_create(&f->gpu, &options));
    f->own_streams = fixture_state(f).streams;
    return NULL;
}

static const char *make_streams(fixture *f, size_t n) {
    for (f->n_streams = 0; f->n_streams < n; f->n_streams++) {
        NEED_OK(ductile_virtual_stream_create(f->gpu, &f->streams[f->n_streams]));
    }
    return NULL;
}

const char *fixture_open_device(fixture *f, const fixture_setup *setup) {
    memset(f, 0, sizeof *f);
    if (setup == NULL) {
        setup = &all_defaults;
    }
    (void)unsetenv("DUCTILE_CONF"); /* tests say what they want; the caller's shell does not */
    TRY(make_device(f, setup));
    return make_streams(f, setup->n_streams != 0 ? setup->n_streams : 1);
}

const char *fixture_add_allocator(const fixture *f, const fixture_setup *setup,
                                  ductile_allocator **out) {
    ductile_options options;
    ductile_options_init(&options);
    char message[256] = "";
    if (setup != NULL && setup->conf != NULL) {
        ductile_status status =
            ductile_options_parse(&options, setup->conf, message, sizeof message);
        NEED(status == DUCTILE_OK, "options \"%s\": %s", setup->conf, message);
    }
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.virtual_gpu = f->gpu;
    options.log = setup != NULL ? setup->log : NULL;
    options.log_user = setup != NULL ? setup->log_user : NULL;
    NEED_OK(ductile_create(out, &options));
    return NULL;
}

const char *fixture_open(fixture *f, const fixture_setup *setup) {
    const char *why = fixture_open_device(f, setup);
    if (why == NULL) {
        why = fixture_add_allocator(f, setup, &f->allocator);
    }
    if (why != NULL) {
        fixture_abandon(f);
    }
    return why;
}

void fixture_abandon(fixture *f) {
    if (f->gpu == NULL) {
        return;
    }
    while (f->n_streams > 0) {
        (void)ductile_virtual_stream_destroy(f->gpu, f->streams[--f->n_streams]);
    }
    ductile_virtual_destroy(f->gpu);
    f->gpu = NULL;
}

const char *fixture_leak_gate(const fixture *f) {
    ductile_virtual_state s = fixture_state(f);
    char violation[256] = "";
    ductile_virtual_last_violation(f->gpu, violation, sizeof violation);
    NEED(s.violations == 0, "the device saw %llu violations, the last: %s",
         (unsigned long long)s.violations, violation);
    NEED(s.handles == 0 && s.mappings == 0 && s.reservations == 0 && s.events == 0 &&
             s.allocations == 0,
         "left behind: %llu handles, %llu mappings, %llu reservations, %llu events, "
         "%llu allocations",
         (unsigned long long)s.handles, (unsigned long long)s.mappings,
         (unsigned long long)s.reservations, (unsigned long long)s.events,
         (unsigned long long)s.allocations);
    return NULL;
}

static const char *streams_left(const fixture *f) {
    uint64_t streams = fixture_state(f).streams;
    NEED(streams == f->own_streams, "left behind: %llu streams, %llu at the start",
         (unsigned long long)streams, (unsigned long long)f->own_streams);
    return NULL;
}

const char *fixture_close(fixture *f) {
    if (f->gpu == NULL) {
        return NULL;
    }
    ductile_status status = ductile_destroy(f->allocator);
    f->allocator = NULL;
    while (f->n_streams > 0) {
        (void)ductile_virtual_stream_destroy(f->gpu, f->streams[--f->n_streams]);
    }
    const char *why = fixture_leak_gate(f);
    if (why == NULL) {
        why = streams_left(f);
    }
    if (why == NULL && status != DUCTILE_OK) {
        why = complain("ductile_destroy returned %s", ductile_status_name(status));
    }
    fixture_abandon(f);
    return why;
}

const char *fixture_sync_all(const fixture *f) {
    for (size_t i = 0; i < f->n_streams; i++) {
        NEED_OK(ductile_virtual_stream_sync(f->gpu, f->streams[i]));
    }
    return fixture_finish_work(f);
}

const char *fixture_finish_work(const fixture *f) {
    dvmm_driver *d = NULL;
    NEED_OK(dvmm_open_virtual(f->gpu, &d, NULL, 0));
    ductile_status status = dvmm_context_sync(d);
    status = status == DUCTILE_OK ? status : dvmm_context_sync(d); /* it may meet a planned fault */
    dvmm_close(d);
    NEED_OK(status);
    return NULL;
}
