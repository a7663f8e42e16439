"""What statistics are of, held to numpy on the concatenated rows."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import (
    EpisodeWriter,
    KeyMap,
    KeySpec,
    MultiDataset,
    Normalizer,
    NormStats,
    ZarrDataset,
    ZarrEpisode,
    collate,
)
from egoloader.errors import (
    EpisodeError,
    EpisodeFormatError,
    MissingChunkWarning,
    MissingStatisticsError,
    NonFiniteWarning,
    SampleError,
    SettingsError,
    StatisticsWarning,
    WorkerLostError,
)
from egoloader.normalizer import NormalizerSettings
from egoloader.stats import computation, job, view
from egoloader.transforms import (
    Chain,
    Concatenate,
    DeltaActions,
    Drop,
    PadDimensions,
    PoseRotation,
    Rename,
    SelectDimensions,
    Stride,
    Transform,
)
from tests.episodes import foreign_group, foreign_numbers, pictures, ramp
from tests.statistics import (
    ACTION,
    KEYMAP,
    STATE,
    check_against_numpy,
    joined,
    noise,
    write_folder,
)

LENGTHS = (250, 1, 77)
Written = dict[str, dict[str, npt.NDArray[Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stats")


@pytest.fixture(scope="module")
def written(folder: Path) -> Written:
    return write_folder(folder, LENGTHS)


@pytest.fixture
def data(folder: Path, written: Written) -> MultiDataset:
    return MultiDataset.from_folder(folder, KEYMAP)


def reordered(data: MultiDataset) -> MultiDataset:
    return MultiDataset(data.folder, data.episodes[::-1], data.keymaps, data.settings)


def test_they_equal_numpy_on_the_rows_whatever_the_windows(
    data: MultiDataset, written: Written
) -> None:
    stats = NormStats.compute(data)
    assert list(stats) == ["sawyer"]
    assert list(stats["sawyer"]) == ["state", "action"]
    check_against_numpy(stats["sawyer"]["state"], joined(written, "pose"))
    check_against_numpy(stats["sawyer"]["action"], joined(written, "command"))


def test_they_are_the_same_for_any_workers_and_order(data: MultiDataset, tmp_path: Path) -> None:
    one = NormStats.compute(data, per_step=["action"])
    for workers in (2, 8):
        assert NormStats.compute(data, per_step=["action"], workers=workers) == one
    assert NormStats.compute(reordered(data), per_step=["action"]) == one


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_large_offset_costs_nothing(tmp_path: Path, dtype: str) -> None:
    rows = [(1e6 + noise(total, 2, total).astype(np.float64)).astype(dtype) for total in (40, 900)]
    for number, one in enumerate(rows):
        EpisodeWriter.write(
            tmp_path / f"{number}.zarr", numeric={"pose": one}, fps=30, embodiment="sawyer"
        )
    keymap = KeyMap.from_config({"state": STATE})
    stats = NormStats.compute(MultiDataset.from_folder(tmp_path, keymap))
    check_against_numpy(stats["sawyer"]["state"], np.concatenate(rows))


@pytest.mark.parametrize(
    "layout",
    [
        {"chunks": (100, 3)},
        {"chunks": (100, 3), "shards": (300, 3)},
        {"chunks": (7, 3), "compressors": zarr.codecs.GzipCodec()},
        {"chunks": (300, 3), "compressors": None},
    ],
    ids=["plain", "sharded", "gzip", "one raw chunk"],
)
def test_padded_rows_never_count(tmp_path: Path, layout: dict[str, Any]) -> None:
    rows = np.zeros((300, 3), np.float32)
    rows[:250] = ramp(250, 3)
    group = foreign_group(tmp_path / "ep.zarr", 250)
    foreign_numbers(group, "pose", rows, **layout)
    dataset = ZarrDataset(tmp_path / "ep.zarr", KeyMap.from_config({"state": STATE}))
    check_against_numpy(NormStats.compute(dataset)["human"]["state"], rows[:250])


rows_of_episodes = st.lists(
    st.lists(st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2), min_size=1, max_size=8),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25, deadline=None)
@given(episodes=rows_of_episodes)
def test_any_numbers_equal_numpy(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[list[tuple[float, float]]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    arrays = [np.array(rows, dtype=np.float32) for rows in episodes]
    for number, rows in enumerate(arrays):
        EpisodeWriter.write(
            folder / f"{number}.zarr", numeric={"pose": rows}, fps=30, embodiment="sawyer"
        )
    keymap = KeyMap.from_config({"state": STATE})
    found = NormStats.compute(MultiDataset.from_folder(folder, keymap))["sawyer"]["state"]
    rows = np.concatenate(arrays).astype(np.float64)
    span = np.abs(rows).max()
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-6, atol=1e-12 * span)
    np.testing.assert_allclose(found.std, rows.std(axis=0), rtol=1e-6, atol=1e-12 * span)
    np.testing.assert_allclose(found.quantile("q1"), np.quantile(rows, 0.01, axis=0), atol=1e-9)


def test_rows_are_those_behind_transforms_of_rows(tmp_path: Path, written: Written) -> None:
    chain = [
        SelectDimensions(keys=["state"], dimensions=[2, 0]),
        Chain([Rename(keys=["action"], to=["command"])]),
        Concatenate(keys=["state", "more"], sizes=[2, 4], whole="both"),
        Drop(keys=["front"]),
        PadDimensions(keys=["command"], given=2, size=5),
    ]
    keymap = KeyMap.from_config(
        {
            "state": STATE,
            "more": STATE,
            "action": ACTION,
            "front": {"zarr_key": "front", "key_type": "camera_keys"},
        }
    )
    for number, total in enumerate(LENGTHS):
        path = tmp_path / f"{number}.zarr"
        EpisodeWriter.write(
            path,
            numeric=written[f"ep_{number}.zarr"],
            fps=30,
            embodiment="sawyer",
            images={"front": pictures(total)},
        )
    data = MultiDataset.from_folder(tmp_path, keymap, transforms=chain)
    stats = NormStats.compute(data)["sawyer"]
    assert list(stats) == ["both", "command"]
    pose, command = joined(written, "pose"), joined(written, "command")
    check_against_numpy(stats["both"], np.concatenate([pose[:, [2, 0]], pose], axis=1))
    assert stats["command"].counts.tolist() == [len(command), len(command), 0, 0, 0]
    np.testing.assert_allclose(stats["command"].mean[:2], command.mean(axis=0))
    assert stats["command"].mean[2:].tolist() == [0, 0, 0]
    sample = data[0]
    assert {"both", "command"} <= set(sample)


def deltas(rows: npt.NDArray[Any], horizon: int) -> npt.NDArray[np.float64]:
    """Return a[t + j] - a[t] of all real steps, episode ends left out: (N, D)."""
    rows = rows.astype(np.float64)
    total = len(rows)
    return np.concatenate([rows[t : t + horizon] - rows[t] for t in range(total)])


class Since:
    """A step from sample to sample that is none of the project's: what comes after the first."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        action = sample["action"].double()
        return {**sample, "action": action - action[:1]}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_mixes_rows_is_looked_at_in_samples_without_padding(
    folder: Path, written: Written, workers: int
) -> None:
    data = MultiDataset.from_folder(folder, KEYMAP, transforms=[Since()])
    stats = NormStats.compute(data, workers=workers)["sawyer"]
    wanted = [deltas(arrays["command"], 5) for arrays in written.values()]
    check_against_numpy(stats["action"], np.concatenate(wanted))


