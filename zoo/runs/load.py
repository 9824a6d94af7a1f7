"""Opens an existing run: its settings, its agent, and what it is for other runs, a base or an adversary."""

import contextlib
import hashlib
import math
from pathlib import Path
from typing import Any

import torch

from zoo import checkpoint
from zoo.agent import Agent
from zoo.data.corruption import Adversary, CorruptionConfig
from zoo.envs import series
from zoo.envs.names import exists
from zoo.errors import RunError, UsageError, quoted
from zoo.runs.lock import in_use
from zoo.runs.record import evaluated, read_record, resume_command, settings_of, spec_of
from zoo.runs.residual import Base, Corrected, NoiseBase
from zoo.runs.tracking import CONTENTS, FORMAT
from zoo.settings.compose import compose
from zoo.settings.config import RunConfig
from zoo.settings.overrides import as_overrides
from zoo.settings.registry import Algorithm, algorithms
from zoo.spec import Spec


def reopen(run_dir: Path, file: Path | None = None) -> tuple[RunConfig, Algorithm, dict[str, Any]]:
    """The settings, algorithm and record of an existing run. Raises UsageError if the folder holds no run."""
    record = read_record(run_dir)
    settings = settings_of(record)
    made_by = record["algorithm"]["file"]
    if file is None and made_by is not None:
        command = resume_command(run_dir)
        command = f"Train it longer: {command} steps=N" if record["status"] == "finished" else f"Continue it: {command}"
        raise UsageError(
            f"{run_dir} was made by {made_by}, which is not one of the zoo's files. {command}; "
            f"zoo eval, play and export take it by --file {quoted(made_by)}, and zoo.load and the like by file="
        )
    if file is not None and not file.is_file():
        raise UsageError(f"{file} is not a file. Give the algorithm file that the run was made by.")
    algo, env = settings.pop("algo"), dict(settings.pop("env"))
    if env["id"].startswith(series.PREFIX):
        with contextlib.suppress(ValueError):  # if it is not there, it may be in the working directory
            series.register(env["id"], Path(record.get("folder", "")))
    if not _is_registered(env["id"]):
        raise UsageError(
            f"{run_dir}: env={env['id']}, in which it was trained, is not registered. Import the module that does: "
            f"ZOO_IMPORT=MODULE zoo eval {quoted(run_dir)}, and so for the other commands"
        )
    name = algo.pop("name")
    arguments = as_overrides({**({"algo": name} if file is None else {}), "env": env.pop("id"), **settings})
    config, algorithm, _ = compose([*arguments, *as_overrides(algo, "algo."), *as_overrides(env, "env.")], file)
    return config, algorithm, record


def _is_registered(env_id: str) -> bool:
    try:
        return exists(env_id)
    except ValueError:  # a package is missing, which is reported later
        return True


def load_agent(
    run_dir: Path, file: Path | None = None, step: int | str | None = None
) -> tuple[RunConfig, Agent, dict[str, Any]]:
    """The settings of a run, its agent and its record; arguments and errors are those of `zoo.load`."""
    config, algorithm, record = reopen(run_dir, file)
    if step is None:
        path = run_dir / "checkpoint.pt"
        if not path.exists() and in_use(run_dir):
            raise RunError(f"{path} does not exist yet: the run is in progress. Wait for its first checkpoint.")
        tracked = load_state(path, ", which can read it; this one cannot.")["tracked"]
        if "agent" not in tracked:
            raise RunError(f"{path} holds no agent.")
        state = tracked["agent"]
    else:
        path = kept_agent(run_dir, str(step))
        state = checkpoint.load(path)
    return config, build_agent(config, algorithm, record, state, path), record


