"""The streaming algorithms against plain implementations from the paper, and in runs."""

import csv
import json
import math
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from plain import GYMNASIUM
from torch import Tensor

import zoo
from zoo.algos import stream_ac, stream_q, stream_sarsa, stream_td
from zoo.cli import main
from zoo.data.batch import Transition
from zoo.errors import RunError
from zoo.nn import Categorical, Gaussian
from zoo.runs.compilation import compile_update
from zoo.runs.stepper import EnvStepper
from zoo.spec import Spec
from zoo.streaming import Sample, StreamAgent, StreamNetwork, epsilon_greedy

CONTINUOUS = Spec((3,), (-0.4, -2.0), (3.0, 1.0))
CENTER, SCALE = torch.tensor([1.3, -0.5]), torch.tensor([1.7, 1.5])
DISCRETE = Spec((3,), num_actions=4)
DISCOUNT, LAMBDA = 0.9, 0.7
CLASSES = {"stream_ac": "StreamAC", "stream_q": "StreamQ", "stream_sarsa": "StreamSARSA", "stream_td": "StreamTD"}
COMMON = {"hidden": [16, 8], "discount": DISCOUNT, "trace_lambda": LAMBDA, "sparsity": 0.5, "time_feature": False}


class Plain:
    """A network as lists of weights, and the paper's ObGD, one layer at a time."""

    def __init__(self, network: StreamNetwork, kappa: float) -> None:
        parts = torch.split(network.weights.detach().clone(), network.sizes)
        shapes = [shape for layer in network.shapes for shape in (layer, layer[:1])]
        self.weights = [part.reshape(shape).requires_grad_() for part, shape in zip(parts, shapes, strict=True)]
        self.traces = [torch.zeros_like(weight) for weight in self.weights]
        self.kappa = kappa

    def __call__(self, x: Tensor) -> Tensor:
        for i in range(0, len(self.weights), 2):
            x = self.weights[i] @ x + self.weights[i + 1]
            if i + 2 < len(self.weights):
                x = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()
                x = torch.where(x > 0, x, 0.01 * x)
        return x

    def step(self, output: Tensor, delta: float) -> None:
        gradients = torch.autograd.grad(output, self.weights)
        with torch.no_grad():
            for trace, gradient in zip(self.traces, gradients, strict=True):
                trace.copy_(DISCOUNT * LAMBDA * trace + gradient)
            bound = self.kappa * max(abs(delta), 1) * sum(float(trace.abs().sum()) for trace in self.traces)
            for weight, trace in zip(self.weights, self.traces, strict=True):
                weight += min(1, 1 / bound) * delta * trace

    def cut(self) -> None:
        for trace in self.traces:
            trace.zero_()

    def agrees_with(self, network: StreamNetwork) -> bool:
        flat = torch.cat([weight.detach().flatten() for weight in self.weights])
        return torch.allclose(flat, network.weights.detach(), rtol=0, atol=2e-6)


class History:
    """Normalizes observations and scales rewards by everything observed so far."""

    def __init__(self) -> None:
        self.obs: list[np.ndarray] = []
        self.sums: list[float] = []
        self.total = 0.0

    def begin(self, obs: Tensor) -> Tensor:
        self.total = 0.0
        return self.see(obs)

    def see(self, obs: Tensor) -> Tensor:
        self.obs.append(obs.double().numpy())
        variance = np.var(self.obs, axis=0, ddof=1) if len(self.obs) > 1 else 1.0
        return torch.as_tensor((self.obs[-1] - np.mean(self.obs, 0)) / np.sqrt(variance + 1e-8)).float()

    def scale(self, reward: Tensor) -> float:
        self.total = DISCOUNT * self.total + float(reward)
        self.sums.append(self.total)
        return float(reward) / math.sqrt((np.var(self.sums, ddof=1) if len(self.sums) > 1 else 1.0) + 1e-8)


def stream(steps: int = 40):
    """Samples. After a terminal or truncated one, also the first observation of the next episode; otherwise None."""
    rng = torch.Generator().manual_seed(0)
    for t in range(1, steps + 1):
        terminated, truncated = torch.tensor(t % 13 == 0), t % 17 == 0
        sample = Sample(torch.randn((), generator=rng), 2 + 3 * torch.randn(3, generator=rng), terminated)
        yield sample, torch.randn(3, generator=rng) if terminated or truncated else None


