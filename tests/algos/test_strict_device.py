"""The device without values refuses operations for which a GPU would wait, and names their line."""

import numpy as np
import pytest
import torch
from strict_device import DEVICE, StrictDeviceError, assert_on_device, moved, on_device, strict
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.nn.optim import Adam


class Linear(Agent):
    """A linear layer that predicts 0. Each other method waits for the device, in one line."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.optimizer = Adam(self.parameters(), 1e-3, max_norm=1.0)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.stray = torch.ones(3)  # not a buffer, so it is not moved to the device

    def update(self, batch: Tensor, mistake: str = "no_mistake") -> Metrics:
        x = getattr(self, mistake)(batch)
        loss = self.layer(x if isinstance(x, Tensor) else batch).square().mean()
        self.optimizer.minimize(loss)
        self.count += 1
        return {"loss": loss.detach()}

    def no_mistake(self, x):
        return torch.where(x > 0, x, 0.5).clamp(max=1) * self.count[None] + x[0].masked_fill(x[0] > 0, 1.0)

    def a_stray_tensor(self, x):
        return x * self.stray

    def a_stray_number(self, x):
        return x * self.stray.sum()

    def a_stray_index(self, x):
        return x[torch.arange(4)]

    def a_stray_value_that_is_assigned(self, x):
        x[0] = self.stray

    def a_copy_to_the_device(self, x):
        return x * self.stray.to(x.device)

    def a_tensor_of_numbers(self, x):
        return x * torch.tensor([1.0, 2.0, 3.0], device=x.device)

    def a_tensor_of_numbers_like_another(self, x):
        return x * x.new_tensor([1.0, 2.0, 3.0])

    def a_tensor_of_an_array(self, x):
        return x * torch.as_tensor(np.ones(3, dtype=np.float32), device=x.device)

    def a_copy_from_the_device(self, x):
        x.cpu()

    def an_item(self, x):
        return x * x[0, 0].item()

    def a_float(self, x):
        return x * float(x[0, 0])

    def a_list(self, x):
        x.tolist()

    def an_array(self, x):
        x.numpy()

    def an_array_by_numpy(self, x):
        np.asarray(x)

    def a_text(self, x):
        return f"{x.mean():.3g}"

    def a_branch(self, x):
        return x if x.sum() > 0 else -x

    def a_maximum_by_python(self, x):
        return x * max(x[0, 0], x[0, 1])

    def a_slice_of_a_length(self, x):
        return x[: self.count]

    def a_place(self, x):
        return x[self.count]

    def a_comparison_of_all(self, x):
        return x if torch.equal(x, -x) else -x

    def a_boolean_index(self, x):
        return x[x[:, 0] > 0]

    def a_boolean_index_that_is_assigned(self, x):
        x[x > 0] = 1.0

    def places_that_are_not_zero(self, x):
        return x[x[:, 0].nonzero().squeeze(1)]

    def a_selection(self, x):
        x.masked_select(x > 0)

    def repeats_that_depend_on_values(self, x):
        x.repeat_interleave(x[:, 0].abs().long(), 0)

    def an_order_without_repeats(self, x):
        x.unique()


MISTAKES = [name for name in vars(Linear) if name.startswith(("a_", "an_", "places", "repeats"))]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_at_its_line(mistake):
    batch = torch.randn(4, 3)
    Linear().update(batch.clone(), mistake)  # there is nothing else wrong with it
    agent, batch = moved(Linear()), on_device(batch)
    with pytest.raises(StrictDeviceError) as caught, strict():
        agent.update(batch, mistake)
    line = getattr(Linear, mistake).__code__.co_firstlineno + 1
    assert str(caught.value).startswith(f"{__file__}:{line}, in Linear.{mistake}: ")


def test_an_update_without_mistakes_passes_gradients_included():
    agent, batch = moved(Linear()), on_device(torch.randn(4, 3))
    with strict():
        metrics = agent.update(batch)
    assert_on_device(metrics)
    assert_on_device(list(agent.state_dict().values()))


def test_a_mistake_within_a_gradient_is_refused_at_its_line():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (2 if gradient.sum() > 0 else 1)

    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with pytest.raises(StrictDeviceError) as caught, strict():
        torch.autograd.grad(Twice.apply(x).sum(), x)
    assert str(caught.value).startswith(f"{__file__}:{Twice.backward.__code__.co_firstlineno + 2}, in ")


def test_parameters_that_move_stay_those_that_the_optimizer_moves():
    agent = moved(Linear())
    assert all(moving is parameter for moving, parameter in zip(agent.optimizer.moved, agent.parameters(), strict=True))


def test_reading_the_cpu_is_allowed():
    with strict():
        assert float(torch.ones(3).sum()) == 3
