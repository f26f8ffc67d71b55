"""Train a small network with JAX: compiled steps, copies in both directions, and a matrix product outside the steps.

An optional argument is a folder. JAX's own profiler then writes its trace of the same steps there.
"""

from __future__ import annotations

import contextlib
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

STEPS = 4
BATCH, WIDTH, CLASSES = 128, 256, 16


def loss_of(parameters, inputs, targets):
    hidden = jax.nn.gelu(inputs @ parameters["in"])
    scores = jax.nn.log_softmax(hidden @ parameters["out"])
    return -jnp.take_along_axis(scores, targets[:, None], axis=1).mean()


@jax.jit
def train_step(parameters, inputs, targets):
    loss, slopes = jax.value_and_grad(loss_of)(parameters, inputs, targets)
    return jax.tree.map(lambda value, slope: value - 0.1 * slope, parameters, slopes), loss


def main() -> None:
    random = np.random.default_rng(0)
    parameters = {
        "in": jnp.asarray(random.normal(size=(WIDTH, 4 * WIDTH), scale=0.05), dtype=jnp.float32),
        "out": jnp.asarray(random.normal(size=(4 * WIDTH, CLASSES), scale=0.05), dtype=jnp.float32),
    }
    inputs = random.normal(size=(STEPS + 1, BATCH, WIDTH)).astype(np.float32)
    targets = random.integers(CLASSES, size=(STEPS + 1, BATCH))
    parameters, _ = train_step(parameters, inputs[-1], targets[-1])  # compiles
    profiled = jax.profiler.trace(sys.argv[1]) if len(sys.argv) > 1 else contextlib.nullcontext()
    losses = []
    with profiled:
        for step in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                parameters, loss = train_step(parameters, inputs[step], targets[step])
                losses.append(float(loss))
        norm = float(jnp.linalg.norm(parameters["in"] @ parameters["in"].T))
    print(json.dumps({"steps": STEPS, "losses": losses, "norm": norm}))


if __name__ == "__main__":
    main()
