/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs rows in child processes, because a row may lose its context, die or never end. The parent
 * never touches the driver, so it can fork as often as it likes. Children leave one line a row in
 * memory that both see; what the parent misses at the end tells which row went wrong.
 */
#include "tests/conformance/conformance_session.h"
#include "vmm/cuda/open.h"
#include "vmm/driver/open_virtual.h"

#include <fnmatch.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LINE_BYTES = 2 * SESSION_TEXT + 128,
    MOST_LINES = 400,
    SECONDS_PER_ROW = 60, /* a first context takes seconds; no row needs one */
    EXIT_CANNOT_OPEN = 3, /* the device; the line says why                   */
    EXIT_DEVICE_LOST = 4, /* after the last line                             */
    IN_CHILD = -2         /* in place of a status                            */
};

typedef struct written {
    size_t n;
    char lines[MOST_LINES][LINE_BYTES];
} written;

static written *shared; /* with the child */

/* ---- The child ----------------------------------------------------------------------------- */

static ductile_status open_device(const conformance_device *device, dvmm_driver **out, char *reason,
                                  size_t size) {
    if (!device->is_virtual) {
        return dvmm_open_cuda(device->ordinal, out, reason, size);
    }
    ductile_status status = dvmm_open_virtual(NULL, out, NULL, 0);
    (void)snprintf(reason, size, "%s", ductile_status_string(status));
    return status;
}

static void run_row(dvmm_driver *driver, const conformance_row *row) {
    static session s;
    (void)alarm(SECONDS_PER_ROW);
    session_init(&s, driver);
    session_run_row(&s, row);
    (void)snprintf(shared->lines[shared->n], LINE_BYTES, "%s | %s | %s", row->name, s.codes,
                   s.state);
    shared->n++;
    session_clean(&s);
}

static bool device_is_lost(dvmm_driver *driver) {
    void *ctx = NULL;
    const dvmm_driver_ops *ops = dvmm_raw_ops(driver, &ctx);
    return ops->context_sync(ctx) != DVMM_SUCCESS;
}

static int run_rows(const conformance_device *device, size_t begin, size_t end) {
    char reason[256] = "";
    dvmm_driver *driver = NULL;
    (void)alarm(SECONDS_PER_ROW);
    if (open_device(device, &driver, reason, sizeof(reason)) != DUCTILE_OK) {
        return EXIT_CANNOT_OPEN;
    }
    for (size_t i = begin; i < end; i++) {
        run_row(driver, conformance_row_at(i));
        if (device_is_lost(driver)) {
            return EXIT_DEVICE_LOST;
        }
    }
    dvmm_close(driver);
    return 0;
}

/* ---- Rows ---------------------------------------------------------------------------------- */

/* In the child; the parent goes on with its status. */
static int begin_child(void) {
    if (shared == NULL) {
        shared =
            mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (shared == MAP_FAILED) {
            abort();
        }
    }
    shared->n = 0;
    (void)fflush(NULL);
    pid_t child = fork();
    int status = -1;
    if (child > 0) {
        (void)waitpid(child, &status, 0);
    }
    return child == 0 ? IN_CHILD : status;
}

static void say_what_happened(const conformance_row *row, int status, char *line) {
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
        (void)snprintf(line, LINE_BYTES, "%s | hung |", row->name);
    } else if (WIFSIGNALED(status)) {
        (void)snprintf(line, LINE_BYTES, "%s | died %d |", row->name, WTERMSIG(status));
    } else {
        (void)snprintf(line, LINE_BYTES, "%s | left %d |", row->name, WEXITSTATUS(status));
    }
}

/* Returns the index after the last row that has given its line. */
static size_t run_batch(const conformance_device *device, size_t begin, size_t end,
                        conformance_line_fn give, void *user) {
    char line[LINE_BYTES];
    int status = begin_child();
    if (status == IN_CHILD) {
        _exit(run_rows(device, begin, end));
    }
    size_t next = begin;
    for (size_t i = 0; i < shared->n; i++) {
        give(user, conformance_row_at(next++), shared->lines[i]);
    }
    bool lost_before = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_DEVICE_LOST;
    if (next < end && !lost_before) {
        const conformance_row *row = conformance_row_at(next++);
        say_what_happened(row, status, line);
        give(user, row, line);
    }
    return next;
}

static bool is_alone(size_t index) {
    return (conformance_row_at(index)->flags & ROW_ALONE) != 0;
}

static size_t end_of_batch(size_t begin) {
    size_t end = begin + 1;
    while (!is_alone(begin) && conformance_row_at(end) != NULL && !is_alone(end)) {
        end++;
    }
    return end;
}

static size_t run_all(const conformance_device *device, conformance_line_fn line, void *user) {
    size_t i = 0;
    while (conformance_row_at(i) != NULL) {
        i = run_batch(device, i, end_of_batch(i), line, user);
    }
    return i;
}

size_t conformance_run(const conformance_device *device, const char *only, conformance_line_fn line,
                       void *user) {
    if (only == NULL) {
        return run_all(device, line, user);
    }
    size_t n_run = 0;
    for (size_t i = 0; conformance_row_at(i) != NULL; i++) {
        if (fnmatch(only, conformance_row_at(i)->name, 0) == 0) {
            (void)run_batch(device, i, i + 1, line, user);
            n_run++;
        }
    }
    return n_run;
}

/* ---- Is there a device? -------------------------------------------------------------------- */

static int open_in_child(const conformance_device *device) {
    char *reason = shared->lines[0];
    dvmm_driver *driver = NULL;
    (void)alarm(SECONDS_PER_ROW);
    ductile_status status = open_device(device, &driver, reason, LINE_BYTES);
    if (status == DUCTILE_OK) {
        const dvmm_caps *caps = dvmm_get_caps(driver);
        (void)snprintf(reason, LINE_BYTES, "%s, driver %s", caps->name, caps->driver_version);
        dvmm_close(driver);
    }
    return (int)status;
}

ductile_status conformance_find(const conformance_device *device, char *reason, size_t size) {
    int status = begin_child();
    if (status == IN_CHILD) {
        _exit(open_in_child(device));
    }
    bool has_ended = WIFEXITED(status);
    (void)snprintf(reason, size, "%s",
                   has_ended ? shared->lines[0]
                             : "opening the device ends the process, or never ends");
    return has_ended ? (ductile_status)WEXITSTATUS(status) : DUCTILE_ERR_DRIVER;
}
