/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/vary_layers.h"

enum {
    FULL_PRECISION = 4, /* bytes; sums, statistics and the loss are kept in it */
    MLP_FACTOR = 4,     /* the inner layer is so much wider                    */
    RANDOM_STATE = 16   /* bytes of seed and offset of a dropout               */
};

/* ---- Tensors by shape ---------------------------------------------------------------------- */

static uint64_t tokens(const vary_model *m) {
    return m->batch * m->sequence;
}

uint64_t vary_activation_bytes(const vary_model *m, uint64_t width) {
    return tokens(m) * width * m->options->element_bytes;
}

static event_tensor alloc_activation(vary_model *m, uint64_t width) {
    return sink_alloc_on(&m->sink, vary_activation_bytes(m, width), m->stream);
}

static event_tensor alloc_full(vary_model *m, uint64_t width) {
    return sink_alloc_on(&m->sink, tokens(m) * width * FULL_PRECISION, m->stream);
}

/* One number per head and token. */
static event_tensor alloc_head_sums(vary_model *m) {
    return alloc_full(m, m->options->heads);
}

static void drop(vary_model *m, event_tensor *tensor) {
    sink_free(&m->sink, tensor);
}

/* What a side stream has made, the first stream uses. */
static void hand_over(vary_model *m, event_tensor tensor) {
    if (m->stream != 0) {
        sink_use(&m->sink, tensor, 0);
    }
}

/* The optimizer works on the first stream. */
void vary_add_gradient(vary_model *m, vary_parameter *parameter) {
    uint64_t bytes = parameter->n_elements * m->options->element_bytes;
    parameter->gradient = sink_alloc_on(&m->sink, bytes, m->stream);
    hand_over(m, parameter->gradient);
}

/* ---- Streams ------------------------------------------------------------------------------- */

/* What follows works on the layer's side stream, if there are any, and reads `input`. */
static void enter_side(vary_model *m, const vary_layer *layer, event_tensor input) {
    uint64_t n = m->options->side_streams;
    if (n > 0) {
        m->stream = 1 + (uint64_t)(layer - m->layers) % n;
        sink_use(&m->sink, input, m->stream);
    }
}

/* What follows works on the first stream again, and reads `output`. */
static void leave_side(vary_model *m, event_tensor output) {
    hand_over(m, output);
    m->stream = 0;
}

/* ---- Forward ------------------------------------------------------------------------------- */

static event_tensor normalise(vary_model *m, event_tensor stats[2]) {
    event_tensor out = alloc_activation(m, m->options->hidden);
    stats[0] = alloc_full(m, 1);
    stats[1] = alloc_full(m, 1);
    return out;
}

/* The output of a linear layer, which dies once it is added to the residual. */
static event_tensor linear_and_add(vary_model *m) {
    event_tensor product = alloc_activation(m, m->options->hidden);
    event_tensor sum = alloc_activation(m, m->options->hidden);
    drop(m, &product);
    return sum;
}

static void attend(vary_model *m, vary_layer *layer) {
    uint64_t hidden = m->options->hidden;
    layer->norm1 = normalise(m, layer->norm1_stats);
    layer->qkv = alloc_activation(m, 3 * hidden);
    layer->attention = alloc_activation(m, hidden);
    layer->attention_sums = alloc_head_sums(m);
    event_tensor random = sink_alloc(&m->sink, RANDOM_STATE);
    layer->middle = linear_and_add(m);
    drop(m, &random);
}

static event_tensor transform(vary_model *m, vary_layer *layer) {
    uint64_t inner = MLP_FACTOR * m->options->hidden;
    enter_side(m, layer, layer->middle);
    layer->norm2 = normalise(m, layer->norm2_stats);
    layer->up = alloc_activation(m, inner);
    layer->activated = alloc_activation(m, inner);
    event_tensor output = linear_and_add(m);
    leave_side(m, output);
    return output;
}

static void drop_attention(vary_model *m, vary_layer *layer) {
    drop(m, &layer->attention_sums);
    drop(m, &layer->attention);
    drop(m, &layer->qkv);
    drop(m, &layer->norm1);
    drop(m, &layer->norm1_stats[0]);
    drop(m, &layer->norm1_stats[1]);
}

static void drop_mlp(vary_model *m, vary_layer *layer) {
    drop(m, &layer->activated);
    drop(m, &layer->up);
    drop(m, &layer->norm2);
    drop(m, &layer->norm2_stats[0]);
    drop(m, &layer->norm2_stats[1]);
}

event_tensor vary_layer_forward(vary_model *m, vary_layer *layer, bool keep) {
    attend(m, layer);
    if (!keep) {
        drop_attention(m, layer);
    }
    event_tensor output = transform(m, layer);
    if (!keep) {
        drop_mlp(m, layer);
        drop(m, &layer->middle);
    }
    return output;
}

/* ---- Backward ------------------------------------------------------------------------------ */