def load_agent_for(algorithm: Algorithm, run_dir: Path) -> tuple[RunConfig, Agent, dict[str, Any]]:
    """Like `load_agent`, for use by an algorithm: a file that is not one of the zoo's reads the runs that it made."""
    made_by = read_record(run_dir)["algorithm"]
    if made_by["file"] is None:
        return load_agent(run_dir)
    content = hashlib.sha256(algorithm.path.read_bytes()).hexdigest()
    if made_by["file"] != str(algorithm.path) and made_by.get("sha256") != content:
        raise UsageError(
            f"{run_dir} was made by {made_by['file']}, which is neither this file nor one of the zoo's, and no other "
            "file is run. Define both algorithms in one file, chosen by a setting of it."
        )
    return load_agent(run_dir, algorithm.path)


def kept_agent(run_dir: Path, step: str) -> Path:
    """The file of the agent that was evaluated at a step, or of the one that was evaluated best.

    Raises:
        UsageError: the run kept no agents, or none at this step.
    """
    kept = sorted(int(path.stem) for path in (run_dir / "agents").glob("*.pt") if path.stem.isdecimal())
    if not kept:
        raise UsageError(f"step {step}: {run_dir} kept the last agent alone. Train with keep_agents=true.")
    if step == "best":
        returns = evaluated(run_dir)
        step = str(max(kept, key=lambda one: returns.get(one, -math.inf)))
    if step not in map(str, kept):
        raise UsageError(f"step {step}: {run_dir} kept no such agent. There are: best, {', '.join(map(str, kept))}")
    return run_dir / "agents" / f"{step}.pt"


def load_state(path: Path, advice: str) -> dict[str, Any]:
    """A run's checkpoint, on the CPU. Raises RunError, with advice, if it is damaged or older than `FORMAT`."""
    state: dict[str, Any] = checkpoint.load(path, "cpu")
    found = state.get("format", 0)
    if isinstance(found, int) and found > FORMAT:
        raise RunError(f"{path} was written by a newer version of the zoo. Update this one.")
    if found != FORMAT:
        raise RunError(f"{path} was written by an older version of the zoo{advice}")
    state = {"metrics": {}} | state  # the first ones of this format have none
    if odd := [name for name, kind in CONTENTS.items() if name not in state or not isinstance(state[name], kind)]:
        raise RunError(f"{path} is damaged: {', '.join(odd)} missing or of another type. Start a new run.")
    return state


def build_agent(
    config: RunConfig, algorithm: Algorithm, record: dict[str, Any], state: dict[str, Any], path: Path
) -> Agent:
    """The agent of a run with a state that was read from `path`. Raises RunError if the two do not match."""
    spec = spec_of(record)
    base = load_base(config, algorithm, spec, record, torch.device("cpu"))
    agent: Agent = algorithm.agent_class(base.residual_spec if base else spec, config.algo)
    try:
        agent.load_state_dict(state)
    except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path} does not fit {algorithm.path}, which has changed since it was written.") from error
    return Corrected(base, agent) if base else agent


def load_base(
    config: RunConfig, algorithm: Algorithm, spec: Spec, record: dict[str, Any], device: torch.device
) -> Base | None:
    """The policy that `base=` names, or None. `record`, that of the run that corrects it, says which policy it was.

    Raises:
        UsageError: that run is not finished, is of another environment, has a policy with a memory, or has changed
            since this run began; or the algorithm cannot correct a policy.
    """
    if config.base is None:
        return None
    if not _corrects(algorithm):
        able = [name for name, other in algorithms().items() if _corrects(other)]
        raise UsageError(f"base={config.base}: {algorithm.name} corrects no policy. Those that can: {', '.join(able)}")
    if algorithm.takes_data(config):
        raise UsageError(
            f"base={config.base}: a dataset has no corrections of it to learn from. Add: algo.{algorithm.data}=0"
        )
    if spec.action_space != "continuous" or len(spec.obs_shape) != 1:
        what = "a policy with continuous actions, whose observations are vectors, can be corrected"
        raise UsageError(f"base={config.base}: {what}; {config.env.id} has others. Leave it out.")
    try:
        config_, agent, of_base = load_agent_for(algorithm, Path(config.base))
    except UsageError as error:
        raise UsageError(f"base={config.base}: {error}") from error
    _check_other("base", Path(config.base), of_base, record, "the policy that this run corrects")
    if agent.spec != spec:
        raise UsageError(
            f"base={config.base} is a policy of {config_.env.name}, with other observations or actions than "
            f"{config.env.name}. Take a run of this environment."
        )
    if agent.memory():
        raise UsageError(
            f"base={config.base} has a policy with a memory, which cannot be corrected. Take one of another algorithm."
        )
    if config.base_mode == "noise" and not hasattr(agent, "generate"):
        able = [name for name, other in algorithms().items() if hasattr(other.agent_class, "generate")]
        raise UsageError(
            f"base={config.base} makes no actions of noise: base_mode=noise takes runs of {', '.join(able)}."
        )
    return (NoiseBase if config.base_mode == "noise" else Base)(agent, config.base_scale).to(device)


