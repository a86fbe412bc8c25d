/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/vary_options.h"

#include "bench/trace/trace.h"

#include <stddef.h>

static const uint64_t most_of_anything = (uint64_t)1 << 20;

static bool in_bounds(uint64_t n) {
    return n >= 1 && n <= most_of_anything;
}

/* An upper bound, roughly: no sum of sizes may come near 64 bits. */
static bool is_absurd(const vary_options *o) {
    double tokens = (double)o->batch.max * (double)o->sequence.max;
    double hidden = (double)o->hidden;
    double layer = 12 * hidden * hidden + tokens * (30 * hidden + 4 * (double)o->heads);
    double ends = (double)o->vocab * (hidden + 3 * tokens);
    return 24 * ((double)o->layers * layer + ends) > (double)TRACE_MAX_SIZE;
}

const char *vary_check(const vary_options *o) {
    if (!in_bounds(o->layers) || !in_bounds(o->hidden) || !in_bounds(o->heads) ||
        !in_bounds(o->vocab) || !in_bounds(o->steps)) {
        return "layers, hidden, heads, vocab and steps go from 1 to 1048576";
    }
    if (!vary_interval_is_good(o->batch, most_of_anything) ||
        !vary_interval_is_good(o->sequence, most_of_anything)) {
        return "batch and seq are MIN:MAX with 1 <= MIN <= MAX <= 1048576";
    }
    if (o->side_streams >= TRACE_MAX_STREAMS) {
        return "there are 0 to 255 side streams";
    }
    if (o->hidden % o->heads != 0) {
        return "hidden must be a multiple of heads";
    }
    if (is_absurd(o)) {
        return "the model is larger than any device";
    }
    return NULL;
}
