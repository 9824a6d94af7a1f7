"""Learning from a stream: one sample at a time, nothing stored.

Elsayed, Vasan, Mahmood 2024, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606). One sample takes
so little arithmetic that its overhead determines the speed: a network's weights are one vector, and so are the traces
of its gradients; `compile=true` turns a whole update into a few loops.

What deviates from the authors' code (github mohmdelsayed/streaming-drl) in every algorithm:

- A truncated episode bootstraps from its last observation. Theirs does in Atari only, where its traces continue.
- The discounted sum that scales rewards starts anew with each episode, without the last reward of the one before.
- The time feature is that of the observation, not of the one before.
- Of stacked frames the whole stack is normalized, not each frame before it is stacked.
- In Atari, FIRE replaces the first action of a new life, whose first observation counts twice in the statistics. Theirs
  presses FIRE only when a game begins.
- Episodes end where Gymnasium ends them: in its classic control tasks after 200 to 1,000 steps, not 10,000
  (`env.max_episode_steps`), and in MinAtar after 10,000.
"""

from zoo.streaming.agent import Sample, StreamAgent, epsilon_greedy, stream
from zoo.streaming.network import StreamNetwork, sparse, zeros
from zoo.streaming.normalizer import RunningMoments, StreamNormalizer
from zoo.streaming.optimizers import SGD, AdaptiveObGD, ObGD, TraceAdam, check_stream, optimizer

__all__ = [
    "SGD", "AdaptiveObGD", "ObGD", "RunningMoments", "Sample", "StreamAgent", "StreamNetwork", "StreamNormalizer",
    "TraceAdam", "check_stream", "epsilon_greedy", "optimizer", "sparse", "stream", "zeros",
]  # fmt: skip
