"""The numbers of an episode, block by block: rows of its arrays, or windows out of samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from egoloader.assembly import make_batch
from egoloader.batch import Batch, Sample
from egoloader.episode import ANNOTATIONS, ZarrEpisode
from egoloader.errors import EpisodeFormatError, SampleError
from egoloader.frameindex import marks_of
from egoloader.keymap import RESERVED_NAMES, KeyMap, KeySpec, other_span_key
from egoloader.sample import SampleMaker, check_sample
from egoloader.stats.view import View, entry_dtype
from egoloader.transforms.transform import dim_mask_key, mask_key

__all__ = ["Numbers", "numbers_of", "row_numbers", "sample_numbers", "split_frames"]

IntArray = npt.NDArray[np.int64]

#: Frames that are looked at at once: of rows, and of samples.
_ROWS, _SAMPLES = 16_384, 256
#: An entry that nothing is read for.
_TASK = KeyMap(
    {"task": KeySpec(zarr_key=ANNOTATIONS, key_type="annotation_keys", text="task", optional=True)}
)
_NOT_THERE = (
    "the samples that statistics are made of have no cameras, texts and JSON rows: a transform "
    "must leave them alone where they are not there"
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """One key's numbers at some frames.

    Attributes:
        key: of the sample.
        frames: (F,) int64.
        values: float64, (F, *shape), or (F, n, *shape) with the steps of a window.
        is_real: bool, of the same shape: neither in padded steps nor in padded dimensions.
        shape: of a row; with the steps where each is on its own.
        is_per_step: whether it is.
        is_exact: whether there are few enough of them to keep them all.
    """

    key: str
    frames: IntArray
    values: npt.NDArray[np.float64]
    is_real: npt.NDArray[np.bool_]
    shape: tuple[int, ...]
    is_per_step: bool = False
    is_exact: bool = True


def numbers_of(episode: ZarrEpisode, view: View, frames: IntArray) -> Iterator[Numbers]:
    """Yield the numbers of an episode, some frames of a key at a time; a key's in their order.

    Keys that are made row by row are read as rows, each of the frames' once; others come out of the
    frames' samples.

    Args:
        episode: the episode.
        view: what is looked at.
        frames: those that count, ascending.

    Raises:
        EpisodeError: they can't be read or transformed, or one is NaN or inf; names the frame.
    """
    by_rows = set[str]()
    for numbers in _checked(row_numbers(episode, view, frames), episode):
        by_rows.add(numbers.key)
        yield numbers
    if view.reads_samples:
        for numbers in _checked(sample_numbers(episode, view, frames), episode):
            if numbers.key not in by_rows:
                yield numbers


def _checked(found: Iterator[Numbers], episode: ZarrEpisode) -> Iterator[Numbers]:
    for numbers in found:
        is_wrong = numbers.is_real & ~np.isfinite(numbers.values)
        if is_wrong.any():
            place = tuple(np.argwhere(is_wrong)[0].tolist())
            steps = "" if len(place) < 2 else f", at {list(place[1:])} of its numbers"
            raise EpisodeFormatError(
                f"{numbers.values[place]}{steps}: there are no statistics of such numbers; leave "
                "the frame out with a quarantine file (egoloader validate makes one) or a "
                "frame filter",
                episode=episode.name,
                key=numbers.key,
                frame=int(numbers.frames[place[0]]),
            )
        yield numbers


def row_numbers(episode: ZarrEpisode, view: View, frames: IntArray) -> Iterator[Numbers]:
    """Yield the numbers of keys that are made row by row, whatever they are, at some frames.

    Raises:
        EpisodeError: they can't be read or transformed; names the frame.
    """
    if view.rows is None:
        return
    for block in split_frames(frames):
        rows = _transformed_rows(episode, view, block)
        for key in view.taken(rows):
            if not view.takes_rows_of(key):
                continue
            values, is_real = _real(rows, key)
            if mask_key(key) in rows:
                is_real &= ~_spread(rows[mask_key(key)], values)
            yield Numbers(key, block, values, is_real, values.shape[1:], False, view.is_exact[0])


def sample_numbers(episode: ZarrEpisode, view: View, frames: IntArray) -> Iterator[Numbers]:
    """Yield the numbers of all keys, whatever they are, out of the samples of some frames.

    Raises:
        EpisodeError: they can't be read or transformed; names the frame.
    """
    maker = SampleMaker(episode, KeyMap(view.entries), view.settings)
    for block in split_frames(frames, _SAMPLES):
        batch = _made(maker, block)
        columns = _columns(batch)
        for key in view.taken(columns or batch[0]):
            stacked = columns or _stacked(batch, key, episode, block)
            values, is_real = _real(stacked, key)
            mask = stacked.get(mask_key(key))
            if mask is not None:
                _check_mask(mask, values, episode, key)
                is_real &= ~_spread(mask, values)
            # Without a mask, rows are taken to be of one axis.
            lead = values.ndim - 1 if mask is None else mask.ndim
            lead = max(lead, 1)
            is_per_step = key in view.per_step and lead > 1
            shape = values.shape[1 if is_per_step else lead :]
            is_exact = view.is_exact[0 if is_per_step else 1]
            yield Numbers(key, block, values, is_real, shape, is_per_step, is_exact)


def _made(maker: SampleMaker, frames: IntArray) -> Batch:
    try:
        marks = marks_of(frames.tolist())
        return make_batch([maker], np.zeros(len(frames), np.int64), frames, marks)
    except SampleError as error:
        if isinstance(error.__cause__, KeyError):
            raise SampleError(
                f"{error.message}; {_NOT_THERE}",
                episode=error.episode,
                frame=error.frame,
            ) from error.__cause__
        raise


def _columns(batch: Batch) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch, where it was made as one; nothing else."""
    values = batch.tensors or {}
    return {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}


