/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ending.h"

#include <stdio.h>

void ending_because(ending *e, const char *why) {
    if (why == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&e->lock);
    if (e->why[0] == '\0') {
        (void)snprintf(e->why, sizeof e->why, "%s", why);
    }
    (void)pthread_mutex_unlock(&e->lock);
    ending_now(e);
}

void ending_now(ending *e) {
    atomic_store(&e->is_over, true);
}

bool ending_is_over(const ending *e) {
    return atomic_load(&e->is_over);
}

const char *ending_why(ending *e) {
    (void)pthread_mutex_lock(&e->lock);
    const char *why = e->why[0] != '\0' ? e->why : NULL;
    (void)pthread_mutex_unlock(&e->lock);
    return why;
}
