"""OTA: with options of one step it is HIQL, and longer ones are discounted once."""

import torch
from examples import batch_for, doubles
from plain import shake

from zoo.algos import hiql, ota
from zoo.data.goals import SubgoalBatch
from zoo.spec import Spec

SPEC = Spec((6,), (-1.0, -1.0), (1.0, 1.0), goal_dim=3)


def agents() -> tuple[ota.OTA, hiql.HIQL]:
    """An OTA and a HIQL agent with the same weights. OTA's two values are equal."""
    torch.manual_seed(0)
    theirs = hiql.HIQL(SPEC, hiql.Config(hidden=[16])).double()
    shake(theirs, by=0.1)
    ours = ota.OTA(SPEC, ota.Config(hidden=[16])).double()
    for name in ("phi", "value", "target_value", "low_actor", "high_actor"):
        getattr(ours, name).load_state_dict(getattr(theirs, name).state_dict())
    ours.high_value.load_state_dict(theirs.value.state_dict())
    ours.target_high_value.load_state_dict(theirs.target_value.state_dict())
    return ours, theirs


def test_with_options_of_one_step_it_is_hiql():
    ours, theirs = agents()
    batch = doubles(batch_for(ours, 0))
    batch = batch._replace(option_end=batch.next_obs, option_goal=batch.value_goal, option_reached=batch.reached)
    steps = SubgoalBatch(**{name: getattr(batch, name) for name in SubgoalBatch._fields})
    expected, _ = theirs.value_loss(steps)
    for loss, _ in (ours.value_loss(batch), ours.high_value_loss(batch)):
        torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours.low_actor_loss(batch), theirs.low_actor_loss(steps))
    torch.testing.assert_close(ours.high_actor_loss(batch), theirs.high_actor_loss(steps))


def test_an_option_costs_one_and_is_discounted_once():
    """The upper value's loss, for each transition separately."""
    ours, _ = agents()
    batch, config = doubles(batch_for(ours, 0)), ours.config
    total = 0.0
    for i in range(len(batch.obs)):
        obs, end, goal = (x[i : i + 1] for x in (batch.obs, batch.option_end, batch.option_goal))
        later, now = (ours.values(ours.target_high_value, state, goal)[:, 0].tolist() for state in (end, obs))
        targets = [0.0 if batch.option_reached[i] else -1 + config.discount * value for value in later]
        weight = config.expectile if min(targets) >= sum(now) / 2 else 1 - config.expectile
        values = ours.values(ours.high_value, obs, goal)[:, 0].tolist()
        total += sum(weight * (target - value) ** 2 for target, value in zip(targets, values, strict=True))
    torch.testing.assert_close(ours.high_value_loss(batch)[0].item(), total / len(batch.obs))


def test_each_policy_learns_by_its_own_value():
    ours, _ = agents()
    batch = doubles(batch_for(ours, 0))
    low, high = ours.low_actor_loss(batch).item(), ours.high_actor_loss(batch).item()
    with torch.no_grad():
        ours.high_value[-1].weight.mul_(3)
    assert ours.low_actor_loss(batch).item() == low
    assert ours.high_actor_loss(batch).item() != high
