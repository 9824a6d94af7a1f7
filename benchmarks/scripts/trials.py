"""Compares `zoo report`'s bandit over policies with the authors' code, on the same scores.

    python benchmarks/scripts/trials.py CHECKOUT --python PYTHON

CHECKOUT is a clone of github EmptyJackson/unifloral (arXiv 2504.11453). PYTHON has jax and pandas, which its
`evaluation.py` imports. The script prints both means by the number of episodes, and their difference in standard
errors, because both are means over repetitions with different random numbers.
"""

import argparse
import json
import subprocess
from pathlib import Path

import numpy as np

from zoo.benchmarks.trials import PULLS, REPEATS, SUBSET, reached

THEIRS = """
import json, sys
import numpy as np
import evaluation
scores, subset, repeats, pulls = json.load(sys.stdin)
_, values = evaluation.run_bandit_trials(np.array(scores), num_subsample=subset, num_repeats=repeats, max_pulls=pulls)
values = np.asarray(values, dtype=np.float64)
print(json.dumps([values.mean(0).tolist(), values.std(0).tolist()]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", default="python", help="Python that runs the authors' code")
    args = parser.parse_args()
    random = np.random.default_rng(0)
    scores = random.normal(random.uniform(20, 90, (12, 1)), random.uniform(2, 30, (12, 1)), (12, 20)).clip(0)
    given = json.dumps([scores.tolist(), SUBSET, REPEATS, PULLS[-1]])
    done = subprocess.run(
        [args.python, "-c", THEIRS], input=given, cwd=args.checkout, capture_output=True, text=True, check=True
    )
    mean, std = np.array(json.loads(done.stdout))
    ours = reached(list(scores))
    errors = np.sqrt((ours.var(0) + std**2) / REPEATS)
    print("| episodes | ours | theirs | difference in standard errors |")
    print("|--:|--:|--:|--:|")
    for pull in PULLS:
        at = pull - 1
        apart = (ours[:, at].mean() - mean[at]) / errors[at]
        print(f"| {pull} | {ours[:, at].mean():.2f} | {mean[at]:.2f} | {apart:.2f} |")
    largest = np.abs((ours.mean(0) - mean) / errors).max()
    print(f"\nlargest difference over all {PULLS[-1]} episodes: {largest:.2f} standard errors")


if __name__ == "__main__":
    main()
