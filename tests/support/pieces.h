/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long run in pieces, each a process of its own: a file says where the last one ended, in lines
 * "name value". A piece that fails leaves the file as it was, so that the same one can be run
 * again.
 *
 * Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_PIECES_H
#define TESTS_SUPPORT_PIECES_H

#include <stdint.h>

/* What is behind. */
typedef struct pieces {
    uint64_t pieces;
    uint64_t seed; /* of the next one; as it was while there are none */
    uint64_t operations;
    uint64_t seconds;
} pieces;

/* A file that is not there is a run that begins. */
const char *pieces_read(const char *path, pieces *p);

/* All of it or nothing. */
const char *pieces_write(const char *path, const pieces *p);

#endif
