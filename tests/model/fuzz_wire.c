/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes, with descriptors beside them, in place of another process's export: an import of them
 * ends, with one status, and leaves no descriptor, address or mapping behind. The first byte says
 * how many descriptors come with which message, and the second of what kind they are.
 */
#include "tests/support/complain.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/two_ends.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 8, MESSAGES = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void need(const char *why) {
    if (why != NULL) {
        (void)fprintf(stderr, "%s\n", why);
        abort();
    }
}

static int any_descriptor(int kind) {
    return kind % 2 == 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : dup(0);
}

/* Descriptors travel beside at least one byte. */
static void send_with(int socket, const uint8_t *bytes, size_t size, int n, int kind) {
    union {
        char space[CMSG_SPACE(sizeof(int) * MOST_DESCRIPTORS)];
        struct cmsghdr align;
    } control;
    int fds[MOST_DESCRIPTORS];
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    for (int i = 0; i < n; i++) {
        fds[i] = any_descriptor(kind);
    }
    if (n > 0) {
        message.msg_control = control.space;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){CMSG_LEN(sizeof(int) * (size_t)n), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(head), fds, sizeof(int) * (size_t)n);
    }
    (void)!sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    for (int i = 0; i < n; i++) {
        (void)close(fds[i]);
    }
}

static void send_all(int socket, const uint8_t *bytes, size_t size, int plan, int kind) {
    for (int i = 0; i < MESSAGES; i++) {
        size_t part = i + 1 < MESSAGES ? size / 2 : size;
        int n = (plan >> 2 * i & 3) * (MOST_DESCRIPTORS / 4);
        if (part > 0) {
            send_with(socket, bytes, part, n, kind);
        }
        bytes += part;
        size -= part;
    }
    (void)shutdown(socket, SHUT_WR);
}

static const char *nothing_is_left(const two_ends *t, size_t descriptors) {
    ductile_stats s = fixture_stats(t->importer);
    NEED(s.segments == 0 && s.imported_bytes == 0, "an import is left");
    NEED(count_descriptors() == descriptors, "descriptors are left open");
    NEED(fixture_state(&t->f).violations == 0, "the device saw a violation");
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static two_ends t;
    static bool is_open;
    const fixture_setup setup = {.capacity_bytes = 64 * MIB};
    ductile_addr address = 1;
    if (size < 3) {
        return 0;
    }
    need(is_open ? two_ends_reconnect(&t, SOCK_STREAM) : two_ends_open(&t, &setup, SOCK_STREAM));
    is_open = true;
    size_t descriptors = count_descriptors();
    send_all(t.out, bytes + 2, size - 2, bytes[0], bytes[1]);
    ductile_status status = ductile_import(t.importer, t.in, t.f.streams[0], &address, NULL);
    if (status == DUCTILE_OK) {
        (void)ductile_import_close(t.importer, address);
        (void)!ductile_trim(t.importer, NULL, 0, NULL);
    } else {
        need(address == 0 ? NULL : "a failed import wrote an address");
    }
    need(nothing_is_left(&t, descriptors));
    return 0;
}
