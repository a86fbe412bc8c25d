/* SPDX-License-Identifier: Apache-2.0 */
/* Something that is done in a child of this process, for Criterion. */
#ifndef TESTS_SUPPORT_IN_CHILD_H
#define TESTS_SUPPORT_IN_CHILD_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs `body` in a child; what it gives to _exit, or -1 when it did not exit by itself: what hangs
 * ends by a signal. */
static inline int in_child(int (*body)(void)) {
    (void)fflush(NULL);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        (void)alarm(600);
        _exit(body());
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
