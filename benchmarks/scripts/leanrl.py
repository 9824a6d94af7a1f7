"""Environment steps per second of whole training loops, beside LeanRL's programs with `--compile`.

    python benchmarks/scripts/leanrl.py LEANRL --python PYTHON

LEANRL is a clone of github pytorch-labs/LeanRL, PYTHON an interpreter with gymnasium[mujoco]<1, tensordict, torchrl,
tyro, tqdm and wandb. Both learn HalfCheetah with CleanRL's settings, one environment, compiled updates, on a CPU and
with as many threads as OMP_NUM_THREADS says. They run in turn; the table has each program's median over the rounds.
LeanRL's speed is the last one that its program prints. The zoo's leaves the first updates out too, with their
compilation. LeanRL is from 2024 and its policies fail with newer versions of tensordict, whose parameters keep their
gradients: they are run without gradients here, as they were meant to be. Its PPO, which compiles a loop over 2,048
steps as one graph, has not finished compiling within eight minutes on a CPU, and is left out.
"""

import argparse
import csv
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = {"sac": 12_000, "td3": 35_000}  # TD3 begins to learn after 25,000
BEFORE = {"sac": 6_000, "td3": 26_000}  # steps that do not count: no updates yet, or compiling
POLICIES = {  # of LeanRL's programs -> without gradients
    "sac": (
        'policy = TensorDictModule(actor_detach.get_action, in_keys=["observation"], out_keys=["action"])',
        "policy = torch.no_grad()(lambda obs: actor_detach.get_action(obs)[0])",
    ),
    "td3": ("policy = actor_detach.explore", "policy = torch.no_grad()(actor_detach.explore)"),
}
SETTINGS = {
    "sac": ("preset=cleanrl", "log_every=500"),
    "td3": ("algo.learning_starts=25000", "log_every=500"),
}


def theirs(algo: str, checkout: Path, python: str) -> float:
    """The last speed that LeanRL's program prints."""
    text = (checkout / "leanrl" / f"{algo}_continuous_action_torchcompile.py").read_text()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / f"{algo}.py"
        program.write_text(text.replace(*POLICIES[algo]))
        command = [python, str(program), "--compile", "--no-cuda", "--env-id", "HalfCheetah-v4"]
        done = subprocess.run(
            [*command, "--total-timesteps", str(STEPS[algo])], cwd=folder, text=True, capture_output=True,
            env=os.environ | {"WANDB_MODE": "disabled"}, check=False,
        )  # fmt: skip
    speeds = re.findall(r"([\d.]+) sps", done.stderr)
    if done.returncode or not speeds:
        sys.exit(f"{program} failed:\n{done.stderr[-2000:]}")
    return float(speeds[-1])


def ours(algo: str) -> float:
    """The speed of the zoo's run, without its first steps."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = (f"algo={algo}", "env=halfcheetah", "env.backend=gymnasium", *SETTINGS[algo], "compile=true")
        rest = (f"steps={STEPS[algo]}", f"eval_every={STEPS[algo]}", "eval_episodes=1", "logger=none", f"run_dir={run}")
        subprocess.run([sys.executable, "-m", "zoo.cli", "run", *settings, *rest], check=True, capture_output=True)
        with (run / "metrics.csv").open(newline="") as file:
            rows = [(int(row["step"]), float(row["seconds"])) for row in csv.DictReader(file)]
    first, *_, last = (row for row in rows if row[0] >= BEFORE[algo])
    return (last[0] - first[0]) / (last[1] - first[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", required=True)
    parser.add_argument("--algos", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("| steps per second | zoo | LeanRL | zoo / LeanRL |\n|---|---|---|---|")
    for algo in args.algos:
        pairs = [(ours(algo), theirs(algo, args.checkout, args.python)) for _ in range(args.rounds)]
        own, other = (statistics.median(speeds) for speeds in zip(*pairs, strict=True))
        print(f"| {algo.upper()} | {own:,.0f} | {other:,.0f} | {own / other:.2f} |", flush=True)


if __name__ == "__main__":
    main()
