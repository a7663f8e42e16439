"""Normalising in one place: exact inverses, every mode, flat dimensions, checkpoints, one time."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import (
    EpisodeWriter,
    KeyMap,
    KeySpec,
    MultiDataset,
    Normalizer,
    NormStats,
    collate,
)
from egoloader.errors import (
    MissingStatisticsError,
    SettingsError,
    StatisticsWarning,
    TransformError,
)
from egoloader.normalizer import Mode, NormalizerSettings
from egoloader.stats import QUANTILES, KeyStats
from egoloader.transforms import PadDimensions
from tests.statistics import KEYMAP, write_folder

MODES: list[Mode] = ["zscore", "minmax", "quantile"]


def stats_of(rows: npt.NDArray[Any]) -> KeyStats:
    """Return what numpy says of (N, D…) rows."""
    rows = rows.astype(np.float64)
    return KeyStats(
        np.full(rows.shape[1:], len(rows)),
        rows.mean(axis=0),
        rows.std(axis=0),
        rows.min(axis=0),
        rows.max(axis=0),
        {name: np.quantile(rows, share, axis=0) for name, share in QUANTILES.items()},
    )


def normalizer_of(rows: npt.NDArray[Any], mode: Mode = "zscore", **options: Any) -> Normalizer:
    stats = NormStats({"sawyer": {"state": stats_of(rows)}})
    return Normalizer(stats, NormalizerSettings(mode=mode, **options))


def optional_normalizer(
    rows: npt.NDArray[Any], mode: Mode = "zscore", **options: Any
) -> Normalizer:
    stats = NormStats({"sawyer": {"state": replace(stats_of(rows), is_optional=True)}})
    return Normalizer(stats, NormalizerSettings(mode=mode, **options))


def normalized(normalizer: Normalizer, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    made = normalizer.normalize("sawyer", {"state": torch.from_numpy(rows)})["state"]
    return np.asarray(made.numpy())


ROWS = np.random.default_rng(0).normal([5, -3, 1e6], [2, 0.01, 40], (500, 3)).astype(np.float32)


def test_two_numbers_about_one_become_minus_one_and_one() -> None:
    # Once: doing it again would give [-2, 0].
    values = np.array([[0.0], [2.0]], np.float32)
    normalizer = normalizer_of(values)
    batch = normalizer.normalize("sawyer", {"state": torch.from_numpy(values)})
    assert batch["state"].flatten().tolist() == [-1.0, 1.0]
    with pytest.raises(TransformError, match="already"):
        normalizer.normalize("sawyer", batch)
    back = normalizer.unnormalize("sawyer", batch)
    assert back["state"].flatten().tolist() == [0.0, 2.0]
    with pytest.raises(TransformError, match="already"):
        normalizer.unnormalize("sawyer", back)
    assert normalizer.normalize("sawyer", back)["state"].flatten().tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("mode", MODES)
def test_modes_do_what_they_say(mode: Mode) -> None:
    made = normalized(normalizer_of(ROWS, mode), ROWS).astype(np.float64)
    exact = ROWS.astype(np.float64)
    if mode == "zscore":
        wanted = (exact - exact.mean(0)) / exact.std(0)
    else:
        low, high = (
            (exact.min(0), exact.max(0))
            if mode == "minmax"
            else np.quantile(exact, [0.01, 0.99], axis=0)
        )
        wanted = 2 * (exact - low) / (high - low) - 1
    np.testing.assert_allclose(made, wanted, atol=2e-6)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    offset=st.floats(-1e6, 1e6),
    spread=st.floats(1e-4, 1e4),
    seed=st.integers(0, 2**16),
    beyond=st.floats(0, 5),
)
def test_unnormalize_undoes_normalize(
    mode: Mode, offset: float, spread: float, seed: int, beyond: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(offset, spread, (60, 3)).astype(np.float32)
    normalizer = _quiet(rows, mode)
    values = (rows + rng.normal(0, spread * beyond, rows.shape)).astype(np.float32)
    batch = normalizer.normalize("sawyer", {"state": torch.from_numpy(values)})
    back = normalizer.unnormalize("sawyer", batch)["state"].numpy()
    # float32 itself tells no more apart at the values' own size.
    error = np.abs(back.astype(np.float64) - values)
    span = rows.std(axis=0, dtype=np.float64) * (1 + beyond)
    assert (error <= np.maximum(1e-5 * span, np.spacing(np.abs(values)))).all()
    again = normalizer.normalize("sawyer", {"state": torch.from_numpy(back)})["state"]
    assert torch.isfinite(again).all()


def _quiet(rows: npt.NDArray[Any], mode: Mode) -> Normalizer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        return normalizer_of(rows, mode)


@pytest.mark.parametrize("lead", [(), (4,), (4, 7), (2, 3, 5)])
@pytest.mark.parametrize("shape", [(), (3,), (21, 3)])
def test_any_leading_axes(lead: Sequence[int], shape: Sequence[int]) -> None:
    rows = np.random.default_rng(1).normal(2, 3, (50, *shape)).astype(np.float32)
    values = np.random.default_rng(2).normal(2, 3, (*lead, *shape)).astype(np.float32)
    made = normalized(normalizer_of(rows), values)
    wanted = (values - rows.mean(axis=0)) / rows.std(axis=0)
    assert made.shape == values.shape
    np.testing.assert_allclose(made, wanted, atol=1e-5)


def test_each_step_by_its_own() -> None:
    chunks = np.random.default_rng(3).normal(0, 1, (80, 5, 2)) * np.arange(1, 6)[:, None]
    chunks = chunks.astype(np.float32)
    made = normalized(normalizer_of(chunks), chunks)
    np.testing.assert_allclose(made.std(axis=0), 1, atol=1e-5)
    with pytest.raises(TransformError, match=r"\[4, 2\], and its statistics \[5, 2\]"):
        normalized(normalizer_of(chunks), chunks[:, :4][0])


@pytest.mark.parametrize("mode", MODES)
def test_flat_dimensions_stay_finite_and_are_named(mode: Mode) -> None:
    rows = np.stack([np.full(9, 7.5), np.arange(9), 7.5 + 1e-8 * np.arange(9)], axis=1)
    rows = np.concatenate([rows, np.full((9, 1), 1e6 + 0.3)], axis=1)
    with pytest.warns(StatisticsWarning, match="'sawyer', key 'state': dimensions 0, 2, 3 are"):
        normalizer = normalizer_of(rows, mode)
    made = normalized(normalizer, rows.astype(np.float32))
    assert np.isfinite(made).all()
    assert (np.abs(made) <= 2).all()
    near = normalized(normalizer, np.array([[7.5 + 1e-3, 0, 7.5, 1e6]], np.float32))
    assert np.isfinite(near).all()


def rare_flags() -> npt.NDArray[np.float64]:
    """Return rows of: an even number, a flag up in 5 of 1,000, one down in 5, constant ones."""
    flag = np.arange(1000) < 5
    far = np.where(flag, 1e5 + 1, 1e5)
    return np.stack([np.linspace(-1, 1, 1000), flag, ~flag, np.full(1000, 0.25), far], axis=1)


def test_rare_flags_are_normalised_by_their_range() -> None:
    rows = rare_flags()
    with pytest.warns(StatisticsWarning) as met:
        normalizer = normalizer_of(rows, "quantile")
    said = [str(one.message) for one in met]
    assert len(said) == 2
    assert "key 'state': dimensions 1, 2, 4 are nearly always the same, so" in said[0]
    assert "key 'state': dimensions 3 are constant, or nearly" in said[1]
    made = normalized(normalizer, rows.astype(np.float32))
    for dim in (1, 2, 4):
        assert sorted(set(made[:, dim].tolist())) == [-1, 1]
    assert abs(np.quantile(made[:, 0], 0.99) - 1) < 1e-5
    values = {"state": torch.from_numpy(made)}
    back = normalizer.unnormalize("sawyer", values)["state"].numpy()
    np.testing.assert_allclose(back, rows, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StatisticsWarning)
        again = Normalizer.from_plain(normalizer.to_plain())
        ranged = normalizer_of(rows, "minmax")
    np.testing.assert_array_equal(normalized(again, rows.astype(np.float32)), made)
    np.testing.assert_array_equal(normalized(ranged, rows.astype(np.float32))[:, 1:], made[:, 1:])


def test_rare_flags_that_are_skipped_are_not_told_of() -> None:
    normalizer_of(rare_flags(), "quantile", skip={"state": [1, 2, 3, 4]})  # warnings are errors


def rare_moves() -> npt.NDArray[np.float64]:
    """Return rows of: an even number, moves of 1 from a tremble of 1e-5, 1e6 once, 900 once."""
    even = np.linspace(0, 1, 1000)
    moved = np.where(np.arange(1000) < 5, 1, 1e-5 * even)
    broken, beyond = np.where(np.arange(1000) == 7, [[1e6], [900]], even)
    return np.stack([even, moved, broken, beyond], axis=1)


def test_rare_numbers_far_beyond_the_percentiles_are_told_of() -> None:
    rows = rare_moves()
    low, high = np.quantile(rows, [0.01, 0.99], axis=0)
    times = np.ptp(rows, axis=0) / (high - low)
    assert (times[[0, 3]] < 1000).all()
    assert (times[[1, 2]] > 1000).all()
    with pytest.warns(StatisticsWarning) as met:
        normalizer = normalizer_of(rows, "quantile")
    (said,) = (str(one.message) for one in met)
    assert "'sawyer', key 'state': dimensions 1, 2 are rarely far from" in said
    assert f"is up to {round(times[2]):,} times as wide" in said
    assert all(f" {name} " in said for name in ("modes", "skip;", "outliers"))
    made = normalized(normalizer, rows)
    np.testing.assert_allclose(made, 2 * (rows - low) / (high - low) - 1, rtol=1e-4, atol=1e-4)


def test_rare_numbers_are_not_told_of_where_another_scale_is_chosen() -> None:
    # Warnings are errors.
    rows = rare_moves()
    normalizer_of(rows, "quantile", skip={"state": [1, 2]})
    normalizer_of(rows, "quantile", modes={"state": "minmax"})
    normalizer_of(rows, "quantile", modes={"state": "zscore"})


def test_one_number_alone_that_is_rarely_far_is_told_of() -> None:
    with pytest.warns(StatisticsWarning, match="its only number is rarely far from"):
        normalizer_of(rare_moves()[:, 1], "quantile")


def test_what_is_skipped_stays_as_it_is() -> None:
    normalizer = normalizer_of(ROWS, skip={"state": [0, 2]})
    made = normalized(normalizer, ROWS)
    np.testing.assert_array_equal(made[:, [0, 2]], ROWS[:, [0, 2]])
    assert abs(made[:, 1].mean()) < 1e-3
    whole = normalizer_of(np.full((5, 2), 3.0), skip=["state"])  # no warning of it
    np.testing.assert_array_equal(normalized(whole, ROWS[:, :2]), ROWS[:, :2])
    back = normalizer.unnormalize("sawyer", {"state": torch.from_numpy(made)})["state"]
    np.testing.assert_array_equal(back[:, [0, 2]], ROWS[:, [0, 2]])


def test_keys_may_have_modes_of_their_own() -> None:
    stats = NormStats({"sawyer": {"state": stats_of(ROWS), "action": stats_of(ROWS)}})
    mixed = Normalizer(stats, NormalizerSettings(modes={"action": "minmax"}))
    values = torch.from_numpy(ROWS)
    made = mixed.normalize("sawyer", {"state": values, "action": values})
    np.testing.assert_array_equal(made["state"], normalized(normalizer_of(ROWS), ROWS))
    np.testing.assert_array_equal(made["action"], normalized(normalizer_of(ROWS, "minmax"), ROWS))


def test_other_values_are_passed_on_and_the_batch_is_left() -> None:
    normalizer = normalizer_of(ROWS)
    image = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    batch = {"state": torch.from_numpy(ROWS[:2]), "image": image, "task": ["a", "b"]}
    before = batch["state"].clone()
    made = normalizer.normalize("sawyer", batch)
    assert list(made) == list(batch)
    assert made["image"] is image
    assert made["task"] is batch["task"]
    torch.testing.assert_close(batch["state"], before, rtol=0, atol=0)


@pytest.mark.parametrize("value", [torch.ones(2, 3), np.ones((2, 3)), torch.ones(2).half()])
def test_predictions_under_a_name_without_statistics_are_refused(value: object) -> None:
    normalizer = normalizer_of(ROWS)
    for values in ({"stat": value}, {"state": torch.ones(2, 3), "stat": value}):
        with pytest.raises(
            MissingStatisticsError, match=r"of key 'stat' of 'sawyer', .* did you mean 'state'"
        ):
            normalizer.unnormalize("sawyer", values)
    with pytest.raises(MissingStatisticsError, match="of key 'object_origin'"):
        normalizer.unnormalize("sawyer", {"object_origin": value})


def test_what_is_no_prediction_comes_back_as_it_is() -> None:
    normalizer = normalizer_of(ROWS)
    image = torch.rand(2, 3, 4, 4)
    batch = {"state": torch.from_numpy(ROWS[:2]), "image": image, "task": ["a", "b"]}
    back = normalizer.unnormalize("sawyer", normalizer.normalize("sawyer", batch))
    assert back["image"] is image
    beside = {
        "state": torch.ones(2, 3),
        "state_is_pad": torch.zeros(2, dtype=torch.bool),
        "state_origin": torch.ones(2, 3),
        "timestamp": torch.ones(2, dtype=torch.float64),
        "fps": torch.ones(2),
        "tokens": torch.ones(2, 5, dtype=torch.int64),
        "task": ["a", "b"],
    }
    again = normalizer.unnormalize("sawyer", beside)
    assert all(again[key] is value for key, value in beside.items() if key != "state")
    assert normalizer.keys_of("sawyer") == {"state"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    value = torch.tensor([[4, -3, 1]]).to(dtype)
    made = normalizer_of(ROWS).normalize("sawyer", {"state": value})["state"]
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    assert made.dtype == wanted


def test_padded_dimensions_stay_zero(tmp_path: Path) -> None:
    write_folder(tmp_path, [30, 12])
    padding = PadDimensions(keys=["action"], given=2, size=4)
    data = MultiDataset.from_folder(tmp_path, KEYMAP, transforms=[padding])
    normalizer = Normalizer(NormStats.compute(data))  # no warning of what was never counted
    batch = collate([data[3], data[33]])
    made = normalizer.normalize("sawyer", batch)
    assert not made["action"][..., 2:].any()
    assert made["action_dim_is_pad"] is batch["action_dim_is_pad"]
    back = normalizer.unnormalize("sawyer", {"action": made["action"]})["action"]
    torch.testing.assert_close(back, batch["action"], atol=1e-5, rtol=1e-6)


def test_a_dimension_that_another_sample_pads_stays_zero() -> None:
    normalizer = normalizer_of(ROWS)
    is_pad = torch.tensor([[False, True, True]])
    value = torch.tensor([[5.0, 0.0, 0.0]])
    made = normalizer.normalize("sawyer", {"state": value, "state_dim_is_pad": is_pad})
    assert made["state"][0, 1:].tolist() == [0, 0]
    assert made["state"][0, 0] != 5


@pytest.mark.parametrize("mode", MODES)
def test_an_array_that_an_episode_lacks_stays_zero_both_ways(mode: Mode, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(1000, 1, (50, 2)).astype(np.float32)
    other = np.ones((50, 1), np.float32)
    for name, numeric in {"a": {"s": rows, "k": other}, "b": {"k": other}}.items():
        EpisodeWriter.write(tmp_path / f"{name}.zarr", numeric=numeric, fps=30, embodiment="arm")
    entry: dict[str, Any] = {"zarr_key": "s", "optional": True, "shape": (2,)}
    keymap = KeyMap(
        {
            "now": KeySpec(key_type="proprio_keys", **entry),
            "past": KeySpec(key_type="proprio_keys", history=3, **entry),
            "ahead": KeySpec(key_type="action_keys", horizon=4, **entry),
        }
    )
    data = MultiDataset.from_folder(tmp_path, keymap)
    normalizer = Normalizer(NormStats.compute(data), NormalizerSettings(mode=mode))
    for batch in (collate([data[0], data[60]]), data[60]):
        made = normalizer.normalize("arm", batch)
        back = normalizer.unnormalize("arm", made)
        for key in keymap:
            absent = made[key][-1] if batch["fps"].ndim else made[key]
            assert not absent.any()
            assert torch.equal(back[key] == 0, batch[key] == 0)
            torch.testing.assert_close(back[key], batch[key], rtol=1e-6, atol=1e-4)
    present = normalizer.normalize("arm", collate([data[0], data[60]]))
    assert present["past"][0].any(-1).all()


def test_padding_that_is_zero_is_normalised_as_its_row_is() -> None:
    # Before its first frame, an episode repeats it; that the arm starts at zero changes nothing.
    rows = np.random.default_rng(0).normal(5, 2, (50, 2)).astype(np.float32)
    batch = {"state": torch.zeros(1, 3, 2), "state_is_pad": torch.tensor([[True, True, False]])}
    made = optional_normalizer(rows).normalize("sawyer", batch)["state"]
    assert made[0].unique(dim=0).shape == (1, 2)
    assert made.any(-1).all()
    # One window without an axis of samples is told by fps.
    single = {"state": batch["state"][0], "state_is_pad": batch["state_is_pad"][0]}
    alone = optional_normalizer(rows).normalize("sawyer", {**single, "fps": torch.tensor(30.0)})
    torch.testing.assert_close(alone["state"], made[0], rtol=0, atol=0)


def test_zeros_of_an_array_that_is_there_are_normalised_though_all_of_a_window_is_padded() -> None:
    # As those a lag ahead of an episode's first frame are.
    batch = {"state": torch.zeros(2, 3), "state_is_pad": torch.tensor([True, False])}
    made = normalizer_of(ROWS).normalize("sawyer", batch)["state"]
    assert made.all()
    assert torch.equal(made[0], made[1])
    kept = optional_normalizer(ROWS).normalize("sawyer", batch)["state"]
    assert not kept[0].any()
    assert torch.equal(kept[1], made[1])


@pytest.mark.parametrize("mode", MODES)
def test_padding_at_the_middle_comes_back(mode: Mode) -> None:
    # All of it is normalised to zero, and is no absent array.
    rows = np.array([[4.0, 0.0], [6.0, 0.0]], np.float32)
    normalizer = optional_normalizer(rows, mode, skip={"state": [1]})
    batch = {"state": torch.tensor([[5.0, 0.0]]), "state_is_pad": torch.tensor([True])}
    made = normalizer.normalize("sawyer", batch)
    assert made["state"].abs().max() < 1e-30
    assert normalizer.unnormalize("sawyer", made)["state"].tolist() == [[5.0, 0.0]]


def test_a_mask_of_another_shape_is_refused() -> None:
    batch = {"state": torch.zeros(2, 4, 3), "state_is_pad": torch.ones(2, 5, dtype=torch.bool)}
    with pytest.raises(TransformError, match=r"\[2, 4, 3\], and its mask \[2, 5\]"):
        optional_normalizer(ROWS).normalize("sawyer", batch)


def test_embodiments_each_by_their_own() -> None:
    stats = NormStats(
        {"sawyer": {"state": stats_of(ROWS)}, "human": {"state": stats_of(ROWS[:, :2] * 4)}}
    )
    normalizer = Normalizer(stats)
    value = torch.from_numpy(ROWS[:3, :2] * 4)
    made = normalizer.normalize("human", {"state": value})["state"]
    np.testing.assert_array_equal(made, normalized(normalizer_of(ROWS[:, :2] * 4), value.numpy()))
    with pytest.raises(TransformError, match="'sawyer' has the shape"):
        normalizer.normalize("sawyer", {"state": value})
    with pytest.raises(MissingStatisticsError, match="did you mean 'human'"):
        normalizer.normalize("humans", {"state": value})


def test_embodiments_may_have_skips_and_modes_of_their_own() -> None:
    narrow, wide = {"state": stats_of(ROWS[:, :2])}, {"state": stats_of(ROWS)}
    stats = NormStats({"human": {**narrow, "action": stats_of(ROWS)}, "eva": wide})
    settings = NormalizerSettings(
        skip={"state": [0], "eva": {"state": [2]}, "human": {"action": "all"}},
        modes={"state": "minmax", "eva": {"state": "quantile"}},
    )
    normalizer = Normalizer(stats, settings)
    for again in (normalizer, Normalizer.from_plain(normalizer.to_plain())):
        values = torch.from_numpy(ROWS)
        human = again.normalize("human", {"state": values[:, :2], "action": values})
        wanted = normalized(normalizer_of(ROWS[:, :2], "minmax", skip={"state": [0]}), ROWS[:, :2])
        np.testing.assert_array_equal(human["state"], wanted)
        np.testing.assert_array_equal(human["action"], ROWS)
        wanted = normalized(normalizer_of(ROWS, "quantile", skip={"state": [2]}), ROWS)
        np.testing.assert_array_equal(again.normalize("eva", {"state": values})["state"], wanted)


def test_a_key_may_be_called_as_an_embodiment_is() -> None:
    stats = NormStats({"state": {"action": stats_of(ROWS)}, "eva": {"state": stats_of(ROWS)}})
    normalizer = Normalizer(stats, NormalizerSettings(skip=["state"]))
    values = {"action": torch.from_numpy(ROWS), "state": torch.from_numpy(ROWS)}
    np.testing.assert_array_equal(normalizer.normalize("eva", values)["state"], ROWS)
    assert (normalizer.normalize("state", values)["action"].numpy() != ROWS).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip": {"sawyr": {"state": "all"}}}, "embodiment of that name, .* mean 'sawyer'"),
        ({"skip": {"sawyer": {"stat": "all"}}}, "skip of 'sawyer': .* did you mean 'state'"),
        ({"skip": {"state": {"state": [1]}}}, "what 'state' maps is for an embodiment"),
        ({"skip": {"sawyer": ["state"]}}, r"got \['state'\]; where .* give {'sawyer': {key: …}}"),
        ({"skip": {"sawyer": "state"}}, r"got 'state'; where .* give {'sawyer': {key: …}}"),
        ({"skip": {"sawyer": "all"}}, "skip: 'sawyer' is an embodiment; give {'sawyer': {key: …}}"),
        ({"skip": {"sawyer": [0]}}, "skip: 'sawyer' is an embodiment; give"),
        ({"skip": ["sawyer"]}, "skip: 'sawyer' is an embodiment; give"),
        ({"modes": {"sawyer": "minmax"}}, "modes: 'sawyer' is an embodiment; give {'sawyer': {key"),
        ({"skip": {"sawyer": {"sawyer": [0]}}}, "skip of 'sawyer': there are no statistics of"),
        ({"skip": {"sawyer": {"state": ["x"]}}}, "a dimension of 'state' must be a whole .* 'x'$"),
        ({"skip": {"sawyer": {"state": {"x": 1}}}}, "skip of 'sawyer': 'state' is 'all' or a list"),
        ({"skip": {"sawyer": {3: "all"}}}, "skip of 'sawyer': keys are texts, got 3"),
        ({"modes": {"sawyer": {"state": "max"}}}, "modes of 'sawyer': that of 'state' is 'max'"),
        ({"modes": {"sawyr": {"state": "zscore"}}}, "embodiment of that name, .* 'sawyer'"),
        ({"mode": "zscor"}, "mode is 'zscor'; did you mean 'zscore'"),
        ({"modes": {"state": "max"}}, "that of 'state' is 'max'"),
        ({"modes": {"stat": "minmax"}}, "did you mean 'state'"),
        ({"modes": ["state"]}, "modes map keys"),
        ({"skip": {"stat": "all"}}, "did you mean 'state'"),
        ({"skip": {"state": [3]}}, "have 3 dimensions, and no 3"),
        ({"skip": "state"}, "lists keys"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Normalizer(NormStats({"sawyer": {"state": stats_of(ROWS)}}), NormalizerSettings(**options))


def test_a_checkpoint_holds_all_of_it(tmp_path: Path) -> None:
    normalizer = normalizer_of(ROWS, "quantile", skip={"state": [1]})
    assert not normalizer.state_dict()
    torch.save({"hyper_parameters": normalizer.to_plain()}, tmp_path / "a.ckpt")
    plain = torch.load(tmp_path / "a.ckpt", weights_only=True)["hyper_parameters"]
    wanted = normalized(normalizer, ROWS)
    for again in (
        Normalizer.from_plain(plain),
        copy.deepcopy(normalizer),
        pickle.loads(pickle.dumps(normalizer)),
    ):
        np.testing.assert_array_equal(normalized(again, ROWS), wanted)
        assert again.to_plain() == plain


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "no normalizer"),
        ({"version": 9}, "of version 9, and 1 is known"),
        ({"settings": {}}, "settings are"),
        ({"stats": None}, "no statistics"),
    ],
)
def test_broken_checkpoints_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Normalizer.from_plain(normalizer_of(ROWS).to_plain() | change)


def test_what_is_no_batch_or_statistics_is_refused() -> None:
    normalizer = normalizer_of(ROWS)
    with pytest.raises(TransformError, match="maps keys to values, got list"):
        normalizer.normalize("sawyer", [1])  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="made of NormStats, got dict"):
        Normalizer(normalizer.stats.to_plain())  # type: ignore[arg-type]


def test_it_moves_with_its_module() -> None:
    module = torch.nn.ModuleDict({"normalizer": normalizer_of(ROWS)}).to("meta")
    made = module["normalizer"].normalize("sawyer", {"state": torch.empty(2, 3, device="meta")})
    assert made["state"].device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_module_of_half_precision_normalises_as_well(dtype: torch.dtype) -> None:
    module = torch.nn.ModuleDict({"normalizer": normalizer_of(ROWS)}).to(dtype)
    made = module["normalizer"].normalize("sawyer", {"state": torch.from_numpy(ROWS)})["state"]
    np.testing.assert_array_equal(made.numpy(), normalized(normalizer_of(ROWS), ROWS))


def test_it_comes_back_from_where_no_numbers_are_kept() -> None:
    normalizer = normalizer_of(ROWS).to("meta").to_empty(device="cpu")
    np.testing.assert_array_equal(
        normalized(normalizer, ROWS), normalized(normalizer_of(ROWS), ROWS)
    )


@pytest.mark.parametrize("value", [ROWS, ROWS.tolist(), None])
def test_numbers_that_are_no_tensor_are_refused(value: object) -> None:
    normalizer = normalizer_of(ROWS)
    for change in (normalizer.normalize, normalizer.unnormalize):
        with pytest.raises(TransformError, match=r"'state' of 'sawyer' .* must be a tensor, not "):
            change("sawyer", {"state": value})