static void add_gradients(vary_model *m, vary_layer *layer, vary_weight weight, vary_weight bias) {
    vary_add_gradient(m, &layer->weights[weight]);
    vary_add_gradient(m, &layer->weights[bias]);
}

/* Replaces a gradient by the one a step of the backward computes from it. */
static void backward_into(vary_model *m, event_tensor *gradient, uint64_t width) {
    event_tensor next = alloc_activation(m, width);
    drop(m, gradient);
    *gradient = next;
}

/* The gradient through the norm joins the one that went around it. */
static event_tensor norm_backward(vary_model *m, event_tensor around, event_tensor *through) {
    backward_into(m, through, m->options->hidden);
    event_tensor sum = alloc_activation(m, m->options->hidden);
    drop(m, through);
    drop(m, &around);
    return sum;
}

static event_tensor mlp_backward(vary_model *m, vary_layer *layer, event_tensor gradient) {
    uint64_t hidden = m->options->hidden;
    enter_side(m, layer, gradient);
    event_tensor through = alloc_activation(m, MLP_FACTOR * hidden);
    add_gradients(m, layer, WEIGHT_DOWN, WEIGHT_DOWN_BIAS);
    drop(m, &layer->activated);
    backward_into(m, &through, MLP_FACTOR * hidden);
    drop(m, &layer->up);
    backward_into(m, &through, hidden);
    add_gradients(m, layer, WEIGHT_UP, WEIGHT_UP_BIAS);
    drop(m, &layer->norm2);
    add_gradients(m, layer, WEIGHT_NORM2, WEIGHT_NORM2_BIAS);
    event_tensor sum = norm_backward(m, gradient, &through);
    leave_side(m, sum);
    drop_mlp(m, layer);
    drop(m, &layer->middle);
    return sum;
}

/* The gradients of queries are summed in full precision before they are rounded. */
static void attention_core_backward(vary_model *m, vary_layer *layer, event_tensor *gradient) {
    uint64_t hidden = m->options->hidden;
    event_tensor row_sums = alloc_head_sums(m);
    event_tensor query_sums = alloc_full(m, hidden);
    backward_into(m, gradient, 3 * hidden);
    drop(m, &query_sums);
    drop(m, &row_sums);
    drop(m, &layer->attention_sums);
    drop(m, &layer->attention);
    drop(m, &layer->qkv);
}

static event_tensor attention_backward(vary_model *m, vary_layer *layer, event_tensor gradient) {
    event_tensor through = alloc_activation(m, m->options->hidden);
    add_gradients(m, layer, WEIGHT_PROJECTION, WEIGHT_PROJECTION_BIAS);
    attention_core_backward(m, layer, &through);
    backward_into(m, &through, m->options->hidden);
    add_gradients(m, layer, WEIGHT_QKV, WEIGHT_QKV_BIAS);
    drop(m, &layer->norm1);
    add_gradients(m, layer, WEIGHT_NORM1, WEIGHT_NORM1_BIAS);
    event_tensor sum = norm_backward(m, gradient, &through);
    drop_attention(m, layer);
    return sum;
}

event_tensor vary_layer_backward(vary_model *m, vary_layer *layer, event_tensor gradient) {
    if (m->options->recompute) {
        event_tensor output = vary_layer_forward(m, layer, true);
        drop(m, &output);
    }
    gradient = mlp_backward(m, layer, gradient);
    gradient = attention_backward(m, layer, gradient);
    drop(m, &layer->input);
    return gradient;
}

/* ---- Loss ---------------------------------------------------------------------------------- */

/* Logits are computed in the model's precision and widened for the softmax. */
static event_tensor loss_and_back(vary_model *m) {
    uint64_t vocab = m->options->vocab;
    event_tensor logits = alloc_activation(m, vocab);
    event_tensor wide = alloc_full(m, vocab);
    event_tensor log_softmax = alloc_full(m, vocab);
    drop(m, &wide);
    event_tensor loss = sink_alloc(&m->sink, FULL_PRECISION);
    event_tensor wide_gradient = alloc_full(m, vocab);
    drop(m, &log_softmax);
    event_tensor gradient = alloc_activation(m, vocab);
    drop(m, &wide_gradient);
    drop(m, &logits);
    drop(m, &loss);
    return gradient;
}

event_tensor vary_loss(vary_model *m, event_tensor output) {
    event_tensor stats[2];
    event_tensor normed = normalise(m, stats);
    event_tensor gradient = loss_and_back(m);
    vary_add_gradient(m, &m->embedding);
    backward_into(m, &gradient, m->options->hidden);
    drop(m, &normed);
    vary_add_gradient(m, &m->final_norm);
    vary_add_gradient(m, &m->final_norm_bias);
    backward_into(m, &gradient, m->options->hidden);
    drop(m, &stats[0]);
    drop(m, &stats[1]);
    drop(m, &output);
    return gradient;
}
