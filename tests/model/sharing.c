/* SPDX-License-Identifier: Apache-2.0 */
/* Pins, and blocks passed to a second allocator over a socket. */
#include "tests/model/subject.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>

/* ---- Pins ---------------------------------------------------------------------------------- */

static const char *take_pin(subject *s, const model_block *b) {
    say(s, "pin %llx", b->address);
    ductile_status status = ductile_pin(s->f.allocator, b->address);
    TRY(may_be(s, "pin", status, status == (b->is_paused ? DUCTILE_ERR_ASLEEP : DUCTILE_OK)));
    if (status == DUCTILE_OK) {
        s->pins[s->n_pins++] = (pin_state){b->address, b->size, false};
    }
    return NULL;
}

static const char *give_pin(subject *s, size_t i) {
    pin_state p = s->pins[i];
    say(s, "%s %llx", p.is_export ? "unexport" : "unpin", p.address);
    s->pins[i] = s->pins[--s->n_pins];
    ductile_status status = p.is_export ? ductile_unexport(s->f.allocator, p.address)
                                        : ductile_unpin(s->f.allocator, p.address);
    return may_be(s, "unpin", status, status == DUCTILE_OK);
}

const char *do_pin(subject *s, const record *r) {
    const model_block *b = any_block(s, r->d);
    if (!has(s, PINS)) {
        return NULL;
    }
    if (s->n_pins == MOST_PINS || (s->n_pins > 0 && r->b % 2 == 0)) {
        return give_pin(s, r->d % s->n_pins);
    }
    return b != NULL ? take_pin(s, b) : NULL;
}

/* ---- The other allocator ------------------------------------------------------------------- */

static bool limit_wait(int socket) {
    const struct timeval limit = {.tv_sec = 60};
    return setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
           setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0;
}

static const char *make_importer(subject *s) {
    int ends[2];
    if (s->importer != NULL) {
        return NULL;
    }
    if (s->socket_out < 0) {
        NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no sockets");
        s->socket_out = ends[0];
        s->socket_in = ends[1];
        NEED(limit_wait(ends[0]) && limit_wait(ends[1]), "no time limits");
    }
    return fixture_add_allocator(&s->f, &s->setup, &s->importer);
}

typedef struct sending {
    subject *s;
    ductile_addr address;
    ductile_status status;
} sending;

static void *send_block(void *argument) {
    sending *it = argument;
    it->status = ductile_export(it->s->f.allocator, it->address, it->s->socket_out);
    return NULL;
}

static const char *contents_arrive(subject *s, const model_block *b, ductile_addr at) {
    uint8_t bytes[64];
    if (b->is_blank) {
        return NULL;
    }
    TRY(sync_all(s)); /* streams that have ended may still be at work on it */
    NEED_OK(ductile_virtual_read_back(s->f.gpu, bytes, at, sizeof bytes, s->slots[0].stream));
    NEED(bytes[0] == b->pattern && bytes[63] == b->pattern, "%llx holds %02x where it arrives",
         b->address, bytes[0]);
    return NULL;
}

static const char *pass_block(subject *s, const model_block *b) {
    sending it = {.s = s, .address = b->address, .status = DUCTILE_ERR_BUSY};
    pthread_t thread;
    ductile_addr at = 0;
    uint64_t size = 0;
    NEED(pthread_create(&thread, NULL, send_block, &it) == 0, "no thread");
    ductile_status imported =
        ductile_import(s->importer, s->socket_in, s->slots[0].stream, &at, &size);
    (void)pthread_join(thread, NULL);
    NEED(it.status == DUCTILE_OK && imported == DUCTILE_OK, "export: %s, import: %s",
         ductile_status_name(it.status), ductile_status_name(imported));
    s->imports[s->n_imports++] = at;
    s->pins[s->n_pins++] = (pin_state){b->address, b->size, true};
    NEED(size >= b->size, "%llu bytes arrive of %llu", (unsigned long long)size,
         (unsigned long long)b->size);
    return contents_arrive(s, b, at);
}

/* Not beside faults, which would leave half a message in the socket, nor where addresses end. */
const char *do_share(subject *s, const record *r) {
    const model_block *b = any_block(s, r->d);
    if (!s->shares || b == NULL || b->is_paused || b->pool > N_PLAIN_POOLS || s->is_faulty ||
        is_capturing(s) || s->is_short_of_addresses || s->n_imports == MOST_IMPORTS ||
        s->n_pins == MOST_PINS) {
        return NULL;
    }
    say(s, "pass %llx to another allocator", b->address);
    TRY(make_importer(s));
    return pass_block(s, b);
}

static const char *close_import(subject *s, size_t i) {
    ductile_addr at = s->imports[i];
    s->imports[i] = s->imports[--s->n_imports];
    ductile_status status = ductile_import_close(s->importer, at);
    return may_be(s, "import_close", status, status == DUCTILE_OK);
}

const char *do_close_import(subject *s, const record *r) {
    if (s->n_imports == 0 || is_capturing(s)) {
        return NULL;
    }
    say(s, "close an import");
    return close_import(s, r->a % s->n_imports);
}

const char *end_sharing(subject *s) {
    while (s->n_pins > 0) {
        TRY(give_pin(s, 0));
    }
    while (s->n_imports > 0) {
        TRY(close_import(s, 0));
    }
    if (s->importer != NULL) {
        NEED(ductile_destroy(s->importer) == DUCTILE_OK || s->is_faulty, "the importer's end");
        s->importer = NULL;
    }
    return NULL;
}
