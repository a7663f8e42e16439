"""What the benches' own samples and batches cost us: exactly what the layout on disk says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from bench.recordings import ARRAYS, CAMERA, make_jpegs, write_folder
from bench.serving import CAMERAS, ServingSettings, many_images, one_image
from egoloader import EpisodeLoader, KeyMap, MultiDataset, ZarrDataset, collate
from egoloader.counts import KeyCounts
from tests.oracle import slow_rows
from tests.readers import shard_entries

EPISODES, TOTAL, CHUNK = 3, 430, 100
#: Bytes between two ranges that one request reads through at most.
GAP = 4096
KEYMAPS = {"one image": one_image(ServingSettings()), "nine images": many_images(ServingSettings())}
Costs = dict[str, KeyCounts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes as the benches write them, of small pictures."""
    root = tmp_path_factory.mktemp("episodes")
    jpegs = make_jpegs((24, 40), (500, 5000), seed=0)
    write_folder(root, EPISODES, TOTAL, jpegs, 0, CAMERAS)
    return root


def rows_of(needed: Iterable[int], chunk_rows: int) -> int:
    """Return the rows of a read: those needed, and those between two in chunks without a gap."""
    steps = itertools.pairwise(sorted(set(needed)))
    return 1 + sum(b - a if b // chunk_rows - a // chunk_rows <= 1 else 1 for a, b in steps)


def cost_of(episode: Path, key: str, rows: Iterable[int]) -> KeyCounts:
    """Return what one read of rows costs, from where the shard's index says that chunks lie."""
    needed, chunk_rows = set(rows), 1 if key in CAMERAS else CHUNK
    chunks = sorted({row // chunk_rows for row in needed})
    file = next(path for path in (episode / key / "c").rglob("*") if path.is_file())
    entries = shard_entries(file, -(-TOTAL // chunk_rows))[chunks].tolist()
    ranges = [(start, start + size) for start, size in entries]
    gaps = [b[0] - a[1] for a, b in itertools.pairwise(ranges)]
    return KeyCounts(
        reads=1,
        rows=rows_of(needed, chunk_rows),
        chunks=len(chunks),
        requests=1 + sum(gap > GAP for gap in gaps),
        bytes=sum(stop - start for start, stop in ranges) + sum(g for g in gaps if g <= GAP),
    )


def costs_of(folder: Path, keymap: KeyMap, indices: Sequence[int]) -> dict[str, Costs]:
    """Return what a batch costs, per episode and array."""
    found: dict[str, Costs] = {}
    for number, episode in enumerate(sorted(folder.iterdir())):
        frames = [index % TOTAL for index in indices if index // TOTAL == number]
        rows: dict[str, set[int]] = {}
        for spec in keymap.values():
            for frame in frames:
                its, _ = slow_rows(spec, 30.0, TOTAL, frame)
                rows.setdefault(spec.zarr_key, set()).update(its)
        found[episode.name] = {key: cost_of(episode, key, its) for key, its in rows.items()}
    return found


def without_decoding(costs: dict[str, Costs]) -> dict[str, Costs]:
    """Return what the same costs where all chunks of numbers are kept."""
    return {
        name: {
            key: one if key in CAMERAS else KeyCounts(reads=one.reads, rows=one.rows)
            for key, one in its.items()
        }
        for name, its in costs.items()
    }


def counted(dataset: MultiDataset) -> dict[str, Costs]:
    """Return what was counted since the last call."""
    episodes = [dataset._maker(number).episode for number in range(EPISODES)]
    found = {episode.name: dict(episode.counts) for episode in episodes}
    for episode in episodes:
        episode.counts.reset()
    return found


def draw(seed: int, size: int = 32) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).permutation(EPISODES * TOTAL)[:size].tolist()
    return drawn


def everywhere() -> list[int]:
    """Return frames that meet every chunk of numbers."""
    return list(range(0, EPISODES * TOTAL, 10))


@pytest.mark.parametrize("name", KEYMAPS)
@pytest.mark.parametrize("image_dtype", ["jpeg", "uint8"])
@pytest.mark.parametrize("seed", range(3))
def test_a_batch_of_32_costs_what_the_layout_says(
    folder: Path, name: str, image_dtype: str, seed: int
) -> None:
    keymap, batch = KEYMAPS[name], draw(seed)
    wanted = costs_of(folder, keymap, batch)
    uncached = MultiDataset.from_folder(folder, keymap, image_dtype=image_dtype, cache_bytes=0)
    cached = MultiDataset.from_folder(folder, keymap, image_dtype=image_dtype)
    for dataset in (uncached, cached):
        collate(dataset.__getitems__(everywhere()))  # reads the shards' indexes
        counted(dataset)
        collate(dataset.__getitems__(batch))
    assert counted(uncached) == wanted
    assert counted(cached) == without_decoding(wanted)


@pytest.mark.parametrize("name", KEYMAPS)
def test_the_loaders_batches_cost_what_they_do_alone(folder: Path, name: str) -> None:
    keymap, batches = KEYMAPS[name], [everywhere(), draw(5), draw(6)]
    dataset = MultiDataset.from_folder(folder, keymap)
    loader = iter(EpisodeLoader(dataset, batch_sampler=batches, num_threads=1, look_ahead=1))
    next(loader)
    counted(dataset)
    for batch in batches[1:]:
        next(loader)
        assert counted(dataset) == without_decoding(costs_of(folder, keymap, batch))


@pytest.mark.parametrize("frame", [0, 2, 57, 98, 175, 399, 401, 429])
def test_a_sample_costs_what_the_layout_says(folder: Path, frame: int) -> None:
    keymap, path = KEYMAPS["one image"], sorted(folder.iterdir())[0]
    wanted = costs_of(folder, keymap, [frame])[path.name]
    for cache_bytes in (0, 2**20):
        dataset = ZarrDataset(path, keymap, image_dtype="jpeg", cache_bytes=cache_bytes)
        for _ in range(2):
            dataset[frame]
            found = dict(dataset.episode.counts)
            dataset.episode.counts.reset()
        kept = without_decoding({"": wanted})[""]
        assert found == (kept if cache_bytes else wanted)


def test_a_sample_in_numbers(folder: Path) -> None:
    path = sorted(folder.iterdir())[0]
    dataset = ZarrDataset(path, KEYMAPS["one image"], image_dtype="jpeg", cache_bytes=0)
    sample = dataset[175]
    assert list(ARRAYS) == [key for key in dataset.episode.keys if key in ARRAYS]
    dataset.episode.counts.reset()
    dataset[175]
    # Rows 172 to 204: chunks 1 and 2, of 100 rows of 4 bytes a number, a crc32c behind each.
    keypoints = KeyCounts(reads=1, rows=33, chunks=2, requests=1, bytes=2 * (100 * 63 * 4 + 4))
    wrist = KeyCounts(reads=1, rows=33, chunks=2, requests=1, bytes=2 * (100 * 7 * 4 + 4))
    head = KeyCounts(reads=1, rows=1, chunks=1, requests=1, bytes=100 * 7 * 4 + 4)
    jpeg = len(sample["observations.images.front_img_1"])
    # The number of rows and the row's length before a JPEG, a crc32c behind it.
    camera = KeyCounts(reads=1, rows=1, chunks=1, requests=1, bytes=8 + jpeg + 4)
    assert dict(dataset.episode.counts) == {
        "left.obs_keypoints": keypoints,
        "right.obs_keypoints": keypoints,
        "left.obs_wrist_pose": wrist,
        "right.obs_wrist_pose": wrist,
        "obs_head_pose": head,
        CAMERA: camera,
    }
