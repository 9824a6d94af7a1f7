"""`zoo data verify`: checks whether a dataset is complete, finite, and belongs to its environment."""

import json
from typing import TYPE_CHECKING

from zoo.commands.data.names import locate
from zoo.commands.parser import Parser
from zoo.data.catalog import Source, parse_mixture, recorded_env, resolve
from zoo.errors import RunError

if TYPE_CHECKING:
    from zoo.envs import EnvConfig


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo data verify", description="Is a dataset whole, finite, and of its environment? Reads all of it."
    )
    parser.add_argument("name", help="ENV/DATASET, a mixture, a Minari id, or a file")
    parser.add_argument("--env", help="the environment, where the name does not say it")
    args = parser.parse_args(arguments)
    env, name = locate(args.name, args.env)
    for part in dict.fromkeys(portion.name for portion in parse_mixture(name)):
        source = resolve(env, part)
        print(f"{source.name}  ({source.kind}, {source.path})")
        for checked in _verify(source, env):
            print(f"  {checked}")
        print("  OK")
    return 0


def _verify(source: Source, env: "EnvConfig") -> list[str]:
    """Returns the checks that passed. Raises RunError at the first one that fails."""
    import numpy as np

    from zoo.data.arrays import breaks, fitted, out_of_bounds
    from zoo.data.load import read, readable, step_limit
    from zoo.data.minari import read_episodes
    from zoo.envs import spec_of

    limit = step_limit(env)
    arrays, spec = read(source, limit), spec_of(env)
    fitted(arrays, spec, source.name, env)
    lengths = arrays.episode_lengths
    done = [f"{len(arrays.reward):,} transitions in {len(lengths):,} episodes, finite, with the shapes of {env.id}"]

    def check(ok: bool, wrong: str, right: str) -> None:
        if not ok:
            raise RunError(f"dataset {source.name}: {wrong}.")
        done.append(right)

    if source.in_episodes:
        if recorded := recorded_env(source.path):
            done.append(f"recorded in {recorded}" + ("" if recorded == env.id else f", not in {env.id}"))
        with readable(source):
            metadata = json.loads((source.path / "metadata.json").read_text())
            episodes = read_episodes(source.path)
        same = all(np.array_equal(a, b) for a, b in zip(episodes, arrays, strict=True))
        check(same, "its flat copy differs from its episodes", "read alike by every way")
        total, found = int(metadata["total_episodes"]), len(lengths)
        check(total == found, f"{total} episodes by its metadata, {found} by its ends", "metadata and contents agree")
        if "fingerprint" in metadata:
            found_print = arrays.fingerprint()
            wrong = f"its fingerprint is {found_print}, not {metadata['fingerprint']} as when it was made"
            check(found_print == metadata["fingerprint"], wrong, f"fingerprint {found_print}, as when it was made")
    outside = out_of_bounds(arrays.action, spec)
    check(not outside.any(), f"{int(outside.sum()):,} actions outside the bounds of {env.id}", "actions within bounds")
    apart = breaks(arrays.obs, arrays.next_obs)
    unmarked = int((apart & ~arrays.terminated & ~arrays.truncated).sum())
    wrong = f"{unmarked:,} steps whose successor is not the next one"
    check(unmarked == 0, wrong, "each step's successor is the next one")
    cut = apart[:-1][arrays.truncated[:-1]]
    if len(cut) and not cut.any():  # Minari's collector begins an episode where it has cut off the one before
        shared = f"each of the {len(cut):,} episodes that are cut off ends with the first observation of the next one"
        wrong = f"{shared}: are its next_observations its observations, shifted by a row? Leave them out"
        check(source.in_episodes, wrong, shared)
    shortest, longest = int(lengths.min()), int(lengths.max())
    most = longest if source.in_episodes or limit is None else limit
    long = f"an episode of {longest:,} steps; {env.id} ends after {most:,}"
    check(longest <= most, long, f"lengths from {shortest:,} to {longest:,} steps")
    return done
