"""The page of speeds. Figures are saved in a file by processor and section, and the page is rendered from this file."""

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from zoo.benchmarks.scripts.timing.rounds import Measured, Timed
from zoo.files import replacing

HEAD = """# Speed

    python benchmarks/scripts/speed.py SECTION... --out docs/speed.md

writes this page. Each section below begins with the command that measured it. Every subject runs in a process of its
own. The subjects are timed in turn, round after round, so a machine whose speed drifts slows all of them alike. Speeds
are medians over the rounds, with the slowest and the fastest round. `x` says how many times as fast as that peer the
zoo is: the median of the ratios round by round. Memory is the peak resident memory of the whole process, including its
libraries and compilation. The times do not include compilation. LeanRL is not among the peers: its compiled SAC and TD3
of 2024 fail with torch 2.13 and tensordict 0.14, and its compiled PPO was not ready after eight minutes on a CPU."""

COMPILED = "zoo, compile=true"
IN_JAX = ("unifloral", "JAX-CORL", "SBX", "OGBench")


def keep(file: Path, processor: str, section: str, command: str, tables: list[Measured]) -> dict[str, Any]:
    """Replaces the figures of one section on one processor, and returns all figures."""
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    measured = {"command": command, "tables": [dataclasses.asdict(table) for table in tables]}
    kept.setdefault(processor, {})[section] = measured
    with replacing(file) as to:
        to.write((json.dumps(kept, indent=1) + "\n").encode())
    return kept


def render(kept: dict[str, Any], order: Iterable[str]) -> str:
    """The page, with its sections in the given order."""
    parts = [HEAD, *summary(kept, order)]
    for processor, sections in kept.items():
        parts.append(f"## {processor}")
        for section in (name for name in order if name in sections):
            parts.append(f"    {sections[section]['command']}")
            parts += map(as_markdown, tables_of(sections[section]))
    return "\n\n".join(parts) + "\n"


def tables_of(section: dict[str, Any]) -> list[Measured]:
    """The tables of a section, from its figures in the file."""
    return [
        Measured(**table | {"subjects": {name: Timed(**timed) for name, timed in table["subjects"].items()}})
        for table in section["tables"]
    ]


def summary(kept: dict[str, Any], order: Iterable[str]) -> list[str]:
    """How many times as fast as its peers the compiled code is, on the first processor."""
    processor, sections = next(iter(kept.items()))
    rows = [row(["", "x libraries in PyTorch", "x in JAX"]), row(["---"] * 3)]
    for table in (table for name in order if name in sections for table in tables_of(sections[name])):
        peers = [name for name in table.subjects if not name.startswith(("zoo", "eager"))]
        if COMPILED in table.subjects and peers:
            own = table.subjects[COMPILED]
            groups = ([peer for peer in peers if peer.startswith(IN_JAX) == jax] for jax in (False, True))
            cells = (", ".join(f"{peer} {ratio(table.subjects[peer], own)}" for peer in group) for group in groups)
            rows.append(row([table.title, *cells]))
    return [f"`compile=true` on {processor}, with one thread unless its section says otherwise:", "\n".join(rows)]


def as_markdown(table: Measured) -> str:
    """A table with its title, note and conditions."""
    peers = [name for name in table.subjects if not name.startswith("zoo")]
    rows = [[f"{table.title}/s", "median", "min", "max", *(f"x {peer}" for peer in peers), "memory, MB"]]
    rows.append([":--"] + ["--:"] * (len(rows[0]) - 1))
    for name, timed in table.subjects.items():
        speeds = [table.count * table.worth / one for one in timed.seconds]
        ratios = [ratio(table.subjects[peer], timed) if name.startswith("zoo") else "" for peer in peers]
        memory = f"{timed.peak:,.0f}" if timed.peak else ""
        shown = [f"{speed:,.1f}" for speed in (statistics.median(speeds), min(speeds), max(speeds))]
        rows.append([name, *shown, *ratios, memory])
    return "\n\n".join(["\n".join(map(row, rows)), *([table.note] * bool(table.note)), conditions(table)])


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def ratio(peer: Timed, own: Timed) -> str:
    """How many times as fast as the peer: the median ratio over the rounds in which both were timed."""
    return f"{statistics.median(p / o for p, o in zip(peer.seconds, own.seconds, strict=False)):.2f}"


def conditions(table: Measured) -> str:
    """The number of rounds and threads, the versions, and the library for each shape of linear layer."""
    rounds = len(next(iter(table.subjects.values())).seconds)
    threads = f"{table.threads} thread" + "s" * (table.threads > 1)
    versions = ", ".join(f"{name} {version}" for name, version in table.versions.items())
    parts = [f"{rounds} rounds of {table.count:,}, {threads}; {versions}."]
    for way, name in (("bfloat16", "in bfloat16"), ("onednn", "by oneDNN"), ("mkl", "by MKL")):
        served = sorted(shape for shape, chosen in table.linear.items() if chosen == way)
        parts += [f"The zoo's linear layers {name}: {', '.join(served)}."] * bool(served)
    return " ".join(parts)
