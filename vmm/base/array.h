/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow, large tables, and what is done with both and with lists. */
#ifndef DUCTILE_VMM_BASE_ARRAY_H
#define DUCTILE_VMM_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Makes room for n elements of so many bytes in an array that grows. `array` is the address of the
 * pointer to the first, *room the number that it has room for. False when the host has no memory:
 * then nothing has changed.
 */
bool dti_have_room(void *array, size_t bytes, uint32_t *room, uint64_t n);

/* Puts an element among the *n of an array that has room for one more, and takes one out. `array`
 * is the first. */
void dti_insert(void *array, size_t bytes, uint32_t *n, uint32_t at, const void *element);
void dti_remove(void *array, size_t bytes, uint32_t *n, uint32_t at);

/*
 * A large table of n elements of that size, all zero. It costs what is used of it: the host gives
 * memory to a page once it is written. calloc would do so only as long as it asks the kernel each
 * time; once it reuses freed memory, it fills the whole table with zeros. NULL when the host has no
 * memory. Owner: the caller. Safe from any thread.
 */
void *dti_table_new(size_t n, size_t element);

/* NULL: does nothing. Pre: the same numbers. */
void dti_table_free(void *table, size_t n, size_t element);

/* Sets `at` to the first of the numbers below n for which the condition, in which it stands, holds,
 * and to n if there is none. It holds for all behind that one. */
#define DTI_FIRST(at, n, condition)                                                                \
    do {                                                                                           \
        __typeof__(at) low_ = 0;                                                                   \
        __typeof__(at) high_ = (n);                                                                \
        while (low_ < high_) {                                                                     \
            (at) = low_ + (high_ - low_) / 2;                                                      \
            if (condition) {                                                                       \
                high_ = (at);                                                                      \
            } else {                                                                               \
                low_ = (at) + 1;                                                                   \
            }                                                                                      \
        }                                                                                          \
        (at) = low_;                                                                               \
    } while (0)

/* Takes an item out of a list whose items have a member `next_item`. Pre: it is in there. */
#define DTI_UNLINK(first, item, next_item)                                                         \
    do {                                                                                           \
        __typeof__(&(first)) link_ = &(first);                                                     \
        while (*link_ != (item)) {                                                                 \
            link_ = &(*link_)->next_item;                                                          \
        }                                                                                          \
        *link_ = (item)->next_item;                                                                \
    } while (0)

#endif
