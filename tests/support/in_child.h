/* SPDX-License-Identifier: Apache-2.0 */
/* Something that is done in a child of this process. */
#ifndef TESTS_SUPPORT_IN_CHILD_H
#define TESTS_SUPPORT_IN_CHILD_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the child gave to exit, once it has ended, or -1,
 * when there was none or a signal ended it. */
static inline int exit_status_of(pid_t child) {
    int status = 0;
    bool has_exited = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status);
    return has_exited ? WEXITSTATUS(status) : -1;
}

/* Runs `body` in a child; what it gives to _exit, or -1 when there was no child, or it did not exit
 * by itself: what hangs ends by a signal. */
static inline int in_child(int (*body)(void)) {
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        (void)alarm(600);
        _exit(body());
    }
    return exit_status_of(child);
}

#endif
