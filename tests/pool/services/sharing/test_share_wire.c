/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: whatever arrives over a socket, an import of it ends with one status, and
 * leaves no descriptor, address or mapping behind. The other side of the socket is played by hand:
 * every byte of a true message is falsified in turn, and messages end at every place.
 */
#include "pool/services/sharing/share_wire.h"
#include "tests/support/one_pair.h"
#include "tests/support/rng.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define GRANULE FIXTURE_GRANULE

static ductile_addr block;

static void open_ends(void) {
    const fixture_setup setup = {.capacity_bytes = 256 * MIB};
    assert_fine(two_ends_open(&t, &setup, SOCK_STREAM));
    block = take(3 * GRANULE);
}

TestSuite(share_wire, .init = open_ends, .fini = close_ends);

/* ---- True words, falsified ----------------------------------------------------------------- */

/* What an exporter of the block says, and the descriptors beside it. */
typedef struct message {
    dpool_wire_head head;
    dpool_wire_batch batch;
    int fds[3];
} message;

/* Of these bytes the import reads something: the batch has room for more handles. */
enum { N_HEAD = sizeof(dpool_wire_head), N_WORDS = N_HEAD + 8 + 3 * sizeof(dpool_wire_handle) };

static void *export_on_thread(void *argument) {
    *(ductile_status *)argument = ductile_export(t.f.allocator, block, t.out);
    return NULL;
}

static void listen_to_export(message *m) {
    ductile_status sent = DUCTILE_ERR_BUSY;
    dvmm_shared shared[DPOOL_WIRE_BATCH];
    pthread_t thread = begin_thread(export_on_thread, &sent);
    assert_ok(dpool_wire_receive_bytes(t.in, &m->head, sizeof m->head));
    assert_ok(dpool_wire_answer(t.in, DUCTILE_OK));
    assert_ok(dpool_wire_receive_batch(t.in, &m->head, &m->batch, shared));
    assert_ok(dpool_wire_answer(t.in, DUCTILE_OK));
    end_thread(thread);
    assert_ok(sent);
    cr_assert_eq(m->batch.count, 3);
    for (int i = 0; i < 3; i++) {
        m->fds[i] = shared[i].fd;
    }
}

static void end_listening(const message *m) {
    for (int i = 0; i < 3; i++) {
        (void)close(m->fds[i]);
    }
}

static uint8_t *byte_of(message *m, size_t i) {
    return i < N_HEAD ? (uint8_t *)&m->head + i : (uint8_t *)&m->batch + (i - N_HEAD);
}

static void send_raw(int socket, const void *bytes, size_t size, const int *fds, size_t n_fds) {
    struct iovec piece = {(void *)(uintptr_t)bytes, size};
    char control[CMSG_SPACE(sizeof(int) * 253)];
    memset(control, 0, sizeof control);
    struct msghdr m = {.msg_iov = &piece, .msg_iovlen = 1};
    if (n_fds > 0) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *head = CMSG_FIRSTHDR(&m);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(head), fds, sizeof(int) * n_fds);
    }
    (void)sendmsg(socket, &m, MSG_NOSIGNAL);
}

/* What an import of the words may come to: any clean refusal, or an import that can be closed. All
 * of them are on their way before it begins, and nothing comes after them. */
static void import_falsified(const message *m) {
    ductile_addr there = 1;
    uint64_t size = 1;
    send_raw(t.out, &m->head, sizeof m->head, NULL, 0);
    send_raw(t.out, &m->batch, sizeof m->batch, m->fds, 3);
    (void)shutdown(t.out, SHUT_WR);
    ductile_status status = ductile_import(t.importer, t.in, NULL, &there, &size);
    if (status == DUCTILE_OK) {
        assert_ok(ductile_import_close(t.importer, there));
    } else {
        cr_assert(status == DUCTILE_ERR_BAD_MESSAGE || status == DUCTILE_ERR_OUT_OF_ADDRESSES, "%s",
                  ductile_status_name(status));
        cr_assert(there == 0 && size == 0);
    }
    assert_fine(two_ends_reconnect(&t, SOCK_STREAM));
}

