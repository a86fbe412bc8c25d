/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/oneshot_model.h"

#include "bench/base/random.h"
#include "bench/trace/trace.h"
#include "bench/workloads/event_sink.h"

#include <stddef.h>

enum {
    MAIN = 0,
    MIB = 1 << 20,
    MOST_BLOCKS = 64,
    SHARES = 16, /* a block's weight in the division of its stream's memory: 1 to so much */
    RESULT = 16  /* a stream's memory over that of its result */
};

const char *oneshot_check(const oneshot_options *o) {
    if (o->steps < 1 || o->steps > (uint64_t)1 << 20) {
        return "steps go from 1 to 1048576";
    }
    if (!vary_interval_is_good(o->mib, (uint64_t)1 << 20)) {
        return "mib is MIN:MAX with 1 <= MIN <= MAX <= 1048576";
    }
    if (!vary_interval_is_good(o->blocks, MOST_BLOCKS)) {
        return "blocks is MIN:MAX with 1 <= MIN <= MAX <= 64";
    }
    if (o->numbers < 1 || o->numbers >= TRACE_MAX_STREAMS) {
        return "there are 1 to 255 numbers of streams";
    }
    return NULL;
}

/* The blocks of one stream, whose sizes add up to what it has, but for rounding. */
typedef struct load {
    event_tensor blocks[MOST_BLOCKS];
    uint64_t shares[MOST_BLOCKS];
    uint64_t n;
    uint64_t bytes;
} load;

static load draw_load(const oneshot_options *o, uint64_t *random) {
    load l = {.n = random_between(random, o->blocks.min, o->blocks.max),
              .bytes = random_between(random, o->mib.min, o->mib.max) * MIB};
    for (uint64_t i = 0; i < l.n; i++) {
        l.shares[i] = random_between(random, 1, SHARES);
    }
    return l;
}

static void take(event_sink *sink, load *l, uint64_t stream) {
    uint64_t all = 0;
    for (uint64_t i = 0; i < l->n; i++) {
        all += l->shares[i];
    }
    for (uint64_t i = 0; i < l->n; i++) {
        l->blocks[i] = sink_alloc_on(sink, l->bytes * l->shares[i] / all, stream);
        sink_use(sink, l->blocks[i], MAIN);
    }
}

static void run_step(const oneshot_options *o, event_sink *sink, uint64_t *random, uint64_t stream,
                     event_tensor *result) {
    load l = draw_load(o, random);
    take(sink, &l, stream);
    sink_free(sink, result);
    *result = sink_alloc(sink, l.bytes / RESULT);
    for (uint64_t i = 0; i < l.n; i++) {
        sink_free(sink, &l.blocks[i]);
    }
    sink_end_stream(sink, stream, o->is_told);
    sink_end_step(sink);
}

const char *oneshot_generate(const oneshot_options *o, trace_builder *out) {
    event_sink sink = {.builder = {.names_uses = true}};
    uint64_t random = o->seed;
    event_tensor result = 0;
    for (uint64_t i = 0; i < o->steps && sink.failure == NULL; i++) {
        run_step(o, &sink, &random, MAIN + 1 + i % o->numbers, &result);
    }
    return sink_finish(&sink, out);
}
