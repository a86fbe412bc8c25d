/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/turns.h"

#include "vmm/base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Some tens of microseconds: as long as most calls take. */
enum { LOOKS_BEFORE_SLEEP = 1000 };

static bool is_up(const dti_turns *t, uint32_t number) {
    return atomic_load_explicit(&t->serving, memory_order_acquire) == number;
}

static bool look_for(const dti_turns *t, uint32_t number) {
    for (int i = 0; i < LOOKS_BEFORE_SLEEP && !is_up(t, number); i++) {
        dti_cpu_relax();
    }
    return is_up(t, number);
}

/* Counted before it looks once more: a thread that ends its turn after that look sees a sleeper. */
static void sleep_until(dti_turns *t, uint32_t number) {
    (void)atomic_fetch_add(&t->sleepers, 1);
    for (;;) {
        uint32_t serving = atomic_load(&t->serving);
        if (serving == number) {
            break;
        }
        (void)syscall(SYS_futex, &t->serving, FUTEX_WAIT_PRIVATE, serving, NULL, NULL, 0);
    }
    (void)atomic_fetch_sub(&t->sleepers, 1);
}

void dti_turn_take(dti_turns *t) {
    uint32_t number = atomic_fetch_add(&t->next, 1);
    if (!look_for(t, number)) {
        sleep_until(t, number);
    }
}

void dti_turn_end(dti_turns *t) {
    (void)atomic_fetch_add(&t->serving, 1);
    if (atomic_load(&t->sleepers) != 0) {
        (void)syscall(SYS_futex, &t->serving, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}
