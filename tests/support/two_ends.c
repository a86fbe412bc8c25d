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

static const char *connect_ends(two_ends *t, int socket_type) {
    int ends[2];
    NEED(socketpair(AF_UNIX, socket_type | SOCK_CLOEXEC, 0, ends) == 0, "no sockets");
    t->out = ends[0];
    t->in = ends[1];
    NEED(limit_waits(t->out) && limit_waits(t->in), "no time limits");
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
    return connect_ends(t, socket_type);
}

static void disconnect(two_ends *t) {
    (void)close(t->out);
    (void)close(t->in);
}

const char *two_ends_reconnect(two_ends *t, int socket_type) {
    disconnect(t);
    return connect_ends(t, socket_type);
}

const char *two_ends_close(two_ends *t) {
    disconnect(t);
    NEED_OK(ductile_destroy(t->importer));
    TRY(fixture_close(&t->f));
    size_t n = count_descriptors();
    NEED(n == t->open_before, "%zu descriptors are open, %zu before", n, t->open_before);
    return NULL;
}

void two_ends_abandon(two_ends *t) {
    disconnect(t);
    (void)ductile_destroy(t->importer);
    (void)ductile_destroy(t->f.allocator);
    fixture_abandon(&t->f);
}

typedef struct sending {
    two_ends *t;
    ductile_addr addr;
    ductile_status status;
} sending;

/* The side that fails closes: so the header says, and the other side must not wait for more. */
static void *send_block(void *argument) {
    sending *s = argument;
    s->status = ductile_export(s->t->f.allocator, s->addr, s->t->out);
    if (s->status != DUCTILE_OK) {
        (void)shutdown(s->t->out, SHUT_RDWR);
    }
    return NULL;
}

passed two_ends_pass(two_ends *t, ductile_addr addr) {
    passed p = {.imported = DUCTILE_ERR_BUSY};
    sending s = {.t = t, .addr = addr, .status = DUCTILE_ERR_BUSY};
    pthread_t thread;
    if (pthread_create(&thread, NULL, send_block, &s) != 0) {
        return p;
    }
    p.imported = ductile_import(t->importer, t->in, t->f.streams[0], &p.addr, &p.size);
    if (p.imported != DUCTILE_OK) {
        (void)shutdown(t->in, SHUT_RDWR);
    }
    (void)pthread_join(thread, NULL);
    p.exported = s.status;
    return p;
}
