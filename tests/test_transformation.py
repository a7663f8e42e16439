"""Transforms in datasets: one call a batch, bit for bit what samples give, refused early."""

from __future__ import annotations

import dataclasses
import pickle
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from egoloader import EpisodeDataModule, EpisodeLoader, KeyMap, MultiDataset, ZarrDataset, collate
from egoloader.batch import Sample
from egoloader.errors import EpisodeError, SampleError, SettingsError
from egoloader.train.config import compose, make
from egoloader.transforms import (
    Drop,
    IntoFrame,
    PadDimensions,
    PoseRotation,
    RelativeActions,
    Rename,
    Resample,
    SelectDimensions,
    Shape,
    Stride,
    Transform,
)
from tests.entries import CAMERA, camera, entry, keymap
from tests.episodes import (
    edit_attrs,
    foreign_annotations,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    jpegs,
    pictures,
    ramp,
)
from tests.turns import some_poses

TOTALS = {"a.zarr": 11, "b.zarr": 9, "c.zarr": 13, "d.zarr": 7}
TOTAL = sum(TOTALS.values())
FRONT = {"dtype": "jpeg", "shape": [16, 24, 3], "names": ["h", "w", "c"]}
SIX = ["xyz", "rotation_6d"]

ENTRIES = KeyMap(
    {
        "cam": camera(),
        "cam_past": camera(history=2, mask=True),
        "hand": entry("hand", "action_keys", horizon=4, mask=True),
        "head": entry("head"),
        "past": entry("hand", history=3),
        "arm": entry("arm", history=2, optional=True, shape=(7,)),
        "joints": entry("joints", "action_keys", horizon=4),
        "text": entry("annotations", "annotation_keys", optional=True),
        "row": entry("rows", "metadata_keys", optional=True),
    }
)
#: Steps that fit `ENTRIES` in this order, whichever of them are left out.
STEPS: list[Transform] = [
    IntoFrame(keys=["hand", "arm"], reference="head"),
    RelativeActions(keys=["hand"], reference="past", step=-1),
    PoseRotation(keys=["past", "arm"], target=SIX),
    Resample(keys=["hand", "joints"], steps=3),
    PadDimensions(keys=["joints"], given=3, size=5),
    Rename(keys=["cam", "text", "row"], to=["front", "words", "line"]),
    Drop(keys=["cam_past"]),
]


def write(folder: Path, seed: int = 0) -> Path:
    """Write episodes of two embodiments; those behind the first lack what is optional."""
    for number, (name, total) in enumerate(TOTALS.items()):
        rng = np.random.default_rng([seed, number])
        body = "arm" if name == "d.zarr" else "human"
        group = foreign_group(folder / name, total, fps=10.0, embodiment=body)
        for key in ("hand", "head"):
            foreign_numbers(group, key, some_poses(rng, (total,), torch.float32).numpy())
        foreign_numbers(group, "joints", ramp(total, 3))
        foreign_bytes(group, CAMERA, jpegs(pictures(total)))
        if name == "a.zarr":
            foreign_numbers(group, "arm", some_poses(rng, (total,), torch.float32).numpy())
            foreign_annotations(group, [("reach", 0, 5), ("grasp", 3, 8)])
            foreign_bytes(group, "rows", [b'{"t": %d}' % t for t in range(total)])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("episodes"))


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.contiguous().numpy().tobytes()
    return value


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return list(found) == list(wanted) and all(bits(found[k]) == bits(wanted[k]) for k in wanted)


def slow(ds: Any, index: int, steps: Any) -> Sample:
    """Return a sample that went through the steps alone; `ds` has none."""
    sample: Sample = ds[index]
    for step in steps:
        sample = step(sample)
    return sample


# Values.


@settings(deadline=None, max_examples=40)
@given(
    chosen=st.lists(st.booleans(), min_size=len(STEPS), max_size=len(STEPS)).filter(any),
    indices=st.lists(st.integers(0, TOTAL - 1), min_size=1, max_size=9),
    image_dtype=st.sampled_from(["uint8", "float32", "jpeg"]),
    single=st.booleans(),
)
def test_a_batch_is_what_its_samples_give(
    folder: Path, chosen: list[bool], indices: list[int], image_dtype: Any, single: bool
) -> None:
    steps = [step for step, is_in in zip(STEPS, chosen, strict=True) if is_in]
    options: Any = {"image_dtype": image_dtype}
    if single:
        ds: Any = ZarrDataset(folder / "a.zarr", ENTRIES, transforms=steps, **options)
        plain: Any = ZarrDataset(folder / "a.zarr", ENTRIES, **options)
    else:
        ds = MultiDataset.from_folder(folder, ENTRIES, transforms=steps, **options)
        plain = MultiDataset.from_folder(folder, ENTRIES, **options)
    inside = [index % len(ds) for index in indices]
    alone = [slow(plain, index, steps) for index in inside]
    assert all(map(same, ds.__getitems__(inside), alone))
    assert same(collate(ds.__getitems__(inside)), collate(alone))
    assert same(ds[inside[0]], alone[0])
    batch = ds.__getitems__(inside)
    assert batch.num_bytes == sum(
        one.nbytes for sample in alone for one in sample.values() if torch.is_tensor(one)
    )
    looked_at = batch[0]
    looked_at["fps"] += 1  # a sample that was changed stays changed
    alone[0]["fps"] += 1
    assert same(collate(batch), collate(alone))


