/* SPDX-License-Identifier: Apache-2.0 */
/* Found before the compiler's: each atomic operation of the library has a point of the scheduler
 * before it. One thread runs at a time, so what is left of the operation itself may be plain. */
#pragma GCC system_header
#ifndef TESTS_ORDERS_SEAM_STDATOMIC_H
#define TESTS_ORDERS_SEAM_STDATOMIC_H

#include "tests/orders/points.h"

#include_next <stdatomic.h>

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_exchange
#undef atomic_exchange_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub_explicit
#undef atomic_fetch_or_explicit
#undef atomic_compare_exchange_strong

#define ORDERS_AT(p)                                                                               \
    __extension__({                                                                                \
        static signed char orders_site;                                                            \
        orders_at_atomic(&orders_site, #p, __func__);                                              \
    })

#define atomic_load(p) (ORDERS_AT(p), *(p))
#define atomic_load_explicit(p, order) ((void)(order), atomic_load(p))
/* The cast is for NULL, which clang does not take for an atomic pointer to a function. */
#define atomic_store(p, v) (ORDERS_AT(p), (void)(*(p) = (__typeof__((void)0, *(p)))(v)))
#define atomic_store_explicit(p, v, order) atomic_store(p, v)

#define ORDERS_CHANGE(p, change)                                                                   \
    __extension__({                                                                                \
        ORDERS_AT(p);                                                                              \
        __auto_type orders_place = (p);                                                            \
        __typeof__((void)0, *orders_place) orders_before = *orders_place;                          \
        *orders_place change;                                                                      \
        orders_before;                                                                             \
    })
#define atomic_exchange(p, v) ORDERS_CHANGE(p, = (v))
#define atomic_exchange_explicit(p, v, order) ORDERS_CHANGE(p, = (v))
#define atomic_fetch_add(p, v) ORDERS_CHANGE(p, += (v))
#define atomic_fetch_add_explicit(p, v, order) ORDERS_CHANGE(p, += (v))
#define atomic_fetch_sub_explicit(p, v, order) ORDERS_CHANGE(p, -= (v))
#define atomic_fetch_or_explicit(p, v, order) ORDERS_CHANGE(p, |= (v))

#define atomic_compare_exchange_strong(p, expected, v)                                             \
    __extension__({                                                                                \
        ORDERS_AT(p);                                                                              \
        __auto_type orders_place = (p);                                                            \
        bool orders_same = *orders_place == *(expected);                                           \
        if (orders_same) {                                                                         \
            *orders_place = (v);                                                                   \
        } else {                                                                                   \
            *(expected) = *orders_place;                                                           \
        }                                                                                          \
        orders_same;                                                                               \
    })

#endif
