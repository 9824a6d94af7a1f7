"""ONNX and TorchScript: writes a policy's step to a file, and runs it from there."""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from zoo.agent import Agent
from zoo.export.policy import PolicyStep, Run, first_inputs, observations
from zoo.nn.tracing import tracing

TRACED = 2  # observations in the traced batch; exported files accept any number


def _example(agent: Agent) -> tuple[torch.Tensor, ...]:
    obs = observations(agent, np.random.default_rng(0), TRACED)
    return tuple(torch.from_numpy(x) for x in first_inputs(agent, obs))


def _first_memory(agent: Agent) -> str:
    """The memory of a new episode as JSON: lists of numbers by name, without the batch dimension."""
    return json.dumps({name: x.tolist() for name, x in agent.memory().items()})


def write_onnx(agent: Agent, path: Path) -> Run:
    """Writes an ONNX file and opens it in onnxruntime.

    Inputs and outputs have the names in `PolicyStep`; the metadata entry `memory` is that of a new episode, as JSON.
    """
    import onnx

    step = PolicyStep(agent).eval()
    example = _example(agent)
    batch = {0: torch.export.Dim("batch")}
    shapes = (batch, (batch,) * (len(example) - 1)) if step.memory else (batch,)
    with tracing(), torch.no_grad(), _quiet():
        program = torch.onnx.export(
            step, example, input_names=step.inputs, output_names=step.outputs, dynamic_shapes=shapes, dynamo=True,
            verbose=False,
        )  # fmt: skip
    assert program is not None
    model = program.model_proto
    if step.memory:
        onnx.helper.set_model_props(model, {"memory": _first_memory(agent)})
    onnx.save(model, path)
    return open_onnx(path)


def open_onnx(path: Path) -> Run:
    """An ONNX file as a function of arrays, on one CPU thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        outputs: list[np.ndarray] = session.run(None, dict(zip(names, inputs, strict=True)))
        return outputs

    return run


def write_torchscript(agent: Agent, path: Path) -> Run:
    """Writes a traced TorchScript file and opens it. Its extra file `memory.json` is as in ONNX files."""
    step = PolicyStep(agent).eval()
    with tracing(), torch.no_grad(), _quiet():
        traced = torch.jit.trace(step, _example(agent), check_trace=False)  # type: ignore[no-untyped-call]
        traced = torch.jit.freeze(traced)  # leaves critics and optimizers out
        extra = {"memory.json": _first_memory(agent)} if step.memory else {}
        written = io.BytesIO()  # written directly to a full disk, PyTorch would end the process
        torch.jit.save(traced, written, _extra_files=extra)
    path.write_bytes(written.getvalue())
    return open_torchscript(path)


def open_torchscript(path: Path) -> Run:
    """A TorchScript file as a function of arrays."""
    with _quiet():
        step = torch.jit.load(path)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def run(inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        out = step(*(torch.from_numpy(x) for x in inputs))
        return [x.numpy() for x in (out if isinstance(out, tuple) else (out,))]

    return run


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporters' remarks: on unneeded packages, on deprecations, on what they could not fold."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
