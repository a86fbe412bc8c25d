/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of one layer and of the loss, tensor by tensor. A tensor is freed where a
 * framework's last reference to it dies. */
#ifndef DUCTILE_BENCH_WORKLOADS_VARY_LAYERS_H
#define DUCTILE_BENCH_WORKLOADS_VARY_LAYERS_H

#include "bench/workloads/event_sink.h"
#include "bench/workloads/vary_options.h"

/* The trained tensors of a layer, in the order a framework creates them. */
typedef enum vary_weight {
    WEIGHT_NORM1,
    WEIGHT_NORM1_BIAS,
    WEIGHT_QKV,
    WEIGHT_QKV_BIAS,
    WEIGHT_PROJECTION,
    WEIGHT_PROJECTION_BIAS,
    WEIGHT_NORM2,
    WEIGHT_NORM2_BIAS,
    WEIGHT_UP,
    WEIGHT_UP_BIAS,
    WEIGHT_DOWN,
    WEIGHT_DOWN_BIAS,
    N_WEIGHTS
} vary_weight;

/* One trained tensor and what belongs to it. */
typedef struct vary_parameter {
    uint64_t n_elements;
    event_tensor value;
    event_tensor gradient; /* from its backward to the end of the step  */
    event_tensor master;   /* a 4-byte copy of a 2-byte weight           */
    event_tensor state[2]; /* of the optimizer, from the first step on   */
    event_tensor scratch;  /* during the optimizer's step                */
} vary_parameter;

/* What a layer keeps from forward to backward. `input` belongs to the layer below, or to the
 * embedding, until its backward. */
typedef struct vary_layer {
    vary_parameter weights[N_WEIGHTS];
    event_tensor input;
    event_tensor norm1;
    event_tensor norm1_stats[2];
    event_tensor qkv;
    event_tensor attention;
    event_tensor attention_sums;
    event_tensor middle; /* input of the second half */
    event_tensor norm2;
    event_tensor norm2_stats[2];
    event_tensor up;
    event_tensor activated;
} vary_layer;

/* The embedding, tied to the output, and the last norm are parameters of the whole. */
typedef struct vary_model {
    const vary_options *options;
    event_sink sink;
    vary_layer *layers;
    vary_parameter embedding;
    vary_parameter final_norm;
    vary_parameter final_norm_bias;
    uint64_t batch; /* of the step under way */
    uint64_t sequence;
    uint64_t stream; /* that runs what is issued now */
} vary_model;

/* Bytes of a tensor of `width` elements per token of the step. */
uint64_t vary_activation_bytes(const vary_model *m, uint64_t width);
void vary_add_gradient(vary_model *m, vary_parameter *parameter);

/* Runs a layer on its input; returns its output. `keep`: for the backward. */
event_tensor vary_layer_forward(vary_model *m, vary_layer *layer, bool keep);
/* Takes the gradient of the output, returns that of the input, and drops what was kept. */
event_tensor vary_layer_backward(vary_model *m, vary_layer *layer, event_tensor gradient);
/* The last norm, the logits, the loss and back: takes the last layer's output, returns its
 * gradient. */
event_tensor vary_loss(vary_model *m, event_tensor output);

#endif
