"""Ways to damage a stored episode, recordings damaged so, and the slow truth of skipping."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

from egoloader import EpisodeWriter, KeyMap, MultiDataset, ZarrDataset
from egoloader.seeding import stream_key
from tests.entries import CAMERA, camera, entry
from tests.episodes import is_flat, pictures, ramp, shade
from tests.oracle import slow_rows
from tests.orders import slow_word
from tests.readers import shard_entries

__all__ = [
    "BAD",
    "BAD_HEAD",
    "BAD_ROWS",
    "COUNTS",
    "ENTRIES",
    "INDICES",
    "PLACES",
    "SERVED",
    "TOTALS",
    "Served",
    "assert_true",
    "bad_samples",
    "cut_jpegs",
    "flip_chunk",
    "put_row",
    "served",
    "skipping",
    "slow_served",
    "stored_rows",
    "with_bad_counts",
    "write_damaged",
    "write_list",
    "write_ramps",
]


def stored_rows(episode: Path, key: str) -> Any:
    """Return the rows of an array as zarr-python reads them."""
    with warnings.catch_warnings():
        # It warns that the v3 specification of rows of bytes is not final.
        warnings.simplefilter("ignore")
        return zarr.open_array(episode / key, mode="r")[...]


def put_row(episode: Path, key: str, row: int, value: Any) -> None:
    """Store another value in a row, with checksums that fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.open_array(episode / key, mode="r+")
        dtype = object if isinstance(value, bytes) else array.dtype
        array[row : row + 1] = np.array([value], dtype=dtype)


def cut_jpegs(episode: Path, key: str, rows: Iterable[int]) -> None:
    """Take the end off some of a camera's JPEGs, and leave their heads as they are."""
    stored = stored_rows(episode, key)
    for row in rows:
        put_row(episode, key, row, bytes(stored[row])[:-6])


