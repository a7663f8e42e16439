"""Synthetic episodes that cost to read what recorded ones do."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from egoloader import EpisodeWriter, ZarrEpisode

__all__ = ["CAMERA", "JpegSizeError", "make_jpegs", "write_recording"]

CAMERA = "images.front_1"
_ARRAYS = {
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


def write_recording(path: Path, total_frames: int, jpegs: list[bytes], seed: int) -> Path:
    """Write an episode of a person with a head camera at 30 Hz, and return its path.

    Numbers are random walks: they compress as little as recorded ones, and no two rows are alike.
    Frame t shows JPEG `t % len(jpegs)`.
    """
    rng = np.random.default_rng(seed)
    steps = {k: rng.normal(0, 0.01, size=(total_frames, n)) for k, n in _ARRAYS.items()}
    EpisodeWriter.write(
        path,
        numeric={key: np.cumsum(walk, axis=0).astype(np.float32) for key, walk in steps.items()},
        images={CAMERA: [jpegs[t % len(jpegs)] for t in range(total_frames)]},
        fps=30,
        embodiment="human",
    )
    return path


def _draw_picture(size: tuple[int, int], rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    spectrum = _Spectrum(size, _SPECTRUM)
    colours = np.stack([spectrum.draw(rng) for _ in range(3)], axis=-1)
    picture = 128 + _BRIGHTNESS * spectrum.draw(rng)[..., None] + _COLOUR * colours
    return np.ascontiguousarray(np.clip(picture, 0, 255).astype(np.uint8))
