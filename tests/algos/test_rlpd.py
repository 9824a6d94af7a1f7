"""RLPD against a loop over critics with the same actions and the same subset, and the contents of its batches."""

import copy

import pytest
import torch
from plain import assert_close, soft_update, step

import zoo
from zoo.algos.rlpd import RLPD, Config
from zoo.errors import UsageError
from zoo.nn import EnsembleLinear
from zoo.runs.stepper import EnvStepper
from zoo.settings.compose import compose

E, SUBSET, UTD = 5, 2, 3


def network(parameters, x, norm):
    """Linear layers with optional layer normalization before each ReLU, by the formula."""
    parameters = list(parameters)
    while parameters:
        weight, bias = parameters.pop(0), parameters.pop(0)
        x = x @ weight.T + bias
        if parameters and norm:
            scale, shift = parameters.pop(0), parameters.pop(0)
            centered = x - x.mean(1, keepdim=True)
            x = centered / torch.sqrt((centered**2).mean(1, keepdim=True) + 1e-5) * scale + shift
        x = x.clamp(min=0) if parameters else x
    return x


def members(ensemble):
    """Each member's parameters, a copy; biases and scales are `[members, 1, width]`."""
    found = []
    for m in range(E):
        values = [
            value[m] if name == "weight" and isinstance(layer, EnsembleLinear) else value[m, 0]
            for layer in ensemble
            for name, value in layer.named_parameters()
        ]
        found.append([value.detach().clone().requires_grad_() for value in values])
    return found


class Reference:
    """The authors' update: critics and targets UTD times, each on a minibatch; actor and temperature on the last."""

    def __init__(self, agent, spec, config):
        self.config, self.low, self.high = config, torch.tensor(spec.action_low), torch.tensor(spec.action_high)
        self.policy = [value.detach().clone().requires_grad_() for value in agent.actor.parameters()]
        self.log_alpha = agent.log_alpha.detach().clone().requires_grad_()
        self.critics, self.targets = members(agent.critic), members(agent.target_critic)
        self.actor_adam = torch.optim.Adam(self.policy, 3e-4)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], 3e-4)
        self.critic_adam = torch.optim.Adam([p for critic in self.critics for p in critic], 3e-4)

    def sample(self, obs):
        mean, log_std = network(self.policy, obs, self.config.actor_layer_norm).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        x = normal.mean + normal.stddev * torch.randn(mean.shape, dtype=torch.float64)
        half = (self.high - self.low).double() / 2
        log_det = torch.distributions.TanhTransform().log_abs_det_jacobian(x, torch.tanh(x)) + half.log()
        log_prob = normal.log_prob(x) - log_det
        return (self.low + self.high) / 2 + half * torch.tanh(x), log_prob.sum(-1)

    def q(self, critic, obs, action):
        return network(critic, torch.cat([obs, action], 1), self.config.critic_layer_norm)[:, 0]

    def update(self, batch, last):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = self.sample(batch.next_obs)
            values = [self.q(target, batch.next_obs, next_action) for target in self.targets]
            drawn = torch.rand(E, dtype=torch.float64) if self.config.subset < E else torch.zeros(E)
            chosen = (
                sorted(range(E), key=lambda m: -drawn[m])[: self.config.subset] if self.config.subset < E else range(E)
            )
            assert len(set(chosen)) == self.config.subset
            next_q = values[chosen[0]]
            for m in chosen[1:]:
                next_q = torch.minimum(next_q, values[m])
            if self.config.entropy_backup:
                next_q = next_q - alpha * next_log_prob
            target = batch.reward + 0.99 * (1 - batch.terminated.double()) * next_q
        loss = sum(((self.q(critic, batch.obs, batch.action) - target) ** 2).mean() for critic in self.critics) / E
        step(self.critic_adam, loss)
        for target_critic, critic in zip(self.targets, self.critics, strict=True):
            soft_update(target_critic, critic, 0.005)
        if last:
            action, log_prob = self.sample(batch.obs)
            q = torch.stack([self.q(critic, batch.obs, action) for critic in self.critics])
            value = sum(q) / E if self.config.actor_q == "mean" else q.min(0).values
            step(self.actor_adam, (alpha * log_prob - value).mean())
            entropy = -log_prob.detach().mean() - torch.log((self.high - self.low) / 2).sum()  # of actions in [-1, 1]
            step(self.alpha_adam, self.log_alpha.exp() * (entropy - -len(self.low) * self.config.target_entropy_scale))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"subset": 1, "entropy_backup": False},
        {
            "subset": E,
            "critic_layer_norm": False,
            "actor_layer_norm": True,
            "actor_q": "min",
            "target_entropy_scale": 1,
        },
    ],
    ids=["paper", "antmaze", "wsrl"],
)
def test_three_steps_of_updates_equal_a_loop_with_the_same_actions(spec, make_batch, settings):
    torch.manual_seed(1)
    config = Config(**{"hidden": [16, 16], "num_critics": E, "subset": SUBSET, "utd_ratio": UTD} | settings)
    agent = RLPD(spec, config).double()
    with torch.no_grad():
        for part in (agent.target_critic, agent.critic, agent.actor):
            for parameter in part.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    reference = Reference(agent, spec, config)
    for seed in range(3 * UTD):
        last = seed % UTD == UTD - 1
        torch.manual_seed(seed)
        metrics = agent.update(make_batch(seed), last)
        assert ("actor_loss" in metrics) == last
        torch.manual_seed(seed)
        reference.update(make_batch(seed), last)
    assert_close(agent.actor.parameters(), reference.policy)
    assert_close([agent.log_alpha], [reference.log_alpha])
    for ours, theirs in ((agent.critic, reference.critics), (agent.target_critic, reference.targets)):
        for m, critic in enumerate(theirs):
            assert_close(
                (value[m].reshape(other.shape) for value, other in zip(ours.parameters(), critic, strict=True)), critic
            )


