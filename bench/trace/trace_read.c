/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_read.h"

#include "bench/trace/input.h"
#include "bench/trace/pickle.h"
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_snapshot.h"
#include "bench/trace/trace_text.h"

static bool read_content(input *in, int gpu, trace_builder *b, trace_error *error) {
    if (!input_has(in, 1)) {
        return trace_refuse(error, 0, "%s", in->reason != NULL ? in->reason : "the file is empty");
    }
    (void)input_has(in, 2);
    b->is_snapshot = pickle_recognise(in->at, input_left(in));
    bool ok =
        b->is_snapshot ? trace_read_snapshot(in, gpu, b, error) : trace_read_text(in, b, error);
    return ok && (b->n_events > b->n_steps || trace_refuse(error, 0, "no event in it"));
}

bool trace_gather(const char *path, int gpu, trace_builder *b, trace_error *error) {
    input in;
    error->line = 0;
    bool ok = input_open(&in, path, error->reason, sizeof error->reason) &&
              read_content(&in, gpu, b, error);
    input_close(&in);
    if (!ok) {
        trace_build_drop(b);
    }
    return ok;
}

trace *trace_load(const char *path, int gpu, trace_error *error) {
    trace_builder b = {0};
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
