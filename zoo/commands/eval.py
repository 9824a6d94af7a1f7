"""`zoo eval`: plays episodes with a trained policy; or, without playing, estimates what it returns from a dataset."""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.commands.player import HELP, open_player
from zoo.errors import UsageError

if TYPE_CHECKING:
    from zoo.agent import Agent
    from zoo.settings.config import RunConfig

UPDATES = 20_000  # of fitted Q evaluation


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="zoo eval",
        description="Plays episodes with a trained policy: one in each environment, from fixed seeds, as the run's own "
        "evaluations did. With --fqe it plays none: fitted Q evaluation estimates the discounted return from a "
        "dataset, with an interval of 95 %.",
    )
    parser.add_argument("run_dir", type=Path, help=HELP)
    parser.add_argument("--episodes", type=int, help="how many (default: the run's eval_episodes)")
    parser.add_argument(
        "--seed", type=int, help="seed of the environments (default: the run's, as in its own evaluations)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--deterministic", action="store_true", help="take the best actions, whatever the run did")
    how.add_argument("--explore", action="store_true", help="act by chance, as in training, whatever the run did")
    parser.add_argument("--env", help="the environment, of a ZIP file")
    parser.add_argument("--file", type=Path, help="the algorithm file, if it is not one of the zoo's")
    parser.add_argument("--fqe", action="store_true", help="estimate the discounted return from a dataset, unplayed")
    parser.add_argument("--dataset", help="of --fqe (default: the run's)")
    parser.add_argument("--updates", type=int, default=UPDATES, help=f"of --fqe (default {UPDATES:,})")
    args = parser.parse_args(arguments)
    if not args.fqe and (args.dataset or args.updates != UPDATES):
        raise UsageError("--dataset and --updates are for fitted Q evaluation. Add: --fqe")
    if args.updates < 1:
        raise UsageError(f"--updates {args.updates} must be at least 1.")
    if args.episodes is not None and args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} must be at least 1.")
    from zoo.envs import make
    from zoo.runs.evaluation import evaluate, judged, summary

    config, agent = open_player(args.run_dir, args.env, args.file)
    if args.fqe:
        record = args.run_dir / "run.json"
        if args.dataset is None and not (record.is_file() and json.loads(record.read_text()).get("dataset")):
            raise UsageError(f"{args.run_dir} did not learn from a dataset. Name one: --fqe --dataset NAME")
        seed = config.seed if args.seed is None else args.seed
        return _fitted(config, agent, args.dataset or config.dataset, args.updates, seed)
    try:
        envs = make(config.env, args.episodes or config.eval_episodes, config.threads)
    except ValueError as error:
        raise UsageError(str(error)) from error
    explore = args.explore or not (args.deterministic or config.eval_deterministic)
    episodes = evaluate(agent, envs, config.seed if args.seed is None else args.seed, explore)
    for index, (episode_return, length) in enumerate(zip(episodes.returns, episodes.lengths, strict=True)):
        print(f"episode {index:>3}  return {episode_return:10.2f}  steps {length:>5}")
    row = summary(episodes, config)
    print(f"mean         return {row['return_mean']:10.2f} +- {row['return_std']:.2f}{judged(row)}")
    return 0


def _fitted(config: "RunConfig", agent: "Agent", dataset: str, updates: int, seed: int) -> int:
    """Estimates the discounted return of an agent from a dataset."""
    import torch

    from zoo.data.corruption import CorruptionConfig
    from zoo.data.samplers import SamplerConfig
    from zoo.envs import spec_of
    from zoo.models.fitted_q import FittedQ
    from zoo.runs.dataset import open_dataset

    plain = dataclasses.replace(
        config, dataset=dataset, reward_scale=1.0, reward_shift=0.0, corruption=CorruptionConfig(),
        sampler=SamplerConfig(),
    )  # fmt: skip
    data, _ = open_dataset(plain, spec_of(config.env), torch.device("cpu"), None, None, print)
    discount = getattr(config.algo, "discount", 0.99)
    torch.manual_seed(seed)
    fitted = FittedQ(agent, data, discount)
    for _ in range(updates):
        fitted.update()
    value, low, high = fitted.estimate()
    print(f"fqe          return {value:10.2f} [{low:.2f}, {high:.2f}], discounted by {discount}, from {dataset}")
    return 0
