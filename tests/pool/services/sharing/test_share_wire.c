/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: whatever arrives over a socket, an import of it ends with one status, and
 * leaves no descriptor, address or mapping behind. The other side of the socket is played by hand:
 * every byte of a true message is falsified in turn, and messages end at every place.
 */
#include "pool/services/sharing/share_wire.h"
#include "tests/support/expect.h"
#include "tests/support/rng.h"
#include "tests/support/two_ends.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GRANULE FIXTURE_GRANULE

static two_ends t;
static ductile_addr block;

static void open_ends(void) {
    const fixture_setup setup = {.capacity_bytes = 256 * MIB};
    assert_fine(two_ends_open(&t, &setup, SOCK_STREAM));
    assert_ok(ductile_alloc(t.f.allocator, 3 * GRANULE, t.f.streams[0], &block));
}

static void close_ends(void) {
    assert_fine(two_ends_close(&t));
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
    pthread_t thread;
    dvmm_shared shared[DPOOL_WIRE_BATCH];
    cr_assert_eq(pthread_create(&thread, NULL, export_on_thread, &sent), 0);
    assert_ok(dpool_wire_receive_head(t.in, &m->head));
    assert_ok(dpool_wire_send_ack(t.in, true));
    assert_ok(dpool_wire_receive_batch(t.in, &m->head, &m->batch, shared));
    assert_ok(dpool_wire_send_ack(t.in, true));
    (void)pthread_join(thread, NULL);
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
    assert_ok(ductile_unexport(t.f.allocator, block));
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

static void expect_nothing_left(size_t open, const ductile_virtual_state *before) {
    ductile_virtual_state now = fixture_state(&t.f);
    cr_assert_eq(count_descriptors(), open);
    assert_u64(now.reservations, before->reservations);
    assert_u64(now.mappings, before->mappings);
    assert_u64(now.violations, before->violations);
    assert_u64(fixture_stats(t.importer).imported_bytes, 0);
}

Test(share_wire, no_falsified_byte_is_believed) {
    message m;
    listen_to_export(&m);
    size_t open = count_descriptors();
    ductile_virtual_state before = fixture_state(&t.f);
    static const uint8_t masks[] = {0x01, 0x80, 0xFF};
    for (size_t i = 0; i < N_WORDS; i++) {
        for (size_t k = 0; k < sizeof masks; k++) {
            message copy = m;
            *byte_of(&copy, i) ^= masks[k];
            import_falsified(&copy);
        }
    }
    expect_nothing_left(open, &before);
    end_listening(&m);
}

Test(share_wire, noise_is_not_believed) {
    message m;
    listen_to_export(&m);
    size_t open = count_descriptors();
    ductile_virtual_state before = fixture_state(&t.f);
    rng r = rng_seeded(0x5A4E);
    for (int round = 0; round < 3000; round++) {
        message copy = m;
        for (uint64_t n = 1 + rng_below(&r, 6); n > 0; n--) {
            *byte_of(&copy, rng_below(&r, N_WORDS)) = (uint8_t)rng_below(&r, 256);
        }
        import_falsified(&copy);
    }
    expect_nothing_left(open, &before);
    end_listening(&m);
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
    size_t open = count_descriptors();
    ductile_virtual_state before = fixture_state(&t.f);
    import_call call = {.status = DUCTILE_OK, .addr = 1};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, import_on_thread, &call), 0);
    what(t.out);
    (void)shutdown(t.out, SHUT_RDWR);
    (void)pthread_join(thread, NULL);
    assert_status(call.status, expected);
    cr_assert_eq(call.addr, 0);
    expect_nothing_left(open, &before);
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

