/* SPDX-License-Identifier: Apache-2.0 */
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

#endif
