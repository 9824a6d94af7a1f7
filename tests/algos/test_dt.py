"""Decision Transformer: that it sees only the past, its attention and loss, its windows, and how it acts with them."""

import h5py
import numpy as np
import pytest
import torch

import zoo
from zoo.agent import Policy
from zoo.algos.dt import DT, Block, Config, Windows

SMALL = {"context": 5, "layers": 2, "heads": 2, "width": 16, "dropout": 0.0}


def windows(spec, size: int = 3, steps: int = 5, seed: int = 0) -> Windows:
    generator = torch.Generator().manual_seed(seed)
    obs, action, left = (torch.randn(size, steps, *shape, generator=generator) for shape in (spec.obs_shape, (2,), ()))
    return Windows(obs, action, left, torch.arange(steps).repeat(size, 1), torch.ones(size, steps, dtype=torch.bool))


@pytest.fixture
def agent(spec) -> DT:
    torch.manual_seed(0)
    return DT(spec, Config(**SMALL))


@pytest.mark.parametrize(("field", "first_changed"), [("obs", 2), ("return_to_go", 2), ("timestep", 2), ("action", 3)])
def test_an_action_follows_from_what_is_before_it_and_nothing_else(agent, spec, field, first_changed):
    one = windows(spec)
    other = one._replace(**{field: getattr(one, field).clone()})
    getattr(other, field)[:, 2] += 3
    with torch.no_grad():
        before, after = (agent.policy(*each[:4], dropout=0.0) for each in (one, other))
    changed = [not torch.equal(a, b) for a, b in zip(before.unbind(1), after.unbind(1), strict=True)]
    assert changed == [step >= first_changed for step in range(5)]


def test_a_block_is_causal_attention_and_two_layers_in_plain_numpy():
    torch.manual_seed(0)
    block = Block(8, 2).double()
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    found = block(x, 0.0).detach().numpy()[0]
    p = {name: parameter.detach().numpy() for name, parameter in block.named_parameters()}

    def norm(y, name):
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
        return y * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(y, name):
        return y @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    y = x.numpy()[0]
    qkv = linear(norm(y, "norm_1"), "to_qkv")
    seen = np.zeros((6, 8))
    for head in range(2):
        q, k, v = (qkv[:, part * 8 + head * 4 : part * 8 + head * 4 + 4] for part in range(3))
        for t in range(6):
            scores = np.exp([q[t] @ k[u] / 2 for u in range(t + 1)])
            seen[t, head * 4 : head * 4 + 4] = (scores / scores.sum()) @ v[: t + 1]
    y = y + linear(seen, "from_heads")
    y = y + linear(np.maximum(linear(norm(y, "norm_2"), "widen"), 0), "narrow")
    np.testing.assert_allclose(found, y, rtol=1e-10, atol=1e-12)


def test_returns_are_in_the_goals_units(agent, spec):
    obs, action, left, timestep, _ = windows(spec)
    once = agent.policy(obs, action, left / 5, timestep, dropout=0.0)
    agent.goal.scale.fill_(5.0)
    torch.testing.assert_close(agent.policy(obs, action, left, timestep, dropout=0.0), once)


def test_windows_are_stretches_of_an_episode_with_its_steps_and_what_was_still_to_come(tmp_path, monkeypatch):
    lengths, rng = [3, 7, 1, 12], np.random.default_rng(0)
    size = sum(lengths)
    ends = np.cumsum(lengths) - 1
    obs, reward = rng.normal(size=(size, 3)).astype(np.float32), rng.normal(size=size).astype(np.float32)
    next_obs = np.concatenate([obs[1:], obs[:1]])
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        file["observations"], file["actions"], file["rewards"] = obs, rng.uniform(-1, 1, (size, 1)), reward
        file["next_observations"], file["terminals"] = next_obs, np.zeros(size, bool)
        file["timeouts"] = np.isin(np.arange(size), ends)
    taken: list[Windows] = []
    monkeypatch.setattr(DT, "update", lambda self, batch: taken.append(batch) or {"actor_loss": torch.zeros(())})
    settings = {"eval_episodes": 1, "logger": "none", "run_dir": str(tmp_path / "run"), "eval_every": 3}
    config = {"context": 5, "layers": 1, "heads": 1, "width": 8, "batch_size": 40}
    zoo.train(
        "dt", env="pendulum", dataset=str(tmp_path / "data.hdf5"), steps=3, algo_config=config, seed=0, **settings
    )
    normalized = (obs - obs.mean(0)) / (obs.std(0) + 1e-3)  # as in the zoo
    firsts = set()
    for batch in taken:
        for b in range(40):
            (first,) = np.flatnonzero(np.isclose(normalized, batch.obs[b, 0].numpy(), atol=1e-3).all(1))
            firsts.add(int(first))
            end = int(ends[ends >= first][0])
            start = end + 1 - lengths[int(np.searchsorted(ends, first))]
            assert batch.inside[b].tolist() == [first + k <= end for k in range(5)]
            for k in range(min(5, end + 1 - first)):
                np.testing.assert_allclose(batch.obs[b, k], normalized[first + k], atol=1e-3)
                assert int(batch.timestep[b, k]) == first + k - start
                assert float(batch.return_to_go[b, k]) == pytest.approx(reward[first + k : end + 1].sum(), abs=1e-5)
    assert firsts == set(range(size))


