/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/services/sharing/share_wire.h"

#include "vmm/base/align.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    MAGIC = 0x31534C44, /* "DLS1" */
    VERSION = 2,
    MOST_DESCRIPTORS = 253, /* the kernel lets one message carry so many */
    SPARE_DESCRIPTORS = 16  /* left to the rest of the program           */
};

typedef enum answer { ANSWER_NO = 0, ANSWER_FINE = 1, ANSWER_OTHER_LAYOUT = 2 } answer;

typedef struct dpool_wire_ack {
    uint32_t magic;
    uint32_t answer;
} dpool_wire_ack;

/* ---- Checking ------------------------------------------------------------------------------ */

dpool_wire_head dpool_wire_new_head(void) {
    return (dpool_wire_head){.magic = MAGIC, .version = VERSION};
}

static bool is_granules(uint64_t n, uint64_t granule) {
    return n != 0 && n % granule == 0;
}

ductile_status dpool_wire_check_head(const dpool_wire_head *h, uint64_t granule_bytes) {
    bool is_ours = h->magic == MAGIC && h->version == VERSION;
    bool is_type = h->type == DVMM_SHARE_FD || h->type == DVMM_SHARE_FABRIC;
    bool has_sizes = is_granules(h->total_bytes, granule_bytes) &&
                     is_granules(h->granule_bytes, granule_bytes) && h->n_handles != 0 &&
                     h->n_handles <= h->total_bytes / granule_bytes;
    bool is_inside = h->size != 0 && h->size <= h->total_bytes &&
                     h->offset <= h->total_bytes - h->size && h->offset % 512 == 0;
    return is_ours && is_type && has_sizes && is_inside ? DUCTILE_OK : DUCTILE_ERR_BAD_MESSAGE;
}

ductile_status dpool_wire_check_handles(const dpool_wire_head *head,
                                        const dpool_wire_handle *handles, uint32_t n_handles,
                                        uint64_t *rest) {
    for (uint32_t i = 0; i < n_handles; i++) {
        if (!is_granules(handles[i].bytes, head->granule_bytes) || handles[i].bytes > *rest) {
            return DUCTILE_ERR_BAD_MESSAGE;
        }
        *rest -= handles[i].bytes;
    }
    return DUCTILE_OK;
}

/* ---- Time limits --------------------------------------------------------------------------- */

/* The kernel grants the socket's time limit to each piece. Here a whole word has to keep to it, so
 * that a peer that sends byte by byte holds the caller no longer than a silent one. */
typedef struct deadline {
    struct pollfd socket;
    uint64_t at_ns; /* by the host's clock; 0: none */
} deadline;

/* limit: SO_RCVTIMEO or SO_SNDTIMEO. */
static deadline begin_word(int socket, int limit) {
    struct timeval given = {0, 0};
    socklen_t size = sizeof given;
    deadline d = {.socket = {.fd = socket, .events = limit == SO_RCVTIMEO ? POLLIN : POLLOUT}};
    if (getsockopt(socket, SOL_SOCKET, limit, &given, &size) == 0 &&
        (given.tv_sec != 0 || given.tv_usec != 0)) {
        d.at_ns = dvmm_host_clock_ns() + (uint64_t)given.tv_sec * 1000000000u +
                  (uint64_t)given.tv_usec * 1000u;
    }
    return d;
}

static int left_ms(const deadline *d) {
    uint64_t now = dvmm_host_clock_ns();
    return now < d->at_ns ? (int)dti_min((d->at_ns - now) / 1000000u + 1, INT_MAX) : 0;
}

/* True when the next piece can pass, or the socket has something to say. */
static bool is_in_time(deadline *d) {
    int n = 1;
    while (d->at_ns != 0) {
        int ms = left_ms(d);
        n = ms > 0 ? poll(&d->socket, 1, ms) : 0;
        if (n >= 0 || errno != EINTR) {
            break;
        }
    }
    return n != 0;
}

/* ---- Sending ------------------------------------------------------------------------------- */

