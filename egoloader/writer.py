"""Writing episodes: whole or frame by frame, in bounded memory, published whole or not at all.

An array becomes one shard file: inner chunks are appended as they fill up, the index comes last.
Until the episode is finished it lives in a hidden folder beside its path, and appears by rename.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.arrayfile import CameraFile, NumericFile, annotation_files
from egoloader.errors import EpisodeExistsError, NonFiniteWarning, WriterError
from egoloader.header import FORMAT_VERSION, STAMP, parse_header
from egoloader.keymap import RESERVED_NAMES

__all__ = ["EpisodeWriter"]

_OWN_ATTRS = frozenset(
    {"total_frames", "fps", "embodiment", "task_name", "task_description", "features", STAMP}
)


class EpisodeWriter:
    """Writes one episode frame by frame; `EpisodeWriter.write` takes whole arrays.

    Use it as a context manager: a clean exit publishes the episode, an exception discards it. The
    first frame fixes the keys, shapes and dtypes. Every chunk carries a crc32c and is stored, zero
    or not.

    Args:
        path: where the episode is to appear; its parent folder is made if there is none.
        fps: frames a second, in Hz.
        embodiment: the body that was recorded.
        task_name: a short name of the task.
        task_description: the task in words.
        annotations: spans (text, start, end), half-open in frames.
        attrs: any further attributes that JSON can hold.
        names: per array, names of a row's dimensions, kept in `features`.
        jpeg_quality: 1…100, for frames that are handed over as pixels.
        jpeg_subsampling: chroma subsampling of those: `420`, `422`, `440`, `411` or `444`.
        chunk_rows: rows of one chunk of numbers.
        overwrite: replace what is at `path`.

    Raises:
        WriterError: an argument that can't be meant.
        EpisodeExistsError: something is at `path` and `overwrite` is false.

    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fps: float,
        embodiment: str,
        task_name: str = "",
        task_description: str = "",
        annotations: Sequence[tuple[str, int, int]] = (),
        attrs: Mapping[str, Any] | None = None,
        names: Mapping[str, Any] | None = None,
        jpeg_quality: int = 85,
        jpeg_subsampling: str = "420",
        chunk_rows: int = 100,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self._annotations = [_check_annotation(span) for span in annotations]
        self._names = dict(names or {})
        self._attrs = _check_attrs(attrs or {})
        self._attrs |= {"fps": fps, "embodiment": embodiment}
        self._attrs |= {"task_name": task_name, "task_description": task_description}
        _check_header(self._attrs, str(self.path))
        if type(chunk_rows) is not int or chunk_rows < 1:
            raise WriterError(f"chunk_rows must be a whole number above 0, got {chunk_rows!r}")
        self._chunk_rows, self._overwrite = chunk_rows, overwrite
        self._quality, self._subsampling = jpeg_quality, jpeg_subsampling
        self._refuse_existing()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._scratch = Path(
            tempfile.mkdtemp(prefix=f".{self.path.name}.", suffix=".partial", dir=self.path.parent)
        )
        self._numeric: dict[str, NumericFile] = {}
        self._cameras: dict[str, CameraFile] = {}
        self._total_frames = 0
        self._is_open = True

    @classmethod
    def write(
        cls,
        path: str | os.PathLike[str],
        *,
        fps: float,
        embodiment: str,
        numeric: Mapping[str, npt.ArrayLike] | None = None,
        images: Mapping[str, Iterable[Any]] | None = None,
        **options: Any,
    ) -> None:
        """Write a whole episode.

        Args:
            path: where the episode is to appear.
            fps: frames a second, in Hz.
            embodiment: the body that was recorded.
            numeric: per array, (T, D…) numbers; (T,) is taken too.
            images: per camera, (T, H, W, 3) uint8 RGB, or T JPEGs as bytes.
            options: as for `EpisodeWriter`.

        Raises:
            WriterError: arrays of different lengths, or what `add_frame` refuses.
            EpisodeExistsError: something is at `path` and `overwrite` is not set.

        """
        rows = {key: np.asarray(values) for key, values in (numeric or {}).items()}
        frames = {key: _as_sequence(key, value) for key, value in (images or {}).items()}
        total = _common_length({**rows, **frames})
        with cls(path, fps=fps, embodiment=embodiment, **options) as writer:
            for i in range(total):
                writer.add_frame(
                    numeric={key: values[i] for key, values in rows.items()},
                    images={key: values[i] for key, values in frames.items()},
                )

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def add_frame(
        self,
        numeric: Mapping[str, npt.ArrayLike] | None = None,
        images: Mapping[str, npt.NDArray[np.uint8] | bytes] | None = None,
    ) -> None:
        """Append one frame.

        Args:
            numeric: per array, one row: (D…) numbers of the first frame's shape and dtype.
            images: per camera, (H, W, 3) uint8 RGB pixels, or a JPEG as bytes, kept as it is.

        Raises:
            WriterError: the episode is closed; the keys, a shape, a dtype or an image size differ
                from the first frame's; or an image is no whole JPEG in RGB or gray.

        """
        if not self._is_open:
            raise WriterError(f"{self.path}: the episode is closed; a frame came after close")
        numeric, images = numeric or {}, images or {}
        if self._total_frames == 0:
            self._start(numeric, images)
        self._check_keys(numeric, self._numeric, "numeric")
        self._check_keys(images, self._cameras, "images")
        # Check all before any is appended: a refused frame must leave no half row behind.
        rows = {key: self._numeric[key].check(value) for key, value in numeric.items()}
        jpegs = {key: self._cameras[key].check(value) for key, value in images.items()}
        for key, row in rows.items():
            self._numeric[key].append(row)
        for key, jpeg in jpegs.items():
            self._cameras[key].append(jpeg)
        self._total_frames += 1

    def close(self) -> None:
        """Finish the episode and publish it at its path; on any error, discard it.

        Raises:
            WriterError: there is no frame, or an annotation reaches outside the episode.
            EpisodeExistsError: something appeared at the path meanwhile.

        """
        if not self._is_open:
            return
        try:
            self._finish()
            self._refuse_existing()
            self._publish()
        finally:
            self.discard()

    def discard(self) -> None:
        """Throw away what was written and not published."""
        self._is_open = False
        for file in self._files().values():
            file.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _start(self, numeric: Mapping[str, Any], images: Mapping[str, Any]) -> None:
        if not numeric and not images:
            raise WriterError(f"{self.path}: a frame needs numbers or images, got neither")
        for key in (*numeric, *images):
            _check_name(key)
        _check_nesting(str(self.path), [*numeric, *images, "annotations"])
        both = sorted(set(numeric) & set(images))
        if both:
            raise WriterError(f"{self.path}: key {both[0]!r} is both numeric and an image")
        for key in self._names:
            if key not in numeric and key not in images:
                raise WriterError(f"{self.path}: names are given for {key!r}, which has no rows")
        for key, row in numeric.items():
            self._numeric[key] = NumericFile(self._scratch, key, row, self._chunk_rows)
        for key, image in images.items():
            self._cameras[key] = CameraFile(
                self._scratch,
                key,
                image,
                quality=self._quality,
                subsampling=self._subsampling,
            )

    def _files(self) -> dict[str, NumericFile | CameraFile]:
        return {**self._numeric, **self._cameras}

    def _check_keys(self, given: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
        if given.keys() != known.keys():
            missing, extra = (
                sorted(known.keys() - given.keys()),
                sorted(given.keys() - known.keys()),
            )
            raise WriterError(
                f"{self.path}: frame {self._total_frames} has other {what} keys than the first: "
                f"missing {missing}, unknown {extra}"
            )

    def _finish(self) -> None:
        if self._total_frames == 0:
            raise WriterError(f"{self.path}: an episode needs at least one frame")
        for text, start, end in self._annotations:
            if end > self._total_frames:
                raise WriterError(
                    f"{self.path}: annotation {text!r} [{start}, {end}) reaches past the "
                    f"{self._total_frames} frames"
                )
        features: dict[str, Any] = {}
        for key, file in self._files().items():
            file.finish()
            features[key] = {**file.feature, "names": self._names.get(key)}
            self._report_non_finite(key, file)
        annotation_files(self._scratch, self._annotations)
        features["annotations"] = {"dtype": "json", "shape": [], "names": None}
        attrs = {
            **self._attrs,
            "total_frames": self._total_frames,
            "features": features,
            STAMP: {"version": FORMAT_VERSION, "complete": True},
        }
        group = {"zarr_format": 3, "node_type": "group", "attributes": attrs}
        (self._scratch / "zarr.json").write_text(json.dumps(group, indent=1))

    def _report_non_finite(self, key: str, file: NumericFile | CameraFile) -> None:
        if isinstance(file, NumericFile) and file.non_finite_rows:
            warnings.warn(
                f"{self.path}, key {key!r}: {file.non_finite_rows} of {self._total_frames} rows "
                f"hold NaN or inf, the first at frame {file.first_non_finite}",
                NonFiniteWarning,
                stacklevel=4,
            )

    def _publish(self) -> None:
        self._scratch.chmod(0o755 & ~_umask())
        if not self._overwrite or not self.path.exists():
            self._scratch.rename(self.path)
            return
        # A folder can't be replaced in one step: the old episode steps aside, then the new one in.
        old = Path(f"{self._scratch}.old")
        self.path.rename(old)
        self._scratch.rename(self.path)
        _remove(old)

    def _refuse_existing(self) -> None:
        if self.path.exists() and not self._overwrite:
            raise EpisodeExistsError(
                f"{self.path} exists already; pass overwrite=True to replace it"
            )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _check_header(attrs: Mapping[str, Any], path: str) -> None:
    """Hold the writer to what the reader demands of an episode's attributes."""
    for name in ("task_name", "task_description"):
        if not isinstance(attrs[name], str):
            raise WriterError(f"{path}: {name} must be a string, got {attrs[name]!r}")
    try:
        parse_header({**attrs, "total_frames": 1}, episode=path)
    except ValueError as error:
        raise WriterError(str(error)) from None


def _check_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    taken = sorted(_OWN_ATTRS & attrs.keys())
    if taken:
        raise WriterError(f"attrs may not set {taken[0]!r}: the writer does, or an argument")
    try:
        json.dumps(dict(attrs))
    except (TypeError, ValueError) as error:
        raise WriterError(f"attrs must be what JSON can hold: {error}") from None
    return dict(attrs)


def _check_annotation(span: tuple[str, int, int]) -> tuple[str, int, int]:
    try:
        text, start, end = span
        fits = isinstance(text, str) and 0 <= int(start) < int(end)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise WriterError(f"annotations are (text, start, end) with 0 <= start < end, got {span!r}")
    return text, int(start), int(end)


def _check_name(key: str) -> None:
    parts = key.split("/") if isinstance(key, str) else [""]
    bad = any(p in ("", ".", "..") or p.startswith(("__", ".")) for p in parts)
    if bad or "\\" in key or any(p == "zarr.json" for p in parts):
        raise WriterError(f"array name {key!r} can't be a path inside the episode")
    if key == "annotations" or key in RESERVED_NAMES - {"timestamp"}:
        raise WriterError(f"array name {key!r} is taken; samples carry it already")


def _check_nesting(path: str, keys: Sequence[str]) -> None:
    """Refuse an array inside another one's folder, where its files would meet the chunks."""
    for key in keys:
        for other in keys:
            if other.startswith(f"{key}/"):
                raise WriterError(f"{path}: array {other!r} would lie inside array {key!r}")


def _as_sequence(key: str, images: Iterable[Any]) -> Sequence[Any] | npt.NDArray[Any]:
    if isinstance(images, np.ndarray):
        if images.ndim != 4:
            raise WriterError(f"images {key!r} must be (T, H, W, 3), got shape {images.shape}")
        return images
    return list(images)


def _common_length(arrays: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> int:
    lengths: dict[str, int] = {}
    for key, values in arrays.items():
        if isinstance(values, np.ndarray) and values.ndim == 0:
            raise WriterError(f"array {key!r} must have an axis of frames, got a single number")
        lengths[key] = len(values)
    if len(set(lengths.values())) > 1:
        raise WriterError(f"arrays must have one row a frame, got lengths {lengths}")
    return next(iter(lengths.values()), 0)
