/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/program_device.h"

#include "tests/support/in_child.h"
#include "tests/support/leak_gate.h"
#include "vmm/cuda/open.h"
#include "vmm/driver/open_virtual.h"

#include <stdarg.h>
#include <stdlib.h>

/* ---- The device ---------------------------------------------------------------------------- */

ductile_virtual_options program_options(uint64_t capacity_bytes, ductile_schedule schedule,
                                        uint64_t lag, uint64_t seed) {
    ductile_virtual_options o;
    ductile_virtual_options_init(&o);
    o.capacity_bytes = capacity_bytes;
    o.schedule = schedule;
    o.lag = lag;
    o.seed = seed;
    return o;
}

const char *program_open_driver(program_device *p, const ductile_virtual_options *options) {
    char reason[512] = "";
    if (p->is_virtual) {
        NEED_OK(p->gpu != NULL ? DUCTILE_OK : ductile_virtual_create(&p->gpu, options));
        NEED_OK(dvmm_open_virtual(p->gpu, &p->driver, NULL, 0));
    } else if (dvmm_open_cuda(p->device, &p->driver, reason, sizeof reason) != DUCTILE_OK) {
        command_skip(reason);
    }
    return NULL;
}

const char *program_add_streams(program_device *p, size_t n) {
    for (; p->n_streams < n; p->n_streams++) {
        NEED_OK(dvmm_stream_create(p->driver, &p->streams[p->n_streams]));
    }
    return NULL;
}

const char *program_end_streams(program_device *p) {
    while (p->n_streams > 0) {
        NEED_OK(dvmm_stream_destroy(p->driver, p->streams[--p->n_streams]));
    }
    return NULL;
}

const char *program_attach(program_device *p, size_t n_streams) {
    TRY(pattern_open(&p->tester, p->driver, p->device));
    return program_add_streams(p, n_streams);
}

const char *program_detach(program_device *p) {
    pattern_close(&p->tester);
    return program_end_streams(p);
}

const char *program_open(program_device *p, const ductile_virtual_options *options,
                         size_t n_streams) {
    TRY(program_open_driver(p, options));
    return program_attach(p, n_streams);
}

static const char *close_virtual(ductile_virtual_gpu *gpu) {
    ductile_virtual_state state = {.struct_size = sizeof state};
    char violation[256] = "";
    TRY(leak_gate(gpu));
    NEED_OK(ductile_virtual_get_state(gpu, &state));
    ductile_virtual_last_violation(gpu, violation, sizeof violation);
    NEED(state.violations == 0, "%llu violations, the last: %s",
         (unsigned long long)state.violations, violation);
    ductile_virtual_destroy(gpu);
    return NULL;
}

const char *program_close(program_device *p) {
    TRY(program_detach(p));
    dvmm_close(p->driver);
    return p->gpu != NULL ? close_virtual(p->gpu) : NULL;
}

void program_print_head(const program_device *p, const char *format, ...) {
    const dvmm_caps *caps = dvmm_get_caps(p->driver);
    va_list arguments;
    va_start(arguments, format);
    (void)printf("# %s, driver %s", caps->name, caps->driver_version);
    (void)vprintf(format, arguments);
    (void)putchar('\n');
    va_end(arguments);
}

const char *program_free_bytes(dvmm_driver *driver, uint64_t *out) {
    uint64_t total = 0;
    NEED_OK(dvmm_mem_info(driver, out, &total));
    return NULL;
}

/* ---- By hand ------------------------------------------------------------------------------- */

const char *program_map(dvmm_driver *driver, uint64_t size, ductile_addr *out) {
    const dvmm_phys_props props = {0};
    dvmm_phys handle = 0;
    NEED_OK(dvmm_address_reserve(driver, size, out));
    NEED_OK(dvmm_phys_create(driver, size, &props, &handle));
    NEED_OK(dvmm_map(driver, *out, size, handle));
    NEED_OK(dvmm_set_access(driver, *out, size, DVMM_ACCESS_RW));
    return NULL;
}

enum { IS_SEEN = 42 }; /* as the status of a child */

static const char *(*unmap_in_child)(bool *is_seen);

static int control(void) {
    bool is_seen = false;
    const char *why = unmap_in_child(&is_seen);
    if (why != NULL) {
        return command_end(why);
    }
    return is_seen ? IS_SEEN : COMMAND_BROKEN;
}

const char *program_control(const char *(*unmap)(bool *is_seen)) {
    unmap_in_child = unmap;
    int status = in_child(control);
    if (status == COMMAND_SKIPPED) {
        exit(COMMAND_SKIPPED); /* the child has said why */
    }
    NEED(status == IS_SEEN, "memory was unmapped under work on it, and nothing was seen");
    command_figure("control_seen", 1);
    return NULL;
}

int program_end(const char *why) {
    if (why == NULL) {
        (void)printf("passed\n");
    }
    return command_end(why);
}
