"""`zoo data import`: a file into the local Minari store."""

from pathlib import Path

from zoo.commands.data.names import (
    HEADER,
    Parser,
    describe_origin,
    locate,
    new_id,
    print_table,
    row,
    step_limit,
)
from zoo.data.catalog import Source, store
from zoo.errors import UsageError


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo data import",
        description="Takes a D4RL-layout HDF5 file into the local Minari store; "
        "old files without next_observations or timeouts too.",
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("name", metavar="ENV/NAME", help="what it will be called: dataset=NAME with env=ENV")
    parser.add_argument("--force", action="store_true", help="replace the dataset of that name")
    args = parser.parse_args(arguments)
    env, name = locate(args.name, None)
    minari_id = new_id(env, name)
    if not args.file.is_file():
        raise UsageError(f"{args.file} is not a file.")
    from zoo.checkpoint import check_free
    from zoo.data.arrays import check_fits, cut_at_breaks
    from zoo.data.load import read
    from zoo.data.minari import write_minari
    from zoo.envs import spec_of

    check_free(store() / minari_id, args.force)
    arrays = read(Source(str(args.file), "hdf5", args.file), step_limit(env))
    check_fits(arrays, spec_of(env), str(args.file), env)
    arrays, added = cut_at_breaks(arrays)
    if added:
        print(f"{added} episodes end where the file does not say so: their successor is not the next row.")
    metadata = {
        "description": f"Imported from the D4RL-layout file {args.file.name}.",
        "zoo": describe_origin(["import", *arguments]),
    }
    write_minari(arrays, store() / minari_id, minari_id, env.id, metadata, force=args.force, flat=True)
    print_table(HEADER, [row(f"{env.name}/{name}", arrays, store() / minari_id)])
    print(f"use it: zoo run algo=iql env={env.name} dataset={name}")
    return 0
