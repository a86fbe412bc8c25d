/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/child.h"

#include "tests/support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_S = 300 };

static _Noreturn void run_in_child(runner run, void *user, bool trace, int out) {
    outcome o = {0};
    (void)alarm(DEADLINE_S);
    const char *why = run(user, trace, &o.n_operations);
    o.is_broken = why != NULL;
    (void)snprintf(o.why, sizeof o.why, "%s", why != NULL ? why : "");
    bool is_told = write(out, &o, sizeof o) == (ssize_t)sizeof o;
    (void)fflush(stdout);
    _Exit(is_told ? 0 : 2);
}

outcome child_run(runner run, void *user, bool trace) {
    outcome o = {.is_broken = true};
    int ends[2];
    if (pipe(ends) != 0) {
        command_refuse("no pipe");
    }
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        (void)close(ends[0]);
        run_in_child(run, user, trace, ends[1]);
    }
    (void)close(ends[1]);
    bool is_told = child > 0 && read(ends[0], &o, sizeof o) == (ssize_t)sizeof o;
    (void)close(ends[0]);
    int status = 0;
    (void)waitpid(child, &status, 0);
    if (!is_told || status != 0) {
        o.is_broken = true;
        (void)snprintf(o.why, sizeof o.why,
                       WIFSIGNALED(status) ? "ended by signal %d" : "status %d",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    return o;
}
