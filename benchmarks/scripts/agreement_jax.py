"""Computes losses and gradients with the code of f-DVL's or ReCOIL's authors. `agreement.py` runs it with JAX.

The authors' functions are called unchanged, on networks with the interface that they expect: `Network` uses the given
layers, and its `apply_gradient` returns the gradient instead of taking a step.
"""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

DISCOUNT, BETA = 0.99, 3.0
OPTIONS = {
    "max_clip": 7.0, "sample_random_times": 0, "noise": False, "grad_pen": False, "num_v_updates": 1,
    "noise_std": 0.1, "lambda_gp": 1, "log_loss": False,
}  # fmt: skip


def mlp(layers: list[Any], x: Any) -> Any:
    for i in range(0, len(layers), 2):
        x = x @ layers[i].T + layers[i + 1]
        x = jax.nn.relu(x) if i + 2 < len(layers) else x
    return x


class Network:
    """A network with the interface of the authors' `Model`: it can be called, applied to weights and differentiated."""

    def __init__(self, function: Any, params: Any) -> None:
        self.function, self.params = function, params

    def apply(self, variables: dict[str, Any], *inputs: Any, **_: Any) -> Any:
        return self.function(variables["params"], *inputs)

    def __call__(self, *inputs: Any) -> Any:
        return self.function(self.params, *inputs)

    def apply_gradient(self, loss: Any) -> tuple[Any, Any]:
        gradient, info = jax.grad(loss, has_aux=True)(self.params)
        return gradient, info


def normal(params: Any, obs: Any) -> Any:
    """Their policy: a Gaussian with a tanh mean, and a log standard deviation from -5 to 2."""
    *layers, log_std = params
    mean, log_std = jnp.tanh(mlp(layers, obs)), jnp.clip(log_std, -5, 2)

    def log_prob(action: Any) -> Any:
        return jax.scipy.stats.norm.logpdf(action, mean, jnp.exp(log_std)).sum(-1)

    return SimpleNamespace(log_prob=log_prob)


def flat(gradient: Any) -> Any:
    return jnp.concatenate([part.ravel() for part in jax.tree_util.tree_leaves(gradient)])


def main(algo: str, checkout: str, given: str, answer: str) -> None:
    sys.path.insert(0, str(Path(checkout) / "offline"))
    their_actor = importlib.import_module("actor")

    data = np.load(given)

    def layers(name: str) -> list[Any]:
        return [jnp.asarray(data[f"{name}_{i}"]) for i in range(sum(key.startswith(f"{name}_") for key in data))]

    def values(params: Any, obs: Any, action: Any) -> tuple[Any, Any]:
        pairs = jnp.concatenate([obs, action], -1)
        return mlp(params[0], pairs)[:, 0], mlp(params[1], pairs)[:, 0]

    critic = Network(values, [layers("critic1"), layers("critic2")])
    target = Network(values, [layers("target1"), layers("target2")])
    value = Network(lambda params, obs: mlp(params, obs)[:, 0], layers("value"))
    actor = Network(normal, [*layers("actor"), jnp.asarray(data["log_std"])])
    batch = SimpleNamespace(
        observations=jnp.asarray(data["obs"]), actions=jnp.asarray(data["action"]),
        rewards=jnp.asarray(data["reward"]), next_observations=jnp.asarray(data["next_obs"]),
        masks=1.0 - jnp.asarray(data["terminated"]),
    )  # fmt: skip
    options, key = SimpleNamespace(f=str(data["f"]), **OPTIONS), jax.random.PRNGKey(0)
    temperature = float(data["temperature"])
    if algo == "dvl":
        their_critic = importlib.import_module("critic")
        of_value = their_critic.update_v(target, value, batch, 0.7, temperature, True, False, key, options)
        of_actor = their_actor.update(key, actor, target, value, batch, BETA, True)
        of_critic = their_critic.update_q(critic, value, batch, DISCOUNT, True, key, temperature, options)
    else:
        their_critic = importlib.import_module("critic_imitate")
        is_expert = jnp.ones(len(batch.rewards) // 2)  # they only log it
        of_value = their_critic.update_v_imitate(
            target, value, batch, is_expert, 0.7, temperature, 0.8, 0.1, True, False, key, options
        )
        of_actor = their_actor.update_imitate(key, actor, target, value, batch, is_expert, BETA, True)
        of_critic = their_critic.update_q_imitate(
            critic, value, batch, is_expert, DISCOUNT, True, key, temperature, options
        )
    found: dict[str, Any] = {}
    for name, (gradient, info) in {"value": of_value, "actor": of_actor, "critic": of_critic}.items():
        found[f"{name}_loss"], found[f"{name}_gradient"] = info[f"{name}_loss"], flat(gradient)
    np.savez(answer, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
