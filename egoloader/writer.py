"""Writing episodes: whole or frame by frame, in bounded memory, published whole or not at all.

An array becomes one shard file: inner chunks are appended as they fill up, the index comes last.
Until the episode is finished it lives in a hidden folder beside its path, and appears by rename.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.arrayfile import AnnotationSpan, Place, as_array, write_annotations
from egoloader.camerafile import CameraFile, JpegSettings
from egoloader.declaration import (
    check_annotation,
    check_attrs,
    check_header,
    check_json,
    check_names,
    group_json,
)
from egoloader.episode import ANNOTATIONS
from egoloader.errors import NonFiniteWarning, WriterError
from egoloader.header import FORMAT_VERSION, STAMP
from egoloader.numericfile import NumericFile
from egoloader.scratch import ScratchFolder

__all__ = ["EpisodeWriter"]

Rows = Sequence[Any] | npt.NDArray[Any]


class EpisodeWriter:
    """Writes one episode frame by frame; `EpisodeWriter.write` takes whole arrays.

    Use it as a context manager: a clean exit publishes the episode, an exception discards it. The
    first frame fixes the keys, shapes and dtypes. A refused frame leaves the episode as it was, so
    that recording may go on. Every chunk carries a crc32c and is stored, zero or not.

    In memory are at most `chunk_rows` rows of each array, and 8 bytes a chunk.

    Args:
        path: where the episode is to appear; its parent folder is made if there is none.
        fps: frames a second, in Hz.
        embodiment: the body that was recorded.
        task_name: a short name of the task.
        task_description: the task in words.
        annotations: spans (text, start, end), half-open in frames.
        attrs: any further attributes that JSON can hold; tuples become lists.
        names: per array, names of a row's dimensions, kept in `features`.
        jpeg_quality: 1…100, for frames that are handed over as pixels.
        jpeg_subsampling: chroma subsampling of those: `420`, `422`, `440`, `411` or `444`.
        chunk_rows: rows of one chunk of numbers.
        overwrite: replace the episode at `path`, once the new one is finished; a folder that is no
            episode is never replaced.

    Raises:
        WriterError: an argument that can't be meant.
        EpisodeExistsError: something is at `path` and may not be replaced.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fps: float,
        embodiment: str,
        task_name: str = "",
        task_description: str = "",
        annotations: Sequence[AnnotationSpan] = (),
        attrs: Mapping[str, Any] | None = None,
        names: Mapping[str, Any] | None = None,
        jpeg_quality: int = 85,
        jpeg_subsampling: str = "420",
        chunk_rows: int = 100,
        overwrite: bool = False,
    ) -> None:
        # Absolute, so that the episode appears where it was meant to even after a chdir.
        self.path = Path(path).absolute()
        self._where = f"episode {str(self.path)!r}"
        self._annotations = [check_annotation(span) for span in annotations]
        self._names = check_json(names or {}, "names")
        self._attrs = check_attrs(attrs or {})
        self._attrs |= {"fps": fps, "embodiment": embodiment}
        self._attrs |= {"task_name": task_name, "task_description": task_description}
        check_header(self._attrs, str(self.path))
        if type(chunk_rows) is not int or chunk_rows < 1:
            raise WriterError(f"chunk_rows must be a whole number above 0, got {chunk_rows!r}")
        self._chunk_rows, self._jpeg = chunk_rows, JpegSettings(jpeg_quality, jpeg_subsampling)
        # A dry run: attributes too large to be read again must not cost a finished recording.
        group_json({**self._attrs, "features": self._names}, self._where)
        self._scratch = ScratchFolder(self.path, overwrite=overwrite)
        self._numeric: dict[str, NumericFile] = {}
        self._cameras: dict[str, CameraFile] = {}
        self._total_frames = 0
        self._ended = ""  # why no frame can come any more, once none can
        self._is_broken = False

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
            EpisodeExistsError: something is at `path` and may not be replaced.
        """
        where = f"episode {str(path)!r}"
        rows = {k: as_array(v, f"{where}, key {k!r}") for k, v in (numeric or {}).items()}
        frames = {k: _as_sequence(v, f"{where}, key {k!r}") for k, v in (images or {}).items()}
        total = _common_length([*rows.items(), *frames.items()], where)
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
            images: per camera, (H, W, 3) uint8 RGB pixels, or a JPEG as bytes, kept as it is: an
                EXIF orientation in it stays, and is not applied when it is read.

        Raises:
            WriterError: the frame is refused, and the episode is as before: the keys, a shape, a
                dtype or an image size differ from the first frame's, or an image is no whole JPEG
                in RGB or gray. Or the episode is closed already.
            OSError: the frame could not be stored, and the episode is discarded.
        """
        if self._ended:
            raise WriterError(f"{self._where}: no frame can be added: {self._ended}")
        numeric, images = numeric or {}, images or {}
        files = self._numeric, self._cameras
        if self._total_frames == 0:
            files = self._first_files(numeric, images)
        # All is checked before anything is kept: a refused frame must leave no half row behind.
        self._check_keys(numeric, files[0], "numeric")
        self._check_keys(images, files[1], "images")
        rows = {k: files[0][k].check(value, self._place(k)) for k, value in numeric.items()}
        jpegs = {k: files[1][k].check(value, self._place(k)) for k, value in images.items()}
        self._numeric, self._cameras = files
        try:
            for key, row in rows.items():
                self._numeric[key].append(row)
            for key, jpeg in jpegs.items():
                self._cameras[key].append(jpeg)
        except BaseException:
            # Some arrays may have this row and others not; whatever followed would be shifted.
            self._end("an earlier frame could not be stored")
            self._is_broken = True
            raise
        self._total_frames += 1

    def close(self) -> None:
        """Finish the episode and publish it at its path; on any error, discard it.

        Raises:
            WriterError: there is no frame, one could not be stored, or an annotation reaches
                outside the episode.
            EpisodeExistsError: something appeared at the path meanwhile.
        """
        if self._is_broken:
            raise WriterError(f"{self._where} was not written: {self._ended}")
        if self._ended:
            return
        try:
            self._finish()
            self._scratch.publish()
        finally:
            self._end("it is closed")

    def discard(self) -> None:
        """Throw away what was written and not published."""
        self._is_broken = False
        self._end("it was discarded")

    def _end(self, reason: str) -> None:
        self._ended = self._ended or reason
        for file in self._files().values():
            file.abandon()
        self._scratch.remove()

    def _first_files(
        self, numeric: Mapping[str, Any], images: Mapping[str, Any]
    ) -> tuple[dict[str, NumericFile], dict[str, CameraFile]]:
        """Return the files of the arrays that a first frame declares; nothing is on disk yet."""
        check_names(list(numeric), list(images), self._where)
        for key in self._names:
            if key not in numeric and key not in images:
                raise WriterError(f"{self._where}: names are given for {key!r}, which has no rows")
        rows = {
            key: NumericFile(
                self._scratch.path / key, row, chunk_rows=self._chunk_rows, place=self._place(key)
            )
            for key, row in numeric.items()
        }
        cameras = {
            key: CameraFile(
                self._scratch.path / key, image, jpeg=self._jpeg, place=self._place(key)
            )
            for key, image in images.items()
        }
        return rows, cameras

    def _files(self) -> dict[str, NumericFile | CameraFile]:
        return {**self._numeric, **self._cameras}

    def _place(self, key: str) -> Place:
        return Place(str(self.path), key, self._total_frames)

    def _check_keys(self, given: Mapping[str, Any], known: Mapping[str, Any], what: str) -> None:
        if given.keys() != known.keys():
            missing = [key for key in known if key not in given]
            extra = [key for key in given if key not in known]
            raise WriterError(
                f"{self._where}, frame {self._total_frames}: other {what} keys than "
                f"in the first frame: missing {missing}, unknown {extra}"
            )

    def _finish(self) -> None:
        if self._total_frames == 0:
            raise WriterError(f"{self._where}: it needs at least one frame, got none")
        for text, start, end in self._annotations:
            if end > self._total_frames:
                raise WriterError(
                    f"{self._where}: annotation {text!r} [{start}, {end}) reaches "
                    f"past the {self._total_frames} frames"
                )
        features: dict[str, Any] = {}
        for key, file in self._files().items():
            file.finish()
            features[key] = {**file.feature, "names": self._names.get(key)}
            self._report_non_finite(key, file)
        write_annotations(self._scratch.path / ANNOTATIONS, self._annotations)
        features[ANNOTATIONS] = {"dtype": "json", "shape": [], "names": None}
        for folder in _folders_between(features):
            (self._scratch.path / folder / "zarr.json").write_text(group_json({}, self._where))
        attrs = {
            **self._attrs,
            "total_frames": self._total_frames,
            "features": features,
            STAMP: {"version": FORMAT_VERSION, "complete": True},
        }
        (self._scratch.path / "zarr.json").write_text(group_json(attrs, self._where))

    def _report_non_finite(self, key: str, file: NumericFile | CameraFile) -> None:
        if isinstance(file, NumericFile) and file.non_finite_rows:
            warnings.warn(
                f"{self._where}, key {key!r}: {file.non_finite_rows} of "
                f"{self._total_frames} rows hold NaN or inf, the first at frame "
                f"{file.first_non_finite}",
                NonFiniteWarning,
                stacklevel=4,
            )


def _folders_between(keys: Iterable[str]) -> list[str]:
    """Return the folders between the episode and its arrays: `a/b/c` lies in `a` and `a/b`."""
    return sorted({str(p) for key in keys for p in PurePosixPath(key).parents if str(p) != "."})


def _as_sequence(images: Iterable[Any], where: str) -> Rows:
    if isinstance(images, bytes | str):
        raise WriterError(f"{where}: one image was given; a camera needs one a frame")
    if isinstance(images, np.ndarray) and images.ndim != 4 and images.dtype != object:
        raise WriterError(f"{where}: images must be (T, H, W, 3), got shape {images.shape}")
    return images if isinstance(images, np.ndarray) else list(images)


def _common_length(arrays: Sequence[tuple[str, Rows]], where: str) -> int:
    lengths: dict[str, int] = {}
    for key, values in arrays:
        if isinstance(values, np.ndarray) and values.ndim == 0:
            raise WriterError(f"{where}, key {key!r}: it needs an axis of frames, got one number")
        lengths[key] = len(values)
    if len(set(lengths.values())) > 1:
        raise WriterError(f"{where}: arrays need one row a frame, got lengths {lengths}")
    return next(iter(lengths.values()), 0)