def _check_other(setting: str, folder: Path, other: dict[str, Any], record: dict[str, Any], role: str) -> str:
    """The digest of another run, named by `setting`, which must be finished and still be the one that `record` names.

    It is recorded under the last part of the setting's name if it is not there yet. `other` is that run's record.
    """
    found = {"checkpoint": digest(folder)}
    if record.setdefault(setting.rpartition(".")[2], found) != found:
        raise UsageError(f"{setting}={folder} is no longer {role}. Put that one back.")
    if other["status"] != "finished":
        raise UsageError(f"{setting}={folder} is not finished. Continue it first: {resume_command(folder)}")
    return found["checkpoint"]


def digest(run_dir: Path) -> str:
    """Identifies a run's checkpoint."""
    return hashlib.sha256((run_dir / "checkpoint.pt").read_bytes()).hexdigest()[:16]


def _corrects(algorithm: Algorithm) -> bool:
    """Whether the algorithm learns online, with continuous actions, and can do without a dataset."""
    if algorithm.setting != "online" or "continuous" not in algorithm.action_spaces or algorithm.family == "streaming":
        return False
    try:
        algorithm.module.Config(**({} if algorithm.data == "none" else {algorithm.data: 0.0}))
    except ValueError:
        return False
    return True


def load_adversary(config: CorruptionConfig, record: dict[str, Any]) -> Adversary | None:
    """The agent whose critics decide how a dataset is corrupted, for those kinds of corruption that need one.

    Raises:
        UsageError: no run is named, it is not finished, or it has changed since the run of `record` began; or its agent
            has no critics of actions, or does not act by its actor alone where they value its own actions.
    """
    if not config.needs_critic:
        return None
    if config.critic is None:
        raise UsageError(
            f"corruption={config.name} needs critics of the same dataset. Train an offline actor-critic (the paper: "
            "EDAC with 10 critics), zoo run algo=NAME with this env and dataset, and give the run's folder: "
            "corruption.critic=DIR"
        )
    folder = Path(config.critic)
    _, agent, of_critic = load_agent(folder)
    checkpoint = _check_other("corruption.critic", folder, of_critic, record, "the run that corrupted this one's data")
    if not all(hasattr(agent, name) for name in ("critic", "actor", "normalizer")):
        raise UsageError(
            f"corruption.critic={folder} is a run without critics of actions; take one of an offline actor-critic."
        )
    if config.name.endswith(("dynamics", "mixed")) and not _acts_by_its_actor(agent):
        raise UsageError(
            f"corruption={config.name} asks what the agent does, and that of corruption.critic={folder} does not act "
            "by an actor alone. Take one of EDAC, IQL, TD3+BC or the like."
        )
    return Adversary(agent, (of_critic.get("dataset") or {}).get("fingerprint"), folder, checkpoint)


def _acts_by_its_actor(agent: Any) -> bool:
    obs = torch.zeros(1, *agent.spec.obs_shape)
    try:
        return torch.allclose(agent.actor.mode(agent.normalizer(obs)), agent.act(obs))
    except (AttributeError, RuntimeError):  # the actor takes other inputs
        return False
