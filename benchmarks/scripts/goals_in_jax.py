"""Makes one update of one of OGBench's agents, in JAX, from given weights and a given batch. For `goals_update.py`.

    PYTHON_WITH_JAX benchmarks/scripts/goals_in_jax.py IMPLS AGENT GIVEN.npz FOUND.npz

IMPLS is the folder that holds their `agents`. This imports nothing from the zoo. Everything is in float64. Their
normalization adds 1e-6 to the variance; here it adds the zoo's constant.
"""

import functools
import importlib
import json
import sys
from typing import Any

import flax
import flax.linen as nn
import jax
import numpy as np


def main(impls: str, name: str, given_file: str, found_file: str) -> None:
    jax.config.update("jax_enable_x64", True)
    nn.LayerNorm = functools.partial(nn.LayerNorm, epsilon=1e-5)
    sys.path.insert(0, impls)
    module = importlib.import_module(f"agents.{name}")
    given = dict(np.load(given_file))
    batch = {key.removeprefix("batch/"): x for key, x in given.items() if key.startswith("batch/")}
    config = module.get_config()
    config.update(json.loads(str(given["settings"])))
    agent = getattr(module, f"{name.upper()}Agent").create(0, batch["observations"], batch["actions"], config)
    shapes = flax.traverse_util.flatten_dict(agent.network.params, sep="/")
    weights = {key.removeprefix("weights/"): x for key, x in given.items() if key.startswith("weights/")}
    assert {key: x.shape for key, x in shapes.items()} == {key: x.shape for key, x in weights.items()}
    params = flax.traverse_util.unflatten_dict({key: jax.numpy.asarray(x) for key, x in weights.items()}, sep="/")
    network = agent.network.replace(params=params, opt_state=agent.network.tx.init(params))
    updated, info = agent.replace(network=network).update(batch)
    found: dict[str, Any] = flax.traverse_util.flatten_dict(updated.network.params, sep="/")
    np.savez(found_file, **found, **{f"loss/{key}": value for key, value in info.items() if key.endswith("loss")})


if __name__ == "__main__":
    main(*sys.argv[1:])
