/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/two_ends.h"

#include "tests/support/complain.h"

#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

size_t count_descriptors(void) {
    size_t n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL) {
        n++;
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return n;
}

/* A test that waits for ever says nothing. */
static bool limit_waits(int socket) {
    const struct timeval limit = {.tv_sec = 300};
    return setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
           setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0;
}

const char *connect_sockets(int socket_type, int *out, int *in) {
    int ends[2];
    NEED(socketpair(AF_UNIX, socket_type | SOCK_CLOEXEC, 0, ends) == 0, "no sockets");
    *out = ends[0];
    *in = ends[1];
    NEED(limit_waits(*out) && limit_waits(*in), "no time limits");
    return NULL;
}

const char *two_ends_open(two_ends *t, const fixture_setup *setup, int socket_type) {
    memset(t, 0, sizeof *t);
    t->open_before = count_descriptors();
    fixture_setup with_sharing = setup != NULL ? *setup : (fixture_setup){0};
    if (with_sharing.conf == NULL) {
        with_sharing.conf = "shareable:fd";
    }
    TRY(fixture_open(&t->f, &with_sharing));
    TRY(fixture_add_allocator(&t->f, &with_sharing, &t->importer));
    return connect_sockets(socket_type, &t->out, &t->in);
}

static void disconnect(two_ends *t) {
    (void)close(t->out);
    (void)close(t->in);
}

const char *two_ends_reconnect(two_ends *t, int socket_type) {
    disconnect(t);
    return connect_sockets(socket_type, &t->out, &t->in);
}

const char *two_ends_close(two_ends *t) {
    disconnect(t);
    NEED_OK(ductile_destroy(t->importer));
    TRY(fixture_close(&t->f));
    size_t n = count_descriptors();
    NEED(n == t->open_before, "%zu descriptors are open, %zu before", n, t->open_before);
    return NULL;
}

/* The side that fails closes: so the header says, and the other side must not wait for more. */
static void *send_it(void *argument) {
    passing *p = argument;
    p->exported = p->tag == NULL ? ductile_export(p->from, p->block, p->out)
                                 : ductile_export_tag(p->from, p->tag, p->names, p->n_names, p->out,
                                                      &p->id, &p->layout);
    if (p->exported != DUCTILE_OK) {
        (void)shutdown(p->out, SHUT_RDWR);
    }
    return NULL;
}

void pass_memory(passing *p) {
    pthread_t thread;
    p->exported = p->imported = DUCTILE_ERR_BUSY;
    if (pthread_create(&thread, NULL, send_it, p) != 0) {
        return;
    }
    p->imported = p->tag == NULL ? ductile_import(p->to, p->in, p->stream, &p->addr, &p->size)
                                 : ductile_import_tag(p->to, p->in, p->stream, p->access,
                                                      p->wanted_layout, &p->arrived);
    if (p->imported != DUCTILE_OK) {
        (void)shutdown(p->in, SHUT_RDWR);
    }
    (void)pthread_join(thread, NULL);
}

passing two_ends_pass(two_ends *t, ductile_addr addr) {
    passing p = {.from = t->f.allocator,
                 .to = t->importer,
                 .out = t->out,
                 .in = t->in,
                 .block = addr,
                 .stream = t->f.streams[0]};
    pass_memory(&p);
    return p;
}