@dataclass(frozen=True, slots=True)
class Calls(Transform):
    """Counts the calls, by how many samples each was of; 0 is a sample alone."""

    seen: Counter[int] = dataclasses.field(default_factory=Counter, compare=False)

    def _shapes(self, given: Any) -> dict[str, Shape]:
        return dict(given)

    def _apply(self, sample: Sample) -> Sample:
        self.seen[len(sample["frame_index"]) if sample["frame_index"].dim() else 0] += 1
        return sample


def test_one_call_a_batch_and_images_stay_where_they_are(folder: Path) -> None:
    calls, memory = Calls(), dict[str, list[np.ndarray[Any, Any]]]()

    def allocate(key: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        memory.setdefault(key, []).append(np.empty(shape, dtype))
        return memory[key][-1]

    steps = [calls, *STEPS[:-1], calls]
    md = MultiDataset.from_folder(folder, ENTRIES, transforms=steps)
    batch = md.make_batch([0, 12, 30, 12], allocate)
    assert calls.seen == {4: 2}
    (front,), (past,) = memory["cam"], memory["cam_past"]
    tensors = collate(batch)
    assert tensors["front"].data_ptr() == front.ctypes.data
    assert tensors["cam_past"].data_ptr() == past.ctypes.data
    assert tensors["front"].shape == (4, 3, 16, 24)
    assert tensors["front"].movedim(-3, -1).is_contiguous()
    assert batch[2]["front"].data_ptr() == front[2].ctypes.data
    assert batch[0]["words"] == "reach"


def test_a_callable_of_another_kind_is_called_once_a_sample(folder: Path) -> None:
    calls = Calls()
    ds = ZarrDataset(folder / "a.zarr", ENTRIES, transforms=[calls, dict])
    ds.__getitems__([3, 1, 3])
    assert calls.seen == {0: 3}


def test_each_kind_of_samples_is_a_call_of_its_own(folder: Path, tmp_path: Path) -> None:
    calls = Calls()
    maps = {"human": ENTRIES, "arm": keymap(joints=entry("joints"), head=entry("head"))}
    md = MultiDataset.from_folder(folder, maps, transforms=[calls])
    plain = MultiDataset.from_folder(folder, maps)
    indices = [0, TOTAL - 1, 12, TOTAL - 2, 30]
    batch = md.__getitems__(indices)
    assert calls.seen == {3: 1, 2: 1}
    assert all(same(one, plain[index]) for one, index in zip(batch, indices, strict=True))


# Where batches are made.


def test_loaders_hand_out_what_samples_give(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, ENTRIES, transforms=STEPS)
    plain = MultiDataset.from_folder(folder, ENTRIES)
    wanted = [slow(plain, index, STEPS) for index in range(TOTAL)]
    order = [[3, 20, 39], [7], [1, 1, 12, 30]]
    for loader in (
        EpisodeLoader(md, batch_sampler=order, num_threads=2),
        EpisodeLoader(pickle.loads(pickle.dumps(md)), batch_sampler=order),
        DataLoader(md, batch_sampler=order, collate_fn=collate, num_workers=2),
        DataLoader(md, batch_sampler=order, collate_fn=collate),
    ):
        kept = list(loader)
        for batch, indices in zip(kept, order, strict=True):
            assert same(batch, collate([wanted[index] for index in indices]))


def test_listed_images_stay_a_list_under_another_name(folder: Path) -> None:
    steps = [Rename(keys=["cam"], to=["front"])]
    md = MultiDataset.from_folder(folder, ENTRIES, transforms=steps, mixed_sizes="list")
    for look in (False, True):
        batch = md.__getitems__([3, 4])
        if look:
            batch[0]
        found = collate(batch)
        assert [tuple(one.shape) for one in found["front"]] == [(3, 16, 24)] * 2
        assert isinstance(found["front"], list)


# What goes wrong.


def zero(folder: Path, name: str, frame: int) -> None:
    import zarr

    zarr.open_group(folder / name, mode="r+")["hand"][frame] = np.zeros(7, np.float32)


def test_a_failure_names_the_sample(tmp_path: Path) -> None:
    zero(write(tmp_path), "b.zarr", 5)
    md = MultiDataset.from_folder(tmp_path, ENTRIES, transforms=STEPS[:1])
    wanted = r"episode 'b\.zarr', frame 3: transform IntoFrame failed: .*key 'hand', row \[2\]"
    with pytest.raises(SampleError, match=wanted):
        md.__getitems__([0, 11 + 8, 11 + 3, 11 + 4])
    assert len(md.__getitems__([0, 11 + 6])) == 2


@dataclass(frozen=True, slots=True)
class Odd(Transform):
    """Takes samples, and no batch of them."""

    wrong: str

    def _shapes(self, given: Any) -> dict[str, Shape]:
        return dict(given)

    def _apply(self, sample: Sample) -> Sample:
        if self.wrong == "raises":
            int(sample["frame_index"])
        added: Any = {"a text": "x", "a tensor": torch.zeros(3), "a number": 1.0, "raises": []}
        return sample | {"added": added[self.wrong]} if self.wrong != "raises" else sample


@pytest.mark.parametrize("wrong", ["raises", "a text", "a tensor", "a number"])
def test_a_transform_that_takes_no_batch_is_told_so(folder: Path, wrong: str) -> None:
    ds = ZarrDataset(folder / "a.zarr", ENTRIES, transforms=[Odd(wrong)])
    with pytest.raises(SampleError, match=r"'a\.zarr': transforms take each sample of a batch"):
        ds.__getitems__([1, 2])


def test_a_transform_must_return_the_sample(folder: Path) -> None:
    class Nothing(Odd):
        def _apply(self, sample: Sample) -> Sample:
            return None  # type: ignore[return-value]

    ds = ZarrDataset(folder / "a.zarr", ENTRIES, transforms=[Nothing("raises")])
    with pytest.raises(SampleError, match=r"frame 1: transform Nothing failed.*must return the"):
        ds.__getitems__([1, 2])


# Refused when a dataset is made.

WRONG = [STEPS[2], IntoFrame(keys=["hand"], reference="haed")]
SAID = r"transforms\[1\], IntoFrame: there is no key 'haed'; did you mean 'head'"


@pytest.mark.parametrize("declared", [True, False])
def test_what_cannot_work_is_refused_before_anything_is_decoded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    write(tmp_path)
    for name in TOTALS if declared else ():
        edit_attrs(tmp_path / name, features=features_of(tmp_path / name))
    asked = watch_decoding(monkeypatch)
    with pytest.raises(SettingsError, match=rf"^embodiment 'human', episode 'a.zarr': {SAID}"):
        ZarrDataset(tmp_path / "a.zarr", ENTRIES, transforms=WRONG)
    with pytest.raises(SettingsError, match=rf"^embodiment 'human', episode '.\.zarr': {SAID}"):
        MultiDataset.from_folder(tmp_path, ENTRIES, transforms=WRONG)
    with pytest.raises(SettingsError, match=r"\[0\], SelectDimensions: key 'fps' must be a row"):
        ZarrDataset(
            tmp_path / "a.zarr",
            ENTRIES,
            transforms=[SelectDimensions(keys=["fps"], dimensions=[0])],
        )
    assert len(asked) == (0 if declared else 3)
    good = ZarrDataset(tmp_path / "a.zarr", ENTRIES, transforms=STEPS)
    MultiDataset.from_folder(tmp_path, ENTRIES, transforms=STEPS)
    assert len(asked) == (0 if declared else 3)
    assert not any(counts.reads for counts in good.episode.counts.values())


def features_of(episode: Path) -> dict[str, Any]:
    from egoloader import ZarrEpisode

    ep = ZarrEpisode(episode)
    numbers = {
        key: {"dtype": "float32", "shape": list(ep.layout(key).row_shape), "names": None}
        for key in ("hand", "head", "arm", "joints")
        if ep.has(key)
    }
    text = {key: {"dtype": "json", "shape": []} for key in ("annotations", "rows") if ep.has(key)}
    return {CAMERA: FRONT, **numbers, **text}


def watch_decoding(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    from egoloader import sample

    asked, decode = [], sample.decode_jpeg

    def counted(*args: Any, **options: Any) -> Any:
        asked.append(args)
        return decode(*args, **options)

    monkeypatch.setattr(sample, "decode_jpeg", counted)
    return asked


def test_a_transform_of_images_is_checked_against_their_size(folder: Path) -> None:
    crop = SelectDimensions(keys=["cam"], dimensions=list(range(24)))
    ds = ZarrDataset(folder / "a.zarr", ENTRIES, transforms=[crop])
    assert collate(ds.__getitems__([3, 4]))["cam"].shape == (2, 3, 16, 24)
    wide = SelectDimensions(keys=["cam"], dimensions=[24])
    with pytest.raises(SettingsError, match="key 'cam' has rows of 24 numbers, and no 24"):
        ZarrDataset(folder / "a.zarr", ENTRIES, transforms=[wide])
    sized = KeyMap({**ENTRIES, "cam": camera(size=[8, 12])})
    with pytest.raises(SettingsError, match="key 'cam' has rows of 12 numbers, and no 24"):
        ZarrDataset(folder / "a.zarr", sized, transforms=[wide])


def test_every_kind_of_samples_is_checked(tmp_path: Path) -> None:
    write(tmp_path)
    group = foreign_group(tmp_path / "e.zarr", 5, fps=10.0)
    for key, width in (("hand", 6), ("head", 7), ("joints", 3)):
        foreign_numbers(group, key, ramp(5, width))
    foreign_bytes(group, CAMERA, jpegs(pictures(5)))
    wanted = r"episode 'e\.zarr': transforms\[0\], IntoFrame: key 'hand' has rows of 6 numbers"
    with pytest.raises(SettingsError, match=wanted):
        MultiDataset.from_folder(tmp_path, ENTRIES, transforms=STEPS)


# By embodiment.

LISTS = {"human": STEPS, "arm": [Stride(keys=["joints"], every=2)]}


@pytest.mark.parametrize("declared", [True, False])
def test_each_embodiment_has_a_list_of_its_own(folder: Path, declared: bool) -> None:
    lists: Any = LISTS if declared else {name: [*one, dict] for name, one in LISTS.items()}
    md = MultiDataset.from_folder(folder, ENTRIES, transforms=lists)
    plain = MultiDataset.from_folder(folder, ENTRIES)
    indices = [0, TOTAL - 1, 12, TOTAL - 2, 30]
    wanted = [slow(plain, n, lists[md.locate(n)[0].embodiment]) for n in indices]
    assert all(map(same, md.__getitems__(indices), wanted))
    assert wanted[0]["joints"].shape == (3, 5)
    assert wanted[1]["joints"].shape == (2, 3)
    for name in LISTS:
        its = md.of_embodiment(name)
        assert same(collate(its.__getitems__([1, 2])), collate([its[1], its[2]]))
    again = pickle.loads(pickle.dumps(md))
    assert same(again[TOTAL - 1], wanted[1])
    data = EpisodeDataModule(folder, ENTRIES, valid_ratio=0, batch_size=2, transforms=lists)
    data.setup("fit")
    step = next(iter(data.train_dataloader()))
    assert step["human"]["joints"].shape == (2, 3, 5)
    assert step["arm"]["joints"].shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"human": []}, r"of embodiment 'arm' and no transforms for it; .*an empty list"),
        (
            {"humn": STEPS, "human": STEPS, "arm": []},
            "transforms for 'humn', and no episode of that embodiment; did you mean 'human'",
        ),
        ({"human": STEPS, "arm": WRONG}, rf"^embodiment 'arm', episode 'd\.zarr': {SAID}"),
        ({"human": STEPS, "arm": STEPS[0]}, r"^transforms\['arm'\] is a list of callables"),
        ({"human": [3], "arm": []}, r"^transforms\['human'\] are callables, got 3"),
        ({}, "a mapping of transforms needs at least one embodiment"),
        ("STEPS", "transforms is a list of callables, got 'STEPS'"),
    ],
)
def test_lists_that_do_not_fit_are_refused(folder: Path, lists: Any, message: str) -> None:
    with pytest.raises((SettingsError, EpisodeError), match=message):
        MultiDataset.from_folder(folder, ENTRIES, transforms=lists)


