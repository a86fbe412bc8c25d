/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/in_children.h"

#include "bench/cli/cli.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct child {
    FILE *output; /* a file without a name; NULL: none could be made */
    pid_t pid;    /* 0: the part runs in this process */
} child;

static child start(in_children_part part, void *user, size_t index) {
    child c = {.output = tmpfile()};
    (void)fflush(NULL); /* what is buffered is written once, not by every process */
    pid_t pid = c.output != NULL ? fork() : -1;
    if (pid == 0) {
        bool ok = part(user, index, c.output);
        ok = fflush(c.output) == 0 && ok;
        _exit(ok ? BENCH_DONE : BENCH_FAILED);
    }
    c.pid = pid > 0 ? pid : 0;
    return c;
}

static bool copy_all(FILE *from, FILE *to) {
    char piece[65536];
    size_t n;
    rewind(from);
    while ((n = fread(piece, 1, sizeof piece, from)) > 0) {
        if (fwrite(piece, 1, n, to) < n) {
            return false;
        }
    }
    return ferror(from) == 0;
}

static bool has_succeeded(const child *c) {
    int status = 0;
    if (waitpid(c->pid, &status, 0) != c->pid) {
        return false;
    }
    if (WIFSIGNALED(status)) {
        bench_complain("a replay was ended by signal %d", WTERMSIG(status));
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == BENCH_DONE;
}

static bool finish(child *c, in_children_part part, void *user, size_t index, FILE *out) {
    bool ok = c->pid == 0 ? part(user, index, out) : has_succeeded(c) && copy_all(c->output, out);
    c->pid = 0;
    return ok;
}

static void drop(child *c) {
    if (c->pid > 0) {
        (void)kill(c->pid, SIGTERM);
        (void)waitpid(c->pid, NULL, 0);
    }
    if (c->output != NULL) {
        (void)fclose(c->output);
    }
}

bool in_children(in_children_part part, void *user, size_t n, FILE *out) {
    child children[IN_CHILDREN_MAX];
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        children[i] = start(part, user, i);
    }
    for (size_t i = 0; i < n; i++) {
        ok = ok && finish(&children[i], part, user, i, out);
        drop(&children[i]);
    }
    return ok && fflush(out) == 0;
}
