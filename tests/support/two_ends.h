/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two allocators on one virtual GPU, with a socket between them: an exporter and an importer in one
 * process. What passes between them is what passes between two processes; that it works between
 * processes of a real device is shown by tests/gpu/share_processes.c.
 */
#ifndef TESTS_SUPPORT_TWO_ENDS_H
#define TESTS_SUPPORT_TWO_ENDS_H

#include "tests/support/fixture_virtual.h"

#include <ductile_share.h>

typedef struct two_ends {
    fixture f; /* its allocator exports */
    ductile_allocator *importer;
    int out; /* the exporter's end of the socket */
    int in;
    size_t open_before; /* descriptors of the process */
} two_ends;

/* conf: options of both, besides shareable:fd, or NULL. socket_type: SOCK_STREAM, ... */
const char *two_ends_open(two_ends *t, const fixture_setup *setup, int socket_type);

/* Destroys all of it: nothing is left on the device, no descriptor is left open. */
const char *two_ends_close(two_ends *t);

/* The same, but what the device and the driver's failures left is not looked at. */
void two_ends_abandon(two_ends *t);

/* Closes the sockets and makes new ones. */
const char *two_ends_reconnect(two_ends *t, int socket_type);

/* Exports the block on another thread while importing it on this one. */
typedef struct passed {
    ductile_status exported;
    ductile_status imported;
    ductile_addr addr;
    uint64_t size;
} passed;

passed two_ends_pass(two_ends *t, ductile_addr addr);

size_t count_descriptors(void);

#endif
