/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that live blocks keep where it is, handle by handle. */
#ifndef TESTS_SUPPORT_TIED_H
#define TESTS_SUPPORT_TIED_H

#include "tests/support/model.h"

/* Granules of all handles that hold a byte of a live block of the model. Only for moments when no
 * other call is running and no pool is paused. */
uint64_t tied_granules(ductile_allocator *allocator, const model *m);

#endif
