"""Writes a program as a file: the docstring, imports, settings, then every definition before its first use."""

import re
import subprocess
import sys
import textwrap

from zoo.copying.program import Program
from zoo.copying.source import code, global_names
from zoo.errors import UsageError


def file_text(program: Program, docstring: str) -> str:
    """The file's text, formatted, with the docstring of the algorithm's file."""
    body = "\n\n\n".join(written(program))
    body = re.sub(r"(?m)^([A-Z][A-Z0-9_]+ = .*)\n\n\n(?=[A-Z][A-Z0-9_]+ = )", r"\1\n", body)  # constants, in a row
    imports = "\n".join(sorted(set(program.imports.values())))
    start = 'if __name__ == "__main__":\n    main()'
    settings = set(re.findall(r"(?m)^    (online_\w+): ", code(program.definitions["Config"])))
    docstring = without_sentences(docstring, settings)
    body = re.sub(r"  # .*", lambda comment: without_clauses(comment[0], settings), body)
    text = f'"""{docstring}"""\n\n{imports}\n\n{body}\n\n\n{start}\n'
    return formatted(plain(text))


def written(program: Program) -> list[str]:
    """The definitions in the order in which they are needed."""
    order: dict[str, None] = {}

    def add(name: str) -> None:
        if name in program.definitions and name not in order and name not in pending:
            pending.add(name)
            for needed in global_names(program.definitions[name]):
                if not (name == "train" and needed == "Run"):
                    add(needed)
            order[name] = None

    pending: set[str] = set()
    for root in ("Config", program.agent, "Run", "train", "main"):
        add(root)
    seen: dict[str, None] = {}
    for name in order:  # one statement may define several
        seen.setdefault(code(program.definitions[name]).strip("\n"))
    return list(seen)


def flag(setting: str) -> str:
    """A setting as a flag of a copy."""
    return f"--{setting.replace('_', '-')}"


ABSENT = (  # parts of messages and comments about commands and settings of the zoo that a copy does not have
    "; zoo data verify checks the data",
    r" zoo data verify checks the data\.",
    r"; see them: zoo data show [^\"]*",
    r" env\.max_episode_steps sets one\.",
    r" ?Leave (it )?out:? sampler=[^.]*\.",
    ", or the best episodes alone: sampler=top",
    ", or `init_from`'s policy",
    "; `init_from`: none",
    r" For frames, their encoder and one layer, whatever `hidden` is\.",
    ", whatever `policy` says",
    "; heads other than mse have a loss of their own in place of the clipped squared error",
    "; frames use a CNN",
    r' "\s*"Try: --env series/hopper',
)


def without_sentences(docstring: str, settings: set[str]) -> str:
    """A docstring without the sentences that name an `online_...` setting that is not among those of the copy."""
    paragraphs = docstring.split("\n\n")
    for i, paragraph in enumerate(paragraphs):
        sentences = re.split(r"(?<=\.)\s+", paragraph.rstrip())
        kept = [one for one in sentences if set(re.findall(r"\bonline_\w+", one)) <= settings]
        if len(kept) < len(sentences):
            paragraphs[i] = textwrap.fill(" ".join(kept), 120, break_long_words=False, break_on_hyphens=False)
    text = "\n\n".join(part for part in paragraphs if part)
    return text.rstrip() + docstring[len(docstring.rstrip()) :]


def without_clauses(comment: str, settings: set[str]) -> str:
    """A comment without the clauses that name such a setting."""
    clause = r"[;,][^;,]*\b(online_\w+)[^;,]*"
    return re.sub(clause, lambda found: found[0] if found[1] in settings else "", comment)


