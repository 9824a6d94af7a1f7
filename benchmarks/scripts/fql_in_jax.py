"""Makes one update with the code of FQL's authors, in JAX, from given weights, batch and noise. For `first_update.py`.

    PYTHON_WITH_JAX benchmarks/scripts/fql_in_jax.py CHECKOUT GIVEN.npz FOUND.npz

This imports nothing from the zoo. Everything is in float64. Their normalization adds 1e-6 to the variance; here it adds
the zoo's constant.
"""

import functools
import json
import sys
from typing import Any

import flax
import flax.linen as nn
import jax
import numpy as np


def main(checkout: str, given_file: str, found_file: str) -> None:
    jax.config.update("jax_enable_x64", True)
    nn.LayerNorm = functools.partial(nn.LayerNorm, epsilon=1e-5)
    sys.path.insert(0, checkout)
    from agents.fql import FQLAgent, get_config  # type: ignore[import-not-found]

    given = dict(np.load(given_file))
    batch = {name.removeprefix("batch/"): x for name, x in given.items() if name.startswith("batch/")}
    config = get_config()
    config.update(json.loads(str(given["settings"])))
    agent = FQLAgent.create(0, batch["observations"], batch["actions"], config)

    shapes = flax.traverse_util.flatten_dict(agent.network.params, sep="/")
    weights = {name: given[f"weights/{name}"] for name in shapes}
    assert all(weights[name].shape == x.shape for name, x in shapes.items())
    params = flax.traverse_util.unflatten_dict({name: jax.numpy.asarray(x) for name, x in weights.items()}, sep="/")
    network = agent.network.replace(params=params, opt_state=agent.network.tx.init(params))

    normals, uniforms = iter(given["normals"]), iter(given["uniforms"])
    jax.random.normal = lambda *_, **__: jax.numpy.asarray(next(normals))
    jax.random.uniform = lambda *_, **__: jax.numpy.asarray(next(uniforms))
    with jax.disable_jit():
        updated, info = agent.replace(network=network).update(batch)
    found: dict[str, Any] = flax.traverse_util.flatten_dict(updated.network.params, sep="/")
    losses = {"critic_loss": "critic/critic_loss", "flow_loss": "actor/bc_flow_loss", "distance": "actor/distill_loss"}
    np.savez(found_file, **found, **{f"loss/{ours}": info[theirs] for ours, theirs in losses.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
