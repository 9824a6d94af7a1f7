"""Episodes as pictures: a grid with the return written below each, in a window or a file."""

import itertools
import math
import os
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from zoo.errors import RunError, UsageError, optional
from zoo.runs.evaluation import Moment

FASTEST = {".mp4": 30, ".gif": 15, "": 30}  # pictures per second at most, in a file by its suffix, or in a window
COLOURS_OF_GIF = 64
PAPER, INK, OVER = (24, 24, 28), (235, 235, 235), (150, 150, 150)


class Closed(Exception):
    """The window was closed."""


class Sink(Protocol):
    """A destination for pictures, one after the other."""

    def show(self, picture: np.ndarray) -> None:
        """Takes a picture, uint8 `[height, width, 3]`, all of the same size."""

    def close(self) -> None:
        """Ends the sequence of pictures."""


def check_packages(video: Path | None) -> None:
    """Raises UsageError if a package or a screen is missing, or the kind of file is unknown."""
    if video is None and not _has_screen():
        raise UsageError("there is no screen here: DISPLAY is not set. Add: --video play.mp4")
    if video is not None and video.suffix not in (".mp4", ".gif"):
        raise UsageError(f"--video {video} must end in .mp4 or .gif.")
    needed = ["PIL", "pygame"] if video is None else ["PIL", "imageio_ffmpeg"] if video.suffix == ".mp4" else ["PIL"]
    for package in needed:
        optional(package, "a picture", "video")


def _has_screen() -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)


def pace(steps_per_second: float, suffix: str) -> tuple[int, float]:
    """Steps from one picture to the next, and pictures per second, such that episodes play at their true speed."""
    every = max(1, math.ceil(steps_per_second / FASTEST[suffix]))
    return every, steps_per_second / every


class Watcher:
    """Draws environments while they are played, for `zoo.runs.evaluation.evaluate`.

    Args:
        envs: environments made with `drawn=True`.
        sink: the destination of the pictures.
        every: the number of steps per picture.
        side: the larger side of one episode's picture, in pixels.
        unit: a note to write behind the critics' prediction.
    """

    def __init__(self, envs: Any, sink: Sink, every: int, side: int, unit: str = "") -> None:
        self.envs, self.sink, self.every, self.side, self.unit = envs, sink, every, side, unit
        self.steps = 0
        self.tiles: list[Any] = [None] * envs.num_envs  # once an episode has ended: the picture before its last step

    def __call__(self, now: Moment) -> None:
        over = not now.running.any()
        if self.steps % self.every == 0 or over:
            if not over:
                try:
                    frames = self.envs.render()
                except Exception as error:  # of any simulator's kind
                    raise RunError(f"the environment cannot be drawn: {error}") from error
                for i in np.flatnonzero(now.running):
                    self.tiles[i] = frames[i]
            self.sink.show(self.grid(now))
        self.steps += 1

    def grid(self, now: Moment) -> np.ndarray:
        """All episodes in one picture, arranged as close to a square as possible."""
        expected = [None] * len(now.returns) if now.expected is None else now.expected
        tiles = [self.tile(*each) for each in zip(self.tiles, now.returns, now.running, expected, strict=True)]
        columns = math.ceil(math.sqrt(len(tiles)))
        height, width, _ = tiles[0].shape
        whole = np.zeros((math.ceil(len(tiles) / columns) * height, columns * width, 3), np.uint8)
        for i, tile in enumerate(tiles):
            top, left = i // columns * height, i % columns * width
            whole[top : top + height, left : left + width] = tile
        return whole

    def tile(self, frame: np.ndarray, score: float, running: bool, expected: float | None) -> np.ndarray:
        """One episode: its picture, and below it the return so far and the critics' prediction from here on."""
        from PIL import Image, ImageDraw, ImageFont

        scale = self.side / max(frame.shape[:2])
        width, height = (round(scale * side / 2) * 2 for side in (frame.shape[1], frame.shape[0]))  # even, for MP4
        line = max(10, self.side // 20)
        # cells stay square when they are enlarged
        picture = Image.fromarray(frame).resize((width, height), Image.Resampling.BOX)
        tile = Image.new("RGB", (width, height + 2 * line), PAPER)
        tile.paste(picture)
        words = f"return {score:.4g}"
        if not running:
            words += "  over"
        elif expected is not None:
            words += f"  critic {expected:.4g}{self.unit}"
        pen = ImageDraw.Draw(tile)
        pen.line((width - 1, 0, width - 1, height), PAPER, 2)  # between adjacent episodes
        pen.text((line // 2, height + line // 3), words, INK if running else OVER, ImageFont.load_default(line))
        return np.asarray(tile)


class Window:
    """A window on the screen. `show` raises `Closed` when the window is closed, or ESC or q is pressed."""

    def __init__(self, title: str, rate: float) -> None:
        import pygame

        self.pygame, self.title, self.rate = pygame, title, rate
        self.screen: Any = None
        self.clock = pygame.time.Clock()

    def show(self, picture: np.ndarray) -> None:
        pygame = self.pygame
        if self.screen is None:
            try:
                pygame.display.init()
                self.screen = pygame.display.set_mode(picture.shape[1::-1])
            except pygame.error as error:
                raise UsageError(f"no window can be opened: {error}. Add: --video play.mp4") from error
            pygame.display.set_caption(self.title)
        self.screen.blit(pygame.image.frombuffer(picture.tobytes(), picture.shape[1::-1], "RGB"), (0, 0))
        pygame.display.flip()
        for event in pygame.event.get():
            if event.type == pygame.QUIT or (
                event.type == pygame.KEYDOWN and event.key in (pygame.K_ESCAPE, pygame.K_q)
            ):
                raise Closed
        self.clock.tick(self.rate)

    def close(self) -> None:
        self.pygame.display.quit()


class Film:
    """Writes pictures to an MP4 file one by one, or to a GIF at the end."""

    def __init__(self, path: Path, rate: float) -> None:
        self.path, self.rate = path, rate
        self.frames: list[Any] = []
        self.shown = 0
        self.writer: Any = None
        if path.suffix == ".mp4":
            import imageio.v2

            self.writer = imageio.v2.get_writer(path, format="FFMPEG", fps=rate, macro_block_size=2)

    def show(self, picture: np.ndarray) -> None:
        self.shown += 1
        if self.writer:
            self.writer.append_data(picture)
            return
        from PIL import Image

        # a palette of its own colours, rare ones included; dithered pictures would differ everywhere, and be large
        kept, noise = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
        self.frames.append(Image.fromarray(picture).quantize(COLOURS_OF_GIF, kept, dither=noise))

    def close(self) -> None:
        if self.writer:
            self.writer.close()
            self._check()
        elif self.frames:
            first, *rest = self.frames
            ends = [round(100 * i / self.rate) for i in range(len(self.frames) + 1)]  # in hundredths of a second
            durations = [10 * (end - start) for start, end in itertools.pairwise(ends)]
            first.save(self.path, save_all=True, append_images=rest, duration=durations, loop=0, optimize=True)

    def _check(self) -> None:
        """Raises RunError if the file is incomplete: ffmpeg ends silently when a disk is full."""
        import imageio_ffmpeg

        try:
            written, _ = imageio_ffmpeg.count_frames_and_secs(str(self.path))
        except RuntimeError:
            written = 0
        if written < self.shown:
            raise RunError(f"of {self.shown} pictures {written} could be written: the disk may be full.")
