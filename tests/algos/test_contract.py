"""Requirements for every file in `algos/`."""

import ast
import copy
import dataclasses
import io
import math
import re
import typing
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from examples import batch_for, doubles, make, specs

from zoo.agent import Agent
from zoo.checks import COMMON
from zoo.nn.heads import CATEGORICAL, SCALAR
from zoo.nn.optim import Adam
from zoo.runs.compilation import compile_update
from zoo.runs.cuda_graph import leaves
from zoo.runs.stacked import Stack, StackedUpdate
from zoo.settings.registry import FAMILIES, algorithms, settings
from zoo.spec import Spec

READS_THE_DEVICE = {"item", "cpu", "tolist", "numpy"}

WITH_HEADS = [file for file in algorithms().values() if "value_head" in {s.name for s in settings(file.path, "Config")}]

NORMALIZING = [  # without streaming algorithms, whose observations are normalized outside of the agent
    file
    for file in algorithms().values()
    if "normalize_obs" in {s.name for s in settings(file.path, "Config")} and file.family != "streaming"
]
WITH_TARGETS = [file for file in algorithms().values() if "self.target_" in file.path.read_text()]

# streaming algorithms use traces, which have their own tests
WITH_ADAM = [file for file in algorithms().values() if file.family != "streaming"]

# trained in an earlier stage; cql's weight only with lagrange=true
NOT_BY_UPDATES = {
    "combo": {"dynamics"}, "mopo": {"dynamics"}, "mbrcsl": {"dynamics", "behavior"}, "dsrl": {"flow"},
    "cql": {"log_weight"},
}  # fmt: skip
# the settings of the learning rates of those Adams that have none of their own
RATES = {
    "alpha": "actor_lr", "balance": "actor_lr", "edit": "actor_lr", "policy": "actor_lr",
    "noise_critic": "critic_lr", "value": "critic_lr", "weight": "critic_lr",
}  # fmt: skip
# by what algorithms share: normalization and value heads
READ_ELSEWHERE = {"normalize_obs", "normalize_reward", "value_head", "v_min", "v_max", "num_bins"}
# these use next observations elsewhere too: in H2O's discriminators, and where the others lower values
USES_SUCCESSORS = ("combo", "cql", "h2o")

# What each Adam minimizes, by the docstrings' formulas, if it is not the loss with its own name. The arguments are `x`,
# which has the losses and metrics of one update and the weights before it, and the config `c`.
SUMS: dict[str, dict[str, Callable[[Any, Any], float]]] = {
    "bcq": {"optimizer": lambda x, c: x.critic_loss + x.behavior_loss},
    "combo": {"critic_optimizer": lambda x, c: x.critic_loss + c.beta * 2 * x.gap},  # of both critics
    "cql": {
        "critic_optimizer": lambda x, c: x.critic_loss + math.exp(x.log_weight) * c.alpha * c.num_critics * x.gap,
        "weight_optimizer": lambda x, c: -math.exp(x.log_weight) * c.alpha * (x.gap - c.target_gap),
    },
    "discrete_cql": {"optimizer": lambda x, c: x.critic_loss + c.alpha * x.gap},
    "dqn": {"optimizer": lambda x, c: x.critic_loss},
    "dql": {"policy_optimizer": lambda x, c: x.cloning_loss + c.eta * x.q_loss},
    "dsrl": {"noise_critic_optimizer": lambda x, c: x.noise_loss},
    "edac": {"critic_optimizer": lambda x, c: x.critic_loss + c.eta * x.diversity_loss},
    "ofql": {"policy_optimizer": lambda x, c: x.cloning_loss + c.eta * x.q_loss},
    "ota": {"value_optimizer": lambda x, c: x.value_loss + x.high_value_loss},
    "ppo": {"optimizer": lambda x, c: x.policy_loss + c.value_coef * x.value_loss - c.entropy_coef * x.entropy},
    "qrl": {"value_optimizer": lambda x, c: x.value_loss + x.model_loss},
    "reinflow": {"actor_optimizer": lambda x, c: x.policy_loss - c.entropy_coef * x.entropy},
    "ro2o": {
        "actor_optimizer": lambda x, c: x.actor_loss + c.policy_weight * x.policy_smoothness,
        "critic_optimizer": lambda x, c: (
            x.critic_loss + c.critic_weight * x.critic_smoothness + c.ood_weight * x.ood_loss
        ),
    },
}
WEIGHTS = {  # under which every term of a sum counts, and by another weight than 1
    "combo": {"beta": 0.7}, "cql": {"lagrange": True, "alpha": 0.7}, "discrete_cql": {"alpha": 0.7},
    "dql": {"eta": 0.7}, "edac": {"eta": 0.7}, "ofql": {"eta": 0.7}, "ppo": {"entropy_coef": 0.7},
    "reinflow": {"entropy_coef": 0.7}, "ro2o": {"critic_weight": 0.7, "ood_weight": 0.3, "policy_weight": 0.6},
}  # fmt: skip

