/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who owns which device bytes, for many threads at once and without a lock: a bit per 512 bytes,
 * set by the thread that was handed them. A bit that is set already belongs to two.
 */
#ifndef TESTS_SUPPORT_CLAIMS_H
#define TESTS_SUPPORT_CLAIMS_H

#include <ductile.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct claims claims;

/* NULL without host memory. */
claims *claims_new(void);
void claims_delete(claims *c);

/* Both: address and size are multiples of 512. NULL, or the complaint. Safe from any thread. */
const char *claims_take(claims *c, ductile_addr address, uint64_t size);
const char *claims_give(claims *c, ductile_addr address, uint64_t size);

/* Bits set; only while no other call runs. */
uint64_t claims_count(const claims *c);

#endif
