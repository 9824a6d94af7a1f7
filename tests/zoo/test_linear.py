"""Linear layers by several libraries: values and gradients against float64, the selection, and its cache."""

import json
import time

import pytest
import torch
import torch.nn.functional as F

from zoo.nn import MLP, EnsembleCritic, EnsembleMLP, Mish, with_derivative
from zoo.nn import linear as module
from zoo.nn.linear import Linear, available, choices_file, linear, serves
from zoo.runs.compilation import compile_update

SHAPES = [  # rows, inputs, outputs: for IQL and SAC, categorical heads, CQL's many actions, dynamics, DT, wide networks
    (256, 11, 256), (256, 14, 256), (256, 256, 256), (256, 256, 101), (2560, 256, 256), (256, 200, 200),
    (1280, 128, 512), (64, 512, 512), (33, 1000, 17),
]  # fmt: skip
needs_onednn = pytest.mark.skipif(not available(), reason="this torch has no oneDNN here")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, without earlier measurements in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "choices", {})
    module._say.cache_clear()
    return tmp_path


@pytest.fixture(params=["mkl", "onednn"])
def library(monkeypatch, request):
    """Makes one library compute every product that is large enough."""
    if request.param == "onednn" and not available():
        pytest.skip("this torch has no oneDNN here")
    monkeypatch.setattr(module, "serves", lambda *_: request.param)


def arguments(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, inputs), (outputs, inputs), (outputs,)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def relative_error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return float((actual - exact).abs().max() / exact.abs().max())


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_those_of_float64(shape, relu):
    found, exact = arguments(*shape, torch.float32), arguments(*shape, torch.float64)
    out = linear(*found, relu=relu)
    assert "Layer" in out.grad_fn.name()  # not F.linear's
    expected = F.linear(*exact)
    if relu:
        expected = expected * (out > 0)  # an output within rounding of 0 has the sign that it was given
    assert relative_error(out, expected) < 1e-6
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad((out * weight).sum(), found)
    for gradient, exactly in zip(gradients, torch.autograd.grad((expected * weight).sum(), exact), strict=True):
        assert relative_error(gradient, exactly) < 2e-6


@pytest.mark.usefixtures("library")
def test_gradients_have_gradients():
    def norms_gradient(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        x, weight, bias = arguments(256, 64, 64, dtype)
        (gradient,) = torch.autograd.grad(linear(x, weight, bias).square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), (x, weight))

    for found, exact in zip(norms_gradient(torch.float32), norms_gradient(torch.float64), strict=True):
        assert relative_error(found, exact) < 1e-5


@pytest.mark.usefixtures("library")
def test_compiled_its_gradients_are_those_of_float64():
    found, exact = arguments(256, 64, 64, torch.float32), arguments(256, 64, 64, torch.float64)

    def gradients() -> dict[str, torch.Tensor]:
        out = linear(*found, relu=True)
        return dict(zip("xwb", torch.autograd.grad(out.square().sum(), found), strict=True))

    exactly = torch.autograd.grad(F.linear(*exact).relu().square().sum(), exact)
    for gradient, expected in zip(compile_update(gradients)().values(), exactly, strict=True):
        assert relative_error(gradient, expected) < 2e-6


