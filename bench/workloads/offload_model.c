/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/offload_model.h"

#include "bench/base/array.h"
#include "bench/base/random.h"
#include "bench/trace/trace.h"
#include "bench/workloads/event_sink.h"

#include <stdlib.h>

enum {
    ELEMENT = 2, /* bytes */
    FULL = 4,    /* of the loss */
    MAIN = 0     /* the stream that computes */
};

/* The trained tensors of a layer. */
typedef enum weight { NORM1, QUERY, KEY, VALUE, OUTPUT, NORM2, GATE, UP, DOWN, N_WEIGHTS } weight;

/* What a layer's forward computes; in backward all of it is kept until its gradient is there. */
typedef struct offload_kept {
    event_tensor norm1, query, key, value, attention, middle, norm2, gate, up, activated;
} offload_kept;

typedef struct offload_model {
    const offload_options *options;
    event_sink sink;
    uint64_t random;
    uint64_t inner;    /* width inside a layer */
    uint64_t n_tokens; /* of the step under way */
    uint64_t *cuts;    /* prefetches after which the next side stream takes over, ascending */
    uint64_t n_prefetched;
    uint64_t side;                     /* the stream that prefetches now */
    event_tensor (*on_gpu)[N_WEIGHTS]; /* `depth` layers, by visit */
    event_tensor *inputs;              /* of each layer, from forward to backward */
} offload_model;

/* ---- Options ------------------------------------------------------------------------------- */

static uint64_t inner_of(uint64_t hidden) {
    return (8 * hidden / 3 + 255) / 256 * 256;
}

static const uint64_t most_of_anything = (uint64_t)1 << 20;

static bool in_bounds(uint64_t n) {
    return n >= 1 && n <= most_of_anything;
}

/* An upper bound, roughly: no sum of sizes may come near 64 bits. */
static bool is_absurd(const offload_options *o) {
    double tokens = (double)o->batch.max * (double)o->sequence.max;
    double width = (double)inner_of(o->hidden);
    double layer = 12 * width * width + tokens * 20 * width;
    double ends = (double)o->vocab * ((double)o->hidden + 4 * tokens);
    return 4 * ((double)o->layers * layer + ends) > (double)TRACE_MAX_SIZE;
}

const char *offload_check(const offload_options *o) {
    if (!in_bounds(o->layers) || !in_bounds(o->hidden) || !in_bounds(o->vocab) ||
        !in_bounds(o->steps) || !in_bounds(o->depth)) {
        return "layers, hidden, vocab, steps and depth go from 1 to 1048576";
    }
    if (!vary_interval_is_good(o->batch, most_of_anything) ||
        !vary_interval_is_good(o->sequence, most_of_anything)) {
        return "batch and seq are MIN:MAX with 1 <= MIN <= MAX <= 1048576";
    }
    if (o->streams < 1 || o->streams >= TRACE_MAX_STREAMS) {
        return "there are 1 to 255 side streams";
    }
    return is_absurd(o) ? "the model is larger than any device" : NULL;
}

/* ---- Parameters ---------------------------------------------------------------------------- */

static uint64_t weight_bytes(const offload_model *m, int w) {
    uint64_t hidden = m->options->hidden;
    switch ((weight)w) {
    case NORM1:
    case NORM2:
        return hidden * ELEMENT;
    case GATE:
    case UP:
    case DOWN:
        return hidden * m->inner * ELEMENT;
    case QUERY:
    case KEY:
    case VALUE:
    case OUTPUT:
    case N_WEIGHTS:
        break;
    }
    return hidden * hidden * ELEMENT;
}

/* A step visits every layer twice. */
static uint64_t n_visits(const offload_model *m) {
    return 2 * m->options->layers;
}

static event_tensor *place_of(const offload_model *m, uint64_t visit) {
    return m->on_gpu[visit % m->options->depth];
}

/* The streams before this one are silent from here on. */
static void choose_side(offload_model *m) {
    while (m->side < m->options->streams && m->cuts[m->side - 1] <= m->n_prefetched) {
        m->side++;
    }
    m->n_prefetched++;
}

static void prefetch(offload_model *m, uint64_t visit) {
    if (visit >= n_visits(m)) {
        return;
    }
    choose_side(m);
    for (int w = 0; w < N_WEIGHTS; w++) {
        place_of(m, visit)[w] = sink_alloc_on(&m->sink, weight_bytes(m, w), m->side);
    }
}

