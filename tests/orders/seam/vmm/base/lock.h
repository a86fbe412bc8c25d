/* SPDX-License-Identifier: Apache-2.0 */
/* Found before the library's header of this name: the same lock, with a point of the scheduler
 * before each acquisition and after each release. */
#pragma GCC system_header
#ifndef TESTS_ORDERS_SEAM_LOCK_H
#define TESTS_ORDERS_SEAM_LOCK_H

#include "tests/orders/points.h"

#include_next "vmm/base/lock.h"

#define dti_lock_acquire(lock) (orders_before_lock((lock), __func__), dti_lock_acquire(lock))
#define dti_lock_try_acquire(lock) (orders_before_try((lock), __func__), dti_lock_try_acquire(lock))
#define dti_lock_release(lock) (dti_lock_release(lock), orders_after_unlock((lock), __func__))

#endif