def test_an_embodiment_of_another_split_may_have_transforms(folder: Path) -> None:
    for split in ("train", "valid"):
        md = MultiDataset.from_folder(folder, ENTRIES, split=split, transforms=LISTS)  # type: ignore[arg-type]
        assert len(md.embodiments) >= 1
    only = MultiDataset.from_folder(
        folder, ENTRIES, filters={"embodiment": "human"}, transforms=LISTS
    )
    assert only.embodiments == ("human",)


def test_a_recipe_lists_transforms_by_embodiment(folder: Path) -> None:
    lists = (
        "data.transforms={human: [{_target_: egoloader.transforms.Stride, keys: [joints],"
        " every: 2}], arm: []}"
    )
    built = make(compose([lists]).data)._options["transforms"]
    assert built == {"human": [Stride(keys=["joints"], every=2)], "arm": []}
    assert make(compose([]).data)._options["transforms"] == ()
    md = MultiDataset.from_folder(folder, ENTRIES, transforms=built)
    assert md[0]["joints"].shape == (2, 3)
    assert md[TOTAL - 1]["joints"].shape == (4, 3)


def test_one_episode_takes_its_embodiments_list(folder: Path) -> None:
    ds = ZarrDataset(folder / "d.zarr", ENTRIES, transforms=LISTS)
    assert ds[0]["joints"].shape == (2, 3)
