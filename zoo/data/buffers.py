"""Replay buffers, and the rollout buffer for on-policy algorithms, on the run's device."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.data.batch import Batch, NStepBatch, Transition
from zoo.spec import Spec


class ReplayBuffer:
    """The last `capacity` transitions, sampled uniformly; when full, the oldest are overwritten.

    Attributes:
        added: number of transitions added so far; number n is at index `n % capacity`.
        size: number of transitions that can be sampled, which are the newest ones.
        num_envs: number of transitions in a step.
    """

    _stored: tuple[str, ...] = Transition._fields  # fields of a transition that are stored unchanged
    _columns: tuple[str, ...] = _stored  # all columns that are stored

    def __init__(self, capacity: int, spec: Spec, device: torch.device) -> None:
        self.capacity, self.device = capacity, device
        self.added, self.size, self.num_envs = 0, 0, 1
        self._allocate_obs(spec, device)
        if spec.num_actions is None:
            self.action = torch.zeros(capacity, spec.action_dim, device=device)
        else:
            self.action = torch.zeros(capacity, dtype=torch.int64, device=device)
        self.reward = torch.zeros(capacity, device=device)
        self.terminated = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.truncated = torch.zeros(capacity, dtype=torch.bool, device=device)

    @property
    def position(self) -> int:
        """The index at which the next transition is written."""
        return self.added % self.capacity

    @property
    def filled(self) -> int:
        """The number of positions that have been written to."""
        return min(self.added, self.capacity)

    def _allocate_obs(self, spec: Spec, device: torch.device) -> None:
        self.obs = torch.zeros(self.capacity, *spec.obs_shape, dtype=getattr(torch, spec.obs_dtype), device=device)
        self.next_obs = torch.zeros_like(self.obs)

    def add(self, transition: Transition, ended: np.ndarray | None = None) -> None:
        """Stores one transition from each of N environments (N at most `capacity`, and the same at every call).

        Args:
            transition: the transitions, on the device.
            ended: `[N]` whether each is its episode's last, as reported by the environments: buffers that need to know
                then do not wait for the device.
        """
        count = len(transition.reward)
        for name in self._stored:
            self._write(name, getattr(transition, name))
        self.added += count
        self.size = min(self.size + count, self.capacity)
        self.num_envs = count

    def _write(self, name: str, value: Tensor) -> None:
        stored = getattr(self, name)
        first = min(len(value), self.capacity - self.position)  # the rest wraps around to the start
        stored[self.position : self.position + first] = value[:first]
        if first < len(value):
            stored[: len(value) - first] = value[first:]

    def draw(self, batch_size: int) -> Tensor:
        """Indices `[B]` of transitions, uniformly with replacement."""
        return torch.randint(self.size, (batch_size,), device=self.reward.device)

    def obs_at(self, index: Tensor) -> Tensor:
        """Observations at the given indices."""
        return self.obs.index_select(0, index)

    def next_obs_at(self, index: Tensor) -> Tensor:
        """The true successors at the given indices."""
        return self.next_obs.index_select(0, index)

    def sample(self, batch_size: int) -> Batch:
        """`batch_size` transitions sampled uniformly with replacement."""
        index = self.draw(batch_size)
        action, reward, terminated = (x.index_select(0, index) for x in (self.action, self.reward, self.terminated))
        return Batch(self.obs_at(index), action, reward, self.next_obs_at(index), terminated, index)

    def sample_n_step(self, batch_size: int, n: int, discount: float) -> NStepBatch:
        """`batch_size` indices sampled uniformly, each with n steps, or with fewer at an episode's or the data's end.

        Sutton 1988; in deep RL, Hessel et al. 2018, arXiv 1710.02298.
        """
        index = self.draw(batch_size)
        ahead = torch.arange(n, device=index.device)
        steps = (index[:, None] + ahead * self.num_envs) % self.capacity  # [B, n]
        added_since = (self.position - 1 - index) % self.capacity
        ended = self.terminated[steps] | self.truncated[steps]
        goes_on = torch.cat([torch.ones_like(ended[:, :1]), ~ended[:, :-1]], 1).cumprod(1).bool()
        counted = goes_on & (added_since[:, None] >= ahead * self.num_envs)
        reward = (self.reward[steps] * discount**ahead * counted).sum(1)
        count = counted.sum(1)
        last = steps.gather(1, count[:, None] - 1).squeeze(1)
        bootstrap = discount**count * ~self.terminated[last]
        return NStepBatch(self.obs_at(index), self.action[index], reward, self.next_obs_at(last), bootstrap, index)

    def rows(self, first: int, last: int) -> dict[str, Tensor]:
        """The stored rows of the transitions numbered from `first` up to `last`, as far as they are still kept."""
        index = torch.arange(first, last, device=self.device) % self.capacity
        return {name: getattr(self, name).index_select(0, index) for name in self._columns}

    def put(self, first: int, rows: dict[str, Tensor]) -> None:
        """Stores the result of `rows`, from number `first` on."""
        index = (first + torch.arange(len(rows["reward"]), device=self.device)) % self.capacity
        for name in self._columns:
            getattr(self, name)[index] = rows[name]

    def state_dict(self) -> dict[str, Any]:
        """The counters. The transitions are not included, see `rows`."""
        return {"added": self.added, "size": self.size, "num_envs": self.num_envs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.added, self.size, self.num_envs = state["added"], state["size"], state["num_envs"]

    def cut(self) -> int:
        """Truncates the running episodes: what is added next belongs to new ones. Returns how many there were."""
        count = min(self.num_envs, self.size)
        newest = (self.position - 1 - torch.arange(count, device=self.device)) % self.capacity
        self.truncated[newest] |= ~self.terminated[newest]
        return count


class FrameBuffer(ReplayBuffer):
    """A `ReplayBuffer` of stacked frames that stores each frame once: for uint8 observations `[S, H, W]`, newest last.

    An episode's first observation is stored whole, as S frames, then one frame per step: every stack is S consecutive
    frames of its own episode. There is room for an eighth more frames than transitions; if episodes are so short that
    this is not enough, the oldest transitions are dropped earlier. When that happens depends on where episodes end: it
    is computed on the host, from counts that are kept both there and on the device.

    Raises:
        ValueError: the observations are not frames.
    """

    _stored = ("action", "reward", "terminated", "truncated")
    _columns = ("env", "newest", *_stored)

    def __init__(self, capacity: int, spec: Spec, device: torch.device, num_envs: int) -> None:
        if len(spec.obs_shape) != 3 or spec.obs_dtype != "uint8":
            raise ValueError(f"frames are uint8 of three dimensions, not {spec.obs_dtype} of {spec.obs_shape}")
        self._streams = num_envs
        super().__init__(capacity, spec, device)
        self._written = torch.zeros(num_envs, dtype=torch.int64, device=device)  # frames so far, for each environment
        self._counts = np.zeros(num_envs, dtype=np.int64)  # the same, on the host
        self._newest = np.zeros(capacity, dtype=np.int64)  # `newest`, on the host
        self._starting = np.ones(num_envs, dtype=bool)  # the next observation starts an episode

    def _allocate_obs(self, spec: Spec, device: torch.device) -> None:
        self.stack, *frame = spec.obs_shape
        self._room = self.capacity * 9 // 8 // self._streams + 2 * self.stack  # number of frames for one environment
        self.frames = torch.zeros(self._streams * self._room, *frame, dtype=torch.uint8, device=device)
        # for every transition: its environment, and the number of its newest frame
        self.env = torch.zeros(self.capacity, dtype=torch.int64, device=device)
        self.newest = torch.zeros(self.capacity, dtype=torch.int64, device=device)
        self._envs = torch.arange(self._streams, device=device)
        self._places = self._envs * self._room  # where the frames of each environment begin
        self._ahead = torch.arange(self.stack, device=device)

    def add(self, transition: Transition, ended: np.ndarray | None = None) -> None:
        for env in np.flatnonzero(self._starting):
            places = self._places[env] + (self._written[env] + self._ahead) % self._room
            self.frames.index_copy_(0, places, transition.obs[env])
            self._written[env] += self.stack
            self._counts[env] += self.stack
        self._write("env", self._envs)
        self._write("newest", self._written - 1)
        self._newest[(self.added + np.arange(self._streams)) % self.capacity] = self._counts - 1
        self.frames.index_copy_(0, self._places + self._written % self._room, transition.next_obs[:, -1])
        self._written += 1
        self._counts += 1
        super().add(transition)
        self._starting = (transition.terminated | transition.truncated).cpu().numpy() if ended is None else ended
        while self.size > self._streams and not self._has_oldest_frames():  # those of the latest step have their frames
            self.size -= self._streams

    def _has_oldest_frames(self) -> bool:
        numbers = self.added - self.size + np.arange(self._streams)  # the next transitions to be dropped
        oldest = self._newest[numbers % self.capacity] - self.stack + 1
        return bool((oldest >= self._counts[numbers % self._streams] - self._room).all())

    def draw(self, batch_size: int) -> Tensor:
        return (self.position - 1 - super().draw(batch_size)) % self.capacity  # among the newest `size`

    def obs_at(self, index: Tensor) -> Tensor:
        return self._stacks(self.env[index], self.newest[index])

    def next_obs_at(self, index: Tensor) -> Tensor:
        return self._stacks(self.env[index], self.newest[index] + 1)

    def _stacks(self, env: Tensor, newest: Tensor) -> Tensor:
        numbers = newest[:, None] - torch.arange(self.stack - 1, -1, -1, device=newest.device)  # [B, S]
        indices = env[:, None] * self._room + numbers % self._room
        return self.frames.index_select(0, indices.flatten()).view(*indices.shape, *self.frames.shape[1:])

    def rows(self, first: int, last: int) -> dict[str, Tensor]:
        """The transitions, and all frames in their stacks: `frames` `[F, H, W]` and their indices `[F]`."""
        rows = super().rows(first, last)
        needed = rows["newest"][:, None] + torch.arange(1 - self.stack, 2, device=self.device)  # [rows, S + 1]
        indices = torch.unique(rows["env"][:, None] * self._room + needed % self._room)
        return rows | {"indices": indices, "frames": self.frames.index_select(0, indices)}

    def put(self, first: int, rows: dict[str, Tensor]) -> None:
        super().put(first, rows)
        self._newest[(first + np.arange(len(rows["newest"]))) % self.capacity] = rows["newest"].cpu().numpy()
        self.frames[rows["indices"]] = rows["frames"]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"written": self._written}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._written.copy_(state["written"])
        self._counts[:] = state["written"].cpu().numpy()
        self._starting = np.ones(self._streams, dtype=bool)


def replay_buffer(capacity: int, spec: Spec, device: torch.device, num_envs: int, stacked: bool) -> ReplayBuffer:
    """The buffer for an environment's observations: a `FrameBuffer` for stacked frames such as Atari's."""
    if stacked:
        return FrameBuffer(capacity, spec, device, num_envs)
    return ReplayBuffer(capacity, spec, device)


class RolloutBuffer(list[Transition]):
    """The latest steps of N environments, from which an on-policy algorithm has not learned yet, on `device`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def stacked(self) -> Transition:
        """All steps, `[T, N, ...]`."""
        return Transition(*map(torch.stack, zip(*self, strict=True)))

    def state_dict(self) -> dict[str, Any]:
        return self.stacked()._asdict() if self else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        fields = (field.to(self.device).unbind() for field in state.values())
        self[:] = [Transition(*step) for step in zip(*fields, strict=True)]
