/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a recorded run, read from a file as the bench does: text of every version, gzipped
 * or not, and PyTorch snapshots. Refused with a reason; or it is sound, its steps and holders add
 * up, variants of it are sound, and written as text it reads back as the same run.
 */
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_holders.h"
#include "bench/trace/trace_read.h"
#include "bench/trace/trace_text.h"
#include "bench/trace/trace_variant.h"
#include "bench/trace/trace_write.h"
#include "tests/bench/sound_trace.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void need(bool holds, const char *what) {
    if (!holds) {
        (void)fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void need_none(const char *reason) {
    need(reason == NULL, reason);
}

/* Takes what is gathered. */
static trace *finish(trace_builder *b) {
    const char *reason = NULL;
    trace *t = trace_make(b, "fuzzed", &reason);
    need(t != NULL, reason);
    need_none(unsound_trace(t));
    return t;
}

static void check_holders(const trace_builder *b) {
    trace_steps steps;
    trace_holders holders;
    uint64_t sum = 0;
    need_none(trace_steps_find(b, &steps));
    need(steps.n > 0 && steps.ends[steps.n - 1] == b->n_events, "the last step ends elsewhere");
    need_none(trace_holders_find(b, &steps, &holders));
    for (size_t i = 0; i < holders.n; i++) {
        sum += holders.all[i].bytes;
    }
    need(sum == holders.peak_bytes, "the holders are not the live peak");
    trace_holders_drop(&holders);
    trace_steps_drop(&steps);
}

static void check_variant(const trace_builder *b) {
    trace_varier varier;
    trace_builder varied = {0};
    need_none(trace_varier_init(&varier, b));
    need_none(trace_vary(&varier, 7, &varied));
    trace_varier_drop(&varier);
    trace_free(finish(&varied));
}

static trace *read_again(const trace_builder *b) {
    char *text = NULL;
    size_t size = 0;
    trace_builder again = {0};
    trace_error error;
    FILE *memory = open_memstream(&text, &size);
    need(memory != NULL && trace_write(b, memory) && fclose(memory) == 0, "cannot be written");
    input in = input_of_memory(text, size);
    need(trace_read_text(&in, &again, &error), "what was written is refused");
    free(text);
    return finish(&again);
}

static void compare(const trace *t, const trace *again) {
    need(t->n_ops == again->n_ops && t->n_steps == again->n_steps, "operations are lost");
    need(t->live_peak_bytes == again->live_peak_bytes, "the live peak is another one");
    need(t->n_streams == again->n_streams, "streams are lost");
    for (size_t i = 0; i < t->n_streams; i++) {
        need(t->streams[i].n_gates == again->streams[i].n_gates, "uses are lost");
    }
}

static void check(trace_builder *b) {
    check_holders(b);
    check_variant(b);
    trace *again = read_again(b);
    trace *t = finish(b);
    compare(t, again);
    trace_free(again);
    trace_free(t);
}

/* A file in memory, by the name under which this process can open it. */
static int make_file(const uint8_t *bytes, size_t size, char *path, size_t path_size) {
    int file = memfd_create("fuzzed", MFD_CLOEXEC);
    need(file >= 0 && write(file, bytes, size) == (ssize_t)size, "no file in memory");
    (void)snprintf(path, path_size, "/proc/self/fd/%d", file);
    return file;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char path[64];
    trace_builder b = {.spills = size % 2 == 1}; /* either way of keeping events */
    trace_error error = {.reason = ""};
    int file = make_file(bytes, size, path, sizeof path);
    if (trace_gather(path, TRACE_FULLEST_GPU, &b, &error)) {
        check(&b);
    } else {
        need(error.reason[0] != '\0' && memchr(error.reason, 0, sizeof error.reason) != NULL,
             "refused without a reason");
    }
    (void)close(file);
    return 0;
}
