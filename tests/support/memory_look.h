/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at memory that should hold certain bytes. Where it does not: how many differ, where, what
 * stands there, and what a second look finds once work is done: a copy that came late is told from
 * one that was lost.
 *
 * Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_MEMORY_LOOK_H
#define TESTS_SUPPORT_MEMORY_LOOK_H

#include <ductile.h>

typedef struct memory_look {
    ductile_addr address;
    uint64_t size;
    const char *(*read)(const void *user, void *to, ductile_addr from, uint64_t size);
    const char *(*wait)(const void *user);                  /* before the second look; NULL: none */
    uint8_t (*expected)(const void *user, uint64_t offset); /* the byte that should be there */
    const void *user;
} memory_look;

const char *expect_memory(const memory_look *look);

#endif
