"""Measures the speed of the zoo's algorithms compared with other libraries, and how their cost scales.

    pip install -e '.[peers,envpool,atari]' && pip install --no-deps 'd3rlpy==2.8.1'
    OMP_NUM_THREADS=1 python benchmarks/scripts/speed.py            # everything that is installed
    OMP_NUM_THREADS=1 python benchmarks/scripts/speed.py td3_bc cql --corl CORL/algorithms/offline
    OMP_NUM_THREADS=1 python benchmarks/scripts/speed.py iql --unifloral UNIFLORAL --jax-corl JAX-CORL
    OMP_NUM_THREADS=3 python benchmarks/scripts/speed.py vector --threads 3
    OMP_NUM_THREADS=1 python benchmarks/scripts/speed.py scaling --out docs/speed.md

All subjects in a table have the same shapes and settings (Hopper's, batches of 256). Each runs in its own process. They
are timed in turn, round after round; the results are the medians over the rounds and of the ratios in each round. With
`--out`, the figures are saved in `benchmarks/results/speed.json`, where they replace those of the same section on the
same processor, and the page is written from that file.

A library that is not installed is left out. d3rlpy pins an old Gymnasium that is not needed here, hence `--no-deps`.
Libraries in JAX come with the extra `peers-jax`. If they are in another environment, `--jax-python` names its Python.
"""

import argparse
import sys
from pathlib import Path

from zoo.benchmarks.scripts.timing import tables
from zoo.benchmarks.scripts.timing.page import as_markdown, keep, render
from zoo.benchmarks.scripts.timing.rounds import Left, measure
from zoo.benchmarks.scripts.timing.scaling import scaling
from zoo.machine import processor

SECTIONS = {
    "iql": tables.iql, "td3_bc": tables.td3_bc, "cql": tables.cql, "rebrac": tables.rebrac, "edac": tables.edac,
    "policies": tables.policies, "goals": tables.goals, "sac": tables.sac, "dsac_t": tables.dsac_t, "td3": tables.td3,
    "ppo": tables.ppo, "atari": tables.atari, "streaming": tables.streaming, "samplers": tables.samplers,
    "dynamics": tables.dynamics, "vector": tables.vector, "scaling": scaling, "seeds": tables.seeds,
    "bfloat16": tables.bfloat16,
}  # fmt: skip
CHECKOUTS = {
    "corl": "CORL's folder algorithms/offline (github corl-team/CORL)",
    "unifloral": "github EmptyJackson/unifloral",
    "jax-corl": "github nissymori/JAX-CORL",
    "dsac-t": "github Jingliang-Duan/DSAC-v2",
    "mbrcsl": "github zhaoyizhou1123/mbrcsl",
    "streaming": "github mohmdelsayed/streaming-drl",
    "ogbench": "github seohongpark/ogbench",
}
FIGURES = Path(__file__).parent.parent / "results" / "speed.json"


def shown(section: str, args: argparse.Namespace) -> str:
    """The command that measures a section, with placeholders for the folders on this machine."""
    words = [f"OMP_NUM_THREADS={args.threads} python benchmarks/scripts/speed.py {section} --rounds {args.rounds}"]
    words += [f"--threads {args.threads}"] * (args.threads > 1)
    given = [name for name in CHECKOUTS if getattr(args, name.replace("-", "_"))]
    words += [f"--{name} {name.upper()}" for name in given]
    words += ["--jax-python PYTHON"] * (args.jax_python != sys.executable)
    return " ".join(words)


def main() -> None:
    """Measures the requested sections."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"any of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    for name, whose in CHECKOUTS.items():
        parser.add_argument(f"--{name}", metavar="DIR", help=f"{whose}, to compare with")
    parser.add_argument("--jax-python", default=sys.executable, metavar="PYTHON", help="Python for libraries in JAX")
    parser.add_argument("--out", type=Path, metavar="PAGE", help="save the figures and write this page from all")
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"unknown section {', '.join(sorted(unknown))}; known: {', '.join(SECTIONS)}")
    for section in args.sections or SECTIONS:
        measured = []
        for table in SECTIONS[section](args):
            try:
                measured.append(measure(table, args.rounds, args.threads))
            except Left as reason:
                sys.exit(f"{table.title}: {reason}")
            print(f"\n{as_markdown(measured[-1])}", flush=True)
        if args.out:
            kept = keep(FIGURES, processor(), section, shown(section, args), measured)
            args.out.write_text(render(kept, SECTIONS))


if __name__ == "__main__":
    main()
