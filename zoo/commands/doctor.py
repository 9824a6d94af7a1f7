"""`zoo doctor`: what is installed, what the machine offers, what is missing and how to get it."""

import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from importlib import metadata

from zoo.commands.parser import Parser
from zoo.errors import UsageError
from zoo.machine import cores, gpus

REQUIRED = (
    "torch", "numpy", "gymnasium", "mujoco", "minari", "h5py", "hydra-core", "omegaconf", "tensorboard", "rich",
    "greenlet",
)  # fmt: skip
EXTRAS = {
    "wandb": "wandb", "trackio": "trackio", "envpool": "envpool", "atari": "ale_py", "minatar": "minatar",
    "minigrid": "minigrid", "robotics": "gymnasium_robotics", "ogbench": "ogbench", "box2d": "Box2D",
    "plot": "matplotlib", "bench": "scipy matplotlib plotly", "scale": "ray submitit", "tune": "optuna scipy",
    "peers": "stable_baselines3 gym cv2 torchrl", "warp": "warp mujoco_warp", "video": "imageio_ffmpeg PIL pygame",
    "onnx": "onnx onnxscript onnxruntime", "sb3": "stable_baselines3", "serve": "fastapi uvicorn",
    "copy": "libcst ruff",
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Prints the report. Returns 0 if `zoo run` can work here, else 1."""
    Parser(prog="zoo doctor", description="What is installed, what the machine offers, what is missing.").parse_args(
        arguments
    )
    from zoo import __version__

    print(f"zoo {__version__}, python {platform.python_version()}, {platform.system()} {platform.machine()}")
    print("\npackages")
    missing = []
    for name in REQUIRED:
        try:
            print(f"  {name:<12} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
            print(f"  {name:<12} MISSING: pip install {name}")
    print("\nextras")
    for extra, modules in EXTRAS.items():
        there = all(importlib.util.find_spec(module) for module in modules.split())
        absent = f"not installed: pip install 'rl-zoo[{extra}]'"
        print(f"  {extra:<12} {'installed' if there else absent}")
    print("\nmachine")
    print(f"  cpu          {cores()} cores for this process; a run takes threads=1")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"  memory       {memory:.1f} GiB")
    if "torch" not in missing:
        found = gpus()
        more = [f"{name} {found[name]}" for name in ("driver", "cuda") if name in found]
        print(f"  gpu          {'; '.join([found['gpu'], *more]) if found else 'none: runs take the cpu'}")
    if not missing:
        from zoo.runs.compilation import needed_to_compile

        print(f"  linear       {found_out(products)}")
        print(f"  compile      {found_out(lambda: f'needs {needed}' if (needed := needed_to_compile()) else 'works')}")
    print(f"  disk         {shutil.disk_usage('.').free / 2**30:.1f} GiB free here")
    if missing:
        return 1
    from zoo.data.catalog import available, store

    print("\ndata")
    print(f"  store        {found_out(lambda: f'{store()}' + ('' if store().is_dir() else ' (not there yet)'))}")
    print(f"  datasets     {found_out(lambda: ', '.join(available()) or 'none: zoo data make hopper medium')}")
    return 0


def found_out(what: Callable[[], str]) -> str:
    """What a function finds out, or why it cannot."""
    try:
        return what()
    except (UsageError, OSError) as error:
        return str(error)


def products() -> str:
    """How this machine's CPU multiplies float32 matrices, and the speedup from rounding them."""
    import torch

    from zoo.nn.linear import begin, choices_file, fastest, serves

    torch.set_num_threads(1)  # as in runs
    shape, seconds = (256, 256, 256), {}
    for precision in ("medium", "highest"):
        torch.set_float32_matmul_precision(precision)
        begin({})
        way = serves(*shape)
        seconds[precision] = fastest(*shape, way)[way]
    gain = seconds["highest"] / seconds["medium"]
    return f"{way}, layers of 256; {gain:.1f} times as fast with matmul_precision=medium; others: {choices_file()}"
