/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/vary_model.h"

#include "bench/base/random.h"
#include "bench/workloads/vary_layers.h"

#include <stdlib.h>

enum { INDEX_BYTES = 8, WORKSPACE_BYTES = 32 << 20, NORM_BYTES = 4, STATE_BYTES = 4 };

/* ---- Parameters ---------------------------------------------------------------------------- */

typedef void (*parameter_fn)(vary_model *m, vary_parameter *parameter);

static void for_each_parameter(vary_model *m, parameter_fn visit) {
    visit(m, &m->embedding);
    for (uint64_t i = 0; i < m->options->layers; i++) {
        for (int w = 0; w < N_WEIGHTS; w++) {
            visit(m, &m->layers[i].weights[w]);
        }
    }
    visit(m, &m->final_norm);
    visit(m, &m->final_norm_bias);
}

static void size_layer(vary_layer *layer, uint64_t hidden) {
    const uint64_t elements[N_WEIGHTS] = {
        [WEIGHT_NORM1] = hidden,
        [WEIGHT_NORM1_BIAS] = hidden,
        [WEIGHT_QKV] = 3 * hidden * hidden,
        [WEIGHT_QKV_BIAS] = 3 * hidden,
        [WEIGHT_PROJECTION] = hidden * hidden,
        [WEIGHT_PROJECTION_BIAS] = hidden,
        [WEIGHT_NORM2] = hidden,
        [WEIGHT_NORM2_BIAS] = hidden,
        [WEIGHT_UP] = 4 * hidden * hidden,
        [WEIGHT_UP_BIAS] = 4 * hidden,
        [WEIGHT_DOWN] = 4 * hidden * hidden,
        [WEIGHT_DOWN_BIAS] = hidden,
    };
    for (int w = 0; w < N_WEIGHTS; w++) {
        layer->weights[w].n_elements = elements[w];
    }
}

static void size_parameters(vary_model *m) {
    m->embedding.n_elements = m->options->vocab * m->options->hidden;
    m->final_norm.n_elements = m->options->hidden;
    m->final_norm_bias.n_elements = m->options->hidden;
    for (uint64_t i = 0; i < m->options->layers; i++) {
        size_layer(&m->layers[i], m->options->hidden);
    }
}

static void alloc_value(vary_model *m, vary_parameter *p) {
    p->value = sink_alloc(&m->sink, p->n_elements * m->options->element_bytes);
}

static void alloc_master(vary_model *m, vary_parameter *p) {
    p->master = sink_alloc(&m->sink, p->n_elements * STATE_BYTES);
}

static void free_gradient(vary_model *m, vary_parameter *p) {
    sink_free(&m->sink, &p->gradient);
}

/* ---- Optimizer ----------------------------------------------------------------------------- */

/* States are made by the first step that needs them, as frameworks do. */
static void need_state(vary_model *m, vary_parameter *p) {
    int n_states = m->options->optimizer == VARY_ADAMW ? 2 : 1;
    for (int i = 0; i < n_states; i++) {
        if (p->state[i] == 0) {
            p->state[i] = sink_alloc(&m->sink, p->n_elements * STATE_BYTES);
        }
    }
}

static void alloc_scratch(vary_model *m, vary_parameter *p) {
    p->scratch = sink_alloc(&m->sink, p->n_elements * STATE_BYTES);
}

static void alloc_norm(vary_model *m, vary_parameter *p) {
    p->scratch = sink_alloc(&m->sink, NORM_BYTES);
}

static void free_scratch(vary_model *m, vary_parameter *p) {
    sink_free(&m->sink, &p->scratch);
}

/* One small norm per gradient, then one of all. */
static void clip_gradients(vary_model *m) {
    uint64_t n_parameters = m->options->layers * N_WEIGHTS + 3;
    for_each_parameter(m, alloc_norm);
    event_tensor all = sink_alloc(&m->sink, n_parameters * NORM_BYTES);
    event_tensor total = sink_alloc(&m->sink, NORM_BYTES);
    for_each_parameter(m, free_scratch);
    sink_free(&m->sink, &all);
    sink_free(&m->sink, &total);
}

/* The many-tensor form of AdamW holds a denominator as large as the model for a moment. */
static void optimize(vary_model *m) {
    clip_gradients(m);
    for_each_parameter(m, need_state);
    if (m->options->optimizer == VARY_ADAMW) {
        for_each_parameter(m, alloc_scratch);
        for_each_parameter(m, free_scratch);
    }
    for_each_parameter(m, free_gradient);
}

/* ---- Steps --------------------------------------------------------------------------------- */

static event_tensor forward(vary_model *m) {
    event_tensor output = sink_alloc(&m->sink, vary_activation_bytes(m, m->options->hidden));
    for (uint64_t i = 0; i < m->options->layers; i++) {
        m->layers[i].input = output;
        output = vary_layer_forward(m, &m->layers[i], !m->options->recompute);
    }
    return output;
}

static void backward(vary_model *m, event_tensor gradient) {
    for (uint64_t i = m->options->layers; i-- > 0;) {
        gradient = vary_layer_backward(m, &m->layers[i], gradient);
    }
    /* The embedding is tied to the output: its second gradient is added to the first. */
    event_tensor second = sink_alloc(&m->sink, m->embedding.n_elements * m->options->element_bytes);
    sink_free(&m->sink, &gradient);
    sink_free(&m->sink, &second);
}

static void run_step(vary_model *m) {
    uint64_t n_tokens = m->batch * m->sequence;
    event_tensor inputs = sink_alloc(&m->sink, n_tokens * INDEX_BYTES);
    event_tensor targets = sink_alloc(&m->sink, n_tokens * INDEX_BYTES);
    backward(m, vary_loss(m, forward(m)));
    optimize(m);
    sink_free(&m->sink, &inputs);
    sink_free(&m->sink, &targets);
    sink_end_step(&m->sink);
}

static void run_loop(vary_model *m) {
    for_each_parameter(m, alloc_value);
    if (m->options->element_bytes < STATE_BYTES) {
        for_each_parameter(m, alloc_master);
    }
    (void)sink_alloc(&m->sink, WORKSPACE_BYTES); /* of the matrix library; never freed */
    uint64_t random = m->options->seed;
    for (uint64_t i = 0; i < m->options->steps && m->sink.failure == NULL; i++) {
        m->batch = random_between(&random, m->options->batch.min, m->options->batch.max);
        m->sequence = random_between(&random, m->options->sequence.min, m->options->sequence.max);
        run_step(m);
    }
}

const char *vary_generate(const vary_options *options, trace_builder *out) {
    vary_model m = {.options = options,
                    .sink = {.builder = {.names_uses = options->side_streams > 0}}};
    m.layers = calloc((size_t)options->layers, sizeof(*m.layers));
    *out = (trace_builder){0};
    if (m.layers == NULL) {
        return "the host has no memory left";
    }
    size_parameters(&m);
    run_loop(&m);
    free(m.layers);
    return sink_finish(&m.sink, out);
}