static ductile_status status_of_errno(int error) {
    switch (error) {
    case EBADF:
    case ENOTSOCK:
    case ENOTCONN:
    case EDESTADDRREQ:
    case EOPNOTSUPP:
        return DUCTILE_ERR_INVALID_ARGUMENT;
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:
        return DUCTILE_ERR_NO_DESCRIPTORS;
    case ENOMEM:
    case ENOBUFS:
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    default:
        return DUCTILE_ERR_BAD_MESSAGE; /* it hung up, or took too long */
    }
}

/* Room for the descriptors of one message, aligned as the kernel wants it. */
typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * MOST_DESCRIPTORS)];
} control;

static void attach(struct msghdr *m, control *c, const int *fds, size_t n_fds) {
    memset(c, 0, sizeof *c);
    m->msg_control = c->bytes;
    m->msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
    struct cmsghdr *head = CMSG_FIRSTHDR(m);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
    memcpy(CMSG_DATA(head), fds, sizeof(int) * n_fds);
}

/* Descriptors go with the first piece; a stream may take the rest of the bytes later. */
static ductile_status send_all(int socket, const void *bytes, size_t size, const int *fds,
                               size_t n_fds) {
    size_t sent = 0;
    deadline d = begin_word(socket, SO_SNDTIMEO);
    while (sent < size && is_in_time(&d)) {
        struct iovec piece = {(char *)(uintptr_t)bytes + sent, size - sent};
        struct msghdr m = {.msg_iov = &piece, .msg_iovlen = 1};
        control c;
        if (sent == 0 && n_fds > 0) {
            attach(&m, &c, fds, n_fds);
        }
        ssize_t n = sendmsg(socket, &m, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n == 0 ? DUCTILE_ERR_BAD_MESSAGE : status_of_errno(errno);
        }
        sent += (size_t)n;
    }
    return sent == size ? DUCTILE_OK : DUCTILE_ERR_BAD_MESSAGE;
}

ductile_status dpool_wire_send_bytes(int socket, const void *bytes, size_t size) {
    return send_all(socket, bytes, size, NULL, 0);
}

/* ---- Receiving ----------------------------------------------------------------------------- */

/* Received descriptors that no caller owns yet. */
typedef struct catch {
    int fds[MOST_DESCRIPTORS];
    size_t n;
    bool is_too_many;
}
catch;

static void close_catch(catch *c) {
    while (c->n > 0) {
        (void)close(c->fds[--c->n]);
    }
}

static void keep_or_close(catch *c, int fd) {
    if (c->n < MOST_DESCRIPTORS) {
        c->fds[c->n++] = fd;
    } else {
        c->is_too_many = true;
        (void)close(fd);
    }
}

static void take_descriptors(catch *c, struct msghdr *m) {
    for (struct cmsghdr *head = CMSG_FIRSTHDR(m); head != NULL; head = CMSG_NXTHDR(m, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t n = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
            keep_or_close(c, fd);
        }
    }
    c->is_too_many |= (m->msg_flags & MSG_TRUNC) != 0;
}

/* Exactly `size` bytes, in as many pieces as they come. */
static ductile_status receive_pieces(int socket, void *bytes, size_t size, catch *c) {
    size_t received = 0;
    deadline d = begin_word(socket, SO_RCVTIMEO);
    while (received < size && is_in_time(&d)) {
        struct iovec piece = {(char *)bytes + received, size - received};
        control room;
        struct msghdr m = {.msg_iov = &piece,
                           .msg_iovlen = 1,
                           .msg_control = room.bytes,
                           .msg_controllen = sizeof room.bytes};
        ssize_t n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return status_of_errno(errno);
        }
        take_descriptors(c, &m);
        if ((m.msg_flags & MSG_CTRUNC) != 0) { /* there was room for all that a message may carry */
            return DUCTILE_ERR_NO_DESCRIPTORS;
        }
        if (n == 0 || c->is_too_many) {
            return DUCTILE_ERR_BAD_MESSAGE;
        }
        received += (size_t)n;
    }
    return received == size ? DUCTILE_OK : DUCTILE_ERR_BAD_MESSAGE;
}

/* With exactly that many descriptors, or none is left open. */
static ductile_status receive_all(int socket, void *bytes, size_t size, catch *c) {
    c->n = 0;
    c->is_too_many = false;
    ductile_status status = receive_pieces(socket, bytes, size, c);
    if (status != DUCTILE_OK) {
        close_catch(c);
    }
    return status;
}

