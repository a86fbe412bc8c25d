/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cost/count.h"

#include "tests/support/command.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MARK = SIGUSR1 };

/* What the child reads after the second mark. Shared by both processes. */
static volatile uint64_t *latest;
static uint64_t overhead; /* of two marks with nothing between them */

void count_begin(void) {
    (void)raise(MARK);
}

uint64_t count_end(void) {
    (void)raise(MARK);
    return *latest - overhead;
}

/* The first marks also pay for what the program loader does once. */
static void measure_overhead(void) {
    for (int i = 0; i < 2; i++) {
        overhead = 0;
        count_begin();
        overhead = count_end();
    }
}

static _Noreturn void be_the_child(int (*work)(void)) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
        command_skip("processes may not trace each other here");
    }
    measure_overhead();
    exit(work());
}

/* Takes the child from one stop to the next until it ends. Signals that are neither marks nor steps
 * are its own. */
static int step(pid_t child) {
    bool is_counting = false;
    uint64_t n = 0;
    int status = 0;
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        int signal = WSTOPSIG(status);
        if (signal == MARK) {
            is_counting = !is_counting;
            *latest = n;
            n = 0;
        } else if (signal == SIGTRAP) {
            n++;
        }
        int own = signal == MARK || signal == SIGTRAP ? 0 : signal;
        (void)ptrace(is_counting ? PTRACE_SINGLESTEP : PTRACE_CONT, child, NULL, (long)own);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : COMMAND_BROKEN;
}

int count_run(int (*work)(void)) {
    latest = mmap(NULL, sizeof *latest, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (latest == MAP_FAILED) {
        return COMMAND_BROKEN;
    }
    pid_t child = fork();
    if (child == 0) {
        be_the_child(work);
    }
    return child > 0 ? step(child) : COMMAND_BROKEN;
}
