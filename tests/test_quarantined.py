"""What is in quarantine is not served: not by a dataset, an order, a loader or a data module."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

from egoloader import (
    EpisodeDataModule,
    EpisodeLoader,
    EpisodePoolSampler,
    KeyMap,
    MultiDataset,
    ZarrDataset,
    ZarrEpisode,
    collate,
)
from egoloader.catalog import split_episodes
from egoloader.errors import (
    EpisodeError,
    EpisodeFormatError,
    FrameIndexError,
    ResumeError,
    SettingsError,
)
from egoloader.quarantine import BadSpan, add_spans
from tests.damage import write_list
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
from tests.motions import write_motion
from tests.oracle import Oracle, slow_rows
from tests.orders import surprise
from tests.soak.recordings import KEYMAP, show, show_all, write_recordings
from tests.strategies import key_specs

LENGTHS = (9, 5, 7, 4, 6, 8)
#: Frames, a row that every sample at it reads, an end, a whole episode, and all frames of one.
ENTRIES = [
    {"episode": "arm_0.zarr", "start": 2, "end": 4, "reason": "jump"},
    {"episode": "arm_2.zarr", "start": 0, "end": 1, "key": "joints"},
    {"episode": "arm_2.zarr", "start": 5},
    {"episode": "arm_3.zarr"},
    {"episode": "arm_4.zarr", "start": 0, "end": 6},
]
LEFT = {0: [0, 1, 4, 5, 6, 7, 8], 1: [0, 1, 2, 3, 4], 2: [1, 2, 3, 4], 4: [], 5: [*range(8)]}
SERVED = [(f"arm_{number}.zarr", frame) for number, frames in LEFT.items() for frame in frames]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("recordings"), "arm", LENGTHS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_list(tmp_path / "bad.json", *ENTRIES)


def places(batches: Iterable[Any]) -> list[tuple[str, int]]:
    """Return the episode and frame of all samples of dict batches, whose values must be theirs."""
    return [(name, frame) for batch in batches for name, frame, _, _ in show(batch)]


# Which frames are served.

FPS, FRAMES = 10, 29
SPANS = [("reach", 0, 8), ("grasp", 5, 12), ("lift", 20, 99)]


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An episode with annotations and recorded times, in a folder of two."""
    root = tmp_path_factory.mktemp("windows")
    group = foreign_group(root / "deep" / "ep.zarr", FRAMES, fps=FPS)
    foreign_numbers(group, "a", ramp(FRAMES + 3, 2), chunks=(8, 2))
    foreign_numbers(group, "b", ramp(FRAMES, 1), chunks=(8, 1))
    foreign_numbers(group, "timestamp", 5 + np.arange(FRAMES) / 7)
    foreign_bytes(group, CAMERA, jpegs(pictures(FRAMES)))
    foreign_annotations(group, SPANS)
    group = foreign_group(root / "z.zarr", 2, fps=FPS)
    foreign_numbers(group, "a", ramp(2, 2))
    foreign_numbers(group, "b", ramp(2, 1))
    foreign_bytes(group, CAMERA, jpegs(pictures(2)))
    return root


def slow_frames(keymap: KeyMap, spans: Sequence[BadSpan], *, annotation_cutoff: bool) -> list[int]:
    """Return the frames whose samples touch nothing bad."""

    def is_bad(key: str | None, row: int) -> bool:
        its = [one for one in spans if one.key == key]
        return any(one.start <= row and (one.end is None or row < one.end) for one in its)

    served = []
    for i in range(FRAMES):
        ends = [min(end, FRAMES) for _, start, end in SPANS if start <= i < end]
        cut = min(ends) if ends and annotation_cutoff else None
        touched = [(None, i), ("timestamp", i)]
        for spec in keymap.values():
            touched += [(spec.zarr_key, row) for row in slow_rows(spec, FPS, FRAMES, i, cut)[0]]
        if not any(is_bad(*one) for one in touched):
            served.append(i)
    return served