def test_loss_is_the_mean_over_the_steps_there_are(agent, spec):
    batch = windows(spec)
    inside = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] + [False] * 4])
    action = agent.policy(*batch[:4], dropout=0.0)
    half = (torch.tensor(spec.action_high) - torch.tensor(spec.action_low)) / 2
    error = ((action - batch.action) / half).square().mean(-1)
    expected = torch.stack([error[b, t] for b in range(3) for t in range(5) if inside[b, t]]).mean()
    torch.testing.assert_close(agent.actor_loss(batch._replace(inside=inside)), expected)


@pytest.mark.parametrize("context", [1, 2, 5])
def test_acts_step_by_step_as_it_would_on_whole_windows(spec, context):
    agent = DT(spec, Config(**SMALL | {"context": context}))
    agent.goal.set_target(3.0, torch.tensor([0.0, 4.0]))
    agent.normalizer.fit(torch.randn(100, 3) * 2 + 1)
    obs, reward = torch.randn(9, 2, 3), torch.randn(9, 2)
    agent.begin(2)
    actions, left = [], [torch.full((2,), 3.0)]
    for t in range(9):
        actions.append(agent.act(obs[t]))
        first = max(0, t + 1 - context)
        history = torch.stack([*actions[first:t], torch.zeros(2, 2)], 1)
        window = (agent.normalizer(obs[first : t + 1]).transpose(0, 1), history, torch.stack(left[first:], 1))
        timestep = torch.arange(first, t + 1).repeat(2, 1)
        with torch.no_grad():
            torch.testing.assert_close(actions[t], agent.policy(*window, timestep, dropout=0.0)[:, -1])
        agent.observe(obs[t], actions[t], reward[t])
        left.append(left[-1] - reward[t])


@pytest.mark.parametrize("context", [1, 3])
def test_other_numbers_of_observations_begin_new_episodes(spec, context):
    agent = DT(spec, Config(**SMALL | {"context": context}))
    agent.goal.set_target(3.0, torch.tensor([0.0, 4.0]))
    one, two = torch.randn(1, 3), torch.randn(2, 3)
    for _ in range(4):
        agent.observe(one, agent.act(one), torch.ones(1))
    found = agent.act(two)
    agent.begin(2)
    torch.testing.assert_close(found, agent.act(two))


def test_an_action_that_was_observed_is_kept_when_its_array_changes(spec):
    policies = [Policy(DT(spec, Config(**SMALL | {"context": 3}))) for _ in range(2)]
    policies[1].agent.load_state_dict(policies[0].agent.state_dict())
    obs, buffer = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32), np.zeros(2, np.float32)
    for policy in policies:
        policy.begin(1)
    for seen in obs:
        action = policies[0].act(seen)
        buffer[:] = policies[1].act(seen[::-1].copy()[::-1])  # also a view with a negative stride
        np.testing.assert_allclose(buffer, action, rtol=1e-6)
        policies[0].observe(seen, action, 1.0)
        policies[1].observe(seen, buffer, 1.0)


def test_the_learning_rate_of_the_first_update(spec):
    for warmup, moved in ((0, 1.0), (1, 1.0), (4, 0.25)):  # min((step + 1) / warmup, 1), as in the authors' code
        torch.manual_seed(0)
        agent = DT(spec, Config(**SMALL | {"warmup": warmup, "lr": 1e-3, "weight_decay": 0.0}))
        before = agent.to_action.weight.detach().clone()
        agent.update(windows(spec))
        # Adam's first step is the learning rate, but where a gradient is tiny
        torch.testing.assert_close((agent.to_action.weight - before).abs().median().item(), moved * 1e-3)


def test_what_comes_after_an_episodes_end_is_not_learned_from(agent, spec):
    batch = windows(spec)
    inside = torch.arange(5) < torch.tensor([[5], [3], [1]])
    other = windows(spec, seed=1)
    mixed = Windows(
        *(
            torch.where(inside[(...,) + (None,) * (one.ndim - 2)], one, two)
            for one, two in zip(batch, other, strict=True)
        )
    )
    losses = [agent.actor_loss(each._replace(inside=inside)) for each in (batch, mixed)]
    torch.testing.assert_close(*losses)


def test_learns_an_action_that_only_the_past_tells(spec):
    """The right action is the first number of the previous observation, which a policy without memory cannot know."""
    torch.manual_seed(0)
    agent = DT(spec, Config(**SMALL | {"lr": 3e-3, "warmup": 1}))
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    for step in range(400):
        batch = windows(spec, size=32, seed=step)
        hint = torch.sigmoid(batch.obs[:, :-1, :1])
        action = torch.cat([(low + high).expand(32, 1, 2) / 2, low + (high - low) * (0.1 + 0.8 * hint)], 1)
        loss = agent.update(batch._replace(action=action))["actor_loss"]
    assert loss < 0.02


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"heads": 3}, "multiple of algo.heads=3"),
        ({"context": 0}, "algo.context=0"),
        ({"dropout": 1.0}, "algo.dropout=1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Config(**settings)


def test_dropout_is_for_learning_alone(spec):
    torch.manual_seed(0)
    agent, batch = DT(spec, Config(**SMALL | {"dropout": 0.5})), windows(spec)
    assert agent.actor_loss(batch) != agent.actor_loss(batch)
    assert torch.equal(agent.act(batch.obs[:, 0]), agent.act(batch.obs[:, 0]))
