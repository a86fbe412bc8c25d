/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs rows in child processes, because a row may lose its context, die or never end. The parent
 * never touches the driver, so it can fork as often as it likes. Children send one line a row
 * through a pipe; what the parent misses at the end tells which row went wrong.
 */
#include "tests/conformance/conformance_lab.h"
#include "vmm/cuda/open.h"
#include "vmm/driver/open_virtual.h"

#include <fnmatch.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LINE_BYTES = 2 * LAB_TEXT + 128,
    SECONDS_PER_ROW = 60, /* a first context takes seconds; no row needs one */
    EXIT_CANNOT_OPEN = 3, /* the device; the line says why                   */
    EXIT_DEVICE_LOST = 4  /* after the last line sent                        */
};

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

static void run_row(dvmm_driver *driver, const conformance_row *row, FILE *out) {
    static lab l;
    lab_init(&l, driver);
    lab_run_row(&l, row);
    (void)fprintf(out, "%s | %s | %s\n", row->name, l.codes, l.state);
    (void)fflush(out);
    lab_clean(&l);
}

static bool device_is_lost(dvmm_driver *driver) {
    void *ctx = NULL;
    const dvmm_driver_ops *ops = dvmm_raw_ops(driver, &ctx);
    return ops->context_sync(ctx) != DVMM_SUCCESS;
}

static int run_rows(const conformance_device *device, size_t begin, size_t end, FILE *out) {
    char reason[256] = "";
    dvmm_driver *driver = NULL;
    if (open_device(device, &driver, reason, sizeof(reason)) != DUCTILE_OK) {
        return EXIT_CANNOT_OPEN;
    }
    for (size_t i = begin; i < end; i++) {
        run_row(driver, conformance_row_at(i), out);
        if (device_is_lost(driver)) {
            return EXIT_DEVICE_LOST;
        }
    }
    dvmm_close(driver);
    return 0;
}

/* ---- The parent's side of a child ---------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    int pipe;
    char text[LINE_BYTES]; /* read and not yet used */
    size_t length;
} child;

/* Takes the first line out of the text. */
static bool take_line(child *c, char *line) {
    char *end = memchr(c->text, '\n', c->length);
    if (end == NULL) {
        return false;
    }
    size_t n = (size_t)(end - c->text);
    memcpy(line, c->text, n);
    line[n] = '\0';
    c->length -= n + 1;
    memmove(c->text, end + 1, c->length);
    return true;
}

typedef enum reading { READ_LINE, READ_END, READ_TIMEOUT } reading;

static reading read_line(child *c, char *line) {
    while (!take_line(c, line)) {
        struct pollfd ready = {.fd = c->pipe, .events = POLLIN};
        if (poll(&ready, 1, SECONDS_PER_ROW * 1000) <= 0) {
            return READ_TIMEOUT;
        }
        ssize_t n =
            c->length < LINE_BYTES ? read(c->pipe, c->text + c->length, LINE_BYTES - c->length) : 0;
        if (n <= 0) {
            return READ_END;
        }
        c->length += (size_t)n;
    }
    return READ_LINE;
}

/* Forks; in the child does the work and never returns. */
static bool start_child(child *c, int (*work)(FILE *out, const void *argument),
                        const void *argument) {
    int ends[2];
    memset(c, 0, sizeof(*c));
    if (pipe(ends) != 0) {
        return false;
    }
    (void)fflush(NULL);
    c->pid = fork();
    if (c->pid == 0) {
        (void)close(ends[0]);
        FILE *out = fdopen(ends[1], "w");
        int code = out != NULL ? work(out, argument) : 1;
        if (out != NULL) {
            (void)fflush(out);
        }
        _exit(code);
    }
    (void)close(ends[1]);
    c->pipe = ends[0];
    return c->pid > 0;
}

static int end_child(child *c, bool kill_it) {
    int status = 0;
    if (kill_it) {
        (void)kill(c->pid, SIGKILL);
    }
    (void)waitpid(c->pid, &status, 0);
    (void)close(c->pipe);
    return status;
}

/* ---- Rows ---------------------------------------------------------------------------------- */

typedef struct batch {
    const conformance_device *device;
    size_t begin;
    size_t end;
} batch;

static int run_batch_in_child(FILE *out, const void *argument) {
    const batch *b = argument;
    return run_rows(b->device, b->begin, b->end, out);
}

static void say_what_happened(const conformance_row *row, bool hung, int status, char *line) {
    if (hung) {
        (void)snprintf(line, LINE_BYTES, "%s | hung |", row->name);
    } else if (WIFSIGNALED(status)) {
        (void)snprintf(line, LINE_BYTES, "%s | died %d |", row->name, WTERMSIG(status));
    } else {
        (void)snprintf(line, LINE_BYTES, "%s | left %d |", row->name, WEXITSTATUS(status));
    }
}

/* Returns the index after the last row that has given its line. */
static size_t run_batch(const batch *b, conformance_line_fn give, void *user) {
    char line[LINE_BYTES];
    child c;
    if (!start_child(&c, run_batch_in_child, b)) {
        return b->end;
    }
    size_t next = b->begin;
    reading r = READ_LINE;
    while (next < b->end && (r = read_line(&c, line)) == READ_LINE) {
        give(user, conformance_row_at(next++), line);
    }
    int status = end_child(&c, r == READ_TIMEOUT);
    bool lost_before = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_DEVICE_LOST;
    if (next < b->end && !lost_before) {
        const conformance_row *row = conformance_row_at(next++);
        say_what_happened(row, r == READ_TIMEOUT, status, line);
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
        batch b = {device, i, end_of_batch(i)};
        i = run_batch(&b, line, user);
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
            batch b = {device, i, i + 1};
            (void)run_batch(&b, line, user);
            n_run++;
        }
    }
    return n_run;
}

/* ---- Is there a device? -------------------------------------------------------------------- */

static int open_in_child(FILE *out, const void *argument) {
    const conformance_device *device = argument;
    char reason[512] = "";
    dvmm_driver *driver = NULL;
    ductile_status status = open_device(device, &driver, reason, sizeof(reason));
    if (status == DUCTILE_OK) {
        const dvmm_caps *caps = dvmm_get_caps(driver);
        (void)snprintf(reason, sizeof(reason), "%s, driver %s", caps->name, caps->driver_version);
        dvmm_close(driver);
    }
    (void)fprintf(out, "%s\n", reason);
    return (int)status;
}

ductile_status conformance_find(const conformance_device *device, char *reason, size_t size) {
    char line[LINE_BYTES] = "the child that opens the device could not be started";
    child c;
    if (!start_child(&c, open_in_child, device)) {
        (void)snprintf(reason, size, "%s", line);
        return DUCTILE_ERR_DRIVER;
    }
    reading r = read_line(&c, line);
    if (r != READ_LINE) {
        (void)snprintf(line, sizeof(line), "opening the device %s",
                       r == READ_TIMEOUT ? "never ends" : "ends the process");
    }
    (void)snprintf(reason, size, "%s", line);
    int status = end_child(&c, r == READ_TIMEOUT);
    return WIFEXITED(status) ? (ductile_status)WEXITSTATUS(status) : DUCTILE_ERR_DRIVER;
}
