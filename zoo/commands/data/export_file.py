"""`zoo data export`: writes a dataset as an HDF5 file in D4RL's layout."""

from pathlib import Path

from zoo.commands.data.names import describe_origin, locate
from zoo.commands.parser import Parser
from zoo.errors import UsageError


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo data export",
        description="Writes a dataset as an HDF5 file in D4RL's layout, as copies of offline algorithms and other "
        "libraries read it.",
    )
    parser.add_argument("name", help="ENV/DATASET, a mixture, a Minari id, or a file")
    parser.add_argument("file", type=Path, metavar="FILE.hdf5")
    parser.add_argument("--env", help="the environment, where the name does not say it")
    parser.add_argument("--force", action="store_true", help="replace the file")
    args = parser.parse_args(arguments)
    env, name = locate(args.name, args.env)
    if args.file.suffix not in (".hdf5", ".h5"):
        raise UsageError(f"{args.file} must end in .hdf5 or .h5.")
    from zoo.data.arrays import fitted
    from zoo.data.d4rl import write_d4rl
    from zoo.data.load import load_arrays, missing_ends
    from zoo.envs import spec_of
    from zoo.files import check_file

    check_file(args.file, args.force)
    arrays, sources = load_arrays(env, name)
    arrays = fitted(arrays, spec_of(env), name, env)
    if missing := missing_ends(arrays, sources, name, env):
        print(missing)
    origin = {"env_id": env.id, "dataset": name} | describe_origin(["export", *arguments])
    write_d4rl(arrays, args.file, {key: str(value) for key, value in origin.items()})
    print(f"{len(arrays.reward):,} transitions in {len(arrays.episode_starts):,} episodes written to {args.file}")
    return 0
