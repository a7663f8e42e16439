"""An outlier frame is one whose sample holds a number outside, however its numbers are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import EpisodeWriter, KeyMap, KeySpec, NormStats, ZarrDataset, ZarrEpisode
from egoloader.sample import SampleSettings
from egoloader.stats import outside
from egoloader.stats.job import EpisodeJob
from egoloader.stats.outside import find_outliers
from egoloader.stats.view import view_of
from egoloader.transforms import (
    Concatenate,
    DeltaActions,
    InvertGripper,
    Rename,
    SelectDimensions,
    Transform,
)
from tests.strategies import key_specs, timed_specs

TOTAL = 40
ABSENT = {"zarr_key": "never", "optional": True, "shape": (2,)}


@dataclasses.dataclass(frozen=True)
class Turned(Transform):
    """A step of rows that is none of the project's."""

    @property
    def is_per_row(self) -> bool:
        return True

    def _shapes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return dict(given)

    def _apply(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return {**sample, "a": -sample["a"]}


#: By name: what is done to the keys "a", "b" of two numbers a row, of "same" windows or any.
CHAINS: dict[str, list[Transform]] = {
    "none": [],
    "rows": [
        SelectDimensions(keys=("a",), dimensions=(1,)),
        InvertGripper(keys=("b",), low=0, high=1),
    ],
    "renamed": [Rename(keys=("a", "b"), to=("b", "c"))],
    "joined": [Concatenate(keys=("a", "b"), sizes=(2, 2), whole="both", optional=("b",))],
    "mixed": [DeltaActions(keys=("a",), reference="b", row=("2 x scalar",))],
    "own": [Turned()],
}


def leaping(seed: int) -> npt.NDArray[np.float64]:
    """Return rows of small numbers, some of which leap: the first and the last among them."""
    rng = np.random.default_rng(seed)
    is_far = rng.random((TOTAL, 2)) < 0.04
    is_far[[0, -1], seed % 2] = True
    return np.where(is_far, 50, rng.uniform(0, 1, (TOTAL, 2)))


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> list[ZarrEpisode]:
    """One that is even in time, and one that is not."""
    folder = tmp_path_factory.mktemp("windows")
    times = np.cumsum(np.random.default_rng(0).uniform(0.02, 0.2, TOTAL))
    for name, more in {"even": {}, "uneven": {"timestamp": times}}.items():
        EpisodeWriter.write(
            folder / name,
            numeric={"a": leaping(1), "b": leaping(2), **more},
            fps=10,
            embodiment="arm",
            annotations=[("pick", 3, 17), ("place", 12, 31)],
        )
    return [ZarrEpisode(folder / name) for name in ("even", "uneven")]


@st.composite
def keymaps(draw: st.DrawFn, chain: str) -> KeyMap:
    """Two entries, of the same window where a chain joins them, or of as many steps."""
    any_window = st.one_of(key_specs(), timed_specs())
    if chain in ("joined", "mixed"):
        steps = draw(st.integers(2, 5))
        windows = [{"horizon": steps}, {"history": steps}, {"offsets": tuple(range(-3, steps - 3))}]
        any_window = st.builds(
            lambda window, key_type: KeySpec(zarr_key="a", key_type=key_type, **window),
            st.sampled_from(windows),
            st.sampled_from(["action_keys", "proprio_keys"]),
        )
    plain = st.just(KeySpec(zarr_key="b", key_type="proprio_keys"))
    spec, other = draw(any_window), draw(plain if chain == "mixed" else any_window)
    entries = {"a": spec, "b": dataclasses.replace(other, zarr_key="b")}
    if draw(st.booleans()):
        entries["b"] = dataclasses.replace(entries["b"], **ABSENT)
    # As they are stored, so that bounds mean the same whatever numbers are read as.
    return KeyMap(
        {
            key: dataclasses.replace(
                one,
                dtype="float64",
                mask=True,
                interpolation="linear" if one.interpolation == "slerp" else one.interpolation,
            )
            for key, one in entries.items()
        }
    )


def oracle(
    dataset: ZarrDataset, frames: Sequence[int], bounds: Mapping[str, Any]
) -> tuple[list[int], dict[str, int]]:
    """Return the frames whose samples hold a real number outside, and how many by key."""
    found, by_key = [], dict.fromkeys(bounds, 0)
    for frame in frames:
        sample = dataset[frame]
        its = []
        for key, (low, high) in bounds.items():
            value, is_pad = sample[key].numpy(), sample[f"{key}_is_pad"].numpy()
            is_pad = is_pad.reshape(*is_pad.shape, *[1] * (value.ndim - is_pad.ndim))
            if f"{key}_dim_is_pad" in sample:
                is_pad = is_pad | sample[f"{key}_dim_is_pad"].numpy()
            if (~is_pad & ((value < low) | (value > high))).any():
                its.append(key)
                by_key[key] += 1
        found += [frame] if its else []
    return found, {key: count for key, count in by_key.items() if count}


@settings(max_examples=120, deadline=None)
@given(data=st.data(), chain=st.sampled_from(sorted(CHAINS)), is_cut=st.booleans())
def test_frames_are_those_whose_samples_hold_one(
    episodes: list[ZarrEpisode], data: st.DataObject, chain: str, is_cut: bool
) -> None:
    keymap, episode = data.draw(keymaps(chain)), data.draw(st.sampled_from(episodes))
    options = SampleSettings(annotation_cutoff=is_cut, transforms=CHAINS[chain])
    dataset = ZarrDataset(episode.path, keymap, annotation_cutoff=is_cut, transforms=CHAINS[chain])
    first = dataset[0]
    keys = [key for key in ("a", "b", "c", "both") if key in first]
    per_step = data.draw(st.sets(st.sampled_from(keys)))
    per_step = {key for key in per_step if first[f"{key}_is_pad"].ndim}
    view = view_of(episode, keymap, options, TOTAL, per_step)
    assert view is not None
    frames = np.array(sorted(data.draw(st.sets(st.integers(0, TOTAL - 1), min_size=1))))
    bounds = {}
    for key in keys:
        shape = first[key].shape if key in per_step else first[key].shape[-1:]
        bounds[key] = np.full(shape, -10.0), np.full(shape, 10.0)
    found = find_outliers(EpisodeJob(episode, view, frames), bounds)
    wanted, by_key = oracle(dataset, frames.tolist(), bounds)
    assert found.frames.tolist() == wanted
    assert dict(found.by_key) == by_key
    # Looked at in samples alone, it is the same.
    again = find_outliers(EpisodeJob(episode, dataclasses.replace(view, rows=None), frames), bounds)
    assert (again.frames.tolist(), dict(again.by_key)) == (wanted, by_key)


def test_rows_are_looked_up_without_making_samples(
    episodes: list[ZarrEpisode], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_of_them(*_: object) -> None:
        raise AssertionError("samples are made")

    monkeypatch.setattr(outside, "sample_numbers", none_of_them)
    keymap = KeyMap(
        {
            "a": KeySpec(zarr_key="a", key_type="action_keys", horizon=16),
            "b": KeySpec(zarr_key="b", key_type="proprio_keys", history=4, stride_s=0.3),
        }
    )
    view = view_of(episodes[0], keymap, SampleSettings(), TOTAL)
    bounds = {key: (np.full(2, -10.0), np.full(2, 10.0)) for key in "ab"}
    found = find_outliers(EpisodeJob(episodes[0], view, None), bounds)
    leaps = np.flatnonzero((leaping(1) > 10).any(axis=1))
    wanted = {frame for leap in leaps for frame in range(max(0, leap - 15), leap + 1)}
    assert found.by_key["a"] == len(wanted) > len(leaps)


def test_numbers_that_are_none_lie_outside_where_only_windows_hold_them(tmp_path: Path) -> None:
    rows = leaping(1)
    rows[20] = np.nan
    with pytest.warns(UserWarning, match="NaN"):
        EpisodeWriter.write(tmp_path / "e", numeric={"a": rows}, fps=10, embodiment="arm")
    keymap = KeyMap({"a": KeySpec(zarr_key="a", key_type="action_keys", horizon=3)})
    episode = ZarrEpisode(tmp_path / "e")
    view = view_of(episode, keymap, SampleSettings(), TOTAL)
    kept = np.setdiff1d(np.arange(TOTAL), [20])
    bounds = {"a": (np.full(2, -np.inf), np.full(2, np.inf))}
    assert find_outliers(EpisodeJob(episode, view, kept), bounds).frames.tolist() == [18, 19]


def test_windows_that_annotations_cut_off_are_others(episodes: list[ZarrEpisode]) -> None:
    keymap = KeyMap(
        {
            "a": KeySpec(zarr_key="a", key_type="action_keys", horizon=9, mask=True),
            "b": KeySpec(zarr_key="a", key_type="proprio_keys", horizon=9, mask=True),
        }
    )
    view = view_of(episodes[0], keymap, SampleSettings(annotation_cutoff=True), TOTAL)
    dataset = ZarrDataset(episodes[0].path, keymap, annotation_cutoff=True)
    bounds = {key: (np.full(2, -10.0), np.full(2, 10.0)) for key in "ab"}
    wanted, by_key = oracle(dataset, range(TOTAL), bounds)
    found = find_outliers(EpisodeJob(episodes[0], view, None), bounds)
    assert (found.frames.tolist(), dict(found.by_key)) == (wanted, by_key)
    assert 0 < by_key["a"] < by_key["b"]


def test_numbers_are_held_to_bounds_as_exactly_as_these_were_found(tmp_path: Path) -> None:
    # float32 has no 0.1: as a sample's number it lies outside of 0.1 to 0.1.
    EpisodeWriter.write(
        tmp_path / "e", numeric={"a": np.full((TOTAL, 1), 0.1)}, fps=10, embodiment="arm"
    )
    window: dict[str, Any] = {"rate_hz": 4.0, "horizon_s": 1.0, "interpolation": "linear"}
    keymap = KeyMap({"a": KeySpec(zarr_key="a", key_type="action_keys", **window)})
    stats = NormStats.compute(ZarrDataset(tmp_path / "e", keymap), outliers=("q1", "q99"))
    assert stats["arm"]["a"].max.tolist() == [0.1]
    assert stats.outliers is not None
    assert stats.outliers.num_outliers == 0


def test_a_step_of_rows_of_somebody_else_is_known_by_its_samples(
    episodes: list[ZarrEpisode],
) -> None:
    keymap = KeyMap(
        {
            "a": KeySpec(zarr_key="a", key_type="action_keys", horizon=4),
            "b": KeySpec(zarr_key="b", key_type="proprio_keys"),
        }
    )
    view = view_of(episodes[0], keymap, SampleSettings(transforms=[Turned()]), TOTAL)
    bounds = {"a": (np.full(2, -10.0), np.full(2, 10.0)), "b": (np.full(2, -10.0),) * 2}
    found = find_outliers(EpisodeJob(episodes[0], view, None), bounds)
    turned = torch.stack([ZarrDataset(episodes[0].path, keymap)[i]["a"] for i in range(TOTAL)])
    real = np.array([[i + j < TOTAL for j in range(4)] for i in range(TOTAL)])
    is_out = ((-turned < -10).any(-1).numpy() & real).any(axis=1)
    assert found.by_key["a"] == is_out.sum() > 0
