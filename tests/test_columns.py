"""What is known of every frame beforehand: filters and weights out of real episodes."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egoloader import EpisodePoolSampler, EpisodeWriter, MultiDataset, ZarrDataset, ZarrEpisode
from egoloader.columns import digest_of, frame_weights, kept_frames, stored_bytes
from egoloader.errors import EpisodeError, EpisodeFormatError, MissingKeyError, SettingsError
from tests.entries import entry, keymap
from tests.orders import frames_in, rest, saved, surprise

ENTRIES = keymap(now=entry("pose"))
TOTALS = {"a": 6, "b": 9, "c": 4}
#: Kept of each: two in three, none, all.
KEPT = {"a": [0, 1, 0, 1, 1, 1], "b": [0] * 9, "c": [1, 1, 1, 1]}
KEPT_INDICES = [1, 3, 4, 5, 15, 16, 17, 18]
WEIGHTS = {"a": [0, 1, 2, 3, 0, 4], "b": [0.5] * 9, "c": [0] * 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    for name, total in TOTALS.items():
        columns = {
            "pose": np.arange(total, dtype=np.float32),
            "keep": np.array(KEPT[name], dtype=np.uint8),
            "keep_column": np.array(KEPT[name], dtype=np.int64)[:, None],
            "none": np.zeros(total, dtype=bool),
            "weight": np.array(WEIGHTS[name], dtype=np.float32),
            "pair": np.ones((total, 2), dtype=np.float32),
        }
        EpisodeWriter.write(root / name, numeric=columns, fps=30, embodiment="arm")
    return root


@pytest.fixture(scope="module")
def md(folder: Path) -> MultiDataset:
    return MultiDataset.from_folder(folder, ENTRIES)


def kept_by_name(episode: ZarrEpisode) -> Any:
    return np.array(KEPT[episode.name], dtype=bool)


def keep_as_numbers(episode: ZarrEpisode) -> Any:
    return [2.5 * keep for keep in KEPT[episode.name]]


COLUMNS = ["keep", "keep_column", kept_by_name, keep_as_numbers]


@pytest.mark.parametrize("column", COLUMNS)
def test_which_frames_are_kept(md: MultiDataset, column: Any) -> None:
    kept = kept_frames(md, column)
    assert {name: frames.tolist() for name, frames in kept.items()} == {"a": [1, 3, 4, 5], "b": []}
    assert all(frames.dtype == np.int64 for frames in kept.values())


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("tail", ["spread", "repeat", "drop"])
def test_a_filter_leaves_the_others_out(md: MultiDataset, column: Any, tail: Any) -> None:
    ranks = [
        EpisodePoolSampler(md, 2, 2, rank=rank, world_size=2, tail=tail, frame_filter=column)
        for rank in range(2)
    ]
    for epoch in range(2):
        assert [len(one) for one in ranks] == [2, 2]
        assert sorted(frames_in(rest(ranks[0]) + rest(ranks[1]))) == KEPT_INDICES
        assert all(one.covers for one in ranks)
        assert [one.epoch for one in ranks] == [epoch + 1] * 2


def test_a_filters_repeats_are_frames_that_it_keeps(md: MultiDataset) -> None:
    for seed in range(20):
        one = EpisodePoolSampler(md, 7, 2, seed, tail="repeat", frame_filter="keep")
        batches = rest(one)
        assert sum(again for batch in batches for _, _, again in batch) == 6
        assert {index for batch in batches for index, _, _ in batch} == set(KEPT_INDICES)


def test_a_filter_that_keeps_all_changes_nothing(md: MultiDataset) -> None:
    plain = EpisodePoolSampler(md, 4)
    all_kept = EpisodePoolSampler(md, 4, frame_filter=lambda e: np.ones(e.total_frames))
    assert saved(plain) == saved(all_kept)
    assert rest(plain) == rest(all_kept)


def test_one_episode_alone(folder: Path) -> None:
    one = EpisodePoolSampler(ZarrDataset(folder / "a", ENTRIES), 3, frame_filter="keep")
    assert sorted(frames_in(rest(one))) == [1, 3, 4, 5]


@pytest.mark.parametrize("column", ["none", lambda e: np.zeros(e.total_frames)])
def test_a_filter_that_keeps_nothing(md: MultiDataset, column: Any) -> None:
    with pytest.raises(SettingsError, match=r"frame_filter .* keeps no frame of any episode"):
        EpisodePoolSampler(md, frame_filter=column)


def test_filters_and_weights_go_together(md: MultiDataset) -> None:
    one = EpisodePoolSampler(md, 4, frame_filter="keep", weights="weight")
    found = {index for _ in range(60) for batch in rest(one) for index, _, _ in batch}
    # Frame 2 of `a` weighs something and is not kept, 4 is kept and weighs nothing.
    assert found == {1, 3, 5}
    assert not one.covers


def test_what_is_drawn_matches_the_weights(md: MultiDataset) -> None:
    one = EpisodePoolSampler(md, 4, seed=1, weights="weight")
    weights = dict(enumerate(w for name in TOTALS for w in WEIGHTS[name]))
    assert frame_weights(md, "weight", {}, list(TOTALS)).tolist() == list(weights.values())
    found = Counter(index for _ in range(400) for batch in rest(one) for index, _, _ in batch)
    some = [index for index, weight in weights.items() if weight]
    assert set(found) == set(some)
    total = sum(found.values())
    assert total == 400 * 19
    expected = [total * weights[index] / sum(weights.values()) for index in some]
    assert abs(surprise([([found[index] for index in some], expected)])) < 5


def test_weights_follow_the_ids(md: MultiDataset) -> None:
    found = frame_weights(md, "weight", {"a": np.array([5, 1])}, ["c", "a"])
    assert found.dtype == np.float64
    assert found.tolist() == [0, 0, 0, 0, 4, 1]


@pytest.mark.parametrize("option", ["frame_filter", "weights"])
@pytest.mark.parametrize(
    ("column", "error", "match"),
    [
        ("pair", EpisodeFormatError, r"one number for each of 6 frames.* \(6, 2\)"),
        ("nowhere", MissingKeyError, "nowhere"),
        (lambda e: np.ones(e.total_frames - 1), EpisodeFormatError, r"of shape \(5,\)"),
        (lambda e: np.ones((1, e.total_frames)), EpisodeFormatError, r"of shape \(1, 6\)"),
        (lambda e: 1.0, EpisodeFormatError, r"of shape \(\)"),
        (lambda e: None, EpisodeFormatError, "one number for each"),
        (lambda e: ["1"] * e.total_frames, EpisodeFormatError, "one number for each"),
        (lambda e: [[1], [1, 2]], EpisodeFormatError, "one number for each"),
        (lambda e: np.ones(e.total_frames, complex), EpisodeFormatError, "complex"),
        (lambda e: 1 / 0, EpisodeError, "division by zero"),
    ],
)
def test_what_is_no_column(
    md: MultiDataset, option: str, column: Any, error: type[Exception], match: str
) -> None:
    options: dict[str, Any] = {option: column}
    with pytest.raises(error, match=match) as raised:
        EpisodePoolSampler(md, **options)
    assert "'a'" in str(raised.value) or "episode a" in str(raised.value)
    assert error is MissingKeyError or option in str(raised.value)


@pytest.mark.parametrize("option", ["frame_filter", "weights"])
@pytest.mark.parametrize("column", [3, True, 2.5, ["keep"]])
def test_what_names_no_column(md: MultiDataset, option: str, column: Any) -> None:
    options: dict[str, Any] = {option: column}
    with pytest.raises(SettingsError, match=f"{option} is the name of an array or a callable"):
        EpisodePoolSampler(md, **options)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_filters_that_can_not_be_meant(md: MultiDataset, wrong: float) -> None:
    def keep(episode: ZarrEpisode) -> Any:
        return [1.0, 0.0, wrong] + [1.0] * (episode.total_frames - 3)

    with pytest.raises(EpisodeFormatError, match=f"must be finite, got {wrong}") as raised:
        EpisodePoolSampler(md, frame_filter=keep)
    assert "frame 2" in str(raised.value)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf")])
def test_weights_that_can_not_be_meant(md: MultiDataset, wrong: float) -> None:
    def weights(episode: ZarrEpisode) -> Any:
        return [1.0, 1.0, wrong, wrong] + [1.0] * (episode.total_frames - 4)

    with pytest.raises(EpisodeFormatError, match=f"from 0 on, got {wrong}") as raised:
        EpisodePoolSampler(md, weights=weights)
    assert "frame 2" in str(raised.value)
    assert "a" in str(raised.value)


def test_weights_that_are_all_0(md: MultiDataset) -> None:
    with pytest.raises(SettingsError, match=r"weights 'none' must be above 0 for some frame"):
        EpisodePoolSampler(md, weights="none")


def test_weights_of_which_the_sum_is_none(md: MultiDataset) -> None:
    def weights(episode: ZarrEpisode) -> Any:
        return [1e308] * episode.total_frames

    with pytest.raises(SettingsError, match=r"their sum a number .* got inf over all"):
        EpisodePoolSampler(md, weights=weights)


def test_other_filters_and_weights_are_refused_by_name(md: MultiDataset) -> None:
    def other(episode: ZarrEpisode) -> Any:
        return np.roll(KEPT[episode.name], 1)

    state = saved(EpisodePoolSampler(md, 2, frame_filter="keep"))
    for same in COLUMNS[1:]:
        EpisodePoolSampler(md, 2, frame_filter=same).load_state_dict(state)
    with pytest.raises(SettingsError, match="can't resume: frame_filter was"):
        EpisodePoolSampler(md, 2, frame_filter=other).load_state_dict(state)
    state = saved(EpisodePoolSampler(md, 2, weights="weight"))
    with pytest.raises(SettingsError, match="can't resume: weights was"):
        EpisodePoolSampler(md, 2, weights="pose").load_state_dict(state)
    with pytest.raises(SettingsError, match="can't resume: weights was"):
        EpisodePoolSampler(md, 2).load_state_dict(state)


@pytest.mark.parametrize("options", [{"frame_filter": "keep"}, {"weights": "weight"}])
def test_a_state_goes_on_the_same(md: MultiDataset, options: dict[str, Any]) -> None:
    whole = EpisodePoolSampler(md, 3, 2, **options)
    wanted = rest(whole)
    for done in range(len(wanted)):
        one = EpisodePoolSampler(md, 3, 2, **options)
        for _ in range(done):
            next(iter(one))
        again = EpisodePoolSampler(md, 3, 2, **options)
        again.load_state_dict(saved(one))
        assert rest(again) == wanted[done:]


def test_the_digest_tells_filters_apart() -> None:
    kept = {"a": np.array([1, 2]), "b": np.array([3])}
    assert digest_of({}) is None
    others = [
        {"a": np.array([1, 2])},
        {"a": np.array([1, 2, 3])},
        {"a": np.array([1]), "b": kept["b"]},
    ]
    assert len({digest_of(one) for one in [kept, *others]}) == 4
    assert digest_of(dict(reversed(kept.items()))) == digest_of(kept)


def test_bytes_of_what_is_stored(folder: Path, md: MultiDataset, tmp_path: Path) -> None:
    sizes = stored_bytes(md)
    assert sizes == {
        name: sum(len(path.read_bytes()) for path in (folder / name).rglob("*") if path.is_file())
        for name in TOTALS
    }
    largest = max(sizes.values())
    one = EpisodePoolSampler(md, 4, 3, byte_budget=largest)
    assert sorted(frames_in(rest(one))) == list(range(19))
    with pytest.raises(SettingsError, match=f"has {largest} bytes, more than byte_budget"):
        EpisodePoolSampler(md, byte_budget=largest - 1)
    # Any two are above it: one comes after the other.
    assert sum(sorted(sizes.values())[:2]) > largest
    ends = np.cumsum(list(TOTALS.values()))
    order = np.searchsorted(ends, frames_in(rest(one)), side="right")
    assert np.count_nonzero(np.diff(order)) == 2
    shutil.copytree(folder / "a", tmp_path / "a")
    assert stored_bytes(MultiDataset.from_folder(tmp_path, ENTRIES)) == {"a": sizes["a"]}
