"""`zoo export`: writes the policy of a run to a file for use elsewhere."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.commands.parser import Parser
from zoo.commands.player import STEP_HELP
from zoo.errors import UsageError, optional

if TYPE_CHECKING:
    from zoo.agent import Agent
    from zoo.export.policy import Run
    from zoo.settings.config import RunConfig

SUFFIXES = {"onnx": ".onnx", "torchscript": ".ts", "sb3": ".zip"}
PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime")}  # packages that a format needs; sb3 checks for its own


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo export",
        description="Writes the deterministic policy of a finished run to a file, with the normalization of its "
        "observations and the scaling of its actions, for batches of any size. The file is opened again and held "
        "against PyTorch on 1,000 observations, then both are timed. sb3 is a ZIP file for Stable-Baselines3, of runs "
        "of sac, td3, ppo and dqn, with their critics.",
    )
    parser.add_argument("run_dir", type=Path, help="a run's folder")
    parser.add_argument("--format", choices=SUFFIXES, required=True)
    parser.add_argument("--step", help=STEP_HELP)
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: policy.onnx, .ts or .zip in the folder")
    parser.add_argument("--file", type=Path, help="the algorithm file, if it is not one of the zoo's")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    args = parser.parse_args(arguments)
    for package in PACKAGES.get(args.format, ()):
        optional(package, f"--format {args.format}", "onnx")
    from zoo.export.policy import check, first_inputs, latencies, observations
    from zoo.files import check_file, replacing_path

    output = args.output or args.run_dir / f"policy{SUFFIXES[args.format]}"
    if output.suffix != SUFFIXES[args.format]:
        raise UsageError(f"--output {output} must end in {SUFFIXES[args.format]}.")
    config, name, agent = _open(args.run_dir, args.file, args.step)
    check_file(output, args.force)
    with replacing_path(output) as partial:
        run = _write(args.format, config, name, agent, partial)
        difference = check(agent, run, f"{args.format} of {args.run_dir}")
    print(f"written: {output}, {output.stat().st_size / 1e6:.2f} MB")
    if agent.memory():
        import numpy as np

        first = first_inputs(agent, observations(agent, np.random.default_rng(0), 1))
        names = ["obs", "reward", *agent.memory()]
        print("inputs: " + ", ".join(f"{name} {[*x.shape[1:]]}" for name, x in zip(names, first, strict=True)))
    print(f"checked: 1,000 actions differ from PyTorch's by {difference:.1e} at most")
    ours, theirs = latencies(agent, run)
    print(f"one observation: {ours:.0f} us by zoo.load, {theirs:.0f} us by {args.format}, on one thread")
    return 0


def _open(run_dir: Path, file: Path | None, step: str | None) -> tuple["RunConfig", str, "Agent"]:
    """Settings, algorithm and agent of a finished run. Raises UsageError if it has not finished, or does not act."""
    from zoo.agent import Predictor
    from zoo.runs.load import load_agent, reopen
    from zoo.runs.record import resume_command
    from zoo.settings.registry import algorithms

    _, algorithm, record = reopen(run_dir, file)
    if issubclass(algorithm.agent_class, Predictor):
        able = [name for name, one in algorithms().items() if not issubclass(one.agent_class, Predictor)]
        raise UsageError(f"{algorithm.name} predicts and has no policy. These have one: {', '.join(able)}.")
    if record["status"] != "finished":
        raise UsageError(f"{run_dir} has not finished ({record['status']}). Continue it: {resume_command(run_dir)}")
    config, agent, _ = load_agent(run_dir, file, step)
    return config, algorithm.name, agent.requires_grad_(False)


def _write(kind: str, config: "RunConfig", name: str, agent: "Agent", path: Path) -> "Run":
    from zoo.export import formats, to_sb3

    if kind == "onnx":
        return formats.write_onnx(agent, path)
    if kind == "torchscript":
        return formats.write_torchscript(agent, path)
    to_sb3.check(name, agent)
    from zoo.envs import make_with_spec

    envs, _ = make_with_spec(dataclasses.replace(config.env, backend="gymnasium"), 1, config.threads)
    return to_sb3.write(name, agent, (envs.single_observation_space, envs.single_action_space), path)