def normal_log_prob_and_entropy(out: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    policy = torch.distributions.Normal(out[:2], F.softplus(out[2:]))
    return policy.log_prob((action - CENTER) / SCALE).sum(), policy.entropy().sum()


def categorical_log_prob_and_entropy(out: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    policy = torch.distributions.Categorical(logits=out)
    return policy.log_prob(action), policy.entropy()


@pytest.mark.parametrize(
    ("spec", "of_policy"),
    [(CONTINUOUS, normal_log_prob_and_entropy), (DISCRETE, categorical_log_prob_and_entropy)],
)
def test_stream_ac_equals_a_plain_transcription(spec, of_policy):
    torch.manual_seed(0)
    agent = stream_ac.StreamAC(spec, stream_ac.Config(**COMMON, entropy_coef=0.3))
    actor, critic, history = Plain(agent.actor, 3.0), Plain(agent.critic, 2.0), History()
    first = torch.randn(3)
    agent.start(first)
    x = history.begin(first)
    for sample, first_obs in stream():
        action = agent.action.clone()
        reward, next_x = history.scale(sample.reward), history.see(sample.next_obs)
        value, next_value = float(critic(x).detach()), float(critic(next_x).detach())
        delta = reward + DISCOUNT * (0.0 if sample.terminated else next_value) - value
        log_prob, entropy = of_policy(actor(x), action)
        actor.step(log_prob + 0.3 * math.copysign(1, delta) * entropy, delta)
        critic.step(critic(x)[0], delta)
        metrics = agent.update(sample)
        assert float(metrics["td_error"]) == pytest.approx(delta, abs=1e-4)
        assert actor.agrees_with(agent.actor)
        assert critic.agrees_with(agent.critic)
        x = next_x
        if first_obs is not None:
            agent.start(first_obs)
            x = history.begin(first_obs)
            actor.cut()
            critic.cut()


def test_a_gaussian_policy_draws_around_its_mean_and_is_clipped_where_it_is_played():
    torch.manual_seed(0)
    policy = Gaussian(CONTINUOUS, state_dependent_std=True)
    out = torch.tensor([0.5, -0.9, -0.2, 1.0])
    mean, std = CENTER + SCALE * out[:2], SCALE * F.softplus(out[2:])
    drawn = policy.sample(out.expand(100_000, 4))
    torch.testing.assert_close(drawn.mean(0), mean, rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.std(0), std, rtol=0.02, atol=0)
    torch.testing.assert_close(policy.mode(out), mean)
    torch.testing.assert_close(policy.mode(10 * out), torch.tensor([3.0, -2.0]))


def test_what_is_learned_from_is_the_action_that_was_drawn_not_the_clipped_one():
    torch.manual_seed(0)
    agent = stream_ac.StreamAC(CONTINUOUS, stream_ac.Config(**COMMON))
    agent.start(torch.randn(3))
    kept = []
    for sample, _ in stream(100):
        agent.update(sample)
        kept.append(agent.action.clone())
    actions = torch.stack(kept)
    assert (actions > torch.tensor([3.0, 1.0])).any()
    assert (actions < torch.tensor([-0.4, -2.0])).any()
    played = agent.act(torch.randn(500, 3), explore=True)
    assert (played <= torch.tensor([3.0, 1.0]) + 1e-6).all()
    assert (played >= torch.tensor([-0.4, -2.0]) - 1e-6).all()


def shares(actions: Tensor) -> list[float]:
    return (torch.bincount(actions, minlength=4) / len(actions)).tolist()


def test_discrete_actions_are_drawn_as_often_as_they_are_likely():
    torch.manual_seed(0)
    out = torch.tensor([0.1, 0.2, 0.0, 0.7]).log()
    drawn = Categorical(DISCRETE).sample(out.expand(20_000, 4))
    np.testing.assert_allclose(shares(drawn), [0.1, 0.2, 0.0, 0.7], atol=0.015)


def test_epsilon_is_the_share_of_actions_that_are_drawn_uniformly():
    torch.manual_seed(0)
    q = torch.tensor([0.0, 0.1, 3.0, -5.0]).expand(20_000, 4)
    np.testing.assert_allclose(shares(epsilon_greedy(q, 0.4)), [0.1, 0.1, 0.7, 0.1], atol=0.015)
    assert shares(epsilon_greedy(q, 0.0)) == [0, 0, 1, 0]


@pytest.mark.parametrize("algo", ["stream_ac", "stream_q", "stream_sarsa"])
def test_an_agent_that_does_not_explore_takes_the_best_action_at_each_moment_of_its_episode(algo):
    torch.manual_seed(0)
    module = {"stream_ac": stream_ac, "stream_q": stream_q, "stream_sarsa": stream_sarsa}[algo]
    agent = getattr(module, CLASSES[algo])(DISCRETE, module.Config(hidden=[16], sparsity=0.0))
    agent.normalizer.time_limit.fill_(4)
    network = agent.actor if algo == "stream_ac" else agent.network
    obs = torch.randn(200, 3)
    agent.begin(200)
    seen = []
    for elapsed in (0, 1, 2):
        best = network(torch.cat([obs, torch.full((200, 1), elapsed / 4 - 0.5)], 1)).argmax(-1)
        assert torch.equal(agent.act(obs), best)
        agent.observe(obs, best, torch.zeros(200))
        seen.append(best)
    assert not torch.equal(seen[0], seen[2])  # otherwise the time would give no information
    agent.begin(200)
    assert torch.equal(agent.act(obs), seen[0])


@pytest.mark.parametrize("algo", ["stream_ac", "stream_q", "stream_sarsa", "stream_td"])
def test_training_knows_its_steps_and_the_episodes_and_begins_each_without_credit(algo, odd, tmp_path, monkeypatch):
    module = {"stream_ac": stream_ac, "stream_q": stream_q, "stream_sarsa": stream_sarsa, "stream_td": stream_td}[algo]
    agents, agent_class = [], getattr(module, CLASSES[algo])
    monkeypatch.setattr(module, CLASSES[algo], lambda *given: agents.append(agent_class(*given)) or agents[-1])
    env = odd(actions=1 if algo == "stream_td" else 2, limit=25)
    settings = {"eval_every": 30, "eval_episodes": 1, "logger": "none", "run_dir": str(tmp_path / "run")}
    zoo.train(algo, env=env, steps=30, algo_config={"hidden": [32, 32]}, **settings)  # an episode has just ended
    (agent,) = agents
    state = agent.state_dict()
    assert (int(agent.normalizer.elapsed), float(agent.normalizer.rewards), float(agent.normalizer.time_limit)) == (
        0,
        0,
        25,
    )
    assert int(agent.normalizer.return_moments.count) == 30
    assert int(agent.normalizer.obs_moments.count) == 30 + 4  # and the first of each episode
    assert not any(state[name].any() for name in state if name.endswith("optimizer.trace"))
    assert getattr(agent, "exploration_steps", 1.5) == 1.5


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("algo", ["stream_ac", "stream_q", "stream_sarsa"])
def test_an_expected_return_is_in_the_rewards_units(algo, scaled):
    torch.manual_seed(0)
    module = {"stream_ac": stream_ac, "stream_q": stream_q, "stream_sarsa": stream_sarsa}[algo]
    agent = getattr(module, CLASSES[algo])(DISCRETE, module.Config(**COMMON, scale_reward=scaled))
    history, first = History(), torch.randn(3)
    agent.start(first)
    history.begin(first)
    for sample, first_obs in stream():
        agent.update(sample)
        history.scale(sample.reward)
        history.see(sample.next_obs)
        if first_obs is not None:
            agent.start(first_obs)
            history.begin(first_obs)
    seen, obs, action = np.stack(history.obs), torch.randn(5, 3), torch.randint(4, (5,))
    normalized = ((obs - torch.as_tensor(seen.mean(0))) / torch.as_tensor(seen.std(0, ddof=1))).float()
    values = agent.critic(normalized)[:, 0] if algo == "stream_ac" else agent.network(normalized)[range(5), action]
    unit = np.std(history.sums, ddof=1) if scaled else 1.0
    torch.testing.assert_close(
        agent.expected_return(obs, action), values.detach() * unit, rtol=1e-4, atol=1e-4, check_dtype=False
    )


@pytest.mark.parametrize("algo", ["stream_q", "stream_sarsa"])
def test_stream_q_and_sarsa_equal_a_plain_transcription(algo):
    torch.manual_seed(0)
    module = {"stream_q": stream_q, "stream_sarsa": stream_sarsa}[algo]
    agent_class = {"stream_q": stream_q.StreamQ, "stream_sarsa": stream_sarsa.StreamSARSA}[algo]
    agent = agent_class(DISCRETE, module.Config(**COMMON, epsilon=0.5), total_steps=1)
    network, history, nongreedy = Plain(agent.network, 2.0), History(), 0
    first = torch.randn(3)
    agent.start(first)
    x = history.begin(first)
    for sample, first_obs in stream():
        action = int(agent.action)
        q, reward, next_x = network(x), history.scale(sample.reward), history.see(sample.next_obs)
        next_q = network(next_x).detach()
        metrics = agent.update(sample)
        value = float(next_q.max()) if algo == "stream_q" else float(next_q[int(agent.action)])
        delta = reward + DISCOUNT * (0.0 if sample.terminated else value) - float(q[action].detach())
        greedy = action == int(q.argmax())
        network.step(q[action], delta)
        if algo == "stream_q" and not greedy:
            network.cut()
            nongreedy += 1
        assert float(metrics["td_error"]) == pytest.approx(delta, abs=1e-4)
        assert network.agrees_with(agent.network)
        x = next_x
        if first_obs is not None:
            agent.start(first_obs)
            x = history.begin(first_obs)
            network.cut()
    assert nongreedy > 5 or algo == "stream_sarsa"


def test_stream_td_equals_a_plain_transcription_and_predicts_in_the_rewards_units():
    torch.manual_seed(0)
    agent = stream_td.StreamTD(Spec((3,), num_actions=1), stream_td.Config(**COMMON))
    network, history = Plain(agent.network, 2.0), History()
    first = torch.randn(3)
    agent.start(first)
    x = history.begin(first)
    for sample, first_obs in stream():
        reward, next_x = history.scale(sample.reward), history.see(sample.next_obs)
        value, next_value = float(network(x).detach()), float(network(next_x).detach())
        network.step(network(x)[0], reward + DISCOUNT * (0.0 if sample.terminated else next_value) - value)
        agent.update(sample)
        assert network.agrees_with(agent.network)
        x = next_x
        if first_obs is not None:
            agent.start(first_obs)
            x = history.begin(first_obs)
            network.cut()
    seen = np.stack(history.obs)
    obs = torch.randn(5, 3)
    normalized = (obs - torch.as_tensor(seen.mean(0))) / torch.as_tensor(seen.std(0, ddof=1))
    expected = torch.stack([network(one.float())[0] for one in normalized]) * np.std(history.sums, ddof=1)
    torch.testing.assert_close(agent.predict(obs), expected.detach().float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("algo", ["stream_q", "stream_sarsa"])
def test_the_share_of_random_actions_falls_from_one_to_epsilon(algo):
    module = {"stream_q": stream_q, "stream_sarsa": stream_sarsa}[algo]
    agent_class = {"stream_q": stream_q.StreamQ, "stream_sarsa": stream_sarsa.StreamSARSA}[algo]
    agent = agent_class(DISCRETE, module.Config(epsilon=0.2, exploration_fraction=0.5, hidden=[16]), total_steps=40)
    agent.start(torch.randn(3))
    shares = []
    for sample, _ in stream(40):
        shares.append(float(agent.epsilon(0.2, agent.exploration_steps)))
        agent.update(sample)
    np.testing.assert_allclose(shares, [max(0.2, 1 - 0.8 * t / 20) for t in range(1, 41)], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "spec"),
    [
        ("stream_ac", CONTINUOUS),
        ("stream_ac", DISCRETE),
        ("stream_q", DISCRETE),
        ("stream_sarsa", DISCRETE),
        ("stream_td", Spec((3,), num_actions=1)),
    ],
)
@torch._inductor.config.patch(fallback_random=True)
def test_a_compiled_update_leaves_everything_as_the_eager_one_does(algo, spec):
    """Compares weights, traces, statistics, the time and the action, with the same random numbers."""
    module = {"stream_ac": stream_ac, "stream_q": stream_q, "stream_sarsa": stream_sarsa, "stream_td": stream_td}[algo]
    states = []
    for compiled in (False, True):
        torch.manual_seed(0)
        steps = () if algo in ("stream_ac", "stream_td") else (60,)
        fast = {"exploration_fraction": 0.5} if steps else {}
        agent = getattr(module, CLASSES[algo])(spec, module.Config(**COMMON | {"time_feature": True}, **fast), *steps)
        update = compile_update(agent.update) if compiled else agent.update
        torch.manual_seed(1)
        agent.start(torch.ones(3))
        for sample, first_obs in stream(60):
            update(sample)
            if first_obs is not None:
                agent.start(first_obs)
        states.append(agent.state_dict())
    for name, value in states[0].items():
        torch.testing.assert_close(
            states[1][name], value, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("optimizer", ["adaptive_obgd", "sgd", "adam"])
def test_every_optimizer_learns_to_predict_a_constant(optimizer):
    torch.manual_seed(0)
    settings = {"optimizer": optimizer, "lr": 1.0 if optimizer == "adaptive_obgd" else 1e-3, "scale_reward": False}
    agent = stream_td.StreamTD(Spec((3,), num_actions=1), stream_td.Config(hidden=[16], discount=0.5, **settings))
    agent.start(torch.randn(3))
    for _ in range(3000):
        agent.update(Sample(torch.tensor(1.0), torch.randn(3), torch.tensor(False)))
    np.testing.assert_allclose(agent.predict(torch.randn(20, 3)), 2.0, atol=0.3)


# --- Nothing stored ---------------------------------------------------------------------------------------------------

GROWTH = """
import torch
from zoo.algos import stream_ac
from zoo.spec import Spec
from zoo.streaming import Sample

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

agent = stream_ac.StreamAC(Spec((5000,), (-1.0,), (1.0,)), stream_ac.Config(hidden=[4]))
agent.start(torch.randn(5000))
for step in range(3000):
    if step == 1000:
        before = resident()
    agent.update(Sample(torch.randn(()), torch.randn(5000), torch.tensor(False)))
print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_number_of_steps():
    grown = int(subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True).stdout)
    assert grown < 4_000_000  # 2,000 observations of 20,000 bytes would be 40 million


def leaves(agent: StreamAgent) -> int:
    return sum(tensor.numel() for tensor in agent.state_dict().values())


def test_an_agent_holds_weights_traces_and_statistics_and_no_more():
    agent = stream_q.StreamQ(DISCRETE, stream_q.Config(hidden=[16]))
    weights = len(agent.network.weights)
    assert leaves(agent) <= 2 * weights + 2 * 3 + 4 + 8  # traces; moments; current input; counts
    before = leaves(agent)
    agent.start(torch.randn(3))
    for sample, _ in stream(50):
        agent.update(sample)
    assert leaves(agent) == before


# --- Runs -------------------------------------------------------------------------------------------------------------


def run(*arguments: str, capsys) -> str:
    """The output of a run that is refused or fails."""
    assert main(["run", *arguments, "logger=none"]) != 0
    captured = capsys.readouterr()
    return captured.err + captured.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("num_envs=2",), "num_envs=2: streaming algorithms learn from one environment. Try: num_envs=1"),
        (("algo.trace_lambda=1.5",), "algo.trace_lambda=1.5 must lie between 0 and 1"),
        (("algo.epsilon=5",), "algo.epsilon=5.0 must lie between 0 and 1"),
        (("algo.exploration_fraction=-1",), "algo.exploration_fraction=-1.0 must lie between 0 and 1"),
        (("algo.kappa=0.5",), "algo.kappa=0.5 must be at least 1; below 1 a step could overshoot"),
        (("algo.optimizer=obdg",), "algo.optimizer=obdg does not exist; there are obgd, adaptive_obgd, sgd, adam"),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_line(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in run("algo=stream_q", "env=cartpole", *arguments, capsys=capsys)


def test_prediction_where_there_is_something_to_decide_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "cartpole has 2 actions. Try: env=series/hopper" in run("algo=stream_td", "env=cartpole", capsys=capsys)


class Odd(gymnasium.Env):
    """An environment whose episodes end after ten steps, and whose observations are NaN after some steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, good: float = math.inf, actions: int = 2) -> None:
        self.action_space = gymnasium.spaces.Discrete(actions)
        self.good, self.count = good, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        obs = self.observation_space.sample() if self.count < self.good else np.full(2, np.nan, np.float32)
        return obs, 1.0, self.count % 10 == 0, False, {}


@pytest.fixture
def odd():
    """`odd(**kwargs)`: the id of an environment with or without a time limit."""
    ids = []

    def register(limit: int | None = None, **kwargs) -> str:
        ids.append(f"Odd{len(ids)}-v0")
        gymnasium.register(ids[-1], Odd, kwargs=kwargs, max_episode_steps=limit)
        return ids[-1]

    yield register
    for env_id in ids:
        del gymnasium.registry[env_id]


def test_without_a_step_limit_the_time_is_left_out_and_said(odd, tmp_path):
    settings = {"eval_episodes": 1, "logger": "none", "run_dir": str(tmp_path / "run")}
    zoo.train("stream_q", env=odd(), steps=20, **settings)
    notes = json.loads((tmp_path / "run" / "run.json").read_text())["notes"]
    assert any("has no step limit: algo.time_feature is left out" in note for note in notes)
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["tracked"]["agent"]
    assert len(state["x"]) == 2


def test_a_step_limit_that_is_asked_for_is_kept(odd, tmp_path):
    settings = {"env.max_episode_steps": 25, "eval_episodes": 1, "logger": "none", "run_dir": str(tmp_path / "run")}
    zoo.train("stream_q", env=odd(), steps=20, **settings)
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["tracked"]["agent"]
    assert len(state["x"]) == 3
    assert state["normalizer.time_limit"] == 25


def test_an_observation_that_is_not_finite_ends_the_run_before_it_is_learned_from(odd, tmp_path, capsys):
    env, run_dir = odd(good=57), tmp_path / "run"
    says = run(
        "algo=stream_q", f"env={env}", "steps=100", "checkpoint_every=20", f"run_dir={run_dir}", "eval_every=100",
        capsys=capsys,
    )  # fmt: skip
    assert "NaN or infinite" in says
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)
    assert state["step"] == 40
    assert all(tensor.isfinite().all() for tensor in state["tracked"]["agent"].values())


def test_an_evaluation_that_is_not_finite_is_no_result(odd, tmp_path, capsys):
    says = run(
        "algo=stream_q", f"env={odd(good=8)}", "steps=7", "eval_every=5", "eval_episodes=1", "algo.hidden=[32,32]",
        f"run_dir={tmp_path / 'run'}", capsys=capsys,
    )  # fmt: skip
    assert "in an evaluation the environment gave an observation or a reward that is NaN or infinite" in says
    assert not (tmp_path / "run" / "evaluations.csv").exists()


def test_frames_go_without_the_time_and_nothing_is_said_of_a_limit(tmp_path):
    pytest.importorskip("minatar")
    settings = {"eval_every": 10, "eval_episodes": 1, "logger": "none", "run_dir": str(tmp_path / "run")}
    run = zoo.train("stream_q", env="minatar/breakout", steps=10, algo_config={"hidden": [16]}, **settings)
    assert run.record["config"]["algo"]["time_feature"] is False
    assert not run.record.get("notes")


def test_resumed_where_no_simulator_can_be_put_back_the_statistics_stay_and_the_credit_is_cut(tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    monkeypatch.setattr("zoo.envs.snapshot.save", lambda envs: None)

    def state() -> dict[str, Tensor]:
        return torch.load(run_dir / "checkpoint.pt", weights_only=True)["tracked"]["agent"]

    step = EnvStepper.step

    def fail_once(stepper: EnvStepper, action: Tensor) -> Transition:
        if (run_dir / "checkpoint.pt").exists():
            raise RunError("the power is gone")
        return step(stepper, action)

    monkeypatch.setattr(EnvStepper, "step", fail_once)
    more = ("eval_episodes=1", "logger=none", "checkpoint_every=330", f"run_dir={run_dir}", "env.backend=gymnasium")
    assert main(["run", "algo=stream_ac", "env=pendulum", "steps=350", *more]) == 1
    monkeypatch.setattr(EnvStepper, "step", step)
    assert state()["normalizer.return_moments.count"] == 330
    assert state()["normalizer.elapsed"] == 130  # the second episode's
    assert state()["critic_optimizer.trace"].any()
    assert main(["run", f"resume={run_dir}"]) == 0
    (note,) = json.loads((run_dir / "run.json").read_text())["notes"]
    assert "the simulator cannot be put back into the middle of its episodes: new ones begin" in note
    assert state()["normalizer.return_moments.count"] == 350
    assert state()["normalizer.elapsed"] == 20


@pytest.mark.parametrize(
    ("algo", "env"), [("stream_ac", "pendulum"), ("stream_q", "cartpole"), ("stream_td", "series/hopper")]
)
def test_a_loaded_agent_predicts_and_acts_as_the_one_that_was_evaluated(algo, env, tmp_path, capsys):
    run_dir = tmp_path / "run"
    run = zoo.train(
        algo, env=env, steps=300, eval_every=300, eval_episodes=2, logger="none", run_dir=str(run_dir), **GYMNASIUM
    )
    assert main(["eval", str(run_dir), "--episodes", "2"]) == 0
    returns = [float(line.split()[3]) for line in capsys.readouterr().out.splitlines() if line.startswith("episode")]
    np.testing.assert_allclose(returns, run.evaluations[-1][1].returns, atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["stream_ac", "stream_q", "stream_sarsa"])
def test_balances_the_pole(algo, tmp_path):
    settings = {"eval_every": 2_500, "eval_episodes": 5, "logger": "none", "run_dir": str(tmp_path / "run")}
    # of seeds 0 to 5, with stream_q, 0 takes longer than that
    zoo.train(algo, env="cartpole", steps=20_000, seed=1, algo_config={"hidden": [32, 32]}, **settings, **GYMNASIUM)
    with (tmp_path / "run" / "evaluations.csv").open() as file:
        returns = [float(row["return_mean"]) for row in csv.DictReader(file)]
    assert max(returns) >= 475  # the task's own threshold
    assert np.mean(returns[-3:]) > 200


@pytest.mark.parametrize("algo", ["stream_ac", "stream_q", "stream_sarsa"])
def test_the_next_action_is_chosen_at_the_observation_that_followed(algo):
    """Without exploration: by the weights after the update, but SARSA's by those before, as its target holds it."""
    torch.manual_seed(0)
    module = {"stream_ac": stream_ac, "stream_q": stream_q, "stream_sarsa": stream_sarsa}[algo]
    greedy = {"epsilon": 0.0} if algo != "stream_ac" else {}
    agent = getattr(module, CLASSES[algo])(DISCRETE, module.Config(**COMMON, **greedy), *([1] if greedy else []))
    network, history, taken = agent.actor if algo == "stream_ac" else agent.network, History(), set()
    if algo == "stream_ac":
        agent.policy.sample = agent.policy.mode
    agent.start(torch.ones(3))
    history.begin(torch.ones(3))
    for sample, first in stream():
        x = history.see(sample.next_obs)
        before = int(network(x).argmax())
        agent.update(sample)
        assert int(agent.action) == (before if algo == "stream_sarsa" else int(network(x).argmax()))
        taken.add(int(agent.action))
        if first is not None:
            agent.start(first)
            assert int(agent.action) == int(network(history.begin(first)).argmax())
    assert len(taken) > 1


@pytest.mark.parametrize("algo", ["stream_q", "stream_sarsa"])
def test_exploring_takes_the_final_share_of_random_actions(algo):
    module = {"stream_q": stream_q, "stream_sarsa": stream_sarsa}[algo]
    agent = getattr(module, CLASSES[algo])(DISCRETE, module.Config(**COMMON, epsilon=0.4))
    obs = torch.randn(20_000, 3)
    agent.begin(len(obs))
    assert float((agent.act(obs, explore=True) != agent.act(obs)).double().mean()) == pytest.approx(0.3, abs=0.02)
