"""Builds small LeRobot v2 folders: ramped numbers, frames whose colour tells their index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg

from egoloader.convert import ConversionReport, LeRobotSettings, convert_lerobot
from egoloader.episode import ZarrEpisode

Image = npt.NDArray[np.uint8]

TOP = "observation.images.top"

STEP = 28  # between two digits' brightness: far more than the loss of a codec


def ramp(rows: int, dims: int) -> npt.NDArray[np.float32]:
    """Return a[t, d] = 1000 * t + d, (rows, dims)."""
    return (1000 * np.arange(rows)[:, None] + np.arange(dims)).astype(np.float32)


def coded(index: int, height: int = 32, width: int = 48, blue: int = 100) -> Image:
    """Return a flat picture whose red and green are the base-8 digits of `index` (below 64)."""
    picture = np.empty((height, width, 3), np.uint8)
    picture[:] = (20 + STEP * (index % 8), 20 + STEP * (index // 8), blue)
    return picture


def decoded_index(picture: Image) -> int:
    """Return the index that `coded` put into a picture."""
    red, green = picture[..., 0].mean(), picture[..., 1].mean()
    return round((red - 20) / STEP) + 8 * round((green - 20) / STEP)


def write_video(
    path: Path,
    pictures: Iterable[Image],
    codec: str = "libx264",
    options: Mapping[str, str] | None = None,
    first_pts: int = 0,
) -> None:
    """Encode pictures at 30 frames a second."""
    pictures = list(pictures)
    path.parent.mkdir(parents=True, exist_ok=True)
    quick = {"crf": "12", "preset": "ultrafast"} if codec == "libx264" else {"preset": "12"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=30, options={**quick, **(options or {})})
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = first_pts + number, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def png(picture: npt.NDArray[Any], pix_fmt: str = "rgb24") -> bytes:
    """Encode one picture as PNG, without loss."""
    context = av.CodecContext.create("png", "w")
    context.height, context.width = picture.shape[:2]
    context.pix_fmt, context.time_base = pix_fmt, Fraction(1, 30)
    frame = av.VideoFrame.from_ndarray(picture, format=pix_fmt)
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


@dataclass
class Folder:
    """A LeRobot folder in the making.

    Attributes:
        root: where it goes.
        lengths: episode index -> rows.
        cameras: video features.
        info: entries of `meta/info.json` that replace the usual ones.
        features: features besides state, action, cameras and bookkeeping.
        tasks: texts, by task index.
    """

    root: Path
    lengths: Mapping[int, int] = field(default_factory=lambda: {0: 12})
    cameras: Sequence[str] = (TOP,)
    info: Mapping[str, Any] = field(default_factory=dict)
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tasks: Sequence[str] = ("push the block",)

    def build(self, columns: Mapping[str, Any] | None = None) -> Path:
        """Write all of it; `columns` add to, or replace, each episode's parquet columns."""
        self.write_meta()
        for index, length in self.lengths.items():
            self.write_rows(index, length, columns or {})
            for number, key in enumerate(self.cameras):
                pictures = [coded(t, blue=60 + 90 * number) for t in range(length)]
                write_video(self.video(index, key), pictures)
        return self.root

    def parquet(self, index: int) -> Path:
        return self.root / f"data/chunk-000/episode_{index:06d}.parquet"

    def video(self, index: int, key: str) -> Path:
        return self.root / f"videos/chunk-000/{key}/episode_{index:06d}.mp4"

    def write_meta(self) -> None:
        meta = self.root / "meta"
        meta.mkdir(parents=True, exist_ok=True)
        (meta / "info.json").write_text(json.dumps(self._info()))
        tasks = [{"task_index": i, "task": text} for i, text in enumerate(self.tasks)]
        (meta / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in tasks))
        episodes = [
            {"episode_index": index, "tasks": [self.tasks[0]], "length": length}
            for index, length in self.lengths.items()
        ]
        (meta / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in episodes))

    def write_rows(self, index: int, rows: int, columns: Mapping[str, Any]) -> None:
        frames = np.arange(rows)
        values: dict[str, Any] = {
            "observation.state": pa.FixedSizeListArray.from_arrays(ramp(rows, 3).reshape(-1), 3),
            "action": [row.tolist() for row in ramp(rows, 2) + 0.5],
            "timestamp": (frames / 30).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(rows, index),
            "index": frames + 5000,
            "task_index": np.zeros(rows, np.int64),
            **columns,
        }
        path = self.parquet(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({key: value for key, value in values.items() if value is not None})
        pq.write_table(table, path, row_group_size=7)

    def _info(self) -> dict[str, Any]:
        number = {"dtype": "float32", "shape": [1], "names": None}
        features: dict[str, Any] = {
            "observation.state": {"dtype": "float32", "shape": [3], "names": [["x", "y", "z"]]},
            "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["left", "right"]}},
            **{key: dict(VIDEO) for key in self.cameras},
            **{key: dict(entry) for key, entry in self.features.items()},
            "timestamp": number,
        }
        for key in ("frame_index", "episode_index", "index", "task_index"):
            features[key] = {"dtype": "int64", "shape": [1], "names": None}
        return {
            "codebase_version": "v2.1",
            "robot_type": "testbot",
            "fps": 30,
            "chunks_size": 1000,
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
            "video_path": (
                "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
            ),
            "features": features,
            **self.info,
        }


VIDEO = {"dtype": "video", "shape": [32, 48, 3], "names": ["height", "width", "channel"]}


def convert(
    folder: Folder, target: Path, columns: dict[str, Any] | None = None, **settings: Any
) -> ConversionReport:
    return convert_lerobot(folder.build(columns), target, LeRobotSettings(workers=1, **settings))


def episode(target: Path, index: int = 0) -> ZarrEpisode:
    return ZarrEpisode(target / f"episode_{index:06d}.zarr")


def rows_of(ep: ZarrEpisode, key: str) -> Any:
    return ep.read({key: [(0, ep.total_frames)]})[key][0]


def pictures_of(ep: ZarrEpisode, key: str) -> list[Image]:
    return [simplejpeg.decode_jpeg(data) for data in rows_of(ep, key)]
