"""`zoo data import`: imports a file, or a folder of files, into the local Minari store."""

import dataclasses
from pathlib import Path

from zoo.commands.data.names import HEADER, describe_origin, locate, new_folder, new_id, print_table, row
from zoo.commands.parser import Parser
from zoo.data.catalog import FILE_SUFFIXES, Source, kind_of
from zoo.errors import UsageError, quoted


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo data import",
        description="Takes a file into the local Minari store: HDF5 in D4RL's layout, old ones without "
        "next_observations or timeouts too; a NumPy archive (npz) of NeoRL-2, of OGBench, or with D4RL's fields; or a "
        "folder of such files, an episode or several each, in the order of their names.",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("name", metavar="ENV/NAME", help="what it will be called: dataset=NAME with env=ENV")
    parser.add_argument("--force", action="store_true", help="replace the dataset of that name")
    args = parser.parse_args(arguments)
    if Path(args.name).suffix in FILE_SUFFIXES:
        raise UsageError(f"the file comes first: zoo data import {quoted(args.name)} {quoted(args.file)}")
    if "/" not in args.name:
        raise UsageError(f"{args.name} is not ENV/NAME, such as hopper/{args.name}.")
    env, name = locate(args.name, None)
    folder = new_folder(env, name)
    files = sorted(path for path in args.file.glob("*") if path.suffix in FILE_SUFFIXES)
    if args.file.is_dir() and not files:
        raise UsageError(f"{args.file} has no file that ends in {', '.join(FILE_SUFFIXES)}.")
    if not args.file.is_dir() and not args.file.is_file():
        raise UsageError(f"{args.file} is not a file.")
    import h5py

    from zoo.data.arrays import concatenate, cut_at_breaks, fitted
    from zoo.data.d4rl import assumptions
    from zoo.data.load import NO_REWARDS, read, step_limit
    from zoo.data.minari import check_replaceable, write_minari
    from zoo.envs import spec_of

    check_replaceable(folder, args.force)
    parts, spec = [], spec_of(dataclasses.replace(env, backend="gymnasium"))  # its spaces are written with the data
    limit = step_limit(env)
    for file in files or [args.file]:
        source = Source(str(file), kind_of(file), file)
        parts.append(fitted(read(source, limit), spec, source.name, env))
        if source.kind == "hdf5":
            with h5py.File(file) as content:
                for assumption in assumptions(content, limit):
                    print(f"{file.name} has {assumption}.")
    arrays = concatenate(parts)
    arrays, added = cut_at_breaks(arrays)
    if added:
        print(f"{added} episodes end where the file does not say so: their successor is not the next row.")
    metadata = {
        "description": f"Imported from {args.file.name}.",
        "zoo": describe_origin(["import", *arguments]),
    }
    write_minari(arrays, folder, new_id(env, name), env.id, metadata, force=args.force, flat=True)
    algo = "gcbc" if spec.goal_dim else "iql" if arrays.reward.any() else "bc"
    if algo == "bc":
        print(f"{NO_REWARDS}.")
    print_table(HEADER, [row(f"{env.name}/{name}", arrays, folder)])
    print(f"use it: zoo run algo={algo} env={env.argument} dataset={name}")
    return 0