static void send_batch_with(int socket, uint32_t n_handles, size_t n_fds) {
    int fds[253];
    dpool_wire_batch batch = {.magic = dpool_wire_new_head().magic, .count = n_handles};
    for (uint32_t i = 0; i < n_handles && i < DPOOL_WIRE_BATCH; i++) {
        batch.handles[i].bytes = GRANULE;
    }
    open_wrong(fds, n_fds);
    send_raw(socket, &batch, sizeof batch, fds, n_fds);
    close_wrong(fds, n_fds);
    (void)dpool_wire_receive_ack(socket);
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

static void promise_the_moon(int socket) {
    dpool_wire_head head = true_head(2);
    head.total_bytes = UINT64_C(1) << 62;
    head.size = head.total_bytes;
    (void)start(socket, head);
}

static void promise_more_handles_than_bytes(int socket) {
    dpool_wire_head head = true_head(2);
    head.n_handles = UINT32_MAX;
    (void)start(socket, head);
}

static void lead_outside(int socket) {
    dpool_wire_head head = true_head(2);
    head.offset = GRANULE;
    (void)start(socket, head);
}

static void send_wrong_descriptors(int socket) {
    if (start(socket, true_head(2))) {
        send_batch_with(socket, 2, 2);
    }
}

static void send_too_few_descriptors(int socket) {
    if (start(socket, true_head(2))) {
        send_batch_with(socket, 2, 1);
    }
}

static void send_too_many_descriptors(int socket) {
    if (start(socket, true_head(2))) {
        send_batch_with(socket, 2, 250);
    }
}

static void send_too_many_handles(int socket) {
    if (start(socket, true_head(2))) {
        send_batch_with(socket, 3, 3);
    }
}

static void count_beyond_a_batch(int socket) {
    if (start(socket, true_head(2))) {
        send_batch_with(socket, 100000, 2);
    }
}

static void give_up(int socket) {
    if (start(socket, true_head(2))) {
        dpool_wire_give_up(socket);
    }
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

Test(share_wire, a_hostile_peer_gets_one_answer_and_leaves_nothing) {
    static const play plays[] = {say_nothing,
                                 say_half_a_head,
                                 say_a_head_with_descriptors,
                                 promise_the_moon,
                                 promise_more_handles_than_bytes,
                                 lead_outside,
                                 send_wrong_descriptors,
                                 send_too_few_descriptors,
                                 send_too_many_descriptors,
                                 send_too_many_handles,
                                 count_beyond_a_batch,
                                 give_up,
                                 leave_in_the_middle,
                                 leave_in_a_batch};
    for (size_t i = 0; i < sizeof plays / sizeof plays[0]; i++) {
        ductile_status expected =
            plays[i] == promise_the_moon ? DUCTILE_ERR_OUT_OF_ADDRESSES : DUCTILE_ERR_BAD_MESSAGE;
        expect_refused(plays[i], expected);
    }
}

/* ---- An exporter whose importer misbehaves ------------------------------------------------- */

static void expect_export_refused(play what) {
    size_t open = count_descriptors();
    ductile_status status = DUCTILE_OK;
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, export_on_thread, &status), 0);
    what(t.in);
    (void)shutdown(t.in, SHUT_RDWR);
    (void)pthread_join(thread, NULL);
    assert_status(status, DUCTILE_ERR_BAD_MESSAGE);
    assert_u64(fixture_stats(t.f.allocator).exported_bytes, 0);
    assert_fine(two_ends_reconnect(&t, SOCK_STREAM));
    (void)fixture_state(&t.f); /* the device notices what was closed */
    cr_assert_eq(count_descriptors(), open);
}

static void answer_no(int socket) {
    dpool_wire_head head;
    (void)dpool_wire_receive_head(socket, &head);
    (void)dpool_wire_send_ack(socket, false);
}

static void answer_noise(int socket) {
    dpool_wire_head head;
    (void)dpool_wire_receive_head(socket, &head);
    send_raw(socket, &head, sizeof head, NULL, 0);
}

static void take_the_batch_and_leave(int socket) {
    dpool_wire_head head;
    (void)dpool_wire_receive_head(socket, &head);
    (void)dpool_wire_send_ack(socket, true);
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

/* Each byte comes within the limit, all of them do not. Ends when the other side listens no more.
 */
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
    (void)dpool_wire_receive_head(socket, &head);
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