#: Steps that leave a policy without masks of padding, and what the action is called behind them.
UNMASKING: dict[str, tuple[list[Transform], str]] = {
    "dropped": ([Drop(keys=["action_is_pad", "action_is_other_span"])], "action"),
    "renamed alone": (
        [Rename(keys=["action_is_pad"], to=["valid"]), Drop(keys=["valid"])],
        "action",
    ),
    "renamed, then dropped": (
        [Rename(keys=["action"], to=["a"]), Drop(keys=["a_is_pad", "a_is_other_span"])],
        "a",
    ),
    "of a whole": (
        [
            Concatenate(keys=["action", "now"], sizes=[2, 2], whole="both"),
            Drop(keys=["both_is_pad"]),
            SelectDimensions(keys=["both"], dimensions=[0, 1]),
        ],
        "both",
    ),
    "of dimensions": (
        [
            PadDimensions(keys=["action"], given=2, size=3),
            Drop(keys=["action_dim_is_pad", "action_is_pad"]),
        ],
        "action",
    ),
}


@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize("name", UNMASKING)
def test_padding_never_counts_where_transforms_leave_masks_out(
    folder: Path, written: Written, name: str, is_mixed: bool
) -> None:
    now = {"zarr_key": "command", "key_type": "action_keys", "horizon": 5}
    action = {**now, "mask": True, "span_mask": True}
    keymap = KeyMap.from_config({"action": action, "now": now})
    since = [DeltaActions(keys=["action"], reference="now", step=0, row=["2 x scalar"])]
    steps, key = UNMASKING[name]
    chain = [*(since if is_mixed else []), *steps]
    data = MultiDataset.from_folder(folder, keymap, transforms=chain)
    assert not [name for name in data[0] if name.startswith(key) and name.endswith("_is_pad")]
    found = NormStats.compute(data)["sawyer"][key]
    wanted = joined(written, "command")
    if is_mixed:
        rows = []
        for index in range(len(data)):
            sample = data[index]
            total = len(written[sample["episode"]]["command"])
            rows.append(sample[key].double().numpy()[: total - int(sample["frame_index"]), :2])
        wanted = np.concatenate(rows)
    assert found.counts.tolist() == [len(wanted)] * 2 + [0] * (found.shape[0] - 2)
    np.testing.assert_allclose(found.mean[:2], wanted.mean(axis=0), rtol=1e-6)