each_algorithm = pytest.mark.parametrize("algorithm", algorithms().values(), ids=list(algorithms()))


def test_there_are_algorithms():
    assert {"bc", "dqn", "iql", "ppo", "sac", "td3"} <= set(algorithms())


@each_algorithm
def test_no_agent_keeps_a_double_without_a_dimension(algorithm):
    """PyTorch's compiler treats such a tensor as a constant, so writes to it are lost."""
    for spec in specs(algorithm):
        held = make(algorithm, spec).named_buffers()
        assert not [name for name, x in held if x.dtype == torch.float64 and x.ndim == 0]


@each_algorithm
def test_docstring_names_the_algorithm_and_its_paper(algorithm):
    docstring = ast.get_docstring(ast.parse(algorithm.path.read_text()))
    assert docstring is not None
    assert ":" in docstring.splitlines()[0]
    assert re.search(r"arXiv \d{4}\.\d{4,5}", docstring)


@each_algorithm
def test_says_where_it_learns_from_and_which_actions_it_can_take(algorithm):
    assert algorithm.family in FAMILIES
    assert algorithm.setting in ("online", "offline", "offline to online")
    assert algorithm.action_spaces
    assert set(algorithm.action_spaces) <= {"continuous", "discrete"}


@each_algorithm
def test_every_setting_is_explained_behind_its_default(algorithm):
    explained = settings(algorithm.path, "Config")
    assert [setting.name for setting in explained] == [f.name for f in dataclasses.fields(algorithm.module.Config)]
    assert [setting.name for setting in explained if len(setting.comment) < 5] == []


@each_algorithm
def test_can_be_read_in_a_sitting(algorithm):
    assert len(algorithm.path.read_text().splitlines()) <= 320


@each_algorithm
def test_defines_one_agent_and_a_training_loop(algorithm):
    assert issubclass(algorithm.agent_class, Agent)
    assert callable(algorithm.module.train)


