"""`on_bad_frame: skip`: what is said and kept of bad frames, and when skipping ends."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch.utils.data import DataLoader

from egoloader import EpisodeLoader, MultiDataset, ZarrDataset, collate
from egoloader.errors import (
    BadFrameWarning,
    FrameError,
    FrameIndexError,
    KeyMapError,
    ReadError,
    SampleError,
    SettingsError,
    TooManyBadFramesError,
    ValueRangeError,
)
from egoloader.files import open_files
from egoloader.frameindex import FrameIndex
from egoloader.quarantine import BadSpan, load_quarantine
from egoloader.train.config import compose, make
from tests.children import in_a_fork
from tests.damage import (
    BAD,
    BAD_ROWS,
    ENTRIES,
    INDICES,
    PLACES,
    SERVED,
    assert_true,
    cut_jpegs,
    flip_chunk,
    served,
    skipping,
    slow_served,
    with_bad_counts,
    write_damaged,
    write_list,
    write_ramps,
)
from tests.entries import CAMERA, camera, entry, keymap
from tests.soak.training import QUIET, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore::egoloader.errors.BadFrameWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings(*QUIET),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_damaged(tmp_path_factory.mktemp("episodes"))


# What is said and kept of it.


def test_bad_frames_are_counted_and_warned_of_once_an_episode(folder: Path) -> None:
    md = skipping(folder)
    assert md.bad_frames == {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for index in [*INDICES, *INDICES]:
            assert md[index]["is_replaced"] == (index in BAD)
        loader = EpisodeLoader(md, 9, num_threads=3)
        assert sum(int(batch["is_replaced"].sum()) for batch in loader) == len(BAD)
    wanted = Counter(PLACES[index][0] for index in BAD)
    assert md.bad_frames == wanted
    assert [warning.category for warning in caught] == [BadFrameWarning] * len(wanted)
    said = " ".join(str(warning.message) for warning in caught)
    assert all(said.count(f"episode {name!r}, frame") == 1 for name in wanted)


def test_bad_frames_met_by_threads_at_once_are_counted_once(folder: Path) -> None:
    md = skipping(folder)
    loader = EpisodeLoader(md, batch_sampler=[BAD] * 6, num_threads=6)
    found = [served(BAD, batch) for batch in loader]
    assert found == [{index: SERVED[index] for index in BAD}] * 6
    assert md.bad_frames == Counter(PLACES[index][0] for index in BAD)


def met(file: Path) -> set[tuple[str, str | None, int]]:
    """Return the episode, array and frame of all that a quarantine file lists."""
    return {
        (span.episode, span.key, frame)
        for span in load_quarantine(file)
        for frame in range(span.start, span.end or 0)
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_met_is_listed_and_left_out_as_a_quarantine(
    folder: Path, tmp_path: Path, workers: int
) -> None:
    file = tmp_path / "new" / "bad.json"
    options: Any = {"timeout": 60, "multiprocessing_context": "fork"} if workers else {}
    md = skipping(folder, bad_frames_file=file)
    list(DataLoader(md, 8, num_workers=workers, collate_fn=collate, **options))
    # What is wrong with a chunk is wrong with no row of it alone.
    rows = {(name, key, row) for (name, key), rows in BAD_ROWS.items() for row in rows}
    wanted = {one for one in rows if one[1] != "pose"}
    wanted |= {(*PLACES[n][:1], None, PLACES[n][1]) for n in BAD if PLACES[n][0] == "arm_1"}
    assert met(file) == wanted
    assert all(span.reason for span in load_quarantine(file))
    left = MultiDataset.from_folder(folder, ENTRIES, quarantine=file)
    good = [PLACES[index] for index in INDICES if index not in BAD]
    for sample, place in zip(left.__getitems__(range(len(left))), good, strict=True):
        assert_true(sample, folder, *place)


def test_one_sample_that_meets_a_bad_row_lists_the_row_for_all(
    folder: Path, tmp_path: Path
) -> None:
    entries = keymap(past=camera(history=3))
    options: Any = {"on_bad_frame": "skip", "max_bad_fraction": 0.9}
    ds = ZarrDataset(folder / "arm_3", entries, bad_frames_file=tmp_path / "bad.json", **options)
    assert ds[22]["is_replaced"]
    (span,) = load_quarantine(tmp_path / "bad.json")
    assert span == BadSpan("arm_3", 20, 21, CAMERA, span.reason)
    left = ZarrDataset(folder / "arm_3", entries, quarantine=tmp_path / "bad.json")
    frames = [int(sample["frame_index"]) for sample in left.__getitems__(range(len(left)))]
    assert frames == [*range(20), 23, 24]


def test_what_a_quarantine_leaves_is_served_and_named_by_its_frames(
    folder: Path, tmp_path: Path
) -> None:
    entries = [{"episode": "arm_0", "end": 10}, {"episode": "arm_1"}, {"episode": "arm_2"}]
    quarantine = write_list(tmp_path / "known.json", *entries, {"episode": "arm_3", "start": 15})
    left = [("arm_0", frame) for frame in range(10, 20)] + [("arm_3", frame) for frame in range(15)]
    options: Any = {"quarantine": quarantine, "bad_frames_file": tmp_path / "bad.json"}
    md = skipping(folder, **options)
    ds = ZarrDataset(
        folder / "arm_0", ENTRIES, on_bad_frame="skip", max_bad_fraction=0.5, **options
    )
    for data, wanted in ((md, left), (ds, left[:10])):
        (tmp_path / "bad.json").unlink(missing_ok=True)
        epochs = [FrameIndex(1, epoch) for epoch in range(40)]  # frame 11 of arm_0
        with pytest.warns(BadFrameWarning, match="'arm_0', frame 11"):
            found = {(one["episode"], int(one["frame_index"])) for one in data.__getitems__(epochs)}
        assert found <= {one for one in wanted if one != ("arm_0", 11)}
        assert len(found) > len(wanted) // 2
        assert met(tmp_path / "bad.json") == {("arm_0", CAMERA, 11)}
        assert data.bad_frames == {"arm_0": 1}


def test_a_disk_that_is_gone_is_no_bad_frame(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_ramps(tmp_path / "all" / name, 20)
    cut_jpegs(tmp_path / "all" / "a", CAMERA, [3])
    md = skipping(tmp_path / "all", bad_frames_file=tmp_path / "bad.json", cache_bytes=0)
    assert int(md[25]["frame_index"]) == 5
    assert md[3]["is_replaced"]
    (tmp_path / "all" / "b").rename(tmp_path / "gone")
    open_files().forget()
    # Some of what is drawn for frame 3 of `a` lies in `b`.
    for indices in ([30], [0, 31, 1], [FrameIndex(3, epoch) for epoch in range(40)]):
        with pytest.raises(ReadError, match="is a disk gone"):
            md.__getitems__(indices)
    assert md.bad_frames == {"a": 1}
    assert met(tmp_path / "bad.json") == {("a", CAMERA, 3)}


# Too many.


def test_the_one_bad_frame_that_is_too_many(tmp_path: Path) -> None:
    rows = [3, 8, 20, 31, 40]
    ds = with_bad_counts(tmp_path / "ep", 50, rows, max_bad_fraction=0.06, seed=1)
    for row in (8, 3, 31, 8):
        assert ds[row]["is_replaced"]
    assert ds.bad_frames == {"ep": 3}
    with pytest.raises(
        TooManyBadFramesError, match=r"4 frames of 50 .*max_bad_fraction = 0\.06"
    ) as caught:
        ds[20]
    error, cause = caught.value, caught.value.__cause__
    assert (error.episode, error.frame) == ("ep", 20)
    assert isinstance(cause, ValueRangeError)
    assert (cause.key, cause.frame) == ("count", 20)
    assert str(cause) in str(error)
    assert int(ds[7]["count"]) == 7


@pytest.mark.parametrize("num_bad", [29, 57, 58])  # of which 100 times the share falls short
def test_as_many_as_the_share_says_may_be_bad(tmp_path: Path, num_bad: int) -> None:
    share = num_bad / 100
    ds = with_bad_counts(tmp_path / "ep", 100, range(num_bad), max_bad_fraction=share)
    assert 100 * share < num_bad
    assert sum(bool(sample["is_replaced"]) for sample in ds.__getitems__(range(100))) == num_bad
    (tmp_path / "more").mkdir()
    ds = with_bad_counts(tmp_path / "more/ep", 100, range(num_bad + 1), max_bad_fraction=share)
    with pytest.raises(TooManyBadFramesError, match=f"{num_bad + 1} frames of 100"):
        ds.__getitems__(range(100))


def test_past_the_limit_no_bad_frame_is_skipped_any_more(tmp_path: Path) -> None:
    ds = with_bad_counts(tmp_path / "ep", 20, [3, 8], max_bad_fraction=0.05)
    assert ds[8]["is_replaced"]
    for index in (3, 3, 8):
        with pytest.raises(TooManyBadFramesError):
            ds[index]


def test_where_all_frames_are_bad_nothing_is_drawn_without_end(tmp_path: Path) -> None:
    ds = with_bad_counts(tmp_path / "ep", 3, range(3), max_bad_fraction=0.4)

    def read() -> None:
        for index in (0, 1, 2, 0, 1, 2):
            with pytest.raises(TooManyBadFramesError):
                ds[index]

    in_a_fork(read, limit_s=20)


def test_bad_frames_count_against_those_of_their_embodiment(folder: Path) -> None:
    md = skipping(folder, max_bad_fraction=0.03)  # 1 of 35 hands, 3 of 100 arms
    hands = [n for n in INDICES if PLACES[n][0].startswith("hand")]
    assert sum(bool(sample["is_replaced"]) for sample in md.__getitems__(hands)) == 1
    with pytest.raises(TooManyBadFramesError, match="4 frames of 100"):
        md.__getitems__(INDICES)
    assert sum(md.bad_frames.values()) == 5
    with pytest.raises(TooManyBadFramesError, match="1 frames of 35"):
        skipping(folder, max_bad_fraction=0).of_embodiment("hand").__getitems__(range(35))


def test_a_loader_goes_on_behind_too_many(folder: Path) -> None:
    lists = [[0, 1], [3, 11, 29], [40, 41, 45]]
    md = skipping(folder, max_bad_fraction=0.02)
    batches = iter(EpisodeLoader(md, batch_sampler=lists, num_threads=1, look_ahead=1))
    assert served([0, 1], next(batches)) == {0: PLACES[0], 1: PLACES[1]}
    with pytest.raises(TooManyBadFramesError):
        next(batches)
    last = next(batches)
    assert last["now"][:, 0].tolist() == [1000.0 * PLACES[n][1] for n in lists[2]]


# What is no bad frame.


def test_by_default_a_bad_frame_is_an_error_and_nothing_is_marked(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, ENTRIES)
    ds = ZarrDataset(folder / "arm_0", ENTRIES)
    for data in (md, ds):
        assert "is_replaced" not in data[0]
        for read in (lambda one=data: one[3], lambda one=data: one.__getitems__([1, 3])):
            with pytest.raises(FrameError) as caught:
                read()
            assert (caught.value.episode, caught.value.frame) == ("arm_0", 3)
        assert data.bad_frames == {}


def test_what_is_not_the_datas_fault_is_not_skipped(folder: Path) -> None:
    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "x": 1 // (int(sample["frame_index"]) - 1)}

    md = skipping(folder, transforms=[fails])
    for indices in ([1], [0, 1, 2], [0, 3, 1]):
        with pytest.raises(SampleError, match=r"arm_0.*frame 1.*fails failed"):
            md.__getitems__(indices)
    assert set(md.bad_frames) <= {"arm_0"}
    with pytest.raises(FrameIndexError):
        md.__getitems__([0, len(md)])
    wrong = keymap(pose=entry("pose", "camera_keys"))
    with pytest.raises(KeyMapError):
        MultiDataset.from_folder(folder, wrong, on_bad_frame="skip")


def test_an_error_that_no_frame_has_on_its_own_is_raised(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    md = skipping(folder)
    serve, asked = md._serve, list[int]()

    def crowded(at: Any, *args: Any) -> Any:
        asked.append(len(at))
        if len(at) > 1:
            raise ReadError("too many at once", episode="arm_0")
        return serve(at, *args)

    monkeypatch.setattr(md, "_serve", crowded)
    good = [index for index in INDICES if index not in BAD][:3]
    with pytest.raises(ReadError, match="too many at once"):
        md.__getitems__(good)
    assert asked == [3, 1, 1, 1, 3]
    assert md.bad_frames == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_bad_frame": "skp"}, "on_bad_frame is 'skp'; did you mean 'skip'"),
        ({"on_bad_frame": True}, "on_bad_frame is True"),
        ({"max_bad_fraction": 1}, r"max_bad_fraction must be in \[0, 1\), got 1"),
        ({"max_bad_fraction": -0.1}, "max_bad_fraction"),
        ({"max_bad_fraction": True}, "max_bad_fraction"),
        ({"max_bad_fraction": float("nan")}, "max_bad_fraction"),
        ({"max_bad_fraction": "0.1"}, "max_bad_fraction"),
        ({"on_bad_frame": "raise", "bad_frames_file": "bad.json"}, "bad_frames_file is for"),
        ({"bad_frames_file": 3}, "bad_frames_file"),
    ],
)
def test_options_that_cant_be_meant(folder: Path, options: dict[str, Any], words: str) -> None:
    for make_one in (MultiDataset.from_folder, ZarrDataset):
        path = folder if make_one is not ZarrDataset else folder / "arm_0"
        with pytest.raises(SettingsError, match=words):
            make_one(path, ENTRIES, **{"on_bad_frame": "skip", **options})


# Training.


class Seen(lightning.LightningModule):
    """Trains one number, and writes down what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[dict[str, Any]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen += list(batch.values())
        return self.weight * 1.0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """There is none, and Lightning asks for it."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


#: What a keymap of poses and images of the frame alone can't read.
BAD_NOW = [PLACES.index(place) for place in (("arm_0", 3), ("arm_0", 11), ("arm_3", 20))]
BAD_NOW += [PLACES.index(("arm_1", frame)) for frame in range(12, 16)]


def test_a_training_skips_as_its_config_says(folder: Path, tmp_path: Path) -> None:
    words = [
        "keymap=state_action",
        "keymap.state=[pose]",
        f"keymap.camera=[{CAMERA}]",
        "data=folder",
        f"data.folder='{folder}'",
        "data.filters={embodiment: arm}",
        "data.batch_size=6",
        "data.valid_ratio=0",
        "data.on_bad_frame=skip",
        f"data.bad_frames_file='{tmp_path / 'bad.json'}'",
    ]

    def train(*more: str) -> list[dict[str, Any]]:
        config, model = compose(["seed=5", *words, *more]), Seen()
        trainer(tmp_path, max_epochs=1).fit(model, datamodule=make(config.data))
        return model.seen

    with pytest.raises(TooManyBadFramesError, match=r"\d frames of 100 .*max_bad_fraction = 0\.01"):
        train()
    batches = train("data.max_bad_fraction=0.07")
    found = Counter(place for batch in batches for place in places(batch))
    wanted = slow_served(BAD_NOW, seed=5)
    arms = [n for n in INDICES if PLACES[n][0].startswith("arm")]
    assert found == Counter(wanted[n] for n in arms)
    assert sum(int(batch["is_replaced"].sum()) for batch in batches) == len(BAD_NOW)
    assert {name for name, _, _ in met(tmp_path / "bad.json")} == {"arm_0", "arm_1", "arm_3"}
    quarantine = [f"data.quarantine='{tmp_path / 'bad.json'}'", "data.bad_frames_file=null"]
    left = train(*quarantine, "data.on_bad_frame=raise")
    shown = Counter(place for batch in left for place in places(batch))
    assert shown == Counter(PLACES[n] for n in arms if n not in BAD_NOW)


def places(batch: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return what a batch shows; its poses must be those of its frames."""
    (poses,) = (value for key, value in batch.items() if key.endswith("pose"))
    frames = batch["frame_index"]
    assert torch.equal(poses.reshape(len(frames), 3)[:, 1], 1000.0 * frames + 1)
    return list(zip(batch["episode"], frames.tolist(), strict=True))


def test_an_error_of_a_chunk_names_the_first_frame_that_needs_it(tmp_path: Path) -> None:
    write_damaged(tmp_path)
    md = MultiDataset.from_folder(tmp_path, keymap(pose=entry("pose", "action_keys", horizon=3)))
    first, bad = PLACES.index(("arm_1", 0)), PLACES.index(("arm_1", 10))
    other = PLACES.index(("arm_3", 20))
    for indices, frame in (
        ([bad], 10),
        ([bad + 3], 13),
        ([first, other, bad + 1, bad], 11),
        ([other, first, bad - 1, bad + 2], 12),
    ):
        with pytest.raises(ReadError, match=r"pose/c/0/0, bytes \d+ to \d+ can't") as caught:
            md.__getitems__(indices)
        error = caught.value
        assert (error.episode, error.key, error.frame) == ("arm_1", "pose", frame)
        assert f"frame {frame}" in str(error)
        assert "crc32c" in str(error.__cause__)
    with pytest.raises(ReadError) as caught:
        next(iter(EpisodeLoader(md, batch_sampler=[[first, bad + 2, bad]])))
    assert caught.value.frame == 12
    assert len(md.__getitems__([first, bad - 1, other])) == 3


def test_of_two_broken_episodes_the_one_that_failed_is_named(tmp_path: Path) -> None:
    write_damaged(tmp_path)
    flip_chunk(tmp_path / "arm_3", "pose", 5)
    md = MultiDataset.from_folder(tmp_path, keymap(pose=entry("pose")))
    late, early = PLACES.index(("arm_3", 5)), PLACES.index(("arm_1", 13))
    with pytest.raises(ReadError) as caught:
        md.__getitems__([late, 0, early])
    assert (caught.value.episode, caught.value.frame) in {("arm_1", 13), ("arm_3", 5)}
    assert caught.value.episode in str(caught.value)
    assert not md.__getitems__([0])[0]["pose"].isnan().any()