/* A receive ends behind bytes that came with descriptors: so the batch comes in two pieces. */
Test(share_wire, a_word_that_comes_in_pieces_is_whole) {
    enum { N_FIRST = 12 }; /* within the first handle */
    message m;
    ductile_addr there = 0;
    uint64_t size = 0;
    listen_to_export(&m);
    send_raw(t.out, &m.head, sizeof m.head, NULL, 0);
    send_raw(t.out, &m.batch, N_FIRST, m.fds, 3);
    send_raw(t.out, (const char *)&m.batch + N_FIRST, sizeof m.batch - N_FIRST, NULL, 0);
    assert_ok(ductile_import(t.importer, t.in, NULL, &there, &size));
    cr_assert_eq(size, 3 * GRANULE);
    assert_ok(ductile_import_close(t.importer, there));
    assert_ok(ductile_unexport(t.f.allocator, block));
    end_listening(&m);
}

/* Another thread may have opened them since they were counted. */
Test(share_wire, descriptors_that_this_process_has_no_room_for_are_named) {
    const int fds[] = {t.in, t.in, t.in};
    char word[] = "word";
    struct rlimit before;
    size_t open = count_descriptors();
    int next = dup(t.in); /* and no other below it is free */
    (void)close(next);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit low = {.rlim_cur = (rlim_t)next + 1, .rlim_max = before.rlim_max};
    send_raw(t.out, word, sizeof word, fds, 3);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    ductile_status status = dpool_wire_receive_bytes(t.in, word, sizeof word);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_status(status, DUCTILE_ERR_NO_DESCRIPTORS);
    cr_assert_eq(count_descriptors(), open);
}

/* Each byte in turn, or some at random; n times. */
static void falsify(void (*change)(message *m, size_t i, rng *r), size_t n) {
    message m;
    rng r = rng_seeded(0x5A4E);
    listen_to_export(&m);
    assert_ok(ductile_unexport(t.f.allocator, block));
    traces before = traces_now();
    for (size_t i = 0; i < n; i++) {
        message copy = m;
        change(&copy, i, &r);
        import_falsified(&copy);
    }
    assert_nothing_left(&before);
    end_listening(&m);
}

static void change_one(message *m, size_t i, rng *r) {
    static const uint8_t masks[] = {0x01, 0x80, 0xFF};
    (void)r;
    *byte_of(m, i / 3) ^= masks[i % 3];
}

Test(share_wire, no_falsified_byte_is_believed) {
    falsify(change_one, 3 * N_WORDS);
}

static void change_some(message *m, size_t i, rng *r) {
    (void)i;
    for (uint64_t n = 1 + rng_below(r, 6); n > 0; n--) {
        *byte_of(m, rng_below(r, N_WORDS)) = (uint8_t)rng_below(r, 256);
    }
}

Test(share_wire, noise_is_not_believed) {
    falsify(change_some, 3000);
}

/* ---- A socket, played by hand -------------------------------------------------------------- */

typedef struct import_call {
    ductile_status status;
    ductile_addr addr;
} import_call;

static void *import_on_thread(void *argument) {
    import_call *c = argument;
    c->status = ductile_import(t.importer, t.in, NULL, &c->addr, NULL);
    (void)shutdown(t.in, SHUT_RDWR);
    return NULL;
}

/* What the hand does with its end of the socket. */
typedef void (*play)(int socket);

static void expect_refused(play what, ductile_status expected) {
    traces before = traces_now();
    import_call call = {.status = DUCTILE_OK, .addr = 1};
    pthread_t thread = begin_thread(import_on_thread, &call);
    what(t.out);
    (void)shutdown(t.out, SHUT_RDWR);
    end_thread(thread);
    assert_status(call.status, expected);
    cr_assert_eq(call.addr, 0);
    assert_nothing_left(&before);
    assert_fine(two_ends_reconnect(&t, SOCK_STREAM));
}

static dpool_wire_head true_head(uint32_t n_handles) {
    dpool_wire_head head = dpool_wire_new_head();
    head.type = DVMM_SHARE_FD;
    head.granule_bytes = GRANULE;
    head.total_bytes = n_handles * GRANULE;
    head.size = head.total_bytes;
    head.n_handles = n_handles;
    return head;
}