ductile_status dpool_wire_receive_bytes(int socket, void *bytes, size_t size) {
    catch c;
    ductile_status status = receive_all(socket, bytes, size, &c);
    if (status == DUCTILE_OK && c.n > 0) {
        close_catch(&c);
        status = DUCTILE_ERR_BAD_MESSAGE;
    }
    return status;
}

/* ---- Words --------------------------------------------------------------------------------- */

ductile_status dpool_wire_send_batch(int socket, const dpool_wire_batch *batch,
                                     const dvmm_shared *shared) {
    int fds[DPOOL_WIRE_BATCH];
    size_t n_fds = 0;
    dpool_wire_batch word = *batch;
    word.magic = MAGIC;
    for (uint32_t i = 0; i < batch->count; i++) {
        if (shared[i].type == DVMM_SHARE_FD) {
            fds[n_fds++] = shared[i].fd;
        }
    }
    return send_all(socket, &word, sizeof word, fds, n_fds);
}

void dpool_wire_give_up(int socket) {
    const dpool_wire_batch word = {.magic = MAGIC, .count = 0};
    (void)dpool_wire_send_bytes(socket, &word, sizeof word);
}

static bool is_batch(const dpool_wire_head *head, const dpool_wire_batch *batch, const catch *c) {
    size_t n_fds = head->type == DVMM_SHARE_FD ? batch->count : 0;
    return batch->magic == MAGIC && batch->count > 0 && batch->count <= DPOOL_WIRE_BATCH &&
           c->n == n_fds;
}

ductile_status dpool_wire_receive_batch(int socket, const dpool_wire_head *head,
                                        dpool_wire_batch *batch, dvmm_shared *shared) {
    catch c;
    DTI_TRY(receive_all(socket, batch, sizeof *batch, &c));
    if (!is_batch(head, batch, &c)) {
        close_catch(&c);
        return DUCTILE_ERR_BAD_MESSAGE;
    }
    for (uint32_t i = 0; i < batch->count; i++) {
        shared[i] =
            (dvmm_shared){.type = (dvmm_share_type)head->type, .fd = i < c.n ? c.fds[i] : -1};
        memcpy(shared[i].fabric, batch->handles[i].fabric, DVMM_FABRIC_BYTES);
    }
    return DUCTILE_OK;
}

static ductile_status send_answer(int socket, answer what) {
    const dpool_wire_ack word = {MAGIC, what};
    return dpool_wire_send_bytes(socket, &word, sizeof word);
}

ductile_status dpool_wire_answer(int socket, ductile_status status) {
    answer what = status == DUCTILE_OK ? ANSWER_FINE : ANSWER_NO;
    return dti_first_error(status, send_answer(socket, what));
}

void dpool_wire_refuse_layout(int socket) {
    (void)send_answer(socket, ANSWER_OTHER_LAYOUT);
}

ductile_status dpool_wire_receive_ack(int socket) {
    dpool_wire_ack word = {0, 0};
    ductile_status status = dpool_wire_receive_bytes(socket, &word, sizeof word);
    bool is_fine = word.magic == MAGIC && word.answer == ANSWER_FINE;
    bool is_refused = word.magic == MAGIC && word.answer == ANSWER_OTHER_LAYOUT;
    if (status != DUCTILE_OK || is_fine) {
        return status;
    }
    return is_refused ? DUCTILE_ERR_LAYOUT : DUCTILE_ERR_BAD_MESSAGE;
}

/* ---- Descriptors --------------------------------------------------------------------------- */

/* 0 when the system does not tell; then the calls themselves fail. */
static uint64_t count_open(void) {
    uint64_t n = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) {
        return 0;
    }
    while (readdir(folder) != NULL) {
        n++;
    }
    (void)closedir(folder);
    return n;
}

ductile_status dpool_wire_need_descriptors(uint64_t n) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return DUCTILE_OK;
    }
    uint64_t needed = count_open() + n + SPARE_DESCRIPTORS;
    return needed <= limit.rlim_cur ? DUCTILE_OK : DUCTILE_ERR_NO_DESCRIPTORS;
}