@needs_onednn
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("of_each", [False, True], ids=["shared input", "inputs of each"])
def test_members_one_by_one_are_the_batched_network(monkeypatch, layer_norm, of_each):
    ensemble = EnsembleMLP(3, 20, 5, [128, 64], layer_norm=layer_norm)
    x = torch.randn(3, 256, 20) if of_each else torch.randn(256, 20)

    def found(library: str) -> list[torch.Tensor]:
        monkeypatch.setattr(module, "serves", lambda *_: library)
        out = ensemble(x)
        return [out, *torch.autograd.grad(out.square().sum(), list(ensemble.parameters()))]

    for one_by_one, batched in zip(found("onednn"), found("mkl"), strict=True):
        torch.testing.assert_close(one_by_one, batched, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("way", ["mkl", pytest.param("onednn", marks=needs_onednn), "batched"])
def test_several_actions_of_an_observation_are_as_one_by_one(monkeypatch, way, layer_norm):
    monkeypatch.setattr(module, "serves", lambda *_: way)
    width = 8 if way == "batched" else 64  # small layers are
    critic = EnsembleCritic(2, 11, 3, [width, width], layer_norm=layer_norm, norm_first=True)
    obs, actions = torch.randn(64, 11), torch.randn(5, 64, 3)
    assert critic.one_by_one(actions.flatten(0, 1)) == (way != "batched")
    together = critic.of_many(obs, actions)
    apart = torch.stack([critic(obs, action) for action in actions], 1)
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
    gradients = (torch.autograd.grad(out.square().mean(), list(critic.parameters())) for out in (together, apart))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@needs_onednn
def test_a_part_of_a_larger_matrix_is_multiplied_as_fast_as_a_whole_one():
    """oneDNN takes hundreds of times as long for a few columns of weights, unless they are copied."""
    x, weight, gradient = torch.randn(4096, 3), torch.randn(256, 14), torch.randn(4096, 256)
    part, whole = weight[:, 11:], weight[:, 11:].clone()
    seconds = {id(one): [] for one in (part, whole)}
    for _ in range(5):
        for one in (part, whole):
            begun = time.perf_counter()
            module.multiply(x, one, None, False, module.ONEDNN)
            module.multiply(gradient, one.T, None, False, module.ONEDNN)
            seconds[id(one)].append(time.perf_counter() - begun)
    assert min(seconds[id(part)]) < 5 * min(seconds[id(whole)])
    for operands in ((x, part), (gradient, part.T)):
        torch.testing.assert_close(module.multiply(*operands, None, False, module.ONEDNN), operands[0] @ operands[1].T)


@pytest.mark.parametrize("activation", [torch.nn.ReLU, torch.nn.Tanh])
@pytest.mark.parametrize("library", ["mkl", "onednn"])
def test_an_mlp_is_its_layers_in_a_row(monkeypatch, library, activation):
    if library == "onednn" and not available():
        pytest.skip("this torch has no oneDNN here")
    monkeypatch.setattr(module, "serves", lambda *_: library)
    mlp, x = MLP(20, 4, [128, 128], activation, layer_norm=True), torch.randn(256, 20)
    expected = x
    for layer in mlp:
        expected = F.linear(expected, layer.weight, layer.bias) if isinstance(layer, Linear) else layer(expected)
    torch.testing.assert_close(mlp(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("x", [torch.randn(31, 256), torch.randn(256, 256).double()], ids=["few rows", "float64"])
def test_what_onednn_is_not_for_never_asks(monkeypatch, x):
    monkeypatch.setattr(module, "serves", lambda *_: pytest.fail("asked"))
    weight = torch.randn(256, 256, dtype=x.dtype)
    assert torch.equal(linear(x, weight, None), F.linear(x, weight))


def test_without_the_operator_all_is_as_ever(monkeypatch, cache):
    def missing():
        raise AttributeError("no _linear_pointwise")

    monkeypatch.setattr(module, "_kernel", missing)
    monkeypatch.setattr(module, "available", available.__wrapped__)
    x, weight, bias = arguments(256, 256, 256, torch.float32)
    assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))
    assert not choices_file().exists()


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Rounds to bfloat16. The result is in float64."""
    return tensor.bfloat16().double()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(256, 14, 256), (512, 256, 128)], ids=str)
def test_in_bfloat16_the_factors_and_the_product_are_rounded_once(monkeypatch, shape, relu, compiled):
    monkeypatch.setattr(module, "serves", lambda *_: "bfloat16")
    x, weight, bias = arguments(*shape, torch.float32)
    direction = torch.randn(shape[0], shape[2], generator=torch.Generator().manual_seed(1))

    def products() -> dict[str, torch.Tensor]:
        out = linear(x, weight, bias, relu)
        gradients = torch.autograd.grad((out * direction).sum(), (x, weight, bias))
        return {"out": out.detach(), **dict(zip(("x", "weight", "bias"), gradients, strict=True))}

    found = compile_update(products)() if compiled else products()
    out = rounded(x) @ rounded(weight).T + bias
    out = out.relu() if relu else out
    gradient = (direction * (found["out"] > 0) if relu else direction).double()
    expected = {
        "out": out, "x": rounded(gradient) @ rounded(weight), "weight": rounded(gradient).T @ rounded(x),
        "bias": gradient.sum(0),
    }  # fmt: skip
    for name, exact in expected.items():
        assert found[name].dtype == torch.float32
        assert relative_error(found[name], exact) < 2**-8, name  # half a unit in the last place, and a little more
    assert relative_error(found["bias"], expected["bias"]) < 1e-6


def test_in_bfloat16_a_compiled_ensemble_has_the_gradients_of_its_layers(monkeypatch):
    """GCC 12 miscompiles loops that transpose bfloat16 matrices side by side: some gradients were NaN."""
    monkeypatch.setattr(module, "serves", lambda *_: "bfloat16")
    torch.manual_seed(0)
    critic, obs, action = EnsembleCritic(2, 11, 3, [256, 256, 256]), torch.randn(256, 11), torch.randn(256, 3)

    def gradients(obs: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(critic(obs, action).square().mean(), list(critic.parameters()))

    for compiled, exact in zip(compile_update(gradients)(obs, action), gradients(obs, action), strict=True):
        assert relative_error(compiled, exact) < 2**-7


@pytest.fixture
def medium():
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("medium", "cache")
def test_medium_precision_measures_bfloat16_for_hidden_layers_alone(monkeypatch):
    monkeypatch.setattr(module, "measure", lambda rows, inputs, outputs, other: other)
    assert serves(256, 256, 256) == "bfloat16"
    assert serves(4096, 256, 1) == serves(4096, 256, 6) == "mkl"  # values, actions
    (kept,) = json.loads(choices_file().read_text()).values()
    assert kept == {"256x256x256": "bfloat16"}


@pytest.mark.usefixtures("medium", "cache")
@pytest.mark.parametrize("layer_norm", [False, True])
def test_what_a_network_gives_is_not_rounded_to_bfloat16(monkeypatch, layer_norm):
    """This includes latents: QRL compares latents of states that are hundreds of steps apart, and a single step."""
    monkeypatch.setattr(module, "measure", lambda rows, inputs, outputs, other: other)
    x, mlp = torch.randn(256, 20), MLP(20, 512, [128], layer_norm=layer_norm)
    *hidden_layers, last = mlp
    hidden = torch.nn.Sequential(*hidden_layers)(x)
    rounded_product = (x.bfloat16() @ mlp[0].weight.bfloat16().T).float()
    torch.testing.assert_close(mlp[0](x), rounded_product + mlp[0].bias, rtol=0, atol=0)
    torch.testing.assert_close(mlp(x), F.linear(hidden, last.weight, last.bias), rtol=1e-6, atol=1e-6)
    smooth = MLP(20, 512, [128], Mish)
    torch.testing.assert_close(with_derivative(smooth, x, x)[0], smooth(x), rtol=0, atol=0)
    ensemble = EnsembleMLP(2, 20, 512, [128], layer_norm=layer_norm)
    *hidden_layers, last = ensemble
    each = zip(ensemble.each(hidden_layers, [x, x]), last.weight, last.bias[:, 0], strict=True)
    expected = torch.stack([F.linear(*member) for member in each])
    torch.testing.assert_close(ensemble(x), expected, rtol=1e-6, atol=1e-6)
    assert module.choices == {"256x20x128": "bfloat16"}  # a run records the choice that it uses


@needs_onednn
@pytest.mark.usefixtures("cache")
def test_choices_of_the_precisions_are_kept_apart(monkeypatch, medium):
    monkeypatch.setattr(module, "measure", lambda rows, inputs, outputs, other: other)
    serves(256, 256, 256)
    module.begin({})
    torch.set_float32_matmul_precision("highest")
    assert serves(256, 256, 256) == "onednn"
    module.begin({})
    torch.set_float32_matmul_precision("high")
    assert serves(256, 256, 256) == "mkl"


@pytest.mark.parametrize("other", [pytest.param("onednn", marks=needs_onednn), "bfloat16"])
def test_the_faster_way_is_taken(monkeypatch, other):
    multiply = module.multiply

    def without(slow):
        def delayed(x, weight, bias, relu, way):
            time.sleep(0.02 * (way == slow))
            return multiply(x, weight, bias, relu, way)

        return delayed

    monkeypatch.setattr(module, "multiply", without(other))
    assert module.measure(64, 64, 64, other) == "mkl"
    monkeypatch.setattr(module, "multiply", without("mkl"))
    assert module.measure(64, 64, 64, other) == other


@needs_onednn
def test_a_choice_is_measured_once_for_a_machine(monkeypatch, cache):
    measured = []
    monkeypatch.setattr(module, "measure", lambda *shape: measured.append(shape) or "onednn")
    assert [serves(256, 32, 64), serves(256, 32, 64)] == ["onednn", "onednn"]
    monkeypatch.setattr(module, "choices", {})  # another process
    assert serves(256, 32, 64) == "onednn"
    serves(10**9, 256, 256)
    assert measured == [(256, 32, 64, "onednn"), (2**27 // 256**2, 256, 256, "onednn")]  # a part of a huge batch
    (kept,) = json.loads(choices_file().read_text()).values()
    assert kept == {"256x32x64": "onednn", "2048x256x256": "onednn"}


@needs_onednn
@pytest.mark.parametrize("content", ["{", "[]", '{"a machine": {"1x1x1": "abacus"}}'])
def test_a_damaged_file_is_written_anew(capsys, cache, content):
    choices_file().parent.mkdir()
    choices_file().write_text(content)
    assert serves(64, 64, 64) in ("mkl", "onednn")
    assert capsys.readouterr().err.count("is not readable") == 1
    assert "64x64x64" in choices_file().read_text()


@needs_onednn
def test_a_folder_that_cannot_be_written_is_done_without(capsys, cache):
    (cache / "rl-zoo").write_text("a file where the folder should be")
    assert serves(64, 64, 64) in ("mkl", "onednn")
    assert serves(64, 64, 128) in ("mkl", "onednn")
    assert capsys.readouterr().err.count("cannot be written") == 1
