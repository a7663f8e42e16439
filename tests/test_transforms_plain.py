"""Transforms as plain values: there, through files, and back."""

from __future__ import annotations

import io
import json
from typing import Any

import hydra
import numpy as np
import pytest
import torch
import yaml

import egoloader.transforms
from egoloader.errors import SettingsError
from egoloader.transforms import (
    Chain,
    FixedFrame,
    InvertGripper,
    Stride,
    Transform,
    from_plain,
    to_plain,
)
from egoloader.transforms.plain import _CLASSES
from tests.transform_samples import TRANSFORMS

ALL = {
    **TRANSFORMS,
    **{
        f"{name}, inverse": one.inverse()
        for name, one in TRANSFORMS.items()
        if not name.endswith("lossy")
    },
    "chains": Chain([Chain([Stride(keys=["hand"], every=2)]), *TRANSFORMS["chain"].transforms]),
}


def test_all_that_are_public_can_be_kept() -> None:
    public = [getattr(egoloader.transforms, name) for name in egoloader.transforms.__all__]
    classes = {one for one in public if isinstance(one, type) and issubclass(one, Transform)}
    assert set(_CLASSES) == classes - {Transform}
    assert {type(one) for one in ALL.values()} == set(_CLASSES)


@pytest.mark.parametrize("name", ALL)
def test_there_and_back_through_files(name: str) -> None:
    transform = ALL[name]
    plain = to_plain([transform])
    assert from_plain(plain) == (transform,)
    for again in (json.loads(json.dumps(plain)), yaml.safe_load(yaml.safe_dump(plain))):
        assert again == plain
        assert from_plain(again) == (transform,)
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    assert from_plain(torch.load(file, weights_only=True)) == (transform,)


@pytest.mark.parametrize("name", ALL)
def test_they_are_as_a_recipe_lists_them(name: str) -> None:
    (plain,) = to_plain([ALL[name]])
    assert hydra.utils.instantiate(plain, _convert_="all") == ALL[name]


def test_numbers_of_numpy_become_plain_ones() -> None:
    plain = to_plain([InvertGripper(keys=["a"], low=np.float64(0.5), high=2)])
    assert [type(plain[0][end]) for end in ("low", "high")] == [float, int]
    matrix = to_plain([FixedFrame(keys=["a"], matrix=np.eye(4, dtype=np.float32))])[0]["matrix"]
    assert matrix == np.eye(4).tolist()
    assert {type(one) for row in matrix for one in row} == {float}


class Mine(Stride):
    """Of somebody else."""


@pytest.mark.parametrize("transform", [Mine(keys=["a"], every=2), dict, lambda sample: sample])
def test_what_could_not_be_made_again_is_refused(transform: Any) -> None:
    good = Stride(keys=["a"], every=2)
    with pytest.raises(SettingsError, match=r"^transforms\[1\], .* is none of egoloader"):
        to_plain([good, transform])
    if isinstance(transform, Transform):
        with pytest.raises(SettingsError, match=r"^transforms\[0\].transforms\[1\], .* is none of"):
            to_plain([Chain([good, transform])])


GOOD = {"_target_": "egoloader.transforms.Stride", "keys": ["a"], "every": 2}


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "transforms must be a list, got dict"),
        ("Stride", "transforms must be a list, got str"),
        (["Stride"], r"transforms\[0\] must be {_target_: egoloader.transforms.…"),
        ([GOOD, {"every": 2}], r"transforms\[1\] must be {_target_"),
        ([GOOD | {"_target_": "os.system"}], r"transforms\[0\] names 'os.system', which is no"),
        ([GOOD | {"_target_": ["x"]}], r"transforms\[0\] names \['x'\], which is no"),
        (
            [GOOD | {"_target_": "egoloader.transforms.Strid"}],
            "did you mean 'egoloader.transforms.Stride'",
        ),
        ([GOOD | {"_target_": "egoloader.transforms.Transform"}], "which is no transform"),
        ([GOOD | {"_target_": "egoloader.transforms.chunks.Stride"}], "which is no transform"),
        (
            [GOOD | {"evry": 2}],
            r"\[0\], Stride, has no option 'evry'; did you mean 'every'",
        ),
        ([{**GOOD, 7: 2}], r"transforms\[0\], Stride, has no option 7"),
        (
            [{"_target_": GOOD["_target_"], "keys": ["a"]}],
            r"\[0\], Stride, lacks 'every'",
        ),
        ([GOOD | {"every": 0}], r"transforms\[0\], Stride: every must be"),
        (
            [{"_target_": "egoloader.transforms.Chain", "transforms": [{"_target_": "eval"}]}],
            r"transforms\[0\] names 'eval'",
        ),
    ],
)
def test_plain_values_that_are_none_are_refused(plain: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        from_plain(plain)
