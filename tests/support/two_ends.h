/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two allocators on one virtual GPU, with a socket between them: an exporter and an importer in one
 * process. What passes between them is what passes between two processes; that it works between
 * processes of a real device is shown by tests/gpu/share_processes.c.
 */
#ifndef TESTS_SUPPORT_TWO_ENDS_H
#define TESTS_SUPPORT_TWO_ENDS_H

#include "tests/support/fixture_virtual.h"

#include <ductile_handover.h>
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

/* Closes the sockets and makes new ones. */
const char *two_ends_reconnect(two_ends *t, int socket_type);

/* A block, or a tag, that passes from an allocator to another one: exported on another thread while
 * it is imported on this one. A side that fails shuts its socket. */
typedef struct passing {
    ductile_allocator *from, *to;
    int out, in;
    ductile_stream stream; /* of the import */
    ductile_addr block;
    const char *tag; /* NULL: the block passes */
    const ductile_tag_name *names;
    size_t n_names;
    ductile_import_access access;
    uint64_t wanted_layout; /* of a tag; 0: any */
    ductile_status exported, imported;
    ductile_addr addr; /* of the block, there */
    uint64_t size;
    uint64_t id, layout;           /* of the tag's export */
    ductile_imported_tag *arrived; /* of the tag's import */
} passing;

void pass_memory(passing *p);

passing two_ends_pass(two_ends *t, ductile_addr addr);

/* A pair of sockets with time limits: a test that waits for ever says nothing. */
const char *connect_sockets(int socket_type, int *out, int *in);

size_t count_descriptors(void);

#endif
