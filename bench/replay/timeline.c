/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/timeline.h"

#include "bench/base/provenance.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void print_field(FILE *out, const char *text) {
    if (strpbrk(text, ",\"\r\n") == NULL) {
        (void)fputs(text, out);
        return;
    }
    (void)putc('"', out);
    for (; *text != '\0'; text++) {
        (void)fprintf(out, *text == '"' ? "\"\"" : "%c", *text);
    }
    (void)putc('"', out);
}

void timeline_add(timeline *t, const char *panel, const char *contender, uint64_t event,
                  uint64_t live_bytes, uint64_t live_peak_bytes, const contender_stats *stats) {
    print_field(t->file, panel);
    (void)fprintf(t->file, ",%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n",
                  contender, event, live_bytes, stats->reserved_bytes, live_peak_bytes,
                  stats->reserved_peak_bytes);
}

static void write_sample(void *user, const replay_spec *spec, const replay_moment *now) {
    timeline_add(user, spec->trace->name, spec->plan.contender->name, now->event, now->live_bytes,
                 spec->trace->live_peak_bytes, &now->stats);
}

/* Every line of the heading becomes a comment. */
static void write_heading(FILE *out, const bench_device *device) {
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (memory == NULL) {
        return;
    }
    provenance_print_heading(memory, device);
    (void)fclose(memory);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        (void)fprintf(out, "# %s\n", line);
    }
    free(text);
}

bool timeline_open(timeline *t, const char *path, const bench_device *device, char *reason,
                   size_t reason_size) {
    char inside[PATH_MAX];
    struct stat status;
    *t = (timeline){.watch = {.sample = write_sample, .user = t}};
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
        (void)snprintf(inside, sizeof inside, "%s/timeline.csv", path);
        path = inside;
    }
    t->file = fopen(path, "we");
    if (t->file == NULL) {
        (void)snprintf(reason, reason_size, "%s: %s", path, strerror(errno));
        return false;
    }
    write_heading(t->file, device);
    (void)fputs("trace,contender,event,live_bytes,reserved_bytes,live_peak_bytes,"
                "reserved_peak_bytes\n",
                t->file);
    return true;
}

bool timeline_close(timeline *t) {
    if (t->file == NULL) {
        return true;
    }
    bool failed = ferror(t->file) != 0;
    failed = fclose(t->file) != 0 || failed;
    t->file = NULL;
    return !failed;
}