/* Compute waits for the copy, and uses it. */
static void use_layer(offload_model *m, uint64_t visit) {
    for (int w = 0; w < N_WEIGHTS; w++) {
        sink_use(&m->sink, place_of(m, visit)[w], MAIN);
    }
}

static void drop_layer(offload_model *m, uint64_t visit) {
    for (int w = 0; w < N_WEIGHTS; w++) {
        sink_free(&m->sink, &place_of(m, visit)[w]);
    }
}

/* The side stream copies the gradient to the host. */
static void send_gradient(offload_model *m, weight w) {
    event_tensor gradient = sink_alloc(&m->sink, weight_bytes(m, (int)w));
    sink_use(&m->sink, gradient, m->side);
    sink_free(&m->sink, &gradient);
}

/* ---- Layers -------------------------------------------------------------------------------- */

static event_tensor rows(offload_model *m, uint64_t width) {
    return sink_alloc(&m->sink, m->n_tokens * width * ELEMENT);
}

static void drop(offload_model *m, event_tensor *tensor) {
    sink_free(&m->sink, tensor);
}

/* Adds a product to the residual: the product dies at once. */
static event_tensor add_product(offload_model *m) {
    event_tensor product = rows(m, m->options->hidden);
    event_tensor sum = rows(m, m->options->hidden);
    drop(m, &product);
    return sum;
}

static void attend(offload_model *m, offload_kept *k, bool keep) {
    uint64_t hidden = m->options->hidden;
    k->norm1 = rows(m, hidden);
    k->query = rows(m, hidden);
    k->key = rows(m, hidden);
    k->value = rows(m, hidden);
    if (!keep) {
        drop(m, &k->norm1);
    }
    k->attention = rows(m, hidden);
    if (!keep) {
        drop(m, &k->query);
        drop(m, &k->key);
        drop(m, &k->value);
    }
    k->middle = add_product(m);
    if (!keep) {
        drop(m, &k->attention);
    }
}

static event_tensor transform(offload_model *m, offload_kept *k, bool keep) {
    k->norm2 = rows(m, m->options->hidden);
    k->gate = rows(m, m->inner);
    k->up = rows(m, m->inner);
    if (!keep) {
        drop(m, &k->norm2);
    }
    k->activated = rows(m, m->inner);
    if (!keep) {
        drop(m, &k->gate);
        drop(m, &k->up);
    }
    event_tensor out = add_product(m);
    if (!keep) {
        drop(m, &k->activated);
        drop(m, &k->middle);
    }
    return out;
}

static event_tensor run_layer(offload_model *m, offload_kept *k, bool keep) {
    attend(m, k, keep);
    return transform(m, k, keep);
}

/* Takes the gradient of the layer's output; returns that of `middle`. */
static event_tensor transform_back(offload_model *m, offload_kept *k, event_tensor gradient) {
    event_tensor d_activated = rows(m, m->inner);
    send_gradient(m, DOWN);
    drop(m, &k->activated);
    event_tensor d_gate = rows(m, m->inner);
    event_tensor d_up = rows(m, m->inner);
    drop(m, &d_activated);
    drop(m, &k->gate);
    drop(m, &k->up);
    send_gradient(m, GATE);
    send_gradient(m, UP);
    event_tensor d_norm2 = rows(m, m->options->hidden);
    drop(m, &d_gate);
    drop(m, &d_up);
    send_gradient(m, NORM2);
    drop(m, &k->norm2);
    event_tensor d_middle = rows(m, m->options->hidden);
    drop(m, &d_norm2);
    drop(m, &gradient);
    drop(m, &k->middle);
    return d_middle;
}

/* Takes the gradient of `middle`; returns that of the layer's input. */
static event_tensor attend_back(offload_model *m, offload_kept *k, event_tensor gradient) {
    uint64_t hidden = m->options->hidden;
    event_tensor d_attention = rows(m, hidden);
    send_gradient(m, OUTPUT);
    drop(m, &k->attention);
    event_tensor d_heads[3] = {rows(m, hidden), rows(m, hidden), rows(m, hidden)};
    drop(m, &d_attention);
    drop(m, &k->query);
    drop(m, &k->key);
    drop(m, &k->value);
    for (int i = 0; i < 3; i++) {
        send_gradient(m, (weight)(QUERY + i));
    }
    event_tensor d_norm1 = rows(m, hidden);
    for (int i = 0; i < 3; i++) {
        drop(m, &d_heads[i]);
    }
    send_gradient(m, NORM1);
    drop(m, &k->norm1);
    event_tensor d_input = rows(m, hidden);
    drop(m, &d_norm1);
    drop(m, &gradient);
    return d_input;
}

