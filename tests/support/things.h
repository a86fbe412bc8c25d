/* SPDX-License-Identifier: Apache-2.0 */
/* What a test has made of a device by raw calls, so that it can be undone. */
#ifndef TESTS_SUPPORT_THINGS_H
#define TESTS_SUPPORT_THINGS_H

#include "vmm/driver/driver.h"

/* In the order in which they are undone: nothing may run on memory that is being unmapped. */
typedef enum thing_kind {
    NO_THING,
    ORDERED_MEMORY, /* of a stream, which is beside it */
    A_STREAM,
    AN_EVENT,
    A_MAPPING, /* its size is beside it */
    A_RANGE,   /* the same              */
    A_HANDLE,
    CLASSIC_MEMORY,
    HOST_MEMORY,
    A_REGISTRATION,
    N_THING_KINDS
} thing_kind;

typedef struct thing {
    thing_kind kind;
    uint64_t it, beside;
} thing;

enum { MOST_THINGS = 4400 };

typedef struct things {
    thing all[MOST_THINGS];
    size_t n;
    bool has_overflowed; /* there was more than the list holds */
} things;

void things_add(things *t, thing_kind kind, uint64_t it, uint64_t beside);
void things_take_out(things *t, thing_kind kind, uint64_t it);
size_t things_count(const things *t, thing_kind kind);
const char *thing_name(thing_kind kind);

/* Undoes all, and waits for streams.
 * The code of the first call that failed; the thing is *first. */
int things_undo(things *t, const dvmm_driver_ops *ops, void *ctx, thing *first);

#endif