def test_every_critic_is_backed_up_equally_often(spec, make_batch):
    """With a reward of 0 and one critic at a time, y / gamma is the drawn critic's value."""
    torch.manual_seed(0)
    agent = RLPD(spec, Config(hidden=[8], num_critics=E, subset=1, entropy_backup=False)).double()
    with torch.no_grad():
        for m in range(E):  # whatever the input, the value of critic m is m
            agent.target_critic[-1].weight[m], agent.target_critic[-1].bias[m] = 0, m
    batch = make_batch()
    batch = batch._replace(reward=0 * batch.reward, terminated=torch.zeros_like(batch.terminated))
    drawn = torch.stack([agent.target(batch)[0] / 0.99 for _ in range(2_000)]).round().long()
    counts = torch.bincount(drawn, minlength=E)
    assert (counts - 400).abs().max() < 5 * (2_000 * 0.2 * 0.8) ** 0.5


@pytest.mark.parametrize("subset", range(1, E + 1))
def test_a_target_is_the_least_of_as_many_critics_as_asked_for(spec, make_batch, subset):
    torch.manual_seed(0)
    agent = RLPD(spec, Config(hidden=[8], num_critics=E, subset=subset, entropy_backup=False)).double()
    with torch.no_grad():
        for m in range(E):  # whatever the input, the value of critic m is m
            agent.target_critic[-1].weight[m], agent.target_critic[-1].bias[m] = 0, m
    batch = make_batch()
    batch = batch._replace(reward=0 * batch.reward, terminated=torch.zeros_like(batch.terminated))
    seen = {round(agent.target(batch)[0].item() / 0.99) for _ in range(200)}
    assert seen == set(range(E - subset + 1))


def test_the_last_update_of_a_step_alone_moves_the_actor(spec, make_batch):
    agent = RLPD(spec, Config(hidden=[8], num_critics=3)).double()
    before = copy.deepcopy(agent.actor.state_dict())
    agent.update(make_batch(), last=False)
    assert all(torch.equal(value, before[name]) for name, value in agent.actor.state_dict().items())
    agent.update(make_batch())
    assert not any(
        torch.equal(value, before[name]) for name, value in agent.actor.net.state_dict().items() if name in before
    )


@pytest.fixture
def batches(monkeypatch):
    seen, update = [], RLPD.update
    monkeypatch.setattr(
        RLPD, "update", lambda agent, batch, last=True: (seen.append((batch, last)), update(agent, batch, last))[1]
    )
    return seen


def test_half_of_every_batch_is_its_own_and_the_actor_learns_from_the_last_of_a_step(
    pendulum_file, tmp_path, batches, monkeypatch
):
    marked = EnvStepper.step  # marked by a reward that no dataset has
    monkeypatch.setattr(EnvStepper, "step", lambda envs, a: (t := marked(envs, a))._replace(reward=1e6 + 0 * t.reward))
    zoo.train(
        "rlpd", env="pendulum", dataset=pendulum_file, steps=14, num_envs=2, eval_every=14, eval_episodes=1,
        logger="none", run_dir=tmp_path / "run",
        algo_config={"hidden": [16], "num_critics": 3, "batch_size": 32, "learning_starts": 10, "utd_ratio": UTD},
    )  # fmt: skip
    assert [last for _, last in batches] == [False, False, True] * 2 * 2
    assert {int((batch.reward > 1e5).sum()) for batch, _ in batches} == {16}
    assert {len(batch.reward) for batch, _ in batches} == {32}


def test_without_a_share_of_a_dataset_none_is_opened(tmp_path, batches):
    run = zoo.train(
        "rlpd", env="pendulum", steps=12, eval_every=12, eval_episodes=1, logger="none", run_dir=tmp_path / "run",
        algo_config={"hidden": [16], "learning_starts": 10, "utd_ratio": 1, "offline_fraction": 0.0},
    )  # fmt: skip
    assert run.record.get("dataset") is None
    assert len(batches) == 2


def test_a_subset_of_more_critics_than_there_are_is_refused():
    with pytest.raises(UsageError, match=r"algo.subset=3 must lie between 1 and 2; algo.num_critics is all of them"):
        compose(["algo=rlpd", "env=pendulum", "algo.num_critics=2", "algo.subset=3"])