def flip_chunk(episode: Path, key: str, row: int) -> list[int]:
    """Flip a bit of the stored chunk that holds a row; return all rows that it holds."""
    layout = json.loads((episode / key / "zarr.json").read_text())
    (sharding,) = layout["codecs"]
    chunk_rows: int = sharding["configuration"]["chunk_shape"][0]
    num_chunks = layout["chunk_grid"]["configuration"]["chunk_shape"][0] // chunk_rows
    (shard,) = (path for path in (episode / key / "c").rglob("*") if path.is_file())
    offset, size = shard_entries(shard, num_chunks)[row // chunk_rows]
    data = bytearray(shard.read_bytes())
    data[offset + size // 2] ^= 0x10
    shard.write_bytes(data)
    start = row // chunk_rows * chunk_rows
    return list(range(start, min(start + chunk_rows, layout["shape"][0])))


def write_list(path: Path, *entries: Any) -> Path:
    """Write a quarantine file by hand, and return its path."""
    path.write_text(json.dumps(entries))
    return path


# Recordings of two embodiments, some rows of which are bad.

FPS = 10
TOTALS = {"arm_0": 20, "arm_1": 30, "arm_2": 25, "arm_3": 25, "hand_0": 20, "hand_1": 15}
#: Episode and frame of every index of a dataset of them all.
PLACES = [(name, frame) for name, total in TOTALS.items() for frame in range(total)]
INDICES = range(len(PLACES))
ENTRIES = KeyMap(
    {
        "cam": camera(),
        "now": entry("pose"),
        "past": entry("pose", history=3, stride_s=0.2, mask=True),
        "next": entry("pose", "action_keys", horizon=4, mask=True),
        "count": entry("count", "metadata_keys", dtype="int64"),
    }
)
COUNTS = KeyMap({"count": ENTRIES["count"]})
#: Bad rows, by episode and array: of cameras, JPEGs that are cut short or none; of poses, a chunk
#: with a flipped bit; of counts, a NaN, which no int64 holds.
BAD_ROWS = {
    ("arm_0", CAMERA): [3, 11],
    ("arm_1", "pose"): [12, 13, 14, 15],
    ("arm_2", "count"): [6],
    ("arm_3", CAMERA): [20],
    ("hand_0", CAMERA): [5],
}
#: Those of them whose head tells it.
BAD_HEAD = {key: rows for key, rows in BAD_ROWS.items() if key[0] not in ("arm_0", "hand_0")}


def write_ramps(path: Path, total: int, embodiment: str = "arm") -> Path:
    """Write an episode that `ENTRIES` fits, and return its path."""
    EpisodeWriter.write(
        path,
        numeric={"pose": ramp(total, 3), "count": np.arange(total, dtype=np.float64)},
        images={CAMERA: pictures(total)},
        fps=FPS,
        embodiment=embodiment,
        chunk_rows=4,
    )
    return path


def write_damaged(folder: Path) -> Path:
    """Write the recordings of `TOTALS` with the `BAD_ROWS`, and return the folder."""
    for name, total in TOTALS.items():
        write_ramps(folder / name, total, name.partition("_")[0])
    cut_jpegs(folder / "arm_0", CAMERA, [3, 11])
    assert flip_chunk(folder / "arm_1", "pose", 13) == BAD_ROWS["arm_1", "pose"]
    put_row(folder / "arm_2", "count", 6, np.nan)
    put_row(folder / "arm_3", CAMERA, 20, b"no JPEG")
    cut_jpegs(folder / "hand_0", CAMERA, [5])
    return folder


def bad_samples(rows: Mapping[tuple[str, str], list[int]] = BAD_ROWS) -> list[int]:
    """Return the indices of the samples that read a bad row."""
    return [index for index, place in enumerate(PLACES) if _reads_bad(*place, rows)]


def _reads_bad(name: str, frame: int, rows: Mapping[tuple[str, str], list[int]]) -> bool:
    return any(
        row in rows.get((name, spec.zarr_key), ())
        for spec in ENTRIES.values()
        for row in slow_rows(spec, FPS, TOTALS[name], frame)[0]
    )


BAD = bad_samples()


def assert_true(sample: Mapping[str, Any], folder: Path, name: str, frame: int) -> None:
    """Assert that a sample holds what the ramps say of a frame."""
    assert (sample["episode"], int(sample["frame_index"])) == (name, frame)
    assert sample["embodiment"] == name.partition("_")[0]
    assert (float(sample["timestamp"]), int(sample["count"])) == (frame / FPS, frame)
    for key in ("now", "past", "next"):
        rows, pads = slow_rows(ENTRIES[key], FPS, TOTALS[name], frame)
        wanted = 1000.0 * torch.tensor(rows)[:, None] + torch.arange(3)
        assert torch.equal(sample[key].reshape(-1, 3), wanted), key
        assert key == "now" or sample[f"{key}_is_pad"].tolist() == pads, key
    image = sample["cam"]
    if isinstance(image, bytes):
        assert image == stored_rows(folder / name, CAMERA)[frame]
    else:
        assert is_flat(image if image.dtype == torch.uint8 else image * 255, shade(frame))


def skipping(folder: Path, **options: Any) -> MultiDataset:
    """Return a dataset of the damaged recordings that skips; half of its frames may be bad."""
    options = {"on_bad_frame": "skip", "max_bad_fraction": 0.5, **options}
    return MultiDataset.from_folder(folder, ENTRIES, **options)


def with_bad_counts(path: Path, total: int, rows: Iterable[int], **options: Any) -> ZarrDataset:
    """Return a dataset of one episode's counts that skips; some rows are NaN."""
    write_ramps(path, total)
    for row in rows:
        put_row(path, "count", row, np.nan)
    return ZarrDataset(path, COUNTS, on_bad_frame="skip", **options)


#: Of an index: the episode and the frame that are served for it.
Served = dict[int, tuple[str, int]]


def slow_served(bad: Sequence[int] = BAD, *, seed: int = 0, epoch: int = 0) -> Served:
    """Return what a dataset of the damaged recordings serves for every index."""
    return {n: _replacement(n, bad, seed, epoch) if n in bad else PLACES[n] for n in INDICES}


def _replacement(index: int, bad: Sequence[int], seed: int, epoch: int) -> tuple[str, int]:
    """Return the first good one of draws among the frames of an embodiment."""
    peers = [n for n in INDICES if PLACES[n][0][:3] == PLACES[index][0][:3]]
    key = stream_key("replacement", seed, epoch, *PLACES[index])
    draws = ((slow_word(key, attempt) >> 11) / 2**53 for attempt in itertools.count())
    return PLACES[next(n for n in (peers[int(u * len(peers))] for u in draws) if n not in bad)]


SERVED = slow_served()


def served(indices: Sequence[int], batch: Mapping[str, Any]) -> Served:
    """Return what a batch shows for indices: marked right, and for repeats the same."""
    found: Served = {}
    columns = [batch["episode"], *(batch[key].tolist() for key in ("frame_index", "is_replaced"))]
    for index, name, frame, is_replaced in zip(indices, *columns, strict=True):
        assert is_replaced == (index in BAD)
        assert found.setdefault(index, (name, frame)) == (name, frame)
    return found
