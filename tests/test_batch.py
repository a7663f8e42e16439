"""Batches: the values of single samples, planned together, handed out uncopied."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
    default_collate,
)

from egoloader import (
    KeyMap,
    MultiDataset,
    ZarrDataset,
    ZarrEpisode,
    collate,
    dataset,
    decode,
    frames,
)
from tests.entries import CAMERA, camera, entry, keymap
from tests.episodes import (
    foreign_annotations,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    jpegs,
    pictures,
    ramp,
)
from tests.oracle import slow_rows

WRIST = "images.wrist"
#: Episode, frames, Hz.
EPISODES = (
    ("a.zarr", 43, 10.0),
    ("b.zarr", 29, 30.0),
    ("sub/c.zarr", 11, 4.5),
    # As `a.zarr` in all but their lengths, so that they are planned as one.
    ("y.zarr", 37, 10.0),
    ("z.zarr", 5, 10.0),
)
TOTAL = sum(total for _, total, _ in EPISODES)
CHUNK = 10

#: Every kind of entry; `b.zarr` lacks the optional arrays and has no annotations.
ENTRIES = {
    "cam": camera(),
    "cam_past": camera(history=3, stride_s=0.2, mask=True),
    "cam_small": camera(size=[8, 12]),
    "cam_large": camera(offsets=[-1], size=[20, 30]),
    "wrist": entry(WRIST, "camera_keys", optional=True, shape=(16, 24, 3), lag_s=0.3),
    "pose": entry("pose"),
    "pose_past": entry("pose", history=4, mask=True),
    "pose_next": entry("pose", "action_keys", horizon=7, mask=True),
    "pose_around": entry("pose", offsets=[-9, 0, 9], dtype="float64"),
    "clock": entry("clock", "metadata_keys"),
    "clock_past": entry("clock", history=2, dtype="int64"),
    "extra": entry("extra", "action_keys", horizon=2, optional=True, shape=(3,)),
    "row": entry("rows", "metadata_keys", optional=True),
    "rows_past": entry("rows", "metadata_keys", optional=True, history=2),
    "text": entry("annotations", "annotation_keys", optional=True),
}
WHOLE = KeyMap(ENTRIES)


def write_rich(path: Path, total: int, fps: float) -> None:
    group = foreign_group(path, total, fps=fps)
    foreign_numbers(group, "pose", ramp(total + 7, 4), chunks=(CHUNK, 4))
    foreign_numbers(group, "clock", 10**15 + np.arange(total), chunks=(CHUNK,))
    foreign_bytes(group, CAMERA, jpegs(pictures(total)), shards=(total,))
    if path.name == "b.zarr":
        return
    foreign_numbers(group, "extra", 1 + ramp(total, 3), chunks=(CHUNK, 3))
    foreign_bytes(group, "rows", [json.dumps({"t": [t, {}]}).encode() for t in range(total)])
    foreign_bytes(group, WRIST, jpegs(pictures(total)[::-1].copy()))
    foreign_annotations(group, [("reach", 0, 8), ("grasp", 5, 9), ("lift", 20, 99)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    for name, total, fps in EPISODES:
        write_rich(root / name, total, fps)
    return root


def flat(value: Any) -> Iterator[Any]:
    """Yield a value, and what is inside it."""
    yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from flat(inner)


def is_same(one: Any, other: Any) -> bool:
    if torch.is_tensor(one) and torch.is_tensor(other):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other) and one == other


def assert_same(found: Any, wanted: Any) -> None:
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        assert is_same(found[key], value), key


# Values.


@settings(deadline=None, max_examples=50)
@given(
    names=st.lists(st.sampled_from(sorted(ENTRIES)), min_size=1, unique=True),
    image_dtype=st.sampled_from(["uint8", "float32", "jpeg"]),
    annotation_cutoff=st.booleans(),
    indices=st.lists(st.integers(-TOTAL, TOTAL - 1), min_size=1, max_size=12),
)
def test_a_batch_holds_what_its_samples_are_alone(
    folder: Path, names: list[str], image_dtype: Any, annotation_cutoff: bool, indices: list[int]
) -> None:
    entries = KeyMap({name: ENTRIES[name] for name in names})
    options: Any = {"image_dtype": image_dtype, "annotation_cutoff": annotation_cutoff}
    many = MultiDataset.from_folder(folder, entries, **options)
    single = ZarrDataset(folder / EPISODES[0][0], entries, **options)
    for ds in (many, single):
        inside = [index % len(ds) for index in indices]
        alone = [ds[index] for index in inside]
        collated = collate(ds.__getitems__(inside))
        assert all(is_same(collated[key], stacked(alone, key)) for key in alone[0])
        batch = ds.__getitems__(inside)
        for found, wanted in zip(batch, alone, strict=True):
            assert_same(found, wanted)
        theirs = default_collate([only_tensors(sample) for sample in batch])
        assert_same(theirs, only_tensors(collated))


def stacked(samples: list[dict[str, Any]], key: str) -> Any:
    values = [sample[key] for sample in samples]
    return torch.stack(values) if torch.is_tensor(values[0]) else values


def only_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in sample.items() if torch.is_tensor(value)}


def test_values_over_several_episodes_are_the_stored_ones(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, WHOLE)
    first_of_b, first_of_c = EPISODES[0][1], EPISODES[0][1] + EPISODES[1][1]
    batch = collate(md.__getitems__([first_of_b + 5, 41, first_of_c + 10, 41, first_of_b]))
    assert batch["episode"] == ["b.zarr", "a.zarr", "sub/c.zarr", "a.zarr", "b.zarr"]
    assert batch["pose"][:, 0].tolist() == [5000, 41000, 10000, 41000, 0]
    assert batch["pose_next"][2, :, 1].tolist() == [10001] * 7
    assert batch["pose_next_is_pad"].sum(dim=1).tolist() == [0, 5, 6, 5, 0]
    assert batch["clock"].tolist() == [10**15 + t for t in (5, 41, 10, 41, 0)]
    assert batch["row"] == [None, {"t": [41, {}]}, {"t": [10, {}]}, {"t": [41, {}]}, None]
    assert batch["extra_is_pad"].sum(dim=1).tolist() == [2, 0, 1, 0, 2]
    assert batch["text"] == ["", "lift", "", "lift", ""]
    assert not batch["wrist"][[0, 4]].any()
    assert batch["wrist"][1].any()


@pytest.mark.parametrize("kind", ["subset", "nested", "negative", "concatenated"])
def test_values_hold_through_what_torch_wraps_around_a_dataset(folder: Path, kind: str) -> None:
    md = MultiDataset.from_folder(folder, WHOLE)
    mine: list[int] = list(range(70, 40, -3))
    wrapped: Any = {
        "subset": Subset(md, mine),
        "nested": Subset(Subset(md, list(range(80))), mine),
        "negative": Subset(md, [index - TOTAL for index in mine]),
        "concatenated": ConcatDataset([Subset(md, mine[:4]), Subset(md, mine[4:])]),
    }[kind]
    found = list(DataLoader(wrapped, batch_size=4, collate_fn=collate))
    wanted = [md[index] for index in mine]
    assert [len(batch["episode"]) for batch in found] == [4, 4, 2]
    places = [(batch, b) for batch in found for b in range(len(batch["episode"]))]
    for (batch, b), sample in zip(places, wanted, strict=True):
        assert_same({key: value[b] for key, value in batch.items()}, sample)


@pytest.mark.parametrize("collate_fn", [None, collate])
@pytest.mark.parametrize("kind", ["in order", "random", "weighted", "batches"])
def test_any_sampler_of_a_plain_dataloader(folder: Path, kind: str, collate_fn: Any) -> None:
    names = ("cam", "cam_past", "pose_past", "clock", "text")
    md = MultiDataset.from_folder(folder, KeyMap({name: ENTRIES[name] for name in names}))
    noise = torch.Generator().manual_seed(3)
    kinds: dict[str, dict[str, Any]] = {
        "in order": {"batch_size": 4},
        "random": {"batch_size": 4, "sampler": RandomSampler(md, generator=noise)},
        "weighted": {
            "batch_size": 4,
            "sampler": WeightedRandomSampler([1.0] * 7, 9, generator=noise),
        },
        "batches": {"batch_sampler": BatchSampler([5, 80, 5, 41, 42], 2, drop_last=False)},
    }
    firsts = itertools.accumulate((total for _, total, _ in EPISODES), initial=0)
    starts = {name: first for (name, _, _), first in zip(EPISODES, firsts, strict=False)}
    num_seen = 0
    for batch in DataLoader(md, collate_fn=collate_fn, **kinds[kind]):
        for b, (name, frame) in enumerate(zip(batch["episode"], batch["frame_index"], strict=True)):
            alone = md[starts[name] + int(frame)]
            assert_same({key: value[b] for key, value in batch.items()}, alone)
            num_seen += 1
    assert num_seen == {"in order": TOTAL, "random": TOTAL, "weighted": 9, "batches": 5}[kind]


# Memory.


def memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


@pytest.mark.parametrize("mixed_sizes", ["error", "list"])
@pytest.mark.parametrize("image_dtype", ["uint8", "float32"])
def test_samples_of_a_batch_share_nothing_that_can_be_written_to(
    folder: Path, image_dtype: Any, mixed_sizes: Any
) -> None:
    md = MultiDataset.from_folder(folder, WHOLE, image_dtype=image_dtype, mixed_sizes=mixed_sizes)
    samples = list(md.__getitems__([5, 80, 5, 41, 42, 43, 5]))
    inside = [one for sample in samples for one in flat(sample)]
    ranges = sorted(memory_of(one) for one in inside if torch.is_tensor(one))
    assert len(ranges) > 7 * 12
    for (_, stop), (start, _) in itertools.pairwise(ranges):
        assert stop <= start
    objects = Counter(id(one) for one in inside if isinstance(one, dict | list))
    assert set(objects.values()) == {1}


@pytest.mark.parametrize("image_dtype", ["uint8", "float32"])
def test_a_batch_of_several_episodes_is_handed_out_uncopied(folder: Path, image_dtype: Any) -> None:
    batch = MultiDataset.from_folder(folder, WHOLE, image_dtype=image_dtype).__getitems__(
        [5, 80, 5, 41, 60]
    )
    collated = collate(batch)
    for b, sample in enumerate(batch):
        for key, value in only_tensors(sample).items():
            assert value.data_ptr() == collated[key][b].data_ptr(), key


@pytest.mark.parametrize("image_dtype", ["uint8", "float32"])
def test_images_are_channels_last_views_in_batch_and_sample(folder: Path, image_dtype: Any) -> None:
    md = MultiDataset.from_folder(folder, WHOLE, image_dtype=image_dtype)
    batch = md.__getitems__([5, 80, 5, 41])
    collated = collate(batch)
    for key in ("cam", "cam_small", "wrist"):
        assert collated[key].is_contiguous(memory_format=torch.channels_last)
    for key in ("cam", "cam_past", "cam_large", "wrist"):
        for image in (collated[key], batch[1][key], collate(batch)[key]):
            assert image.shape[-3] == 3
            assert image.movedim(-3, -1).is_contiguous()


def test_changes_to_handed_out_samples_survive_collating(folder: Path) -> None:
    ds = ZarrDataset(folder / "a.zarr", keymap(cam=camera(), pose=entry("pose"), gone=camera()))
    batch = ds.__getitems__([3, 1, 3])
    untouched = ds.__getitems__([3, 1, 3])
    for sample in batch[1:]:
        sample["pose"] += 0.5  # in place
        sample["cam"] = sample["cam"].flip(-1) // 2  # anew
        del sample["gone"]
        sample["extra"] = torch.ones(2)
    del batch[0]["gone"]
    batch[0]["extra"] = torch.zeros(2)
    for collated in (collate(batch), default_collate(list(batch))):
        assert collated["pose"][:, 1].tolist() == [3001, 1001.5, 3001.5]
        assert torch.equal(collated["cam"][0], untouched[0]["cam"])
        assert torch.equal(collated["cam"][2], untouched[2]["cam"].flip(-1) // 2)
        assert collated["extra"].tolist() == [[0, 0], [1, 1], [1, 1]]
        assert "gone" not in collated


# A batch is a sequence.


def test_slices_negative_indices_and_iteration(folder: Path) -> None:
    batch = ZarrDataset(folder / "a.zarr", keymap(pose=entry("pose"))).__getitems__([3, 1, 4, 1, 5])
    found = [float(sample["pose"][0]) for sample in batch]
    assert found == [3000, 1000, 4000, 1000, 5000]
    assert len(batch) == 5
    assert batch[-1] is batch[4]
    assert batch[-5] is batch[0] is batch[0]
    for part in (slice(1, 3), slice(None, None, -2), slice(-2, None), slice(9, 12), slice(4, 1)):
        wanted = list(batch)[part]
        assert len(batch[part]) == len(wanted)
        assert all(one is other for one, other in zip(batch[part], wanted, strict=True))
    assert [float(sample["pose"][0]) for sample in reversed(batch)] == found[::-1]
    for index in (5, -6):
        with pytest.raises(IndexError):
            batch[index]


@pytest.mark.parametrize("image_dtype", ["uint8", "jpeg"])
def test_a_batch_pickles_with_what_was_changed_in_it(folder: Path, image_dtype: Any) -> None:
    md = MultiDataset.from_folder(folder, WHOLE, image_dtype=image_dtype)
    indices = [5, 80, 5, 41]
    whole = pickle.loads(pickle.dumps(md.__getitems__(indices)))
    assert_same(collate(whole), collate(md.__getitems__(indices)))
    changed = md.__getitems__(indices)
    changed[2]["pose"].fill_(-1)
    again = pickle.loads(pickle.dumps(changed))
    for found, wanted in zip(again, changed, strict=True):
        assert_same(found, wanted)
    assert collate(again)["pose"][:, 0].tolist() == [5000, 8000, -1, 41000]


# Each once.


@pytest.mark.parametrize("mixed_sizes", ["error", "list"])
@pytest.mark.parametrize("image_dtype", ["uint8", "float32", "jpeg"])
def test_each_distinct_jpeg_is_decoded_once_a_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch, image_dtype: Any, mixed_sizes: Any
) -> None:
    decoded: list[tuple[str, str, int, tuple[int, ...]]] = []
    original = frames.Camera.decode

    def noted(camera: frames.Camera, data: bytes, outs: Any, row: int) -> None:
        def noted_pixels(data: bytes, out: Any, size: tuple[int, int]) -> None:
            decoded.append((camera.episode, camera.key, row, out.shape[:2]))
            decode.decode_pixels(data, out, size)

        monkeypatch.setattr(frames, "decode_pixels", noted_pixels)
        original(camera, data, outs, row)

    monkeypatch.setattr(frames.Camera, "decode", noted)
    options: Any = {"image_dtype": image_dtype, "mixed_sizes": mixed_sizes}
    md = MultiDataset.from_folder(folder, WHOLE, **options)
    indices = [5, 80, 6, 5, 41, 43, 8, 44, 80]
    wanted = set()
    for index in indices:
        record, i = md.locate(index)
        fps = next(fps for name, _, fps in EPISODES if name == record.name)
        for spec in ENTRIES.values():
            if spec.is_camera and not (spec.optional and record.name == "b.zarr"):
                rows, _ = slow_rows(spec, fps, record.total_frames, i)
                size = spec.size or (16, 24)
                wanted |= {(record.name, spec.zarr_key, row, size) for row in rows}
    for _ in range(2):  # and nothing is kept for the next batch
        decoded.clear()
        md.__getitems__(indices)
        assert sorted(decoded) == ([] if image_dtype == "jpeg" else sorted(wanted))


def test_each_chunk_is_decoded_once_a_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: dict[str, ZarrEpisode] = {}

    class Noted(ZarrEpisode):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            opened[self.name] = self

    monkeypatch.setattr(dataset, "ZarrEpisode", Noted)
    entries = keymap(
        cam=camera(offsets=[0, -2]),
        now=entry("pose"),
        past=entry("pose", history=4),
        later=entry("pose", "action_keys", horizon=7),
        clock=entry("clock", "metadata_keys"),
    )
    md = MultiDataset.from_folder(folder, entries, cache_bytes=0)
    for _ in range(2):
        md.__getitems__([41, 5, 43, 7, 5])
        a, b = opened["a.zarr"].counts, opened["b.zarr"].counts
        # Poses 2 … 13 and 38 … 42, so chunks 0 and 1, 3 and 4.
        assert (a["pose"].reads, a["pose"].rows, a["pose"].chunks) == (1, 17, 4)
        assert (a["clock"].reads, a["clock"].rows, a["clock"].chunks) == (1, 4, 2)
        assert (a[CAMERA].reads, a[CAMERA].rows, a[CAMERA].chunks) == (1, 5, 5)
        assert (b["pose"].reads, b["pose"].rows, b["pose"].chunks) == (1, 7, 1)
        assert (b[CAMERA].reads, b[CAMERA].rows, b[CAMERA].chunks) == (1, 1, 1)
        for episode in opened.values():
            episode.counts.reset()


@pytest.mark.parametrize("image_dtype", ["uint8", "float32", "jpeg"])
def test_episodes_of_several_sizes_share_a_batch(tmp_path: Path, image_dtype: Any) -> None:
    sizes = {"a": (8, 12), "b": (16, 24), "c": (8, 12), "d": (16, 24), "e": (4, 6)}
    for name, size in sizes.items():
        group = foreign_group(tmp_path / f"{name}.zarr", 6)
        foreign_bytes(group, CAMERA, jpegs(pictures(6, size)), chunks=(1,))
        foreign_numbers(group, "pose", ramp(6, 2))
    entries = keymap(cam=camera(), past=camera(history=2), pose=entry("pose", history=3))
    md = MultiDataset.from_folder(tmp_path, entries, image_dtype=image_dtype)
    for _ in range(2):  # at first, no camera's size is known
        batch = md.__getitems__([25, 6, 0, 13, 7, 25, 18, 2, 29])
        for sample, index in zip(batch, [25, 6, 0, 13, 7, 25, 18, 2, 29], strict=True):
            assert_same(sample, md[index])
            if image_dtype != "jpeg":
                assert sample["cam"].shape[1:] == sizes[sample["episode"][0]]


def test_transforms_see_every_sample_once_alone(folder: Path) -> None:
    seen: list[tuple[str, int]] = []

    def note(sample: dict[str, Any]) -> dict[str, Any]:
        seen.append((sample["episode"], int(sample["frame_index"])))
        sample["pose"] += 1  # would come twice where repeats shared memory
        return sample

    def order(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "place": len(seen)}

    md = MultiDataset.from_folder(folder, keymap(pose=entry("pose")), transforms=[note, order])
    collated = collate(md.__getitems__([5, 80, 5, 41, 5]))
    assert Counter(seen) == {("a.zarr", 5): 3, ("sub/c.zarr", 8): 1, ("a.zarr", 41): 1}
    assert collated["pose"][:, 0].tolist() == [5001, 8001, 5001, 41001, 5001]
    assert sorted(collated["place"]) == [1, 2, 3, 4, 5]
