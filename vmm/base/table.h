/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large tables of zeros that cost what is used of them: the host gives memory to a page once it is
 * written. calloc would do so only as long as it asks the kernel each time; once it reuses freed
 * memory, it fills the whole table with zeros. Safe from any thread.
 */
#ifndef DUCTILE_VMM_BASE_TABLE_H
#define DUCTILE_VMM_BASE_TABLE_H

#include <stddef.h>

/* n elements of that size, all zero; NULL when the host has no memory. Owner: the caller. */
void *dti_table_new(size_t n, size_t element);

/* NULL: does nothing. Pre: the same numbers. */
void dti_table_free(void *table, size_t n, size_t element);

#endif