static bool start(int socket, dpool_wire_head head) {
    send_raw(socket, &head, sizeof head, NULL, 0);
    return dpool_wire_receive_ack(socket) == DUCTILE_OK;
}

/* Descriptors of nothing that a driver made. */
static void open_wrong(int *fds, size_t n) {
    for (size_t i = 0; i < n; i++) {
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
}

static void close_wrong(const int *fds, size_t n) {
    for (size_t i = 0; i < n; i++) {
        (void)close(fds[i]);
    }
}

/* A head of two handles that is not quite true, and what comes behind it once it was accepted:
 * a batch that says `count` handles, with n_fds descriptors; count 0: the hand gives up. */
typedef struct lie {
    uint64_t total_bytes, offset;
    uint32_t n_handles, count;
    size_t n_fds;
    ductile_status expected;
} lie;

static const lie lies[] = {
    {UINT64_C(1) << 62, 0, 2, 2, 2, DUCTILE_ERR_OUT_OF_ADDRESSES},
    {2 * GRANULE, 0, UINT32_MAX, 2, 2, DUCTILE_ERR_BAD_MESSAGE}, /* more handles than bytes */
    {2 * GRANULE, GRANULE, 2, 2, 2, DUCTILE_ERR_BAD_MESSAGE},    /* leads outside */
    {2 * GRANULE, 0, 2, 2, 2, DUCTILE_ERR_BAD_MESSAGE},          /* wrong descriptors */
    {2 * GRANULE, 0, 2, 2, 1, DUCTILE_ERR_BAD_MESSAGE},          /* too few */
    {2 * GRANULE, 0, 2, 2, 250, DUCTILE_ERR_BAD_MESSAGE},        /* too many */
    {2 * GRANULE, 0, 2, 3, 3, DUCTILE_ERR_BAD_MESSAGE},          /* too many handles */
    {2 * GRANULE, 0, 2, 100000, 2, DUCTILE_ERR_BAD_MESSAGE},     /* more than a batch has */
    {2 * GRANULE, 0, 2, 0, 0, DUCTILE_ERR_BAD_MESSAGE}};

static const lie *told;

static void tell(int socket) {
    int fds[253];
    dpool_wire_head head = true_head(told->n_handles);
    dpool_wire_batch batch = {.magic = head.magic, .count = told->count};
    head.total_bytes = head.size = told->total_bytes;
    head.offset = told->offset;
    if (!start(socket, head)) {
        return;
    }
    if (told->count == 0) {
        dpool_wire_give_up(socket);
        return;
    }
    for (uint32_t i = 0; i < told->count && i < DPOOL_WIRE_BATCH; i++) {
        batch.handles[i].bytes = GRANULE;
    }
    open_wrong(fds, told->n_fds);
    send_raw(socket, &batch, sizeof batch, fds, told->n_fds);
    close_wrong(fds, told->n_fds);
    (void)dpool_wire_receive_ack(socket);
}

Test(share_wire, a_lie_gets_one_answer_and_leaves_nothing) {
    for (told = lies; told < lies + sizeof lies / sizeof *lies; told++) {
        expect_refused(tell, told->expected);
    }
}

static void say_nothing(int socket) {
    (void)socket;
}

static void say_half_a_head(int socket) {
    dpool_wire_head head = true_head(2);
    send_raw(socket, &head, sizeof head / 2, NULL, 0);
}

static void say_a_head_with_descriptors(int socket) {
    int fds[200];
    dpool_wire_head head = true_head(2);
    open_wrong(fds, 200);
    send_raw(socket, &head, sizeof head, fds, 200);
    close_wrong(fds, 200);
}

static void leave_in_the_middle(int socket) {
    (void)start(socket, true_head(70));
}

static void leave_in_a_batch(int socket) {
    int fds[2];
    dpool_wire_batch batch = {.magic = dpool_wire_new_head().magic, .count = 2};
    if (start(socket, true_head(2))) {
        open_wrong(fds, 2);
        send_raw(socket, &batch, sizeof batch / 3, fds, 2);
        close_wrong(fds, 2);
    }
}

Test(share_wire, a_peer_that_leaves_gets_one_answer_and_leaves_nothing) {
    static const play plays[] = {say_nothing, say_half_a_head, say_a_head_with_descriptors,
                                 leave_in_the_middle, leave_in_a_batch};
    for (size_t i = 0; i < sizeof plays / sizeof *plays; i++) {
        expect_refused(plays[i], DUCTILE_ERR_BAD_MESSAGE);
    }
}

/* ---- An exporter whose importer misbehaves ------------------------------------------------- */

static void expect_export_refused(play what) {
    traces before = traces_now();
    ductile_status status = DUCTILE_OK;
    pthread_t thread = begin_thread(export_on_thread, &status);
    what(t.in);
    (void)shutdown(t.in, SHUT_RDWR);
    end_thread(thread);
    assert_status(status, DUCTILE_ERR_BAD_MESSAGE);
    assert_fine(two_ends_reconnect(&t, SOCK_STREAM));
    assert_nothing_left(&before);
}

static void answer_no(int socket) {
    dpool_wire_head head;
    (void)dpool_wire_receive_bytes(socket, &head, sizeof head);
    (void)dpool_wire_answer(socket, DUCTILE_ERR_BAD_MESSAGE);
}

static void answer_noise(int socket) {
    dpool_wire_head head;
    (void)dpool_wire_receive_bytes(socket, &head, sizeof head);
    send_raw(socket, &head, sizeof head, NULL, 0);
}

static void take_the_batch_and_leave(int socket) {
    dpool_wire_head head;
    (void)dpool_wire_receive_bytes(socket, &head, sizeof head);
    (void)dpool_wire_answer(socket, DUCTILE_OK);
    dpool_wire_batch batch;
    dvmm_shared shared[DPOOL_WIRE_BATCH];
    if (dpool_wire_receive_batch(socket, &head, &batch, shared) == DUCTILE_OK) {
        for (uint32_t i = 0; i < batch.count; i++) {
            (void)close(shared[i].fd);
        }
    }
}

Test(share_wire, an_export_that_nobody_takes_is_no_export) {
    expect_export_refused(say_nothing);
    expect_export_refused(answer_no);
    expect_export_refused(answer_noise);
    expect_export_refused(take_the_batch_and_leave);
}

/* ---- Time limits --------------------------------------------------------------------------- */

enum { LIMIT_MS = 500, BETWEEN_BYTES_MS = 150 };

static void set_limit(int socket) {
    const struct timeval limit = {.tv_usec = LIMIT_MS * 1000};
    cr_assert_eq(setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
}

/* Each byte comes within the limit, all of them do not.
 * Ends when the other side listens no more. */
static void drip(int socket, const void *bytes, size_t size) {
    const char *next = bytes;
    while (size-- > 0 && send(socket, next++, 1, MSG_NOSIGNAL) == 1) {
        (void)usleep(BETWEEN_BYTES_MS * 1000);
    }
}

static void drip_a_head(int socket) {
    dpool_wire_head head = true_head(2);
    drip(socket, &head, sizeof head);
    cr_assert_neq(dpool_wire_receive_ack(socket), DUCTILE_OK, "the import went on after its time");
}

Test(share_wire, an_import_ends_in_time_however_slowly_a_word_drips) {
    set_limit(t.in);
    expect_refused(drip_a_head, DUCTILE_ERR_BAD_MESSAGE);
}

static void drip_an_answer(int socket) {
    dpool_wire_head head;
    const uint32_t yes[2] = {dpool_wire_new_head().magic, 1};
    (void)dpool_wire_receive_bytes(socket, &head, sizeof head);
    drip(socket, yes, sizeof yes);
    set_limit(socket); /* nothing comes */
    dpool_wire_batch batch;
    dvmm_shared shared[DPOOL_WIRE_BATCH];
    cr_assert_neq(dpool_wire_receive_batch(socket, &head, &batch, shared), DUCTILE_OK,
                  "the export went on after its time");
}

Test(share_wire, an_export_ends_in_time_however_slowly_an_answer_drips) {
    set_limit(t.out);
    expect_export_refused(drip_an_answer);
}