def test_a_key_of_rows_stays_one_beside_a_key_that_is_mixed(folder: Path, written: Written) -> None:
    keymap = KeyMap.from_config(
        {
            "state": STATE,
            "action": ACTION,
            "now": {"zarr_key": "command", "key_type": "proprio_keys"},
        }
    )
    mixing = [
        DeltaActions(keys=["action"], reference="now", row=["2 x scalar"]),
        Rename(keys=["action"], to=["delta"]),
        Stride(keys=["delta"], every=2),
    ]
    data = MultiDataset.from_folder(folder, keymap, transforms=mixing)
    stats = NormStats.compute(data)["sawyer"]
    assert sorted(stats) == ["delta", "now", "state"]
    check_against_numpy(stats["state"], joined(written, "pose"))
    check_against_numpy(stats["now"], joined(written, "command"))
    rows = []
    for index in range(len(data)):
        sample = data[index]
        real = min(5, written[sample["episode"]]["command"].shape[0] - int(sample["frame_index"]))
        rows.append(sample["delta"].numpy()[: (real + 1) // 2])
    check_against_numpy(stats["delta"], np.concatenate(rows))


def test_each_step_of_a_chunk_on_its_own(data: MultiDataset, written: Written) -> None:
    stats = NormStats.compute(data, per_step=["action"])["sawyer"]["action"]
    assert stats.is_per_step
    assert stats.shape == (5, 2)
    for step in range(5):
        rows = np.concatenate([one["command"][step:] for one in written.values()])
        assert stats.counts[step].tolist() == [len(rows)] * 2
        np.testing.assert_allclose(stats.mean[step], rows.mean(axis=0, dtype=np.float64))
        wanted = np.quantile(rows.astype(np.float64), 0.99, axis=0)
        np.testing.assert_allclose(stats.quantile("q99")[step], wanted)


def test_absent_arrays_never_count(tmp_path: Path) -> None:
    both = {"pose": ramp(20, 4), "extra": noise(20, 2, 0)}
    EpisodeWriter.write(tmp_path / "a.zarr", numeric=both, fps=30, embodiment="sawyer")
    EpisodeWriter.write(
        tmp_path / "b.zarr", numeric={"pose": ramp(9, 4)}, fps=30, embodiment="sawyer"
    )
    extra = {"zarr_key": "extra", "key_type": "proprio_keys", "optional": True, "shape": [2]}
    never = {"zarr_key": "never", "key_type": "proprio_keys", "optional": True, "shape": [3]}
    keymap = KeyMap.from_config({"state": STATE, "extra": extra, "never": never})
    data = MultiDataset.from_folder(tmp_path, keymap)
    with pytest.warns(StatisticsWarning, match="'sawyer', key 'never': not one number") as met:
        stats = NormStats.compute(data)["sawyer"]
    assert [one.filename for one in met] == [__file__]
    assert stats["state"].count == 29
    check_against_numpy(stats["extra"], both["extra"])
    assert stats["never"].count == 0
    assert stats["never"].max.tolist() == [0, 0, 0]


@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize("is_alone", [False, True])
def test_actions_of_which_nothing_counts_are_refused_and_one_of_several_warned_of(
    tmp_path: Path, is_joined: bool, is_alone: bool
) -> None:
    write_folder(tmp_path, [12], "sawyer", "s")
    write_folder(tmp_path, [12], "human", "h")
    gone = {**ACTION, "zarr_key": "gripper", "optional": True, "shape": [1]}
    others = {} if is_alone else {"action": ACTION}
    keymap = KeyMap.from_config({"state": STATE, "gripper": gone, **others})
    whole: dict[str, Any] = {"keys": ["gripper"], "sizes": [1], "optional": ["gripper"]}
    joined = [Concatenate(**whole, whole="hand")] if is_joined else []
    keymaps = {"human": KEYMAP, "sawyer": keymap}
    transforms = {"human": [], "sawyer": joined}
    data = MultiDataset.from_folder(tmp_path, keymaps, transforms=transforms)
    key = "hand" if is_joined else "gripper"
    told = f"'sawyer', key '{key}': not one number of it counts"
    if is_alone:
        with pytest.raises(SettingsError, match=told):
            NormStats.compute(data)
    else:
        with pytest.warns(StatisticsWarning, match=told):
            stats = NormStats.compute(data)
        assert stats["sawyer"][key].is_optional
        assert not stats["sawyer"]["action"].is_optional
    assert list(NormStats.compute(data, keys=["state"])) == ["human", "sawyer"]


def even(episode: ZarrEpisode) -> npt.NDArray[np.bool_]:
    return np.arange(episode.total_frames) % 2 == 0


def test_only_served_frames_count(folder: Path, written: Written, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    span = {"episode": "ep_0.zarr", "start": 10, "end": 20, "key": None, "reason": "bumped"}
    bad.write_text(json.dumps([span]))
    data = MultiDataset.from_folder(folder, KEYMAP, quarantine=bad)

    kept = {name: np.arange(len(one["pose"])) for name, one in written.items()}
    kept["ep_0.zarr"] = np.setdiff1d(kept["ep_0.zarr"], np.arange(10, 20))
    rows = np.concatenate([written[name]["pose"][at] for name, at in kept.items()])
    check_against_numpy(NormStats.compute(data)["sawyer"]["state"], rows)
    evens = {name: at[at % 2 == 0] for name, at in kept.items()}
    rows = np.concatenate([written[name]["pose"][at] for name, at in evens.items()])
    found = NormStats.compute(data, frame_filter=even)["sawyer"]["state"]
    check_against_numpy(found, rows)


def test_embodiments_have_keys_of_their_own(tmp_path: Path) -> None:
    sawyer = write_folder(tmp_path, [12, 5], "sawyer", "s")
    human = write_folder(tmp_path, [7], "human", "h")
    EpisodeWriter.write(
        tmp_path / "mute.zarr",
        numeric={"x": ramp(3, 1)},
        fps=30,
        embodiment="mute",
        images={"front": pictures(3)},
    )
    keymaps = {
        "sawyer": KeyMap.from_config({"state": STATE}),
        "human": KeyMap.from_config({"action": ACTION}),
        "mute": KeyMap.from_config({"cam": {"zarr_key": "front", "key_type": "camera_keys"}}),
    }
    stats = NormStats.compute(MultiDataset.from_folder(tmp_path, keymaps))
    assert {name: list(keys) for name, keys in stats.items()} == {
        "human": ["action"],
        "mute": [],
        "sawyer": ["state"],
    }
    check_against_numpy(stats["sawyer"]["state"], joined(sawyer, "pose"))
    check_against_numpy(stats["human"]["action"], joined(human, "command"))


def test_embodiments_may_have_transforms_of_their_own(tmp_path: Path, written: Written) -> None:
    sawyer = write_folder(tmp_path, [12, 5], "sawyer", "s")
    human = write_folder(tmp_path, [7], "human", "h")
    transforms = {
        "human": [Rename(keys=["state"], to=["hand"])],
        "sawyer": [SelectDimensions(keys=["state"], dimensions=[3])],
    }
    data = MultiDataset.from_folder(tmp_path, KEYMAP, transforms=transforms)
    stats = NormStats.compute(data, cache=tmp_path / "cache")
    assert list(stats["human"]) == ["hand", "action"]
    check_against_numpy(stats["human"]["hand"], joined(human, "pose"))
    check_against_numpy(stats["sawyer"]["state"], joined(sawyer, "pose")[:, [3]])


def test_metadata_counts_where_it_is_asked_for(tmp_path: Path) -> None:
    intrinsics = np.tile(np.float32([500, 500, 320, 240]), (30, 1))
    intrinsics[15] = np.nan
    score = np.linspace(0, 1, 30, dtype=np.float32)[:, None]
    with pytest.warns(NonFiniteWarning):
        EpisodeWriter.write(
            tmp_path / "a.zarr",
            numeric={"pose": ramp(30, 4), "intrinsics": intrinsics, "score": score},
            fps=30,
            embodiment="sawyer",
        )
    keymap = KeyMap.from_config(
        {
            "state": STATE,
            "now": {"zarr_key": "pose", "key_type": "proprio_keys"},
            "intrinsics": {"zarr_key": "intrinsics", "key_type": "metadata_keys"},
            "score": {"zarr_key": "score", "key_type": "metadata_keys"},
        }
    )
    renamed = [
        Rename(keys=["intrinsics"], to=["k"]),
        Concatenate(keys=["now", "score"], sizes=[4, 1], whole="both"),
    ]
    for steps, keys in (([], ["state", "now"]), (renamed, ["state", "both"])):
        data = MultiDataset.from_folder(tmp_path, keymap, transforms=steps)
        stats = NormStats.compute(data, outliers=("q0.01", "q99.99"), skip=keys)
        assert list(stats["sawyer"]) == keys
        batch = collate(data.__getitems__([15, 3]))
        made = Normalizer(stats, NormalizerSettings(skip=keys)).normalize("sawyer", batch)
        assert all(made[key] is batch[key] for key in made if key not in keys)
    data = MultiDataset.from_folder(tmp_path, keymap)
    assert list(NormStats.compute(data, keys=["score"])["sawyer"]) == ["score"]
    with pytest.raises(EpisodeFormatError, match="frame 15: nan"):
        NormStats.compute(data, keys=["intrinsics"])


def test_whole_numbers_count_where_they_are_asked_for(tmp_path: Path) -> None:
    steps = np.arange(30, dtype=np.int64)[:, None]
    EpisodeWriter.write(
        tmp_path / "a.zarr",
        numeric={"pose": ramp(30, 4), "step": steps},
        fps=30,
        embodiment="sawyer",
    )
    step = {"zarr_key": "step", "key_type": "metadata_keys"}
    data = MultiDataset.from_folder(tmp_path, KeyMap.from_config({"state": STATE, "step": step}))
    assert list(NormStats.compute(data)["sawyer"]) == ["state"]
    stats = NormStats.compute(data, keys=["step"])["sawyer"]
    assert list(stats) == ["step"]
    check_against_numpy(stats["step"], steps)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("per_step", [(), ("state",)], ids=["rows", "samples"])
def test_what_is_no_number_is_refused_by_name(
    tmp_path: Path, value: float, per_step: tuple[str, ...]
) -> None:
    rows = ramp(40, 4)
    rows[23, 2] = value
    group = foreign_group(tmp_path / "ep.zarr", 40)
    foreign_numbers(group, "pose", rows)
    data = MultiDataset.from_folder(tmp_path, KeyMap.from_config({"state": STATE}))
    with pytest.raises(EpisodeFormatError, match=r"'ep.zarr', key 'state', frame 23"):
        NormStats.compute(data, per_step=per_step)


def test_a_transform_that_fails_names_the_frame(tmp_path: Path) -> None:
    poses = np.zeros((30, 7), np.float32)
    poses[:, 3] = 1
    poses[17, 3] = 0
    EpisodeWriter.write(tmp_path / "ep.zarr", numeric={"pose": poses}, fps=30, embodiment="sawyer")
    turned = PoseRotation(keys=["state"], target=["xyz", "rotation_6d"])
    data = MultiDataset.from_folder(
        tmp_path, KeyMap.from_config({"state": STATE}), transforms=[turned]
    )
    with pytest.raises(SampleError, match=r"'ep.zarr', frame 17: .*PoseRotation"):
        NormStats.compute(data)


def test_rows_of_other_shapes_are_refused(tmp_path: Path) -> None:
    for number, dims in enumerate((4, 3)):
        EpisodeWriter.write(
            tmp_path / f"{number}.zarr",
            numeric={"pose": ramp(5, dims)},
            fps=30,
            embodiment="sawyer",
        )
    data = MultiDataset.from_folder(tmp_path, KeyMap.from_config({"state": STATE}))
    with pytest.raises(EpisodeFormatError, match=r"'1.zarr', key 'state'.*\[3\], and \[4\]"):
        NormStats.compute(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": ["stat"]}, "did you mean 'state'"),
        ({"keys": "state"}, "keys must list"),
        ({"keys": []}, "keys is empty"),
        ({"keys": ["state"], "per_step": ["action"]}, "no statistics of 'action'"),
        ({"per_step": ["acton"]}, "did you mean 'action'"),
        ({"per_step": None}, "per_step must list"),
        ({"skip": {"stte": "all"}}, "did you mean 'state'"),
        ({"skip": {"state": [4]}}, "have 4 dimensions, and no 4"),
        ({"skip": {"state": "some"}}, "'all' or a list"),
        ({"skip": {"state": [-1]}}, "whole number from 0 on"),
        ({"outliers": ["q0.1", "q99.99"]}, "no quantile 'q0.1'"),
        ({"outliers": ["q99", "q1"]}, "q99 must lie below q1"),
        ({"outliers": "q1"}, "two quantiles"),
        ({"workers": 0}, "workers must be"),
        ({"cache": 5}, "cache must be the path of a folder, got 5"),
        ({"cache": ""}, "cache must be the path of a folder, got ''"),
    ],
)
def test_wrong_options_are_refused(
    data: MultiDataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        NormStats.compute(data, **options)


def test_a_key_without_steps_has_none_of_its_own(folder: Path, written: Written) -> None:
    keymap = KeyMap.from_config({"now": {"zarr_key": "pose", "key_type": "proprio_keys"}})
    data = ZarrDataset(folder / "ep_0.zarr", keymap)
    with pytest.raises(SettingsError, match="'now' has no steps"):
        NormStats.compute(data, per_step=["now"])


def test_cameras_alone_have_no_statistics(tmp_path: Path) -> None:
    EpisodeWriter.write(
        tmp_path / "a.zarr", numeric={}, fps=30, embodiment="sawyer", images={"front": pictures(3)}
    )
    keymap = KeyMap.from_config({"cam": {"zarr_key": "front", "key_type": "camera_keys"}})
    with pytest.raises(SettingsError, match="no numbers"):
        NormStats.compute(ZarrDataset(tmp_path / "a.zarr", keymap))


def test_no_dataset_has_none_either(folder: Path) -> None:
    with pytest.raises(SettingsError, match="MultiDataset or a ZarrDataset, got list"):
        NormStats.compute([folder])  # type: ignore[arg-type]


def test_functions_of_functions_go_to_no_worker(folder: Path, written: Written) -> None:
    data = ZarrDataset(folder / "ep_0.zarr", KEYMAP, transforms=[lambda sample: sample])
    assert NormStats.compute(data)["sawyer"]["state"].count > 250
    with pytest.raises(SettingsError, match="can't be handed to worker processes"):
        NormStats.compute(data, workers=2)


class Ending:
    """Ends a worker process, and does nothing in the first one."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if multiprocessing.parent_process() is not None and sample["frame_index"] == 60:
            os._exit(3)
        return sample


def test_a_worker_that_is_lost_is_named(folder: Path, written: Written) -> None:
    data = MultiDataset.from_folder(folder, KEYMAP, transforms=[Ending()])
    with pytest.raises(WorkerLostError, match=r"among them 'ep_0.zarr', ended before its work"):
        NormStats.compute(data, workers=2)


def test_transforms_of_cameras_are_told_that_there_are_none(tmp_path: Path) -> None:
    numbers = {"pose": ramp(9, 4)}
    images = {"front": pictures(9)}
    EpisodeWriter.write(tmp_path / "a.zarr", numeric=numbers, images=images, fps=30, embodiment="x")
    front = {"zarr_key": "front", "key_type": "camera_keys"}
    keymap = KeyMap.from_config({"state": STATE, "front": front})

    def darker(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "front": sample["front"] // 2}

    data = ZarrDataset(tmp_path / "a.zarr", keymap, transforms=[darker])
    with pytest.raises(SampleError, match=r"frame 0: transform darker.*have no cameras"):
        NormStats.compute(data)


@pytest.mark.filterwarnings("ignore:embodiment:egoloader.errors.StatisticsWarning")
def test_progress_is_told(data: MultiDataset) -> None:
    told: list[tuple[int, int]] = []
    NormStats.compute(data, outliers=("q1", "q99"), on_progress=lambda *one: told.append(one))
    assert told == [(done, 6) for done in range(1, 7)]


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.episodes = function, list[str]()

    def __call__(self, one: job.EpisodeJob) -> Any:
        self.episodes.append(one.episode.name)
        return self.function(one)


@pytest.fixture
def summarise(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted(job.summarise)
    monkeypatch.setattr(computation, "summarise", counted)
    return counted


def test_what_is_cached_is_not_computed_again(tmp_path: Path, summarise: Counted) -> None:
    folder, cache = tmp_path / "data", tmp_path / "cache"
    write_folder(folder, [30, 20])
    data = MultiDataset.from_folder(folder, KEYMAP)
    first = NormStats.compute(data, cache=cache)
    assert summarise.episodes == ["ep_0.zarr", "ep_1.zarr"]
    assert NormStats.compute(data, cache=cache) == first == NormStats.compute(data)
    assert len(summarise.episodes) == 4
    changed = ramp(20, 4) + 1
    zarr.open_group(folder / "ep_1.zarr")["pose"][...] = changed  # type: ignore[index]
    data = MultiDataset.from_folder(folder, KEYMAP)
    again = NormStats.compute(data, cache=cache)
    assert summarise.episodes[4:] == ["ep_1.zarr"]
    assert again["sawyer"]["state"].max[0] == 29000
    rows = np.concatenate([ramp(30, 4), changed])
    check_against_numpy(again["sawyer"]["state"], rows)


def test_other_settings_are_not_taken_from_the_cache(tmp_path: Path, summarise: Counted) -> None:
    folder, cache = tmp_path / "data", tmp_path / "cache"
    write_folder(folder, [30])
    select = [SelectDimensions(keys=["state"], dimensions=[1])]
    for transforms in ([], select):
        data = MultiDataset.from_folder(folder, KEYMAP, transforms=transforms)
        for options in (
            {},
            {"per_step": ["action"]},
            {"keys": ["state"]},
            {"frame_filter": even},
        ):
            cached = NormStats.compute(data, cache=cache, **options)
            assert cached == NormStats.compute(data, **options)
    assert len(summarise.episodes) == 16


def test_what_was_filled_in_is_not_taken_where_missing_chunks_are_errors(tmp_path: Path) -> None:
    rows = ramp(20, 2)
    foreign_numbers(foreign_group(tmp_path / "data" / "a.zarr", 20), "s", rows, chunks=(10, 2))
    (tmp_path / "data" / "a.zarr" / "s" / "c" / "1" / "0").unlink()
    keymap = KeyMap({"s": KeySpec(zarr_key="s", key_type="proprio_keys")})

    def compute(missing: str) -> NormStats:
        data = MultiDataset.from_folder(
            tmp_path / "data",
            keymap,
            missing_chunks=missing,  # type: ignore[arg-type]
        )
        return NormStats.compute(data, cache=tmp_path / "cache")

    with pytest.warns(MissingChunkWarning):
        filled = compute("fill")
    rows[10:] = 0
    np.testing.assert_allclose(filled["human"]["s"].mean, rows.mean(axis=0), rtol=1e-6)
    with pytest.raises(EpisodeError, match="missing_chunks"):
        compute("error")


def test_a_run_that_ended_goes_on(
    tmp_path: Path, summarise: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cache = tmp_path / "data", tmp_path / "cache"
    write_folder(folder, [30, 20, 10])
    data = MultiDataset.from_folder(folder, KEYMAP)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        NormStats.compute(data, cache=cache, on_progress=stop)
    assert NormStats.compute(data, cache=cache)["sawyer"]["state"].count == 60
    assert summarise.episodes == ["ep_0.zarr", "ep_1.zarr", "ep_2.zarr"]


def test_a_torn_cache_is_computed_again(tmp_path: Path, summarise: Counted) -> None:
    folder, cache = tmp_path / "data", tmp_path / "cache"
    write_folder(folder, [30])
    data = MultiDataset.from_folder(folder, KEYMAP)
    first = NormStats.compute(data, cache=cache)
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert NormStats.compute(data, cache=cache) == first
    assert len(summarise.episodes) == 2


def test_unknown_callables_are_not_cached(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [30])
    data = MultiDataset.from_folder(tmp_path / "data", KEYMAP, transforms=[Since()])
    with pytest.warns(StatisticsWarning, match="not cached"):
        NormStats.compute(data, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_many_rows_are_sketched_with_the_error_that_is_stated(
    data: MultiDataset, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "EXACT_ROWS", 100)
    stats = NormStats.compute(data, per_step=["action"])["sawyer"]
    rows = np.sort(joined(written, "pose"), axis=0)
    state = stats["state"]
    assert not state.is_exact
    assert not stats["action"].is_exact
    np.testing.assert_allclose(state.mean, rows.mean(axis=0), rtol=1e-6)
    for name, error in state.rank_errors.items():
        share = {"q0.01": 0.0001, "q1": 0.01, "q50": 0.5, "q99": 0.99, "q99.99": 0.9999}[name]
        for dim in range(4):
            value = state.quantile(name)[dim]
            low = np.searchsorted(rows[:, dim], value, "left") / len(rows)
            high = np.searchsorted(rows[:, dim], value, "right") / len(rows)
            assert low - error <= share <= high + error
    assert (
        NormStats.compute(reordered(data), per_step=["action"])["sawyer"]["state"]
        .quantile("q50")
        .tolist()
        == state.quantile("q50").tolist()
    )


@pytest.mark.filterwarnings("ignore:embodiment:egoloader.errors.StatisticsWarning")
def test_they_survive_files_and_checkpoints(data: MultiDataset, tmp_path: Path) -> None:
    stats = NormStats.compute(data, per_step=["action"], outliers=("q1", "q99"))
    stats.save(tmp_path / "stats.json")
    assert NormStats.load(tmp_path / "stats.json") == stats
    torch.save(stats.to_plain(), tmp_path / "a.ckpt")
    again = NormStats.from_plain(torch.load(tmp_path / "a.ckpt", weights_only=True))
    assert again == stats
    assert again["sawyer"]["action"].is_per_step
    assert again.outliers == stats.outliers
    assert stats.without_outliers().outliers is None
    assert stats != stats.without_outliers()


def outliers_at(start: int, stop: int) -> dict[str, Any]:
    one = {
        "embodiment": "sawyer",
        "total_frames": 77,
        "counted": 77,
        "left_out": [[start, stop]],
        "outliers": 1,
        "by_key": {},
    }
    return {"quantiles": ["q1", "q99"], "episodes": {"a": one}}


@pytest.mark.parametrize("name", ["no/such/stats.json", "."])
def test_a_place_where_no_file_can_be_is_refused(
    data: MultiDataset, tmp_path: Path, name: str
) -> None:
    with pytest.raises(SettingsError, match="no file in a folder that is there"):
        NormStats.compute(data).save(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update(format="other"), "no statistics"),
        (lambda p: p.update(version=2), "of version 2, and 1 is known"),
        (lambda p: p.update(embodiments=[]), "embodiments must map"),
        (lambda p: p["embodiments"]["sawyer"]["state"].pop("mean"), "'state'.*lacks 'mean'"),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(mea=1), "no field 'mea'"),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(std=[1.0]), "std has the shape"),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(std=[-1.0] * 4), "std is below 0"),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(mean=["a"]), "must be numbers"),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(mean=[[1.0], 2]), "equal lengths"),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(min=[np.nan] * 4), "finite"),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(counts=[0.5] * 4), "whole numbers"),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(counts=[1e30] * 4), "below 2"),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(mean=["1"] * 4), "must be numbers"),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(mean=[9e9] * 4), "mean does not lie"),
        (
            lambda p: p["embodiments"]["sawyer"]["state"]["quantiles"].update(q1=[-1.0] * 4),
            "q1 does not lie between",
        ),
        (lambda p: p["embodiments"]["sawyer"]["state"].update(is_exact=1), "true or false"),
        (lambda p: p.update(outliers=outliers_at(-5, 3)), "frames -5 to 3 .* none of the 77 of"),
        (lambda p: p.update(outliers=outliers_at(5, 78)), "frames 5 to 78 .* of episode 'a'"),
        (lambda p: p["embodiments"]["sawyer"]["state"]["quantiles"].pop("q1"), "lacks 'q1'"),
        (lambda p: p.update(outliers={"quantiles": ["q1", "q99"]}), "no filter of outliers"),
    ],
)
def test_broken_files_are_refused(
    data: MultiDataset, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    plain = NormStats.compute(data).to_plain()
    change(plain)
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(SettingsError, match=message) as caught:
        NormStats.load(path)
    assert "stats.json" in str(caught.value)


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text("{")
    with pytest.raises(SettingsError, match="no JSON file"):
        NormStats.load(tmp_path / "stats.json")
    with pytest.raises(FileNotFoundError):
        NormStats.load(tmp_path / "none.json")


def test_a_near_miss_is_told(data: MultiDataset) -> None:
    stats = NormStats.compute(data)
    with pytest.raises(MissingStatisticsError, match="did you mean 'sawyer'"):
        stats["sawyr"]
    with pytest.raises(KeyError, match="did you mean 'state'"):
        stats["sawyer"]["stat"]
    assert stats.get("human") is None
    assert "human" not in stats
    with pytest.raises(SettingsError, match="did you mean 'q99'"):
        stats["sawyer"]["state"].quantile("99")


def test_constant_numbers_have_no_spread(tmp_path: Path) -> None:
    rows = np.full((700, 3), 0.1, np.float32)
    EpisodeWriter.write(tmp_path / "a.zarr", numeric={"pose": rows}, fps=30, embodiment="sawyer")
    EpisodeWriter.write(
        tmp_path / "b.zarr", numeric={"pose": rows[:9]}, fps=30, embodiment="sawyer"
    )
    data = MultiDataset.from_folder(tmp_path, KeyMap.from_config({"state": STATE}))
    stats = NormStats.compute(data)["sawyer"]["state"]
    assert stats.std.tolist() == [0, 0, 0]
    assert stats.mean.tolist() == rows[0].tolist()
    assert stats.is_constant.all()
    assert dataclasses.is_dataclass(stats)


@dataclasses.dataclass(frozen=True)
class OfRows(Transform):
    """A step of rows that is none of the project's.

    Args:
        change: what it does to a sample.
    """

    change: Callable[[dict[str, Any]], Any]

    @property
    def is_per_row(self) -> bool:
        return True

    def _shapes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return dict(given)

    def _apply(self, sample: dict[str, Any]) -> Any:
        return self.change(sample)


def too_big(sample: dict[str, Any]) -> dict[str, Any]:
    if (sample["state"] >= 41000).any():
        raise ValueError("too big")
    return sample


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (too_big, r"'ep_0.zarr', frame 41: transform OfRows failed: ValueError\('too big'\)"),
        (
            lambda sample: sample["stat"],
            r"frame 0: transform OfRows failed: KeyError\('stat'\); the",
        ),
        (lambda sample: None, "frame 0: transform OfRows failed: .*must return the sample, a dict"),
    ],
)
def test_a_step_of_rows_that_fails_is_named(
    folder: Path, written: Written, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    keymap = KeyMap.from_config({"state": {"zarr_key": "pose", "key_type": "proprio_keys"}})
    data = MultiDataset.from_folder(folder, keymap, transforms=[OfRows(change)])
    with pytest.raises(SampleError, match=message):
        NormStats.compute(data)


def test_a_mask_that_was_left_behind_is_refused(folder: Path, written: Written) -> None:
    def last(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "action": sample["action"][-1]}

    data = MultiDataset.from_folder(folder, KEYMAP, transforms=[last])
    message = r"'ep_0.zarr', key 'action': .* shape \[2\], and their mask \[5\], .*'action_is_pad'"
    with pytest.raises(EpisodeFormatError, match=message):
        NormStats.compute(data)


def test_steps_of_rows_are_handed_what_samples_carry(folder: Path, written: Written) -> None:
    seen = set[tuple[str, ...]]()

    def faster(sample: dict[str, Any]) -> dict[str, Any]:
        seen.add(tuple(sorted(sample)))
        rate = sample["fps"] * (1 + sample["frame_index"])
        return {**sample, "state": sample["state"] * rate[..., None]}

    keymap = KeyMap.from_config({"state": {"zarr_key": "pose", "key_type": "proprio_keys"}})
    data = MultiDataset.from_folder(folder, keymap, transforms=[OfRows(faster)])
    stats = NormStats.compute(data)
    assert list(stats["sawyer"]) == ["state"]
    samples = data.__getitems__(range(len(data)))
    rows = np.stack([sample["state"].double().numpy() for sample in samples])
    np.testing.assert_allclose(stats["sawyer"]["state"].mean, rows.mean(axis=0), rtol=1e-6)
    (by_rows, by_samples) = sorted(seen, key=len, reverse=True)
    assert set(by_rows) - set(by_samples) == {"state_is_pad"}
