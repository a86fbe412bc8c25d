/* SPDX-License-Identifier: Apache-2.0 */
/* Where the scheduler may let another thread go on. Called by the library as it is built for these
 * tests (seam/), which is otherwise the library that is shipped. */
#ifndef TESTS_ORDERS_POINTS_H
#define TESTS_ORDERS_POINTS_H

struct dti_lock;

/* `where` is the function. Returns when the lock is free, and no other thread runs. */
void orders_before_lock(struct dti_lock *lock, const char *where);
void orders_before_try(struct dti_lock *lock, const char *where);
void orders_after_unlock(struct dti_lock *lock, const char *where);

/* site: of the line, 0 before it is met first; what: the operand as it is written. */
void orders_at_atomic(signed char *site, const char *what, const char *where);

#endif
