"""`zoo data show`: shows the contents of a dataset."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from zoo.commands.data.names import locate
from zoo.commands.parser import Parser
from zoo.data.catalog import FILE_SUFFIXES, Source
from zoo.errors import UsageError, printable


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo data show", description="Size, returns and lengths of a dataset, and a PNG of their distribution."
    )
    parser.add_argument("name", help="ENV/DATASET, a mixture such as hopper/random+10%%expert, a Minari id, or a file")
    parser.add_argument("--env", help="the environment, where the name does not say it")
    parser.add_argument("--png", type=Path, help="where to draw (default: ENV-DATASET.png in this folder)")
    args = parser.parse_args(arguments)
    env, name = locate(args.name, args.env)
    if args.png and args.png.suffix != ".png":
        raise UsageError(f"--png {args.png} must end in .png.")
    import numpy as np

    from zoo.data.arrays import fitted
    from zoo.data.load import load_arrays, missing_ends
    from zoo.envs import spec_of
    from zoo.files import check_file
    from zoo.settings.config import flat

    if args.png:
        check_file(args.png, force=True)
    arrays, sources = load_arrays(env, name)
    fitted(arrays, spec_of(env), name, env)
    returns, lengths = arrays.episode_returns, arrays.episode_lengths
    if missing := missing_ends(arrays, sources, name, env):
        print(missing)
    for source in sources:
        print(f"source       {source.kind}  {source.path}")
    print(f"transitions  {len(arrays.reward):,}")
    print(f"episodes     {len(lengths):,}")
    for label, values in (("returns", returns), ("lengths", lengths)):
        quartiles = f"min {values.min():.1f}  median {np.median(values):.1f}  max {values.max():.1f}"
        print(f"{label:<11}  mean {values.mean():.1f}  std {values.std():.1f}  {quartiles}")
    ends = arrays.terminated[arrays.episode_starts + lengths - 1]
    print(f"ends         {ends.mean():.1%} terminated, {1 - ends.mean():.1%} truncated")
    scores = env.normalize(returns)
    if scores is not None:
        print(f"score        {scores.mean():.1f} normalized, of the mean return")
    for source in sources:
        for key, value in _provenance(source).items():
            for one in value if isinstance(value, list) else [value]:
                words = ", ".join(f"{k}={v}" for k, v in flat(one).items()) if isinstance(one, dict) else one
                print(f"{source.name}: {key}: {printable(words)}")
    of = Path(name).stem if Path(name).suffix in FILE_SUFFIXES else Path(name).name
    png = args.png or Path(re.sub(r"[^\w.+-]+", "-", f"{env.name}-{of}") + ".png")
    if importlib.util.find_spec("matplotlib") is None:
        print("not drawn: that needs pip install 'rl-zoo[plot]'")
        return 0
    _draw(returns, lengths, f"{env.name} / {name}", png)
    print(f"drawn to {png}")
    return 0


def _provenance(source: Source) -> dict[str, Any]:
    """The recorded origin of a dataset."""
    from zoo.data.load import readable

    if source.kind == "hdf5":
        import h5py

        with readable(source), h5py.File(source.path, "r") as file:
            return dict(file.attrs)
    if source.kind == "npz":
        return {}
    with readable(source):
        metadata: dict[str, Any] = json.loads((source.path / "metadata.json").read_text())
        shown = ("description", "algorithm_name", "author", "fingerprint")
        return {key: metadata[key] for key in shown if key in metadata} | dict(metadata.get("zoo", {}))


def _draw(returns: Any, lengths: Any, title: str, png: Path) -> None:
    from matplotlib.figure import Figure

    from zoo.files import replacing

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    figure.suptitle(title)
    for axes, values, label in zip(
        figure.subplots(1, 2), (returns, lengths), ("return", "length (steps)"), strict=True
    ):
        spread = values.max() - values.min()
        axes.hist(values, bins=50 if spread > 1e-9 * abs(values).max() else 1)  # equal but for rounding: one bin
        axes.set(xlabel=f"episode {label}", ylabel="episodes")
    with replacing(png) as file:
        figure.savefig(file, format="png")
