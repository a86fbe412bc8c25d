/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/generate.h"

#include "bench/cli/cli.h"
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_write.h"

#include <stdlib.h>
#include <string.h>

/* The command as a comment. NULL: no host memory. */
static char *make_heading(const bench_command *model, const void *options) {
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (memory == NULL) {
        return NULL;
    }
    (void)fprintf(memory, "# ductile-bench %s", model->name);
    bench_print_options(memory, model->own, options);
    (void)fputs("\n", memory);
    (void)fclose(memory);
    return text;
}

int generate_write(const bench_command *model, const void *options, trace_builder *made,
                   const char *path) {
    char reason[256] = "the host has no memory left";
    char *heading = make_heading(model, options);
    bool ok = heading != NULL && trace_save(made, heading, path, reason, sizeof reason);
    free(heading);
    trace_build_drop(made);
    if (!ok) {
        bench_complain("%s: %s: %s", model->name, path, reason);
    }
    return ok ? BENCH_DONE : BENCH_FAILED;
}

trace *generate_trace(const bench_command *model, trace_builder *made) {
    const char *reason = NULL;
    trace *t = trace_make(made, strrchr(model->name, ' ') + 1, &reason);
    if (t == NULL) {
        bench_complain("%s: %s", model->name, reason);
    }
    return t;
}