entries_of = st.fixed_dictionaries(
    {"one": key_specs()},
    optional={
        "other": key_specs(),
        "b": st.just(entry("b", history=2, stride_s=0.3)),
        "cam": st.just(camera()),
        "cam_past": st.just(camera(history=3, stride_s=0.2, mask=True)),
        "cam_lag": st.just(camera(lag_s=0.5)),
    },
)
bad_of = st.lists(
    st.builds(
        lambda start, size, key: BadSpan("deep/ep.zarr", start, size and start + size, key),
        st.integers(0, FRAMES + 2),
        st.one_of(st.integers(1, 4), st.integers(1, 4), st.none()),
        st.sampled_from([None, "a", "a", "b", CAMERA, "timestamp", "nowhere"]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.filterwarnings("ignore::egoloader.errors.QuarantineWarning")
@settings(deadline=None, max_examples=120)
@given(entries=entries_of, spans=bad_of, cutoff=st.booleans(), data=st.data())
def test_a_frame_is_served_if_its_windows_touch_nothing_bad(
    windows: Path, entries: Any, spans: list[BadSpan], cutoff: bool, data: st.DataObject
) -> None:
    keymap, file = KeyMap(entries), windows / "bad.json"
    file.unlink(missing_ok=True)
    add_spans(file, spans)
    wanted = slow_frames(keymap, spans, annotation_cutoff=cutoff)
    options: Any = {"quarantine": file, "annotation_cutoff": cutoff}
    md = MultiDataset.from_folder(windows, keymap, **options)
    assert len(md) == len(wanted) + 2
    places = [(record.name, frame) for record, frame in map(md.locate, range(len(md)))]
    assert places == [("deep/ep.zarr", i) for i in wanted] + [("z.zarr", 0), ("z.zarr", 1)]
    if not wanted:
        with pytest.raises(SettingsError, match=r"episode 'ep\.zarr' are in quarantine"):
            ZarrDataset(windows / "deep" / "ep.zarr", keymap, **options)
        return
    ds = ZarrDataset(windows / "deep" / "ep.zarr", keymap, **options)
    assert len(ds) == len(wanted)
    index = data.draw(st.integers(-len(wanted), len(wanted) - 1))
    truth = Oracle(windows / "deep" / "ep.zarr", annotation_cutoff=cutoff)
    for sample in (ds[index], ds.__getitems__([0, index])[1], md[index % len(wanted)]):
        assert int(sample["frame_index"]) == wanted[index]
        assert float(sample["timestamp"]) == 5 + wanted[index] / 7
        for key, value in truth.sample(keymap, wanted[index]).items():
            assert torch.equal(sample[key], value), key


def test_all_rows_of_annotations_touch_every_frame_that_needs_them(windows: Path) -> None:
    file = write_list(windows / "notes.json", {"episode": "deep/ep.zarr", "key": "annotations"})
    for entries, cutoff in (
        (keymap(text=entry("annotations", "annotation_keys", optional=True)), False),
        (keymap(next=entry("a", "action_keys", horizon=4)), True),
    ):
        options: Any = {"quarantine": file, "annotation_cutoff": cutoff}
        assert len(MultiDataset.from_folder(windows, entries, **options)) == 2
        with pytest.raises(SettingsError, match="quarantine"):
            ZarrDataset(windows / "deep" / "ep.zarr", entries, **options)
    plain = MultiDataset.from_folder(windows, keymap(a=entry("a")), quarantine=file)
    assert len(plain) == FRAMES + 2


# A dataset with a quarantine.


@pytest.mark.parametrize("fault", [np.nan, 0.0, None])
def test_one_bad_time_touches_every_frame_of_a_time_grid(
    tmp_path: Path, fault: float | None
) -> None:
    times = np.arange(9) / 30
    write_motion(tmp_path / "data/whole.zarr", 9, fps=30, times=times)
    if fault is not None:
        times[5] = fault
    write_motion(tmp_path / "data/torn.zarr", 9, fps=30, times=times)
    bad = {"episode": "torn.zarr", "start": 5, "end": 6, "key": "timestamp"}
    file = write_list(tmp_path / "bad.json", bad)
    frames = {"zarr_key": "a", "key_type": "action_keys", "horizon": 2}
    data = MultiDataset.from_folder(
        tmp_path / "data", KeyMap.from_config({"a": frames}), quarantine=file
    )
    assert data.frames_by_episode() == [("torn.zarr", 8), ("whole.zarr", 9)]
    grid = {**frames, "horizon": None, "rate_hz": 20, "horizon_s": 0.1}
    data = MultiDataset.from_folder(
        tmp_path / "data", KeyMap.from_config({"a": grid}), quarantine=file
    )
    assert [(sample["episode"], sample["a"].shape) for sample in data] == [
        ("whole.zarr", (2, 7))
    ] * 9
    with pytest.raises((SettingsError, EpisodeFormatError), match=r"in quarantine|quarantine file"):
        ZarrDataset(tmp_path / "data/torn.zarr", KeyMap.from_config({"a": grid}), quarantine=file)


def test_indices_pass_over_what_is_in_quarantine(recordings: Path, file: Path) -> None:
    md = MultiDataset.from_folder(recordings, KEYMAP, quarantine=file)
    count = len(SERVED)
    assert len(md) == count == 24
    assert md.frames_by_episode() == [(f"arm_{n}.zarr", len(LEFT[n])) for n in LEFT]
    for index, place in enumerate(SERVED):
        for one in (index, index - count):
            record, frame = md.locate(one)
            assert (record.name, frame) == place
            sample = md[one]
            assert (sample["episode"], int(sample["frame_index"])) == place
            assert sample["joints"].tolist() == [1000 * place[1], 1000 * place[1] + 1]
    some = [5, -1, 5, 0, 12, -24, 11]
    assert places([collate(md.__getitems__(some))]) == [SERVED[n] for n in some]
    for index in (count, -count - 1):
        for read in (md.locate, md.__getitem__, lambda n: md.__getitems__([0, n])):
            with pytest.raises(FrameIndexError):
                read(index)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_loaders_serve_what_is_left(recordings: Path, file: Path, num_threads: int) -> None:
    md = MultiDataset.from_folder(recordings, KEYMAP, quarantine=file)
    threads: Any = {"num_threads": num_threads}
    assert places(EpisodeLoader(md, 5, **threads)) == SERVED
    shuffled = EpisodeLoader(md, 5, shuffle=True, **threads)
    for _ in range(2):
        found = places(shuffled)
        assert found != SERVED
        assert sorted(found) == SERVED
    some = [7, 3, -1, 20]
    assert places(EpisodeLoader(Subset(md, some), 3, **threads)) == [SERVED[n] for n in some]
    assert places(DataLoader(md, 5, collate_fn=collate)) == SERVED


def odd(episode: ZarrEpisode) -> Any:
    return np.arange(episode.total_frames) % 2


def one_to_three(episode: ZarrEpisode) -> Any:
    return 1 + np.arange(episode.total_frames) % 3


@pytest.mark.parametrize("frame_filter", [None, odd])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_pool_draws_every_frame_that_is_left_once(
    recordings: Path, file: Path, world_size: int, frame_filter: Any
) -> None:
    md = MultiDataset.from_folder(recordings, KEYMAP, quarantine=file)
    options: Any = {"world_size": world_size, "frame_filter": frame_filter}
    ranks = [EpisodePoolSampler(md, 3, 2, rank=rank, **options) for rank in range(world_size)]
    loaders = [EpisodeLoader(md, batch_sampler=one, num_threads=1) for one in ranks]
    for _ in range(3):
        found = [place for loader in loaders for place in places(loader)]
        assert sorted(found) == [one for one in SERVED if frame_filter is None or one[1] % 2]


@pytest.mark.parametrize("frame_filter", [None, odd])
def test_weights_are_those_of_the_frames_that_are_left(
    recordings: Path, file: Path, frame_filter: Any
) -> None:
    md = MultiDataset.from_folder(recordings, KEYMAP, quarantine=file)
    one = EpisodePoolSampler(md, 8, 3, 1, frame_filter=frame_filter, weights=one_to_three)
    drawn = Counter(index for _ in range(300) for batch in one for index in batch)
    left = [n for n, (_, frame) in enumerate(SERVED) if frame_filter is None or frame % 2]
    assert set(drawn) == set(left)
    weights = np.array([1 + SERVED[n][1] % 3 for n in left])
    expected = weights / weights.sum() * drawn.total()
    assert abs(surprise([([drawn[n] for n in left], expected.tolist())])) < 5


@pytest.mark.parametrize("option", ["frame_filter", "weights"])
def test_a_column_may_be_wrong_where_nothing_is_served(
    recordings: Path, file: Path, option: str
) -> None:
    md = MultiDataset.from_folder(recordings, KEYMAP, quarantine=file)

    def column(bad: int) -> Any:
        def values(episode: ZarrEpisode) -> Any:
            found = np.ones(episode.total_frames)
            found[bad if episode.name == "arm_0.zarr" else []] = np.nan
            return found

        return values

    for bad in (2, 3):
        one = EpisodePoolSampler(md, 4, **{option: column(bad)})
        assert len(one) == 6
    for bad in (1, 4):
        with pytest.raises(EpisodeFormatError, match="nan") as caught:
            EpisodePoolSampler(md, 4, **{option: column(bad)})
        assert (caught.value.episode, caught.value.frame) == ("arm_0.zarr", bad)


def test_a_quarantine_moves_no_episode_to_another_split(recordings: Path, file: Path) -> None:
    names = [f"arm_{number}.zarr" for number in range(len(LENGTHS))]
    for seed in range(6):
        options: Any = {"valid_ratio": 0.34, "seed": seed}
        data = EpisodeDataModule(recordings, KEYMAP, batch_size=3, quarantine=file, **options)
        data.setup("fit")
        shown = {
            "train": places(one for step in data.train_dataloader() for one in step.values()),
            "valid": places(one for step in data.val_dataloader() for one in step.values()),
        }
        for split, found in shown.items():
            its = split_episodes(names, split=split, **options)  # type: ignore[arg-type]
            assert sorted(found) == [place for place in SERVED if place[0] in its]


@pytest.mark.parametrize("wrecked", ["all", "zarr.json", "joints", "timestamp"])
def test_a_whole_episode_is_not_opened(
    recordings: Path, file: Path, tmp_path: Path, wrecked: str
) -> None:
    folder = tmp_path / "wrecked"
    shutil.copytree(recordings, folder)
    if wrecked == "all":
        shutil.rmtree(folder / "arm_3.zarr")
        (folder / "arm_3.zarr").mkdir()
    elif wrecked == "zarr.json":
        (folder / "arm_3.zarr" / "zarr.json").write_text('{"total_frames": ')
    else:  # an array that no sample can be made without
        features = {key: {"dtype": "float32", "shape": [2]} for key in ("joints", wrecked)}
        edit_attrs(folder / "arm_3.zarr", features=features)
        shutil.rmtree(folder / "arm_3.zarr" / wrecked, ignore_errors=True)
        write_list(file, *ENTRIES[:3], {**ENTRIES[3], "key": wrecked}, ENTRIES[4])
    with pytest.raises(EpisodeError):
        MultiDataset.from_folder(folder, KEYMAP)
    md = MultiDataset.from_folder(folder, KEYMAP, quarantine=file)
    assert places([collate(md.__getitems__(range(24)))]) == SERVED
    with pytest.raises(SettingsError, match="did you mean 'fps'"):
        MultiDataset.from_folder(folder, KEYMAP, quarantine=file, filters={"fbs": 20})


def test_where_nothing_is_left_it_is_said(recordings: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    ways: list[list[dict[str, Any]]] = [
        [{"episode": f"arm_{n}.zarr", **fields} for n, _ in enumerate(LENGTHS)]
        for fields in ({}, {"key": "joints"}, {"end": 9})
    ]
    for entries in ways:
        write_list(file, *entries)
        with pytest.raises(SettingsError, match=r"is left for .*quarantine='.*bad\.json'"):
            MultiDataset.from_folder(recordings, KEYMAP, quarantine=file)


@pytest.mark.parametrize(
    ("name", "is_its"),
    [("ep.zarr", True), ("deep/ep.zarr", True), ("p.zarr", False), ("eep/ep.zarr", False)],
)
def test_one_episode_goes_by_the_end_of_its_path(
    windows: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_its: bool
) -> None:
    file = write_list(windows / "one.json", {"episode": name, "start": 1, "end": 3})
    monkeypatch.chdir(windows / "deep")
    for path in (windows / "deep" / "ep.zarr", Path("ep.zarr")):
        ds = ZarrDataset(path, keymap(a=entry("a")), quarantine=file)
        frames = [0, *range(3, FRAMES)] if is_its else list(range(FRAMES))
        assert [int(one["frame_index"]) for one in ds.__getitems__(range(len(ds)))] == frames
        assert ds.frames_by_episode() == [("ep.zarr", len(frames))]
        drawn = [index for batch in EpisodePoolSampler(ds, 4) for index in batch]
        assert sorted(drawn) == list(range(len(frames)))


# Resuming.


def test_another_quarantine_of_the_same_lengths_is_refused(
    recordings: Path, file: Path, tmp_path: Path
) -> None:
    other = write_list(tmp_path / "other.json", {**ENTRIES[0], "start": 3, "end": 5}, *ENTRIES[1:])
    again = write_list(tmp_path / "again.json", *reversed(ENTRIES), {**ENTRIES[1], "reason": "x"})

    def all_of(path: Path) -> dict[str, Any]:
        md = MultiDataset.from_folder(recordings, KEYMAP, quarantine=path)
        data = EpisodeDataModule(recordings, KEYMAP, quarantine=path, valid_ratio=0, batch_size=4)
        data.setup("fit")
        some = Subset(md, range(3, 20))
        return {
            "pool": EpisodePoolSampler(md, 4, 2),
            "filtered": EpisodePoolSampler(md, 4, 2, frame_filter=one_to_three),
            "in order": EpisodeLoader(md, 4),
            "shuffled": EpisodeLoader(md, 4, shuffle=True),
            "subset": EpisodeLoader(some, 4),
            "shuffled subset": EpisodeLoader(some, 4, shuffle=True),
            "module": data,
        }

    def batches(one: Any) -> Iterator[Any]:
        return iter(one.train_dataloader() if isinstance(one, EpisodeDataModule) else one)

    def seen(batch: Any) -> Any:
        if isinstance(batch, list):
            return [int(index) for index in batch]
        return show(batch) if "joints" in batch else show_all(batch)

    begun, others, same = all_of(file), all_of(other), all_of(again)
    for name, one in begun.items():
        running = batches(one)
        next(running)
        state = json.loads(json.dumps(one.state_dict()))
        words = "quarantine was '.*' and is '" if name in ("pool", "filtered", "shuffled") else ""
        with pytest.raises(ResumeError, match=f"can't resume: {words}"):
            others[name].load_state_dict(state)
        same[name].load_state_dict(state)
        assert seen(next(batches(same[name]))) == seen(next(running))
