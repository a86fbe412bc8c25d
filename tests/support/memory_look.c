/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/memory_look.h"

#include "tests/support/complain.h"

#include <stdbool.h>
#include <stdio.h>

enum { PART = 4096 };

/* Of the bytes that differ. */
typedef struct findings {
    uint64_t n, n_zero, n_ff;
    uint64_t first, last;    /* valid while n > 0 */
    uint8_t found, expected; /* at the first */
} findings;

static void note(findings *f, uint64_t at, uint8_t found, uint8_t expected) {
    if (f->n == 0) {
        f->first = at;
        f->found = found;
        f->expected = expected;
    }
    f->last = at;
    f->n++;
    f->n_zero += found == 0;
    f->n_ff += found == 0xFF;
}

static const char *look_through(const memory_look *l, findings *f) {
    uint8_t bytes[PART];
    for (uint64_t at = 0; at < l->size; at += PART) {
        uint64_t size = l->size - at < PART ? l->size - at : PART;
        TRY(l->read(l->user, bytes, l->address + at, size));
        for (uint64_t i = 0; i < size; i++) {
            uint8_t expected = l->expected(l->user, at + i);
            if (bytes[i] != expected) {
                note(f, at + i, bytes[i], expected);
            }
        }
    }
    return NULL;
}

static bool is_same(const findings *a, const findings *b) {
    return a->n == b->n && a->first == b->first && a->last == b->last && a->found == b->found;
}

static const char *describe(const memory_look *l, const findings *f, const findings *second) {
    char again[64] = "the same";
    if (!is_same(f, second)) {
        (void)snprintf(again, sizeof again, "%llu that differ", (unsigned long long)second->n);
    }
    return complain("%llu of %llu bytes differ, %llu to %llu from %#llx on; there stands %02x for "
                    "%02x (0x00: %llu, 0xFF: %llu); a second look finds %s",
                    (unsigned long long)f->n, (unsigned long long)l->size,
                    (unsigned long long)f->first, (unsigned long long)f->last,
                    (unsigned long long)l->address, f->found, f->expected,
                    (unsigned long long)f->n_zero, (unsigned long long)f->n_ff, again);
}

const char *expect_memory(const memory_look *look) {
    findings first = {.n = 0};
    findings second = {.n = 0};
    TRY(look_through(look, &first));
    if (first.n == 0) {
        return NULL;
    }
    TRY(look->wait != NULL ? look->wait(look->user) : NULL);
    TRY(look_through(look, &second));
    return describe(look, &first, &second);
}
