"""In a compiled update, repeated expressions are computed once, and everything else is unchanged."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from zoo.runs.compilation import compile_update, needed_to_compile
from zoo.runs.subexpressions import CommonSubexpressions

calls = 0


@torch.library.custom_op("zoo_tests::counted_exp", mutates_args=())
def counted_exp(x: Tensor) -> Tensor:
    global calls
    calls += 1
    return x.exp()


@counted_exp.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def operations(function, *arguments: Tensor) -> tuple[int, int]:
    """The number of a function's operations before and after. Asserts that both compute the same."""
    graph = make_fx(function)(*(x.clone() for x in arguments))
    before = [node for node in graph.graph.nodes if node.op == "call_function"]
    expected = graph(*(x.clone() for x in arguments))
    CommonSubexpressions()(graph.graph)
    graph.graph.lint()
    graph.recompile()
    after = [node for node in graph.graph.nodes if node.op == "call_function"]
    torch.testing.assert_close(graph(*(x.clone() for x in arguments)), expected, rtol=0, atol=0)
    return len(before), len(after)


X = torch.tensor([0.5, -2.0, 3.0])


def test_the_same_operation_on_the_same_tensors_is_computed_once():
    assert operations(lambda x: x.exp() * 2 + x.exp() * 2, X) == (5, 3)
    assert operations(lambda x: torch.stack([x, x]).sum() + torch.stack([x, x]).sum(), X) == (5, 3)


def test_of_several_results_each_is_its_own():
    assert operations(lambda x: x.max(0)[0] + x.max(0)[1], X) == (7, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(0, keepdim=True) + x.sum(0, keepdim=False),
        lambda x: torch.stack([1 / (x * 0.0), 1 / (x * -0.0)]),
        lambda x: (x * 1).exp() + x * 1.0,
        lambda x: x.clamp(min=0) + x.clamp(max=0),
    ],
    ids=["flags", "zeros", "types", "names"],
)
def test_other_arguments_are_another_operation(function):
    before, after = operations(function, X)
    assert after == before


def test_random_numbers_are_drawn_anew():
    graph = make_fx(lambda x: torch.randn_like(x) - torch.randn_like(x) + torch.rand(3) - torch.rand(3))(X)
    CommonSubexpressions()(graph.graph)
    graph.recompile()
    assert graph(X).abs().min() > 0


def test_what_comes_before_a_tensor_is_written_to_is_not_used_after_it():
    def function(x: Tensor) -> Tensor:
        before = x.exp()
        x.add_(1)
        return x.exp() - before

    assert operations(function, X) == (4, 4)


def test_results_that_are_equal_remain_tensors_of_their_own():
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp(), x.exp()

    assert operations(twice, X) == (2, 2)


@pytest.mark.slow
def test_compiled_updates_do_so_and_draw_random_numbers_anew():
    if missing := needed_to_compile():
        pytest.skip(missing)

    def update(x: Tensor) -> tuple[Tensor, ...]:
        draws = [torch.randn_like, torch.rand_like, lambda x: x.clone().exponential_(), torch.bernoulli]
        return counted_exp(x) + 2 * counted_exp(x), *(draw(x.sigmoid()) - draw(x.sigmoid()) for draw in draws)

    compiled, x = compile_update(update), X.repeat(10)
    compiled(x)
    begun = calls
    found, *differences = compiled(x)
    torch.testing.assert_close(found, 3 * x.exp())
    assert calls == begun + 1
    assert all(difference.any() for difference in differences), "random numbers are drawn anew"
