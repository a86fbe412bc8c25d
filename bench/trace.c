/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace.h"

#include "bench/input.h"
#include "bench/pickle.h"
#include "bench/trace_build.h"

#include <stdlib.h>
#include <string.h>

static bool read_content(const input *in, int gpu, trace *t, trace_builder *b, trace_error *error) {
    t->is_snapshot = pickle_recognise(in->data, in->size);
    if (t->is_snapshot) {
        return trace_read_snapshot(in->data, in->size, gpu, b, &t->gpu, error);
    }
    return trace_read_text((const char *)in->data, in->size, b, error);
}

static bool read_events(const input *in, int gpu, trace *t, trace_error *error) {
    trace_builder b = {0};
    if (!read_content(in, gpu, t, &b, error)) {
        trace_build_drop(&b);
        return false;
    }
    if (b.n_events == 0) {
        trace_build_drop(&b);
        return trace_refuse(error, 0, in->size == 0 ? "the file is empty" : "no event in it");
    }
    const char *reason = trace_build_finish(&b, t);
    return reason == NULL || trace_refuse(error, 0, "%s", reason);
}

static bool read_trace(const char *path, int gpu, trace *t, trace_error *error) {
    input in;
    error->line = 0;
    if (!input_read(path, &in, error->reason, sizeof error->reason)) {
        return false;
    }
    bool ok = read_events(&in, gpu, t, error);
    input_drop(&in);
    return ok;
}

static void cut_ending(char *name, const char *ending) {
    size_t n = strlen(name);
    size_t m = strlen(ending);
    if (n > m && strcmp(name + n - m, ending) == 0) {
        name[n - m] = '\0';
    }
}

static bool name_trace(trace *t, const char *path) {
    const char *slash = strrchr(path, '/');
    t->path = strdup(path);
    t->name = strdup(slash != NULL ? slash + 1 : path);
    if (t->path == NULL || t->name == NULL) {
        return false;
    }
    cut_ending(t->name, ".gz");
    cut_ending(t->name, ".trace");
    cut_ending(t->name, ".pickle");
    return true;
}

trace *trace_load(const char *path, int gpu, trace_error *error) {
    trace *t = calloc(1, sizeof *t);
    if (t == NULL || !name_trace(t, path)) {
        (void)trace_refuse(error, 0, "the host has no memory left");
        trace_free(t);
        return NULL;
    }
    if (!read_trace(path, gpu, t, error)) {
        trace_free(t);
        return NULL;
    }
    return t;
}

void trace_free(trace *t) {
    if (t == NULL) {
        return;
    }
    free(t->path);
    free(t->name);
    free(t->events);
    free(t);
}
