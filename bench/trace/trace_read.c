/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_read.h"

#include "bench/trace/input.h"
#include "bench/trace/pickle.h"
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_snapshot.h"
#include "bench/trace/trace_text.h"

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

trace *trace_load(const char *path, int gpu, trace_error *error) {
    trace_builder b;
    if (!trace_gather(path, gpu, &b, error)) {
        return NULL;
    }
    const char *reason = NULL;
    trace *t = trace_make(&b, path, &reason);
    if (t == NULL) {
        (void)trace_refuse(error, 0, "%s", reason);
    }
    return t;
}
