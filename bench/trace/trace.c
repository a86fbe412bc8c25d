/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace.h"

#include "bench/trace/input.h"
#include "bench/trace/pickle.h"
#include "bench/trace/trace_build.h"

#include <stdlib.h>
#include <string.h>

static bool read_content(const input *in, int gpu, trace_builder *b, trace_error *error) {
    if (in->size == 0) {
        return trace_refuse(error, 0, "the file is empty");
    }
    b->is_snapshot = pickle_recognise(in->data, in->size);
    bool ok = b->is_snapshot ? trace_read_snapshot(in->data, in->size, gpu, b, error)
                             : trace_read_text((const char *)in->data, in->size, b, error);
    return ok && (b->n_events > b->n_steps || trace_refuse(error, 0, "no event in it"));
}

bool trace_gather(const char *path, int gpu, trace_builder *b, trace_error *error) {
    input in;
    *b = (trace_builder){0};
    error->line = 0;
    if (!input_read(path, &in, error->reason, sizeof error->reason)) {
        return false;
    }
    bool ok = read_content(&in, gpu, b, error);
    input_drop(&in);
    if (!ok) {
        trace_build_drop(b);
    }
    return ok;
}

static bool read_trace(const char *path, int gpu, trace *t, trace_error *error) {
    trace_builder b;
    if (!trace_gather(path, gpu, &b, error)) {
        return false;
    }
    const char *reason = trace_build_finish(&b, t);
    return reason == NULL || trace_refuse(error, 0, "%s", reason);
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

void trace_drop_events(trace *t) {
    free(t->events);
    free(t->gates);
    t->events = NULL;
    t->gates = NULL;
}

void trace_free(trace *t) {
    if (t == NULL) {
        return;
    }
    trace_drop_events(t);
    free(t->path);
    free(t->name);
    free(t);
}
