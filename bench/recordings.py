"""Synthetic episodes that cost to read what recorded ones do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from egoloader import EpisodeWriter, ZarrEpisode

__all__ = [
    "ARRAYS",
    "CAMERA",
    "JpegSizeError",
    "Recording",
    "draw_poses",
    "draw_walk",
    "make_jpegs",
    "write_folder",
    "write_recording",
]

CAMERA = "images.front_1"
#: Numeric arrays of a recording, and the numbers in a row of each.
ARRAYS = {
    "left.obs_keypoints": 63,
    "right.obs_keypoints": 63,
    "left.obs_wrist_pose": 7,
    "right.obs_wrist_pose": 7,
    "obs_head_pose": 7,
}
#: Prime, so that windows a whole number of frames apart meet different pictures.
_DISTINCT_JPEGS = 47
#: Amplitudes fall as frequency to this power; in photographs it is between 1.0 and 1.2.
_SPECTRUM = 1.1
#: Standard deviation of brightness and of each colour around it, of 255.
_BRIGHTNESS, _COLOUR = 50.0, 12.5


class JpegSizeError(ValueError):
    """The pictures don't compress to the size that the bench is about."""


@dataclass(frozen=True, slots=True)
class _Spectrum:
    """Draws noise whose amplitudes fall with frequency."""

    size: tuple[int, int]
    power: float

    def draw(self, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return (H, W) noise of mean 0 and standard deviation 1."""
        height, width = self.size
        frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
        frequency[0, 0] = np.inf
        waves = frequency**-self.power * np.exp(2j * np.pi * rng.random(frequency.shape))
        noise = np.fft.irfft2(waves, s=self.size)
        return np.asarray(noise / noise.std())


def make_jpegs(size: tuple[int, int], mean_bytes: tuple[int, int], seed: int) -> list[bytes]:
    """Make distinct pictures with a photograph's spectrum, encoded by the writer's defaults.

    Args:
        size: (height, width) in pixels.
        mean_bytes: smallest and largest mean size in bytes that is accepted.
        seed: of the pictures.

    Raises:
        JpegSizeError: the mean size is outside `mean_bytes`.
    """
    rng = np.random.default_rng(seed)
    pictures = np.stack([_draw_picture(size, rng) for _ in range(_DISTINCT_JPEGS)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pictures.zarr"
        EpisodeWriter.write(path, images={CAMERA: pictures}, fps=30, embodiment="human")
        (jpegs,) = ZarrEpisode(path).read({CAMERA: [(0, len(pictures))]})[CAMERA]
    jpegs = list(jpegs)
    mean = sum(map(len, jpegs)) / len(jpegs)
    if not mean_bytes[0] <= mean <= mean_bytes[1]:
        raise JpegSizeError(
            f"JPEGs of {size[0]} x {size[1]} pixels have {mean:.0f} bytes on average, which is "
            f"outside {mean_bytes[0]} to {mean_bytes[1]}"
        )
    return jpegs


def draw_walk(total: int, width: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return (total, width) random walks, of steps of 0.01."""
    return np.cumsum(rng.normal(0, 0.01, size=(total, width)), axis=0).astype(np.float32)


def draw_poses(total: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return (total, 7): xyz in metres, and unit wxyz quaternions that turn any way."""
    turns = np.cumsum(rng.normal(0, 0.05, size=(total, 4)), axis=0) + rng.normal(size=4)
    turns /= np.linalg.norm(turns, axis=1, keepdims=True)
    return np.concatenate([draw_walk(total, 3, rng), turns], axis=1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Recording:
    """An episode on disk, and the pictures that it shows.

    Attributes:
        path: the episode's folder.
        total_frames: its frames.
        jpegs: per camera, JPEGs that it shows one after the other, over and over.
    """

    path: Path
    total_frames: int
    jpegs: Mapping[str, Sequence[bytes]]

    def jpeg(self, camera: str, frame: int) -> bytes:
        """Return the JPEG that a camera shows at a frame."""
        return self.jpegs[camera][frame % len(self.jpegs[camera])]


def write_recording(
    path: Path,
    total_frames: int,
    jpegs: Sequence[bytes],
    seed: int,
    cameras: Sequence[str] = (CAMERA,),
) -> Recording:
    """Write an episode of a person with cameras at 30 Hz.

    Numbers are random walks: they compress as little as recorded ones, and no two rows are alike.
    The first camera shows JPEG `t % len(jpegs)` at frame t; each further one begins elsewhere.
    """
    rng = np.random.default_rng(seed)
    steps = {k: rng.normal(0, 0.01, size=(total_frames, n)) for k, n in ARRAYS.items()}
    begins = {camera: place * len(jpegs) // len(cameras) for place, camera in enumerate(cameras)}
    shown = {camera: [*jpegs[at:], *jpegs[:at]] for camera, at in begins.items()}
    recording = Recording(path, total_frames, shown)
    EpisodeWriter.write(
        path,
        numeric={key: np.cumsum(walk, axis=0).astype(np.float32) for key, walk in steps.items()},
        images={
            camera: [recording.jpeg(camera, t) for t in range(total_frames)] for camera in cameras
        },
        fps=30,
        embodiment="human",
    )
    os.sync()  # so that the disk is not busy with it while something is timed
    return recording


def write_folder(
    folder: Path,
    episodes: int,
    total_frames: int,
    jpegs: Sequence[bytes],
    seed: int,
    cameras: Sequence[str] = (CAMERA,),
) -> dict[str, Recording]:
    """Write episodes of one length into a folder; return them by name."""
    names = [f"episode_{number:03d}.zarr" for number in range(episodes)]
    recordings: dict[str, Recording] = {}
    for number, name in enumerate(names):
        at = number % len(jpegs)  # so that a frame shows another picture in the next episode
        # Objects of its own: as far apart in memory as a reader of files has them.
        shown = [bytes(bytearray(jpeg)) for jpeg in (*jpegs[at:], *jpegs[:at])]
        recordings[name] = write_recording(
            folder / name, total_frames, shown, seed + number, cameras
        )
    return recordings


def _draw_picture(size: tuple[int, int], rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    spectrum = _Spectrum(size, _SPECTRUM)
    colours = np.stack([spectrum.draw(rng) for _ in range(3)], axis=-1)
    picture = 128 + _BRIGHTNESS * spectrum.draw(rng)[..., None] + _COLOUR * colours
    return np.ascontiguousarray(np.clip(picture, 0, 255).astype(np.uint8))
