"""`zoo eval`: plays episodes with a trained policy, or estimates its return from a dataset without playing."""

from pathlib import Path

from zoo.commands.estimate import UPDATES, estimate
from zoo.commands.parser import Parser
from zoo.commands.player import HELP, add_arguments, chosen_seed, explores, open_player, print_episodes
from zoo.errors import UsageError


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo eval",
        description="Plays episodes with a trained policy: one in each environment, from fixed seeds, as the run's own "
        "evaluations did. With --fqe it plays none: fitted Q evaluation estimates the discounted return from a "
        "dataset, with an interval of 95 %, and ranks several policies by it.",
    )
    parser.add_argument("run_dir", type=Path, nargs="+", help=f"{HELP}; several with --fqe")
    parser.add_argument("--episodes", type=int, help="how many (default: the run's eval_episodes)")
    add_arguments(parser)
    parser.add_argument("--fqe", action="store_true", help="estimate the discounted return from a dataset, unplayed")
    parser.add_argument("--dataset", help="of --fqe (default: the run's)")
    parser.add_argument("--updates", type=int, default=UPDATES, help=f"of --fqe (default {UPDATES:,})")
    args = parser.parse_args(arguments)
    for one in args.run_dir:
        key, equals, value = str(one).partition("=")
        if equals and not one.exists():
            raise UsageError(f"{one} is no run's folder. Options of zoo eval are written so: --{key} {value}")
    if not args.fqe and (args.dataset or args.updates != UPDATES):
        raise UsageError("--dataset and --updates are for fitted Q evaluation. Add: --fqe")
    if args.updates < 1:
        raise UsageError(f"--updates {args.updates} must be at least 1.")
    if args.episodes is not None and args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} must be at least 1.")
    for option in ("step", "episodes", "deterministic", "explore"):
        if args.fqe and getattr(args, option):
            raise UsageError(f"--{option} is for playing. Leave it out with --fqe.")
    if args.fqe:
        estimate(args.run_dir, args.env, args.file, args.dataset, args.updates, args.seed)
        return 0
    if len(args.run_dir) > 1:
        raise UsageError("one run is played at a time; several are ranked without playing. Add: --fqe")
    from zoo.envs import make_with_spec
    from zoo.runs.evaluation import evaluate, judged, summary

    config, agent = open_player(args.run_dir[0], args.env, args.file, args.step)
    envs, _ = make_with_spec(config.env, args.episodes or config.eval_episodes, config.threads, trained=agent.spec)
    episodes = evaluate(agent, envs, chosen_seed(args.seed, config), explores(args, config), config.info_keywords)
    print_episodes(episodes)
    row = summary(episodes, config)
    print(f"mean         return {row['return_mean']:10.2f} +- {row['return_std']:.2f}{judged(row)}")
    return 0
