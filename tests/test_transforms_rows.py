"""Rows of other axes than one: what the samples hold is what numpy says, or it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from egoloader import KeyMap, MultiDataset, NormStats, ZarrDataset
from egoloader.batch import Sample
from egoloader.errors import SettingsError
from egoloader.transforms import (
    AbsoluteActions,
    AccumulatedActions,
    CanonicalQuaternion,
    Chain,
    Concatenate,
    CutDimensions,
    DeltaActions,
    Drop,
    FixedFrame,
    FlattenRows,
    FromFirst,
    IntoFrame,
    InvertGripper,
    OutOfFrame,
    PadDimensions,
    PoseRotation,
    RelativeActions,
    RelativeToFirst,
    Rename,
    Resample,
    SelectDimensions,
    Split,
    Stride,
    Transform,
    UnflattenRows,
)
from tests.episodes import foreign_group, foreign_numbers
from tests.turns import matrix_of_quaternion

Numbers = npt.NDArray[Any]

TOTAL, STEPS, AT = 9, 4, 3
#: Rows of each kind: a number, dimensions, points or quaternions.
KINDS: dict[str, tuple[int, ...]] = {"number": (), "vector": (4,), "points": (21, 4)}
MATRIX = [[0, -1, 0, 0.5], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
POINT, QUATERNION = ["xyz", 1], ["quaternion_wxyz"]
HEAD = np.array([1, 2, 3, 0.5, 0.5, 0.5, 0.5], np.float32)


def rows_of(kind: str) -> Numbers:
    """Return float32 rows, (TOTAL, *shape), where every number is its own, and none is 0."""
    row = np.arange(1, math.prod(KINDS[kind]) + 1).reshape(KINDS[kind])
    return np.add.outer(1000 * np.arange(TOTAL), row).astype(np.float32)


def write(folder: Path) -> Path:
    group = foreign_group(folder / "a.zarr", TOTAL)
    for kind in KINDS:
        foreign_numbers(group, kind, rows_of(kind))
    foreign_numbers(group, "head", np.tile(HEAD, (TOTAL, 1)))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("episodes"))


def entries(kind: str, *, mask: bool) -> KeyMap:
    chunk = {"zarr_key": kind, "key_type": "action_keys", "horizon": STEPS, "mask": mask}
    now = {"zarr_key": kind, "key_type": "proprio_keys"}
    head = {"zarr_key": "head", "key_type": "proprio_keys"}
    return KeyMap.from_config({"a": chunk, "b": chunk, "now": now, "head": head})


# What becomes of rows, by numpy, whatever axes stand ahead.


def moved(matrix: Any, rows: Numbers) -> Numbers:
    turned = rows[..., :3] @ np.asarray(matrix)[:3, :3].T + np.asarray(matrix)[:3, 3]
    return np.concatenate([turned, rows[..., 3:]], axis=-1)


def into_head(rows: Numbers) -> Numbers:
    turn = matrix_of_quaternion(*HEAD[3:].tolist())
    return np.concatenate([(rows[..., :3] - HEAD[:3]) @ turn, rows[..., 3:]], axis=-1)


def padded(rows: Numbers) -> Numbers:
    return np.concatenate([rows, np.zeros_like(rows[..., :2])], axis=-1)


def between(rows: Numbers) -> Numbers:
    where = np.linspace(0, len(rows) - 1, 7)
    return np.stack([np.interp(where, range(len(rows)), one) for one in rows.T], axis=-1)


def norm_1(rows: Numbers) -> Numbers:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@dataclass(frozen=True)
class Case:
    """A transform of `a`, the kinds that it takes, and what numpy makes of these."""

    transform: Transform
    kinds: tuple[str, ...]
    wanted: Callable[[Numbers], Numbers]
    key: str = "a"


ANY, LAST, ONE = ("number", "vector", "points"), ("vector", "points"), ("vector",)
A: Any = {"keys": ["a"]}
NOW: Any = {**A, "reference": "now", "row": ["4 x scalar"]}
CASES = {
    "invert all": Case(InvertGripper(**A, low=0, high=1), ANY, lambda rows: 1 - rows),
    "invert some": Case(
        InvertGripper(**A, low=0, high=1, dimensions=[1]),
        LAST,
        lambda rows: np.where(np.arange(4) == 1, 1 - rows, rows),
    ),
    "select": Case(SelectDimensions(**A, dimensions=[2, 0]), LAST, lambda rows: rows[..., [2, 0]]),
    "cut": Case(CutDimensions(**A, given=3, size=4), LAST, lambda rows: rows[..., :3]),
    "fixed frame": Case(
        FixedFrame(**A, row=POINT, matrix=MATRIX), LAST, lambda rows: moved(MATRIX, rows)
    ),
    "frame": Case(IntoFrame(**A, row=POINT, reference="head"), LAST, into_head),
    "canonical": Case(CanonicalQuaternion(**A, row=QUATERNION), LAST, norm_1),
    "rotation": Case(
        PoseRotation(**A, source=QUATERNION, target=["quaternion_xyzw"]),
        LAST,
        lambda rows: np.roll(rows, -1, axis=-1),
    ),
    "concatenate": Case(
        Concatenate(keys=["a", "b"], sizes=[4, 4], whole="whole"),
        LAST,
        lambda rows: np.concatenate([rows, rows], axis=-1),
        "whole",
    ),
    "split": Case(
        Split(keys=["x", "y"], sizes=[1, 3], whole="a"), LAST, lambda rows: rows[..., 1:], "y"
    ),
    "rename": Case(Rename(**A, to=["c"]), ANY, lambda rows: rows, "c"),
    "drop": Case(Drop(keys=["b"]), ANY, lambda rows: rows),
    "flatten numbers": Case(FlattenRows(**A, shape=[]), ("number",), lambda rows: rows[..., None]),
    "flatten points": Case(
        FlattenRows(**A, shape=[21, 4]),
        ("points",),
        lambda rows: rows.reshape(*rows.shape[:-2], 84),
    ),
    "unflatten": Case(
        UnflattenRows(**A, shape=[2, 2]), ONE, lambda rows: rows.reshape(*rows.shape[:-1], 2, 2)
    ),
    "relative to the first": Case(
        RelativeToFirst(**A, row=POINT),
        ONE,
        lambda rows: np.concatenate([rows[:, :3] - rows[:1, :3], rows[:, 3:]], axis=-1),
    ),
    "relative": Case(RelativeActions(**NOW), ONE, lambda rows: rows - rows[:1]),
    "deltas": Case(DeltaActions(**NOW), ONE, lambda rows: np.diff(rows, axis=0, prepend=rows[:1])),
    "resample": Case(Resample(**A, steps=7), ONE, between),
    "stride": Case(Stride(**A, every=2), ONE, lambda rows: rows[::2]),
    "pad": Case(PadDimensions(**A, given=4, size=6), LAST, padded),
    "join numbers": Case(
        Chain(
            [
                FlattenRows(keys=["a", "b"], shape=[]),
                Concatenate(keys=["a", "b"], sizes=[1, 1], whole="whole"),
            ]
        ),
        ("number",),
        lambda rows: np.stack([rows, rows], axis=-1),
        "whole",
    ),
}


def test_every_transform_is_tried() -> None:
    import egoloader.transforms as package

    public = {getattr(package, name) for name in package.__all__}
    classes = {one for one in public if isinstance(one, type) and issubclass(one, Transform)}
    tried = {type(case.transform) for case in CASES.values()}
    inverses = {OutOfFrame, FromFirst, AbsoluteActions, AccumulatedActions}
    assert tried | inverses | {Transform} == classes


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_samples_and_statistics_are_what_numpy_says_or_refused_by_name(
    folder: Path, name: str, kind: str, mask: bool
) -> None:
    case, keymap = CASES[name], entries(kind, mask=mask)
    rows = rows_of(kind)
    if kind not in case.kinds:
        steps = [case.transform]
        said = refusal(lambda: MultiDataset.from_folder(folder, keymap, transforms=steps))
        assert said.startswith("embodiment 'human', episode 'a.zarr': transforms[0], ")
        assert said.endswith(refusal(lambda: case.transform(as_rows(rows))))
        return
    data = MultiDataset.from_folder(folder, keymap, transforms=[case.transform])
    for frame in (0, AT):
        found = data[frame][case.key].double().numpy()
        np.testing.assert_allclose(found, case.wanted(rows[frame : frame + STEPS]), rtol=1e-5)
    if case.transform.is_per_row:
        stats = NormStats.compute(data)["human"][case.key]
        wanted = case.wanted(rows.astype(np.float64))
        assert (stats.shape, stats.count) == (wanted.shape[1:], TOTAL)
        np.testing.assert_allclose(stats.mean, wanted.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(stats.max, wanted.max(axis=0), rtol=1e-6)


def as_rows(rows: Numbers) -> Sample:
    """Return rows as statistics look at them: a batch without windows, and all of its masks."""
    made = {key: torch.from_numpy(rows) for key in ("a", "b", "now")}
    made["head"] = torch.from_numpy(np.tile(HEAD, (TOTAL, 1)))
    return made | {f"{key}_is_pad": torch.zeros(TOTAL, dtype=torch.bool) for key in made}


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(SettingsError) as caught:
        make()
    return str(caught.value)


def test_a_refusal_says_what_makes_rows_of_one_axis_of_them(folder: Path) -> None:
    said = refusal(
        lambda: ZarrDataset(
            folder / "a.zarr",
            entries("points", mask=False),
            transforms=[Rename(keys=["a"], to=["c"]), Stride(keys=["c"], every=2)],
        )
    )
    assert said == (
        "embodiment 'human', episode 'a.zarr': transforms[1], Stride: the rows of key 'c' are of "
        "the shape [21, 4], and must be (D,); put FlattenRows(keys=['c'], shape=[21, 4]) ahead of "
        "it, which makes them (84,)"
    )


def test_rows_that_are_flattened_go_through_all_the_rest(folder: Path) -> None:
    flat = FlattenRows(keys=["a", "now"], shape=[21, 4])
    parts = ["21 x scalar", 63]
    chain = [flat, RelativeActions(keys=["a"], reference="now", row=parts), flat.inverse()]
    for mask in (False, True):
        data = MultiDataset.from_folder(folder, entries("points", mask=mask), transforms=chain)
        rows = rows_of("points")[AT : AT + STEPS].reshape(STEPS, 84)
        rows[:, :21] -= rows[0, :21].copy()
        assert data[AT]["a"].numpy().tolist() == rows.reshape(STEPS, 21, 4).tolist()


@pytest.mark.parametrize("mask", [True, False])
def test_a_transform_called_alone_goes_by_the_mask(mask: bool) -> None:
    points = {"a": torch.arange(4 * 21 * 3.0).reshape(4, 21, 3)}
    scalars = {"a": torch.arange(4.0)}
    is_pad = {"a_is_pad": torch.zeros(4, dtype=torch.bool)} if mask else {}
    for transform, value in (
        (Stride(keys=["a"], every=2), points),
        (RelativeToFirst(keys=["a"], row=["xyz"]), points),
        (SelectDimensions(keys=["a"], dimensions=[0]), scalars),
    ):
        if mask:
            with pytest.raises(SettingsError, match=r"the rows of key 'a' are .*; put FlattenRows"):
                transform(value | is_pad)
        else:  # nothing tells it from steps of rows of one axis, or a row
            transform(value)


def test_what_stands_ahead_of_a_function_is_checked_too(folder: Path) -> None:
    keymap = entries("number", mask=False)
    pad = PadDimensions(keys=["a"], given=STEPS, size=6)
    with pytest.raises(SettingsError, match=r"transforms\[0\], PadDimensions: the rows of key 'a'"):
        ZarrDataset(folder / "a.zarr", keymap, transforms=[pad, dict])


def test_a_mask_that_is_left_out_does_not_make_steps_of_numbers(folder: Path) -> None:
    steps = [Drop(keys=["a_is_pad"]), SelectDimensions(keys=["a"], dimensions=[0])]
    with pytest.raises(SettingsError, match=r"transforms\[1\], SelectDimensions: the rows of key"):
        ZarrDataset(folder / "a.zarr", entries("number", mask=True), transforms=steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": [3]}, r"rows of the shape \[3\] are \(D,\) already"),
        ({"shape": [3, 0]}, "shape must be a whole number from 1 on, got 0"),
        ({"shape": "3,2"}, "shape must list the axes of a row, got '3,2'"),
    ],
)
def test_shapes_that_cannot_be_meant_are_refused(options: Any, message: str) -> None:
    for kind in (FlattenRows, UnflattenRows):
        with pytest.raises(SettingsError, match=rf"^{kind.__name__}: {message}"):
            kind(keys=["a"], **options)
    with pytest.raises(SettingsError, match=r"key 'a' has rows of 5 .* \[2, 3\] has 6"):
        UnflattenRows(keys=["a"], shape=[2, 3]).shapes({"a": (5,)})
    with pytest.raises(SettingsError, match=r"key 'a' has the shape \[5\], and no rows"):
        FlattenRows(keys=["a"], shape=[2, 3]).shapes({"a": (5,)})
