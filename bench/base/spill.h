/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays with an element for every event or block of a recording. There may be many millions of
 * them, and most are walked through from one end to the other: such an array lies in a file without
 * a name, in TMPDIR or /tmp, and what a walk has left behind takes no memory of the process.
 * Processes that are forked share it.
 *
 * Where no such file can be made, or the disk is full, the array lies in ordinary memory.
 */
#ifndef DUCTILE_BENCH_BASE_SPILL_H
#define DUCTILE_BENCH_BASE_SPILL_H

#include <stdbool.h>
#include <stddef.h>

/* Of one array, beside its pointer. All zero: ordinary memory. */
typedef struct spill {
    bool is_wanted; /* the array may lie in a file */
    int file;       /* while bytes > 0 */
    size_t bytes;   /* of the mapping; 0: the array lies in ordinary memory */
    void *base;     /* of the mapping */
} spill;

/*
 * Makes room for `wanted` elements of so many bytes. `array` is the address of the pointer to the
 * first, *capacity the number that it has room for. The array may move, and what it holds may leave
 * memory. False when the host has no memory: then nothing has changed.
 */
bool spill_reserve(spill *s, void *array, size_t bytes, size_t *capacity, size_t wanted);

/* Room for one more element than n. */
static inline bool spill_has_room(spill *s, void *array, size_t bytes, size_t *capacity, size_t n) {
    return n < *capacity || spill_reserve(s, array, bytes, capacity, n + 1);
}

/* An array of zeros; NULL: the host has no memory left. */
void *spill_zeros(spill *s, size_t n, size_t bytes);

/* What the array holds may leave memory until it is used again. */
void spill_rest(const spill *s);

/* For walks: whether it is time to let arrays rest, behind element number i. */
static inline bool spill_is_time(size_t i) {
    return (i & 0xffff) == 0xffff;
}

/* The array, wherever it lies, or NULL. */
void spill_free(spill *s, void *array);

#endif
