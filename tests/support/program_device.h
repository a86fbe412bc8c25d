/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs in tests/gpu stand on: a device that is real, or virtual where that is asked
 * for, streams, a painter, and allocators. Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_PROGRAM_DEVICE_H
#define TESTS_SUPPORT_PROGRAM_DEVICE_H

#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/painter.h"
#include "vmm/driver/driver.h"

#include <ductile_virtual.h>

enum { PROGRAM_MOST_STREAMS = 16, GALLERY_MOST = 8192 };

typedef struct program_device {
    bool is_virtual;
    int device;
    ductile_virtual_gpu *gpu; /* NULL on a device */
    dvmm_driver *driver;
    painter painter;
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
/* What one thread, or one of two devices, has of an open driver: a painter, and so many streams;
 * and its end. */
const char *program_furnish(program_device *p, size_t n_streams);
const char *program_clear(program_device *p);
/* The streams alone. */
const char *program_add_streams(program_device *p, size_t n);
const char *program_end_streams(program_device *p);
/* With the painter and so many streams. */
const char *program_open(program_device *p, const ductile_virtual_options *options,
                         size_t n_streams);
/* All of it; nothing may be left on a virtual GPU, and it has found no violation. */
const char *program_close(program_device *p);

/* The device, its driver, and what is formatted behind them. */
__attribute__((format(printf, 2, 3))) void program_print_head(const program_device *p,
                                                              const char *format, ...);

/* With the default options but for the limit; 0: none. */
const char *program_allocator(const program_device *p, uint64_t limit_bytes,
                              ductile_allocator **out);
/* The same with options as in DUCTILE_CONF; those that are wrong end the program as misused. */
ductile_status program_create(const program_device *p, uint64_t limit_bytes, const char *conf,
                              ductile_allocator **out);
/* ductile_check finds nothing. */
const char *program_is_sound(ductile_allocator *a);

/* Blocks that are live, in no order. */
typedef struct painted {
    canvas canvas;
    uint32_t stream; /* whose it is */
} painted;

typedef struct gallery {
    painted all[GALLERY_MOST];
    size_t n;
    uint64_t live_bytes;
} gallery;

void gallery_add(gallery *g, painted it);
painted gallery_remove(gallery *g, size_t i);

/* A block; where there is no memory its address is 0. Taken: it is announced to the virtual GPU as
 * live, and painted by the stream. */
const char *program_ask(ductile_allocator *a, canvas *c, ductile_stream stream);
const char *program_take(program_device *p, ductile_allocator *a, canvas *c, ductile_stream stream);
const char *program_give(const program_device *p, ductile_allocator *a, canvas *c);
void program_announce(const program_device *p, const canvas *c, bool is_live);

const char *program_free_bytes(dvmm_driver *driver, uint64_t *out);

/* A capture that ends in a graph, which is launched and destroyed. */
const char *program_graph(const program_device *p, ductile_stream captured, void **graph);
const char *program_launch(const program_device *p, void *graph, ductile_stream stream);
const char *program_drop_graph(const program_device *p, void *graph);

/* Memory by the driver's own calls, to be read and written. It is not given back. */
const char *program_map(dvmm_driver *driver, uint64_t size, ductile_addr *out);

/* What a program looks for has to be seen when it happens: `unmap` unmaps memory by hand under work
 * on it, and says whether that showed. It runs in a child, for the context is lost with it, before
 * this process opens the device; where there is none the program ends as skipped. */
const char *program_control(const char *(*unmap)(bool *is_seen));

/* No painter has seen anything else than was painted, so far. Waits for all work. */
const char *program_is_unspoilt(painter *p);

/* Says that it passed, or what is wrong; the exit status. */
int program_end(const char *why);

#endif
