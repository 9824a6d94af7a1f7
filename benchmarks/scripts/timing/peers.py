"""Updates of other code in PyTorch: CORL, d3rlpy, TorchRL, and the authors' code of DSAC-T, MBRCSL and stream-x."""

import itertools
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.benchmarks.scripts.timing.offline import (
    ACTION_DIM,
    BATCH_SIZE,
    CPU,
    OBS_DIM,
    SPEC,
    Run,
    random_arrays,
    repeat,
)
from zoo.data.dataset import Dataset


def corl(algo: str, folder: str) -> Run:
    """Updates with CORL's own class and buffer."""
    from zoo.benchmarks.scripts import corl as script

    torch.manual_seed(0)
    arrays, peer = random_arrays(), script.PEERS[algo]
    module = script.load_corl(Path(folder) / peer.file)
    buffer = module.ReplayBuffer(OBS_DIM, ACTION_DIM, len(arrays.reward), device="cpu")
    buffer.load_d4rl_dataset(dict(zip(script.FIELDS, [*arrays[:4], arrays.terminated], strict=True)))
    update = getattr(peer.build(module, SPEC, 1_000_000), peer.update)
    return repeat(lambda: update(buffer.sample(BATCH_SIZE)))


def d3rlpy(algo: str) -> Run:
    """d3rlpy's sampling and update. CQL has CORL's architecture: three hidden layers, and no learned weight."""
    import d3rlpy
    from d3rlpy.models import VectorEncoderFactory

    settings: dict[str, Any] = {}
    if algo == "CQL":
        shape = VectorEncoderFactory([256, 256, 256])
        settings = {"actor_encoder_factory": shape, "critic_encoder_factory": shape, "alpha_learning_rate": 0.0}
    arrays = random_arrays()
    ends = (one.astype(np.float32) for one in (arrays.terminated, arrays.truncated))
    dataset = d3rlpy.dataset.MDPDataset(arrays.obs, arrays.action, arrays.reward, *ends)
    learner = getattr(d3rlpy.algos, f"{algo}Config")(batch_size=BATCH_SIZE, **settings).create(device="cpu:0")
    learner.build_with_dataset(dataset)
    return repeat(lambda: learner.update(dataset.sample_transition_batch(BATCH_SIZE)))


def torchrl(algo: str) -> Run:
    """TorchRL's loss module, replay buffer and target update, as in its examples: all losses, then one step."""
    from tensordict import TensorDict
    from tensordict.nn import NormalParamExtractor, ProbabilisticTensorDictSequential, TensorDictModule
    from torchrl.data import Bounded, LazyTensorStorage, ReplayBuffer
    from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import IQLLoss, SACLoss, SoftUpdate

    torch.manual_seed(0)
    network = partial(MLP, num_cells=[256, 256], activation_class=torch.nn.ReLU)
    outputs = torch.nn.Sequential(network(in_features=OBS_DIM, out_features=2 * ACTION_DIM), NormalParamExtractor())
    actor: ProbabilisticTensorDictSequential = ProbabilisticActor(
        TensorDictModule(outputs, ["observation"], ["loc", "scale"]),
        spec=Bounded(-1, 1, (ACTION_DIM,)),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal if algo == "sac" else IndependentNormal,
        return_log_prob=algo == "sac",
    )
    critic = ValueOperator(network(in_features=OBS_DIM + ACTION_DIM, out_features=1), ["observation", "action"])
    if algo == "sac":
        loss: Any = SACLoss(actor, critic, loss_function="l2", action_spec=Bounded(-1, 1, (ACTION_DIM,)))
    else:
        value = ValueOperator(network(in_features=OBS_DIM, out_features=1), ["observation"])
        loss = IQLLoss(actor, critic, value, loss_function="l2", temperature=3.0, expectile=0.7)
    loss.make_value_estimator(gamma=0.99)
    move = SoftUpdate(loss, tau=0.005)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4)
    arrays = random_arrays()
    size = len(arrays.reward)
    obs, action, reward, next_obs = map(torch.from_numpy, arrays[:4])
    done = torch.zeros(size, 1, dtype=torch.bool)
    following = {"observation": next_obs, "reward": reward[:, None], "done": done, "terminated": done}
    buffer: Any = ReplayBuffer(storage=LazyTensorStorage(size), batch_size=BATCH_SIZE)
    buffer.extend(TensorDict({"observation": obs, "action": action, "next": following}, [size]))

    def step() -> None:
        losses = loss(buffer.sample())
        sum(losses[name] for name in losses.keys() if name.startswith("loss_")).backward()  # noqa: SIM118
        optimizer.step()
        optimizer.zero_grad()
        move.step()

    return repeat(step)


def streaming(env: str, folder: str) -> Run:
    """The agent, wrappers and loop of Stream AC's authors."""
    from zoo.benchmarks.scripts.streaming import Theirs

    return repeat(Theirs("stream_ac", Path(folder), env, seed=0, steps=0, timed=True).step)


def dsac_t(folder: str) -> Run:
    """The agent of DSAC-T's authors, on batches from our sampler."""
    from zoo.algos.dsac_t import Config
    from zoo.benchmarks.scripts.online_update import authors_of_dsac_t

    torch.manual_seed(0)
    theirs, _ = authors_of_dsac_t(Path(folder), Config())
    data = Dataset(random_arrays(), SPEC, CPU)
    iterations = itertools.count()

    def step() -> None:
        obs, action, reward, next_obs, terminated, _ = data.sample(BATCH_SIZE)
        batch = {"obs": obs, "act": action, "rew": reward, "obs2": next_obs, "done": terminated.float()}
        theirs.local_update(batch, next(iterations))

    return repeat(step)


def mbrcsl(folder: str) -> Run:
    """The dynamics ensemble of MBRCSL's authors, with the same weights and batches as ours.

    Raises:
        AssertionError: the losses of the first ten updates differ by more than rounding.
    """
    from zoo.models.dynamics import WEIGHT_DECAY, EnsembleDynamics

    sys.path.insert(0, folder)
    from offlinerlkit.dynamics.ensemble_dynamics import EnsembleDynamics as TheirTraining
    from offlinerlkit.modules.dynamics_module import EnsembleDynamicsModel

    torch.manual_seed(0)
    theirs = EnsembleDynamicsModel(OBS_DIM, ACTION_DIM, [200] * 4, weight_decays=list(WEIGHT_DECAY))
    training = TheirTraining(theirs, torch.optim.Adam(theirs.parameters(), lr=1e-3), None, None)
    ours = EnsembleDynamics(OBS_DIM, ACTION_DIM, [200] * 4)
    ours.prepare(Dataset(random_arrays(), SPEC, CPU), seed=0)
    x, target = ours.x.numpy()[ours.bootstrap], ours.target.numpy()[ours.bootstrap]
    with torch.no_grad():
        for layer, their_layer in zip(ours.layers, [*theirs.backbones, theirs.output_layer], strict=True):
            layer.weight.copy_(their_layer.weight)
            layer.bias.copy_(their_layer.bias)
    for start in range(0, 10 * BATCH_SIZE, BATCH_SIZE):
        piece = slice(start, start + BATCH_SIZE)
        their_loss = training.learn(x[:, piece], target[:, piece], BATCH_SIZE)
        loss = ours.update(ours.x[ours.bootstrap[:, piece]], ours.target[ours.bootstrap[:, piece]])["loss"]
        assert abs(float(loss) / their_loss - 1) < 1e-5, "the losses of both differ"
    return lambda count: training.learn(x[:, : count * BATCH_SIZE], target[:, : count * BATCH_SIZE], BATCH_SIZE)
