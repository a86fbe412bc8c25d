/* SPDX-License-Identifier: Apache-2.0 */
/* Pins, and blocks passed to a second allocator over a socket. */
#include "tests/model/subject.h"
#include "tests/support/two_ends.h"

#include <sys/socket.h>

/* ---- Pins ---------------------------------------------------------------------------------- */

static const char *take_pin(subject *s, const model_block *b) {
    say(s, "pin %llx", b->address);
    ductile_status status = ductile_pin(s->f.allocator, b->address);
    ductile_status expected = b->is_asleep       ? DUCTILE_ERR_ASLEEP
                              : is_spilled(s, b) ? DUCTILE_ERR_UNSUPPORTED
                                                 : DUCTILE_OK;
    TRY(may_be(s, "pin", status, status == expected));
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

const char *make_importer(subject *s) {
    if (s->ends.importer != NULL) {
        return NULL;
    }
    TRY(s->ends.out < 0 ? two_ends_reconnect(&s->ends, SOCK_STREAM) : NULL);
    return fixture_add_allocator(&s->f, &s->setup, &s->ends.importer);
}

const char *is_seen_at(subject *s, const model_block *b, ductile_addr at) {
    uint8_t bytes[64];
    if (b->is_blank || b->is_asleep) {
        return NULL;
    }
    NEED_OK(ductile_virtual_read_back(s->f.gpu, bytes, at, sizeof bytes, s->slots[0].stream));
    NEED(bytes[0] == b->pattern && bytes[63] == b->pattern, "%llx holds %02x where it arrives",
         b->address, bytes[0]);
    return NULL;
}

static const char *pass_block(subject *s, const model_block *b) {
    passing p = {.from = s->f.allocator,
                 .to = s->ends.importer,
                 .out = s->ends.out,
                 .in = s->ends.in,
                 .block = b->address,
                 .stream = s->slots[0].stream};
    pass_memory(&p);
    NEED(p.exported == DUCTILE_OK && p.imported == DUCTILE_OK, "export: %s, import: %s",
         ductile_status_name(p.exported), ductile_status_name(p.imported));
    s->imports[s->n_imports++] = p.addr;
    s->pins[s->n_pins++] = (pin_state){b->address, b->size, true};
    NEED(p.size >= b->size, "%llu bytes arrive of %llu", (unsigned long long)p.size,
         (unsigned long long)b->size);
    TRY(b->is_blank ? NULL : sync_all(s)); /* streams that have ended may still be at work on it */
    return is_seen_at(s, b, p.addr);
}

/* Each handle of one granule takes three descriptors here. */
enum { MOST_PASSED = 256 }; /* granules */

/* Not beside faults, which would leave half a message in the socket, nor where addresses end. */
const char *do_share(subject *s, const record *r) {
    const model_block *b = any_block(s, r->d);
    if (!s->shares || b == NULL || b->is_asleep || b->pool > N_PLAIN_POOLS || s->is_faulty ||
        is_capturing(s) || s->is_short_of_addresses || s->n_imports == MOST_IMPORTS ||
        s->n_pins == MOST_PINS || is_spilled(s, b) || b->size > MOST_PASSED * s->granule) {
        return NULL;
    }
    say(s, "pass %llx to another allocator", b->address);
    TRY(make_importer(s));
    return pass_block(s, b);
}

static const char *close_import(subject *s, size_t i) {
    ductile_addr at = s->imports[i];
    s->imports[i] = s->imports[--s->n_imports];
    ductile_status status = ductile_import_close(s->ends.importer, at);
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
    if (s->ends.importer != NULL) {
        s->status = ductile_destroy(s->ends.importer);
        s->ends.importer = NULL;
        NEED(s->status == DUCTILE_OK || s->is_faulty, "the importer's end");
    }
    return NULL;
}
