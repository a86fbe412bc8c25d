/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A contender: one allocation policy behind one small table, so that every bench drives Ductile
 * and the others the same way. `ductile` speaks to the public headers; the others speak to the
 * driver seam.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_CONTENDER_H
#define DUCTILE_BENCH_CONTENDERS_CONTENDER_H

#include "bench/contenders/names.h"

#include <ductile.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dvmm_driver dvmm_driver; /* so that C++ can include this */

/* What a contender runs on. Valid for the contender's whole life. */
typedef struct contender_env {
    dvmm_driver *driver;      /* opened for this contender alone, so that its counters are its own;
                                 the ductile contender opens its own and ignores this            */
    ductile_virtual_gpu *gpu; /* the virtual GPU behind driver; NULL on CUDA                      */
    int device;               /* CUDA ordinal                                                     */
    uint64_t capacity_bytes;  /* cap on physical memory held; 0: none but the device              */
    const char *const *settings; /* "key=value" of --set, n of them, for the ductile contender    */
    size_t n_settings;
    bool is_untimed; /* the driver's times are not wanted */
} contender_env;

/* The members of contender_stats that only grow, by their names in JSON; times follow. */
#define CONTENDER_COUNTS_MAP(X)                                                                    \
    X(creates)                                                                                     \
    X(releases)                                                                                    \
    X(maps)                                                                                        \
    X(unmaps)                                                                                      \
    X(stream_syncs)                                                                                \
    X(event_waits)                                                                                 \
    X(pressure_waits)                                                                              \
    X(pressure_returns)                                                                            \
    X(pressure_returned_bytes)

typedef struct contender_stats {
    uint64_t reserved_bytes; /* physical memory held now, cached or in use          */
    uint64_t reserved_peak_bytes;
    uint64_t creates; /* physical allocations made (phys_create, mem_alloc)  */
    uint64_t releases;
    uint64_t maps;
    uint64_t unmaps;
    uint64_t stream_syncs;            /* host waits: stream, event and context               */
    uint64_t event_waits;             /* waits on the GPU                                     */
    uint64_t pressure_waits;          /* where memory was short: times that the host waited,  */
    uint64_t pressure_returns;        /* that memory went back to the driver,                 */
    uint64_t pressure_returned_bytes; /* and how much                                    */
    uint64_t address_span_bytes;      /* peak of lowest to highest address in use, by range */
    uint64_t driver_time_ns;          /* modelled on the virtual GPU                          */
    uint64_t driver_host_ns;          /* as this host spent it                                */
    uint64_t same_from, same_below;   /* capacities under which it would have done the same;
                                         both 0: not known                                    */
} contender_stats;

typedef enum contender_span_state { SPAN_LIVE, SPAN_PENDING, SPAN_FREE } contender_span_state;

/* A span of memory that is mapped, and so held. Pending: freed, but not yet proven unused. */
typedef struct contender_span {
    ductile_addr address;
    uint64_t size;
    contender_span_state state;
    bool begins; /* a range of addresses: free memory before it never becomes one with it */
    /* Which requests the memory may serve, as one hole: */
    ductile_stream stream;
    uint64_t least, most; /* bytes */
    ductile_pool_id pool; /* as long as the program keeps it */
} contender_span;

typedef void (*contender_visit)(void *user, const contender_span *span);

/* Both, for the function that a walk visits its own blocks with. */
typedef struct contender_walk {
    contender_visit visit;
    void *user;
} contender_walk;

typedef struct contender_ops {
    const char *name;
    const char *summary; /* for --help, one line */
    /* On failure *self is NULL and message holds one line. ERR_UNSUPPORTED: absent here. */
    ductile_status (*init)(const contender_env *env, void **self, char *message, size_t size);
    void (*fini)(void *self); /* gives everything back */
    ductile_status (*alloc)(void *self, uint64_t size, ductile_stream stream, ductile_addr *out);
    ductile_status (*free)(void *self, ductile_addr address);
    ductile_status (*record_stream)(void *self, ductile_addr address, ductile_stream stream);
    /* The stream is about to be destroyed. NULL: the contender cannot be told; the programs that it
     * is made for keep their streams. */
    ductile_status (*stream_done)(void *self, ductile_stream stream);
    /* Requests from here on belong to pool `to`, and no more to `from`; {0,0}: to none. NULL, with
     * end_pool: the contender has no pools, and all memory serves all. */
    ductile_status (*use_pool)(void *self, ductile_pool_id from, ductile_pool_id to);
    /* What is free in the pool may serve all from here on. Pre: it was used, and is not now. Used
     * again, it is kept again. */
    ductile_status (*end_pool)(void *self, ductile_pool_id pool);
    ductile_status (*trim)(void *self); /* empty_cache */
    void (*stats)(void *self, contender_stats *out);
    /* Visits all memory that is mapped, in any order. What is held besides is cached. NULL: the
     * contender does not know its own memory. */
    void (*walk)(void *self, contender_visit visit, void *user);
} contender_ops;

#define DECLARE_CONTENDER(name, title) extern const contender_ops contender_##name;
DUCTILE_CONTENDERS_MAP(DECLARE_CONTENDER)
#undef DECLARE_CONTENDER

/* All of them, NULL-terminated, in the order of names.h. */
extern const contender_ops *const all_contenders[];

#endif