/* ---- Steps --------------------------------------------------------------------------------- */

/* The logits, the loss in full precision, and back. Takes the output, returns its gradient. */
static event_tensor run_loss(offload_model *m, event_tensor output) {
    uint64_t vocab = m->options->vocab;
    event_tensor logits = rows(m, vocab);
    event_tensor full = sink_alloc(&m->sink, m->n_tokens * vocab * FULL);
    event_tensor losses = sink_alloc(&m->sink, m->n_tokens * FULL);
    drop(m, &logits);
    event_tensor d_logits = rows(m, vocab);
    drop(m, &full);
    drop(m, &losses);
    event_tensor gradient = rows(m, m->options->hidden);
    drop(m, &d_logits);
    drop(m, &output);
    return gradient;
}

static event_tensor run_forward(offload_model *m) {
    event_tensor output = rows(m, m->options->hidden); /* of the embedding */
    for (uint64_t i = 0; i < m->options->layers; i++) {
        offload_kept kept = {0};
        use_layer(m, i);
        m->inputs[i] = output;
        output = run_layer(m, &kept, false);
        drop_layer(m, i);
        prefetch(m, i + m->options->depth);
    }
    return output;
}

static void run_backward(offload_model *m, event_tensor gradient) {
    for (uint64_t visit = m->options->layers; visit < n_visits(m); visit++) {
        offload_kept kept = {0};
        use_layer(m, visit);
        event_tensor output = run_layer(m, &kept, true);
        drop(m, &output);
        gradient = attend_back(m, &kept, transform_back(m, &kept, gradient));
        drop(m, &m->inputs[n_visits(m) - 1 - visit]);
        drop_layer(m, visit);
        prefetch(m, visit + m->options->depth);
    }
    drop(m, &gradient);
}

static void run_step(offload_model *m) {
    const offload_options *o = m->options;
    uint64_t batch = random_between(&m->random, o->batch.min, o->batch.max);
    m->n_tokens = batch * random_between(&m->random, o->sequence.min, o->sequence.max);
    for (uint64_t visit = 0; visit < o->depth; visit++) {
        prefetch(m, visit);
    }
    run_backward(m, run_loss(m, run_forward(m)));
    sink_end_step(&m->sink);
}

/* The last stream's stretch has no end. How many there are changes nothing else. */
static void draw_cuts(offload_model *m) {
    uint64_t random = ~m->options->seed;
    uint64_t n_cuts = m->options->streams - 1;
    uint64_t n_prefetches = m->options->steps * n_visits(m);
    for (uint64_t i = 0; i < n_cuts; i++) {
        m->cuts[i] = random_between(&random, 1, n_prefetches);
    }
    qsort(m->cuts, (size_t)n_cuts, sizeof *m->cuts, array_by_number);
}

static void run(offload_model *m) {
    uint64_t table = m->options->vocab * m->options->hidden * ELEMENT;
    draw_cuts(m);
    (void)sink_alloc(&m->sink, table); /* the embedding and the output stay on the GPU */
    (void)sink_alloc(&m->sink, table);
    for (uint64_t i = 0; i < m->options->steps && m->sink.failure == NULL; i++) {
        run_step(m);
    }
}

const char *offload_generate(const offload_options *options, trace_builder *out) {
    offload_model m = {.options = options,
                       .sink = {.builder = {.names_uses = true}},
                       .random = options->seed,
                       .inner = inner_of(options->hidden),
                       .side = 1};
    m.cuts = calloc((size_t)options->streams, sizeof *m.cuts);
    m.on_gpu = calloc((size_t)options->depth, sizeof *m.on_gpu);
    m.inputs = calloc((size_t)options->layers, sizeof *m.inputs);
    if (m.cuts == NULL || m.on_gpu == NULL || m.inputs == NULL) {
        m.sink.failure = "the host has no memory left";
    } else {
        run(&m);
    }
    free(m.cuts);
    free(m.on_gpu);
    free(m.inputs);
    return sink_finish(&m.sink, out);
}