def of_kind(text: str) -> str:
    """The text without what holds only for other actions, samplers or steps than the copy's."""
    discrete = "gymnasium.spaces.Discrete" in text
    kind = "discrete" if discrete else "continuous"
    text = text.replace("with continuous or discrete actions", f"with {kind} actions")
    either = r"(`?\[[BN], A\]`?(?: float32)?),? or (`?\[[BN]\]`?(?: int64)?)"
    text = re.sub(either, r"\2" if discrete else r"\1", text)
    if "class Weighted" not in text:
        text = text.replace(", sampled with replacement by the sampler", ", sampled uniformly with replacement")
        text = text.replace(", weighted by how often each is sampled,", "")
    in_environments = "def envs(" in text and "def online_steps(" not in text
    steps = "environment steps" if in_environments else "gradient updates"
    return text.replace("gradient updates offline, environment steps online", steps)


def plain(text: str) -> str:
    """Messages and docstrings, reworded for a standalone file."""
    text = text.replace("UsageError", "SystemExit").replace("RunError", "SystemExit").replace('"Run"', "Run")
    text = re.sub(r"  # (fmt: skip|type: ignore\[no-untyped-call\])", "", text)
    for default in ("eps=1e-8", "weight_decay=0.0", "decoupled_weight_decay=False"):  # PyTorch's own defaults
        text = text.replace(f", {default}", "")
    text = re.sub(r"^ *# --- .*\n\n*", "", text, flags=re.MULTILINE)
    commands = re.findall(r"`zoo run [^`]*`", text)  # these stay as they are
    text = re.sub(r"`zoo run [^`]*`", "\0", text)
    settings = "eval_deterministic|online_\\w+" if "online_fraction:" in text else "eval_deterministic"
    text = re.sub(rf"(?<![\w.])({settings})=(\d|false)", r"algo.\1=\2", text)
    text = re.sub(r"algo\.(\w+)=null", lambda found: flag(found[1]) + " none", text)
    text = re.sub(r"algo\.(\w+)=false", lambda found: flag("no_" + found[1]), text)
    text = re.sub(r"algo\.(\w+)=true", lambda found: flag(found[1]), text)
    text = re.sub(r"algo\.(\w+)=", lambda found: flag(found[1]) + " ", text)
    text = re.sub(r"sampler\.(\w+)=", lambda found: flag("sampler_" + found[1]) + " ", text)
    text = text.replace('ValueError(f"--sampler', 'SystemExit(f"--sampler')
    text = re.sub(r"algo\.(\w+)", lambda found: flag(found[1]), text)
    text = re.sub(r'((?<=")|(?<=Try: ))(num_envs|env)=(?=[\w{])', lambda found: flag(found[2]) + " ", text)
    # lists in the form of flags
    text = re.sub(r"\[([\w.]+(?:,[\w.]+)+)\]", lambda found: found[1].replace(",", " "), text)
    text = re.sub(r"(--[\w-]+) \[({[^\[\]]*})\]", lambda found: f"{found[1]} {found[2].replace('},{', '} {')}", text)
    text = re.sub(r"`(zoo\.[\w.]+)`", r"rl-zoo's `\1`", text)
    for command in commands:
        text = text.replace("\0", command, 1)
    for absent in ABSENT:
        text = re.sub(absent, "", text)
    text = of_kind(text)
    return re.sub(r"#.*", lambda comment: re.sub(r"\bnull\b", "none", comment[0]), text)


def formatted(text: str) -> str:
    """The text formatted by ruff: imports sorted, lines of at most 120 characters."""
    common = ["--isolated", "--line-length", "120", "--stdin-filename", "copy.py", "-"]
    for command in (
        ["check", "--fix", "--quiet", "--exit-zero", "--select", "I,F401,PIE790"],
        ["format", "--quiet", "--config", "format.skip-magic-trailing-comma=true"],
    ):
        ruff = [sys.executable, "-P", "-m", "ruff"]  # -P: not a ruff.py in the working directory
        done = subprocess.run([*ruff, *command, *common], input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UsageError(done.stderr.strip().splitlines()[-1])
        text = done.stdout
    return text