def split_frames(frames: IntArray, size: int = _ROWS) -> Iterator[IntArray]:
    """Yield some frames at a time."""
    for start in range(0, len(frames), size):
        yield frames[start : start + size]


def _transformed_rows(episode: ZarrEpisode, view: View, frames: IntArray) -> Sample:
    """Return rows of all entries at frames, as a batch of that many samples without windows."""
    rows = _rows(episode, view, frames)
    assert view.rows is not None
    if not view.rows.transforms:
        return rows
    rows |= _context(episode, view, frames)
    for transform in view.rows.transforms:
        rows = _apply(transform, rows, episode, frames)
    return {key: value for key, value in rows.items() if key not in RESERVED_NAMES}


def _context(episode: ZarrEpisode, view: View, frames: IntArray) -> Sample:
    """Return what samples carry besides the keymap's entries."""
    plain = dataclasses.replace(view.settings, transforms=())
    batch = _made(SampleMaker(episode, _TASK, plain), frames)
    assert batch.tensors is not None
    return {key: value for key, value in batch.tensors.items() if key in RESERVED_NAMES}


def _apply(
    transform: Callable[[Sample], Sample], rows: Sample, episode: ZarrEpisode, frames: IntArray
) -> Sample:
    try:
        return check_sample(transform(rows))
    except Exception as error:
        name = getattr(transform, "__name__", type(transform).__name__)
        for place, frame in enumerate(frames.tolist()):  # which of them it was
            one = {key: value[place : place + 1] for key, value in rows.items()}
            try:
                check_sample(transform(one))
            except Exception as its:
                hint = f"; {_NOT_THERE}" if isinstance(its, KeyError) else ""
                raise SampleError(
                    f"transform {name} failed: {its!r}{hint}", episode=episode.name, frame=frame
                ) from its
        raise SampleError(
            f"transform {name} takes each row, and not several: {error!r}; a Transform must take "
            "any leading axes",
            episode=episode.name,
        ) from error


def _rows(episode: ZarrEpisode, view: View, frames: IntArray) -> Sample:
    keys = {spec.zarr_key for spec in view.entries.values() if episode.has(spec.zarr_key)}
    for key in sorted(keys):
        episode.check_stored(key)
    windows = _windows(frames)
    read = episode.read(dict.fromkeys(sorted(keys), windows))
    found = {key: np.concatenate([np.asarray(part) for part in read[key]]) for key in keys}
    rows: Sample = {}
    for key, spec in view.entries.items():
        is_absent, dtype = spec.zarr_key not in found, entry_dtype(episode, spec)
        zeros = np.zeros((len(frames), *(spec.shape or ())))
        values = zeros if is_absent else found[spec.zarr_key]
        # As they are stored; what is no float in a sample is none here.
        values = values.astype(np.float64 if dtype.kind == "f" else dtype)
        rows[key] = torch.from_numpy(values)
        rows[mask_key(key)] = torch.full((len(frames),), is_absent)
        if spec.span_mask:  # there for transforms that name it; statistics are of all spans
            rows[other_span_key(key)] = torch.zeros(len(frames), dtype=torch.bool)
    return rows


def _windows(frames: IntArray) -> list[tuple[int, int]]:
    """Return frames, ascending, as half-open runs."""
    runs = np.split(frames, np.flatnonzero(np.diff(frames) > 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]


def _real(
    sample: Mapping[str, Any], key: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return a key's numbers, and which of them are in no padded dimension."""
    values = sample[key].to("cpu", torch.float64).numpy()
    is_real = np.ones(values.shape, dtype=np.bool_)
    padding = sample.get(dim_mask_key(key))
    if padding is not None:
        is_real &= ~padding.cpu().numpy()
    return values, is_real


def _spread(mask: torch.Tensor, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of leading axes for all numbers."""
    known = mask.cpu().numpy()
    return np.broadcast_to(
        known.reshape((*known.shape, *[1] * (values.ndim - known.ndim))), values.shape
    )


def _check_mask(
    mask: torch.Tensor, values: npt.NDArray[Any], episode: ZarrEpisode, key: str
) -> None:
    if mask.shape != values.shape[: mask.ndim]:
        raise EpisodeFormatError(
            f"its samples have the shape {list(values.shape[1:])}, and their mask "
            f"{list(mask.shape[1:])}, which must be the first axes: a transform that takes steps "
            f"away must change or drop {mask_key(key)!r} as well",
            episode=episode.name,
            key=key,
        )


def _stacked(
    samples: Sequence[Sample], key: str, episode: ZarrEpisode, frames: IntArray
) -> dict[str, torch.Tensor]:
    """Return the values of a key, and of its masks, with an axis of samples in front."""
    stacked = {}
    for name in (key, mask_key(key), dim_mask_key(key)):
        if name not in samples[0]:
            continue
        values = list[torch.Tensor]()
        for sample, frame in zip(samples, frames.tolist(), strict=True):
            value = sample.get(name)
            if not isinstance(value, torch.Tensor) or value.shape != samples[0][name].shape:
                raise EpisodeFormatError(
                    f"samples differ in shape: {_form(samples[0][name])}, then {_form(value)}",
                    episode=episode.name,
                    key=name,
                    frame=frame,
                )
            values.append(value)
        stacked[name] = torch.stack(values)
    return stacked


def _form(value: object) -> str:
    return str(list(value.shape)) if isinstance(value, torch.Tensor) else type(value).__name__
