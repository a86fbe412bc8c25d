/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of a program in tests/gpu, real, or virtual where that is asked for, with streams and
 * patterns. Its allocators and blocks are in program_blocks.h, graphs in program_graphs.h.
 * Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_PROGRAM_DEVICE_H
#define TESTS_SUPPORT_PROGRAM_DEVICE_H

#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/pattern.h"
#include "vmm/driver/driver.h"

#include <ductile_virtual.h>

enum { PROGRAM_MOST_STREAMS = 16 };

typedef struct program_device {
    bool is_virtual;
    int device;
    ductile_virtual_gpu *gpu; /* NULL on a device */
    dvmm_driver *driver;
    pattern_tester tester;
    ductile_stream streams[PROGRAM_MOST_STREAMS];
    size_t n_streams;
} program_device;

/* The first of a program's options. */
#define PROGRAM_OPTIONS(p)                                                                         \
    {"--virtual", .flag = &(p)->is_virtual}, {                                                     \
        "--device", .device = &(p)->device                                                         \
    }

/* Of the virtual GPU; what is not named here is as usual. */
ductile_virtual_options program_options(uint64_t capacity_bytes, ductile_schedule schedule,
                                        uint64_t lag, uint64_t seed);

/* The driver alone, of what `p` asks for: a virtual GPU that it has already is opened once more;
 * NULL: one as usual. Ends the program as skipped where there is no device. */
const char *program_open_driver(program_device *p, const ductile_virtual_options *options);
/* What one thread, or one of two devices, has of an open driver: patterns, and so many streams; and
 * their end. */
const char *program_attach(program_device *p, size_t n_streams);
const char *program_detach(program_device *p);
/* The streams alone. */
const char *program_add_streams(program_device *p, size_t n);
const char *program_end_streams(program_device *p);
/* With patterns and so many streams. */
const char *program_open(program_device *p, const ductile_virtual_options *options,
                         size_t n_streams);
/* All of it; nothing may be left on a virtual GPU, and it has found no violation. */
const char *program_close(program_device *p);

/* The device, its driver, and what is formatted behind them. */
__attribute__((format(printf, 2, 3))) void program_print_head(const program_device *p,
                                                              const char *format, ...);

const char *program_free_bytes(dvmm_driver *driver, uint64_t *out);

/* Memory by the driver's own calls, to be read and written. It is not given back. */
const char *program_map(dvmm_driver *driver, uint64_t size, ductile_addr *out);

/* What a program looks for has to be seen when it happens: `unmap` unmaps memory by hand under work
 * on it, and says whether that showed. It runs in a child, for the context is lost with it, before
 * this process opens the device; where there is none the program ends as skipped. */
const char *program_control(const char *(*unmap)(bool *is_seen));

/* Says that it passed, or what is wrong; the exit status. */
int program_end(const char *why);

#endif
