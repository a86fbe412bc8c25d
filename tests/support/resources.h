/* SPDX-License-Identifier: Apache-2.0 */
/* What a test has made of a device by raw calls, so that it can be undone. */
#ifndef TESTS_SUPPORT_RESOURCES_H
#define TESTS_SUPPORT_RESOURCES_H

#include "bench/driver/bench_calls.h"

/* In the order in which they are undone: nothing may run on memory that is being unmapped. */
typedef enum resource_kind {
    NO_RESOURCE,
    ORDERED_MEMORY, /* of a stream, which is beside it */
    A_STREAM,
    AN_EVENT,
    A_MAPPING, /* its size is beside it */
    A_RANGE,   /* the same              */
    A_HANDLE,
    CLASSIC_MEMORY,
    HOST_MEMORY,
    A_REGISTRATION,
    N_RESOURCE_KINDS
} resource_kind;

typedef struct resource {
    resource_kind kind;
    uint64_t it, beside;
} resource;

enum { MOST_RESOURCES = 4400 };

typedef struct resources {
    resource all[MOST_RESOURCES];
    size_t n;
    bool has_overflowed; /* there was more than the list holds */
} resources;

void resources_add(resources *t, resource_kind kind, uint64_t it, uint64_t beside);
void resources_take_out(resources *t, resource_kind kind, uint64_t it);
size_t resources_count(const resources *t, resource_kind kind);
const char *resource_name(resource_kind kind);

/* Undoes all, and waits for streams. `bench` may be NULL where none of its calls made anything.
 * The code of the first call that failed; the resource is *first. */
int resources_undo(resources *t, const dvmm_driver_ops *ops, const dvmm_bench_ops *bench, void *ctx,
                   resource *first);

#endif