@each_algorithm
def test_an_update_never_waits_for_the_device(algorithm):
    (agent,) = (
        node
        for node in ast.parse(algorithm.path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == algorithm.agent_class.__name__
    )
    outside = {"__init__", "act"}
    for method in agent.body:
        if isinstance(method, ast.FunctionDef) and method.name not in outside:
            for node in ast.walk(method):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    assert node.func.attr not in READS_THE_DEVICE, f"{method.name}, line {node.lineno}"
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in {"float", "int", "bool"}, f"{method.name}, line {node.lineno}"


@each_algorithm
def test_an_update_returns_tensors_without_a_graph(algorithm):
    for spec in specs(algorithm):
        agent = make(algorithm, spec)
        metrics = agent.update(batch_for(agent, 0))
        assert metrics
        assert all(isinstance(value, torch.Tensor) and value.ndim == 0 for value in metrics.values())
        assert not any(value.requires_grad for value in metrics.values())
        assert not {"step", "seconds", "steps_per_second", "episode_return", "episode_length"} & set(metrics)


@torch.no_grad()
def perturb(agent: Agent) -> None:
    """Adds noise to all weights, because some layers start at 0 and ignore the observation."""
    for parameter in agent.parameters():
        parameter += 0.1 * torch.randn_like(parameter)


@each_algorithm
def test_updates_move_all_that_learns(algorithm):
    for spec in specs(algorithm):
        torch.manual_seed(0)
        agent = make(algorithm, spec)
        before = {name: one.detach().clone() for name, one in agent.named_parameters() if one.requires_grad}
        for seed in range(4):  # some networks are updated only at every second step
            agent.update(batch_for(agent, seed))
        still = {
            name.split(".")[0] for name, one in agent.named_parameters() if torch.equal(one, before.get(name, one))
        }
        learning = {name.split(".")[0] for name in before}
        assert still & learning == NOT_BY_UPDATES.get(algorithm.name, set())


@each_algorithm
def test_only_termination_stops_bootstrapping(algorithm):
    """Batches do not have `truncated`: targets bootstrap if and only if a transition is not `terminated`.

    Streaming algorithms bootstrap from observations that they keep, which has its own tests.
    """
    for spec in specs(algorithm):
        kind = typing.get_type_hints(algorithm.agent_class.update)["batch"]
        assert "truncated" not in kind._fields
        if not {"terminated", "next_obs"} <= set(kind._fields) or algorithm.family == "streaming":
            continue
        if algorithm.name == "bc":  # learns only from actions
            continue

        def learned(change: dict[str, Any], spec: Spec = spec) -> torch.Tensor:
            torch.manual_seed(0)
            agent = make(algorithm, spec)
            perturb(agent)
            for seed in range(2):
                batch = batch_for(agent, seed)
                agent.update(batch._replace(**{name: set_to(getattr(batch, name)) for name, set_to in change.items()}))
            return torch.cat([parameter.flatten() for parameter in agent.parameters()])

        def shift(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        going_on, ended = {"terminated": torch.zeros_like}, {"terminated": torch.ones_like}
        expected, at_end = learned(going_on), learned(ended)
        assert not torch.equal(expected, at_end)
        assert not torch.equal(expected, learned(going_on | {"next_obs": shift}))
        if algorithm.name not in USES_SUCCESSORS:
            assert torch.equal(at_end, learned(ended | {"next_obs": shift}))


def is_loss(name: str) -> bool:
    return name == "loss" or name.endswith("_loss")


def losses_of(module: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Records what the agent's loss methods return: the latest loss by name."""
    found: dict[str, float] = {}

    def spy(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **settings: Any) -> Any:
            returned = method(*args, **settings)
            found[name] = float((returned[0] if isinstance(returned, tuple) else returned).detach())
            return returned

        return call

    for name in filter(is_loss, dir(module)):
        monkeypatch.setattr(module, name, spy(name, getattr(module, name)))
    return found


def stages(agent: Agent) -> Iterator[tuple[torch.nn.Module, Callable[[], dict[str, torch.Tensor]]]]:
    """The methods that train the agent, and their modules: updates, and the stages before them."""
    yield agent, lambda: agent.update(doubles(batch_for(agent, 0)))
    if hasattr(agent, "clone"):
        yield agent, lambda: agent.clone(doubles(batch_for(agent, 0, "clone")))
    if hasattr(agent, "dynamics"):
        x, target = (torch.randn(agent.dynamics.members, 16, size, dtype=torch.float64) for size in (5, 4))
        yield agent.dynamics, lambda: agent.dynamics.update(x, target)
    if hasattr(agent, "behavior"):
        obs, action = torch.randn(16, 3, dtype=torch.float64), 2 * torch.rand(16, 2, dtype=torch.float64) - 1
        yield agent.behavior, lambda: agent.behavior.update(obs, action)


@pytest.mark.parametrize("algorithm", WITH_ADAM, ids=[file.name for file in WITH_ADAM])
def test_every_adam_minimizes_the_loss_that_is_stated_for_it(algorithm, monkeypatch):
    """Once per update, the loss with its name or the sum in the docstring, with the right sign; see `SUMS`."""
    minimize, given = Adam.minimize, {}

    def record(adam: Adam, loss: torch.Tensor) -> None:
        given.setdefault(adam, []).append(float(loss.detach()))
        minimize(adam, loss)

    monkeypatch.setattr(Adam, "minimize", record)
    for spec in specs(algorithm):
        agent = make(algorithm, spec, **WEIGHTS.get(algorithm.name, {})).double()
        perturb(agent)  # no loss is 0, so that a wrong sign is detected
        sums = SUMS.get(algorithm.name, {})
        learned = set()
        for module, learn in stages(agent):
            given.clear()
            losses = losses_of(module, monkeypatch)
            before = {name: float(x.detach()) for name, x in module.named_parameters(recurse=False) if x.ndim == 0}
            before["target_entropy"] = getattr(module, "target_entropy", math.nan)
            logged = {name: float(x) for name, x in learn().items()}
            terms = SimpleNamespace(**(before | logged | losses))
            for name, adam in module.named_children():
                if adam not in given:  # or no Adam at all
                    continue
                part = name.removesuffix("optimizer")
                own = [x for x in (f"{part}loss", f"{part}actor_loss") if hasattr(terms, x)]
                expected = sums[name](terms, agent.config) if name in sums else getattr(terms, own[0])
                assert given[adam] == [pytest.approx(expected, rel=1e-6)], name
                assert abs(expected) > 1e-6, f"{name}: 0 has no sign"
            for name in losses.keys() & logged.keys():
                assert logged[name] == pytest.approx(losses[name], rel=1e-6), name
            assert given.keys() <= set(module.children())
            learned |= given.keys()
        assert learned == {one for one in agent.modules() if isinstance(one, Adam)}


@pytest.mark.parametrize("algorithm", NORMALIZING, ids=[file.name for file in NORMALIZING])
def test_what_is_acted_on_is_the_normalized_observation(algorithm):
    for spec in specs(algorithm):
        torch.manual_seed(0)
        agent = make(algorithm, spec)
        perturb(agent)

        def acted(obs: torch.Tensor, agent: Agent = agent) -> torch.Tensor:
            torch.manual_seed(1)
            agent.begin(len(obs))
            return agent.act(obs)

        obs = torch.randn(200, *spec.obs_shape)
        expected = acted(obs)  # a normalizer that has seen nothing is the identity
        agent.normalizer.mean.fill_(2.0)
        agent.normalizer.std.fill_(3.0)
        found = acted(3.0 * obs + 2.0)
        assert not torch.allclose(acted(obs).double(), expected.double(), atol=1e-2)
        if spec.num_actions is None:
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        else:  # rounding decides between actions of the same value
            assert (found == expected).double().mean() > 0.98


@pytest.mark.parametrize("algorithm", WITH_TARGETS, ids=[file.name for file in WITH_TARGETS])
def test_target_networks_begin_as_copies(algorithm):
    for spec in specs(algorithm):
        agent = make(algorithm, spec)
        targets = {name: one for name, one in agent.named_children() if name.startswith(("target_", "average_"))}
        assert targets
        for name, target in targets.items():
            source = agent.get_submodule(name.partition("_")[2])
            for one, other in zip(target.parameters(), source.parameters(), strict=True):
                assert torch.equal(one, other), name


@pytest.mark.parametrize("algorithm", WITH_ADAM, ids=[file.name for file in WITH_ADAM])
def test_every_adam_has_the_settings_of_its_name(algorithm):
    """Defaults are often equal, and hide it if two are exchanged."""
    fields = {field.name for field in dataclasses.fields(algorithm.module.Config)}
    rates = {name: 0.001 * (i + 1) for i, name in enumerate(sorted(fields)) if name == "lr" or name.endswith("_lr")}
    more = {name: value for name, value in {"adam_eps": 0.01, "max_grad_norm": 0.3}.items() if name in fields}
    agent = make(algorithm, specs(algorithm)[0], **rates, **more)
    for name, adam in agent.named_children():
        if isinstance(adam, Adam):
            part = name.removesuffix("optimizer").removesuffix("_")
            setting = next(one for one in (f"{part}_lr", RATES.get(part), "lr") if one in rates)
            assert adam.lr == rates[setting], name
            assert adam.eps == more.get("adam_eps", adam.eps), name
            assert adam.max_norm == more.get("max_grad_norm", adam.max_norm), name


@pytest.mark.parametrize("algorithm", WITH_ADAM, ids=[file.name for file in WITH_ADAM])
def test_every_setting_is_read(algorithm):
    read = {
        node.attr
        for node in ast.walk(ast.parse(algorithm.path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("config", "self.config")
    }
    assert {setting.name for setting in settings(algorithm.path, "Config")} - READ_ELSEWHERE <= read


@pytest.mark.parametrize("algorithm", WITH_TARGETS, ids=[file.name for file in WITH_TARGETS])
def test_target_networks_follow_theirs_by_tau(algorithm):
    """Targets may follow the network's weights from before the step or after it: both are in use."""
    for spec in specs(algorithm):
        torch.manual_seed(0)
        taus = {"tau": 0.25, "flow_tau": 0.4} if algorithm.name == "expo" else {"tau": 0.25}
        agent = make(algorithm, spec, **taus)
        pairs = {name: (name.removeprefix("target_"), 0.25) for name in dir(agent) if name.startswith("target_")}
        pairs = {name: pair for name, pair in pairs.items() if isinstance(getattr(agent, name), torch.nn.Module)}
        pairs |= {"average_flow": ("flow", 0.4)} if algorithm.name == "expo" else {}
        assert pairs

        def weights(name: str, agent: Agent = agent) -> torch.Tensor:
            return torch.cat([parameter.detach().flatten() for parameter in getattr(agent, name).parameters()])

        for seed in range(3):
            before = {name: (weights(name), weights(of)) for name, (of, _) in pairs.items()}
            agent.update(batch_for(agent, seed))
            if hasattr(agent, "update_target"):  # the training loop says when
                agent.update_target()
            for name, (of, tau) in pairs.items():
                target, source = before[name]
                found = weights(name)
                assert any(
                    torch.allclose(found, torch.lerp(target, to, tau), atol=1e-7) for to in (source, weights(of))
                )
                assert not torch.allclose(weights(of), source, atol=1e-7)
                assert seed == 0 or not torch.allclose(found, target, atol=1e-7)


@each_algorithm
def test_an_update_compiles_to_one_graph_that_takes_the_same_steps(algorithm):
    for spec in specs(algorithm):
        torch._dynamo.reset()
        torch.manual_seed(0)
        eager = make(algorithm, spec)
        compiled = copy.deepcopy(eager)
        update = compile_update(compiled.update, backend="eager")
        for seed in range(2):
            batch = batch_for(eager, seed)
            torch.manual_seed(seed)
            expected = eager.update(batch)
            torch.manual_seed(seed)
            found = update(batch)
            assert found.keys() == expected.keys()
        for one, other in zip(eager.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@each_algorithm
def test_agents_updated_together_learn_as_each_does_alone(algorithm):
    """In float64: in float32, gradients may be only rounding errors, and then Adam's first steps differ."""
    for spec in specs(algorithm):
        together = []
        for seed in range(2):
            torch.manual_seed(seed)
            together.append(make(algorithm, spec).double())
        alone = copy.deepcopy(together)
        stack = Stack(together)
        program = StackedUpdate(stack, together[0].update, ((doubles(batch_for(together[0], 0)),), {}), None)
        for step in range(3):
            batches = [doubles(batch_for(agent, 10 * seed + step)) for seed, agent in enumerate(alone)]
            noise, expected = [], []
            for seed, agent in enumerate(alone):
                torch.manual_seed(seed + step)
                noise.append(program.noise())
                torch.manual_seed(seed + step)
                expected.append(agent.update(batches[seed]))
            found = program(noise, [leaves(batch) for batch in batches])
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        for one, other in zip(together, alone, strict=True):
            torch.testing.assert_close(dict(one.state_dict()), dict(other.state_dict()), rtol=1e-9, atol=1e-9)


@each_algorithm
def test_a_restored_agent_learns_on_as_the_saved_one(algorithm):
    for spec in specs(algorithm):
        torch.manual_seed(0)
        saved, restored = make(algorithm, spec), make(algorithm, spec)
        for seed in range(3):
            saved.update(batch_for(saved, seed))
        file = io.BytesIO()
        torch.save(saved.state_dict(), file)
        file.seek(0)
        restored.load_state_dict(torch.load(file, weights_only=True))
        for agent in (saved, restored):
            torch.manual_seed(1)
            agent.update(batch_for(agent, 3))
            agent.update(batch_for(agent, 4))
        for one, other in zip(saved.parameters(), restored.parameters(), strict=True):
            assert torch.equal(one, other)


@each_algorithm
def test_deterministic_actions_repeat_and_lie_within_the_bounds(algorithm):
    for spec in specs(algorithm):
        agent, obs = make(algorithm, spec), 10 * torch.randn(50, *spec.obs_shape)
        for explore in (False, True):
            action = agent.act(obs, explore)
            if spec.num_actions is None:
                assert action.shape == (50, 2)
                assert action.abs().max() <= 1
            else:
                assert action.shape == (50,)
                assert ((action >= 0) & (action < 4)).all()
        assert torch.equal(agent.act(obs), agent.act(obs))


@pytest.mark.parametrize("head", [name for name in (*SCALAR, *CATEGORICAL) if name != "mse"])
@pytest.mark.parametrize("algorithm", WITH_HEADS, ids=[algorithm.name for algorithm in WITH_HEADS])
def test_a_critic_learns_with_every_value_head(algorithm, head):
    for spec in specs(algorithm):
        torch.manual_seed(0)
        support = {"v_min": -4.0, "v_max": 4.0, "num_bins": 21} if head in CATEGORICAL else {}
        plain = {"alpha": 0.0} if "cql" in algorithm.name else {}  # conservatism raises the loss that is measured
        config = algorithm.module.Config(**({"hidden": [32], "value_head": head} | support | plain))
        agent = algorithm.agent_class(spec, config)
        batch = batch_for(agent, 0)
        losses = [agent.update(batch) for _ in range(100)]
        loss = next(name for name in ("critic_loss", "value_loss", "loss") if name in losses[0])
        assert losses[-1][loss] < 0.95 * losses[0][loss]  # what is left is the targets' own entropy
        assert ("clipped_targets" in losses[0]) == (head in CATEGORICAL)


@each_algorithm
def test_declares_whether_it_needs_a_dataset(algorithm):
    if algorithm.data not in ("none", "required"):  # a setting: above 0, it uses a dataset
        assert algorithm.setting == "online"
        assert 0 <= getattr(algorithm.module.Config(), algorithm.data) < 1
    else:
        assert (algorithm.data == "required") == (algorithm.setting != "online")


CANNOT_BE: dict[str, list[Any]] = {  # of each setting that algorithms share
    "discount": [-0.1, 1.1], "tau": [0.0, 1.1], "lr": [0.0, -1.0], "hidden": [[0], [16, 0]], "batch_size": [0],
    "buffer_size": [0], "learning_starts": [-1], "warmup": [-1], "epsilon": [-0.1, 1.1], "eval_epsilon": [-0.1, 1.1],
    "exploration_fraction": [-0.1, 1.1], "entropy_coef": [-0.1], "value_coef": [-0.1], "gae_lambda": [-0.1, 1.1],
    "clip": [0.0], "target_kl": [0.0], "beta": [-0.1], "max_weight": [0.0], "max_exponent": [0.0],
    "exploration_noise": [-0.1], "target_noise": [-0.1], "target_noise_clip": [-0.1], "max_grad_norm": [0.0],
    "weight_decay": [-0.1], "adam_eps": [0.0], "members": [0], "elites": [0],
    "expectile": [0.0, 1.0], "policy_delay": [0],
    "value_goals": [[0.5, 0.5], [0.5, 0.6, -0.1], [0.5, 0.5, 0.5]],
    "actor_goals": [[0.5, 0.5], [0.5, 0.6, -0.1], [0.5, 0.5, 0.5]],
}  # fmt: skip


def common_name(setting: str) -> str:
    """The setting that it is checked as: `actor_lr` is a learning rate."""
    if setting == "smooth_tau":  # RO2O's, a weight that may be 0
        return setting
    kind = setting.rpartition("_")[2]
    return kind if kind in ("lr", "hidden", "tau") else setting


@each_algorithm
def test_a_config_refuses_what_cannot_be(algorithm):
    for field in dataclasses.fields(algorithm.module.Config):
        if isinstance(getattr(algorithm.module.Config(), field.name), float):
            for value in (math.nan, math.inf):
                with pytest.raises(ValueError, match=f"algo.{field.name}={value} must be a finite number"):
                    algorithm.module.Config(**{field.name: value})
    for field in dataclasses.fields(algorithm.module.Config):
        for value in CANNOT_BE.get(common_name(field.name), []):
            with pytest.raises(ValueError, match=rf"algo\.{field.name}={re.escape(str(value))} "):
                algorithm.module.Config(**{field.name: value})


def test_there_are_values_that_cannot_be_of_every_common_setting_and_an_algorithm_has_each():
    assert CANNOT_BE.keys() == COMMON.keys()
    fields = (field for file in algorithms().values() for field in dataclasses.fields(file.module.Config))
    assert {common_name(field.name) for field in fields} >= COMMON.keys()
