/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May a process end while allocators live? Children take memory on several streams, start work on
 * it, keep threads that allocate and free, and then end: by exit, by a return from main, by
 * quick_exit or by _exit. None may crash or hang.
 *
 *     exits [--virtual | --device N] [--rounds N] [--jobs N] [--seconds N]
 *
 * Prints one figure a line. Ends with 1 when a child did not end as it meant to; 77 without a
 * device; 3 when it ran out of time.
 */
#include "tests/support/program_blocks.h"

#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    N_ALLOCATORS = 2,
    N_STREAMS = 3,
    N_THREADS = 2,
    BLOCKS_BEFORE_THE_END = 40,
    MOST_JOBS = 64,
    AS_MEANT = 42,
    HANGS_AFTER_SECONDS = 120
};

typedef enum ending { BY_EXIT, BY_RETURN, BY_QUICK_EXIT, BY__EXIT, N_ENDINGS } ending;

static const char *const ending_names[N_ENDINGS] = {"exit", "return", "quick_exit", "_exit"};

typedef struct request {
    program_device on;
    uint64_t rounds;
    uint64_t jobs;
    uint64_t seconds;
    const char *child;
} request;

/* ---- The child ------------------------------------------------------------------------------- */

typedef struct child {
    program_device on;
    ductile_allocator *allocators[N_ALLOCATORS];
    _Atomic uint64_t taken;
} child;

static const char *open_all(child *c) {
    TRY(program_open(&c->on, NULL, N_STREAMS));
    for (int i = 0; i < N_ALLOCATORS; i++) {
        TRY(program_allocator(&c->on, 0, &c->allocators[i]));
    }
    return NULL;
}

/* Work that may still be under way when the process ends. */
static void start_work(const child *c, ductile_addr at, uint64_t bytes, ductile_stream stream) {
    if (c->on.tester.gpu != NULL) {
        const gpu_launch fill = {
            .kernel = GPU_FILL_WORDS, .stream = stream, .arguments = {at, bytes / 4, 1}};
        (void)gpu_start(c->on.tester.gpu, &fill);
    }
}

/* Takes and frees until the process is gone, three blocks of four; what a call answers while the
 * process ends is its own affair. */
static void *hammer(void *user) {
    child *c = user;
    for (uint64_t i = 0;; i++) {
        ductile_allocator *a = c->allocators[i % N_ALLOCATORS];
        ductile_stream stream = c->on.streams[i % N_STREAMS];
        uint64_t bytes = (uint64_t)512 << i % 16;
        ductile_addr at = 0;
        if (ductile_alloc(a, bytes, stream, &at) == DUCTILE_OK) {
            start_work(c, at, bytes, stream);
            if (i % 4 != 0 || i > 2000) {
                (void)ductile_free(a, at);
            }
            atomic_fetch_add(&c->taken, 1);
        }
    }
    return NULL;
}

static const char *start_threads(child *c) {
    for (int i = 0; i < N_THREADS; i++) {
        pthread_t thread;
        NEED(pthread_create(&thread, NULL, hammer, c) == 0, "a thread was not created");
    }
    while (atomic_load(&c->taken) < BLOCKS_BEFORE_THE_END) {
        (void)usleep(100);
    }
    return NULL;
}

static ending ending_of(const char *name) {
    for (int i = 0; i < N_ENDINGS; i++) {
        if (strcmp(name, ending_names[i]) == 0) {
            return (ending)i;
        }
    }
    command_refuse("there is no such ending");
}

static int live_and_end(const request *r) {
    static child c;
    c.on = r->on;
    const char *why = open_all(&c);
    why = why == NULL ? start_threads(&c) : why;
    ending how = ending_of(r->child);
    if (why != NULL) {
        return command_end(why);
    }
    if (how == BY_QUICK_EXIT) {
        quick_exit(AS_MEANT);
    }
    if (how == BY__EXIT) {
        _exit(AS_MEANT);
    }
    if (how == BY_EXIT) {
        exit(AS_MEANT);
    }
    return AS_MEANT;
}

/* ---- The parent ------------------------------------------------------------------------------ */

static const char *begin_child(const request *r, ending how) {
    extern char **environ;
    pid_t ignored = 0;
    char device[16];
    (void)snprintf(device, sizeof device, "%d", r->on.device);
    char *arguments[] = {"exits",
                         "--child",
                         (char *)ending_names[how],
                         r->on.is_virtual ? "--virtual" : "--device",
                         r->on.is_virtual ? NULL : device,
                         NULL};
    NEED(posix_spawn(&ignored, "/proc/self/exe", NULL, NULL, arguments, environ) == 0,
         "no child could be started");
    return NULL;
}

static const char *end_child(void) {
    int status = 0;
    NEED(wait(&status) > 0, "a child is missing");
    if (WIFEXITED(status) && WEXITSTATUS(status) == COMMAND_SKIPPED) {
        exit(COMMAND_SKIPPED); /* the child has said why */
    }
    NEED(WIFEXITED(status), "a child was ended by signal %d", WTERMSIG(status));
    NEED(WEXITSTATUS(status) == AS_MEANT, "a child ended with %d", WEXITSTATUS(status));
    return NULL;
}

static const char *run_children(const request *r) {
    uint64_t counts[N_ENDINGS] = {0};
    uint64_t n_running = 0;
    for (uint64_t round = 0; round < r->rounds; round++) {
        ending how = (ending)(round % N_ENDINGS);
        if (n_running == r->jobs) {
            TRY(end_child());
            n_running--;
        }
        TRY(begin_child(r, how));
        n_running++;
        counts[how]++;
    }
    for (; n_running > 0; n_running--) {
        TRY(end_child());
    }
    for (int i = 0; i < N_ENDINGS; i++) {
        command_figure(ending_names[i], counts[i]);
    }
    return NULL;
}

int main(int argc, char **argv) {
    request r = {.rounds = 100, .jobs = 4, .seconds = 600};
    const command_option options[] = {
        PROGRAM_OPTIONS(&r.on),
        {"--rounds", .number = &r.rounds},
        {"--jobs", .number = &r.jobs},
        {"--seconds", .number = &r.seconds},
        {"--child", .text = &r.child, .placeholder = "ENDING"},
    };
    command_read("exits", options, sizeof options / sizeof *options, argc, argv);
    if (r.jobs < 1 || r.jobs > MOST_JOBS) {
        command_refuse("there are 1 to 64 jobs");
    }
    if (r.child != NULL) {
        (void)alarm(HANGS_AFTER_SECONDS);
        return live_and_end(&r);
    }
    command_end_after(r.seconds);
    return program_end(run_children(&r));
}
