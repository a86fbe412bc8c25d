# SPDX-License-Identifier: Apache-2.0
"""usage: jax_train.py STEPS [turns]

Trains a small transformer of flax on texts of changing length; prints one JSON object. With `turns`
another one each time a line comes, of the training's next steps.
"""

import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
from flax import linen

STEPS, WORDS, WIDTH, LAYERS, BATCH = int(sys.argv[1]), 8192, 512, 6, 16
LENGTHS = (256, 512)


class Block(linen.Module):
    """Attention and a layer of four times the width."""

    @linen.compact
    def __call__(self, x):
        mask = linen.make_causal_mask(x[..., 0])
        x = x + linen.SelfAttention(num_heads=8)(linen.LayerNorm()(x), mask)
        y = linen.gelu(linen.Dense(4 * WIDTH)(linen.LayerNorm()(x)))
        return x + linen.Dense(WIDTH)(y)


class Model(linen.Module):
    """Logits of the next word."""

    @linen.compact
    def __call__(self, ids):
        x = linen.Embed(WORDS, WIDTH)(ids)
        x = x + linen.Embed(1024, WIDTH)(jnp.arange(ids.shape[1]))
        for _ in range(LAYERS):
            x = Block()(x)
        return linen.Dense(WORDS)(linen.LayerNorm()(x))


def loss_of(weights, ids):
    """The mean of how surprising each word is."""
    logits = jax.nn.log_softmax(Model().apply(weights, ids[:, :-1]))
    return -jnp.take_along_axis(logits, ids[:, 1:, None], axis=-1).mean()


@jax.jit
def step(weights, ids):
    """One step of plain gradient descent."""
    loss, gradient = jax.value_and_grad(loss_of)(weights, ids)
    return jax.tree_util.tree_map(lambda w, g: w - 0.05 * g, weights, gradient), loss


class Training:
    """A model that goes on where it stopped."""

    def __init__(self):
        self.key = jax.random.PRNGKey(0)
        self.weights = Model().init(self.key, jnp.zeros((1, 16), jnp.int32))
        self.done = 0

    def next_step(self):
        """The loss, to the bit, and the time that the step took."""
        shape = (BATCH, LENGTHS[self.done % len(LENGTHS)] + 1)
        ids = jax.random.randint(jax.random.fold_in(self.key, self.done), shape, 0, WORDS)
        start = time.perf_counter()
        self.weights, loss = step(self.weights, ids)
        loss.block_until_ready()
        self.done += 1
        return float(loss).hex(), time.perf_counter() - start

    def run(self, warm_up=0):
        """What is printed of STEPS steps: losses, and the median time of those that are warm."""
        losses, times = zip(*(self.next_step() for _ in range(STEPS)))
        return json.dumps({"losses": losses, "step_ms": 1000 * statistics.median(times[warm_up:])})


def main():
    """Each length compiles in its first step, and computes in its second as in all others."""
    training = Training()
    print(training.run(warm_up=2 * len(LENGTHS)), flush=True)
    if sys.argv[2:] == ["turns"]:
        for _ in sys.stdin:
            print(training.run(), flush=True)


if __name__ == "__main__":
    main()
