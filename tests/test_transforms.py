"""What all transforms have in common; what goes wrong, and how they are configured."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import egoloader.transforms
from egoloader import KeyMap, KeySpec, ZarrDataset, collate, human_keymap
from egoloader.batch import Sample
from egoloader.errors import ConfigError, SampleError, SettingsError, TransformError
from egoloader.train.config import compose, make
from egoloader.transforms import (
    Chain,
    Concatenate,
    IntoFrame,
    PadDimensions,
    PoseRotation,
    Rename,
    SelectDimensions,
    Stride,
    Transform,
    shapes_of,
)
from tests.episodes import foreign_group, foreign_numbers
from tests.transform_samples import QUATERNIONS, TRANSFORMS, batches, samples

#: What is joined and taken apart stands together, and has one mask.
JOINING = ("concatenate", "concatenate optional", "concatenate all optional", "chain")
INVERTIBLE = [name for name in TRANSFORMS if not name.endswith("lossy")]


def bits(sample: dict[str, Any]) -> dict[str, Any]:
    """Return what a sample holds, to the last bit, NaN and the order of keys among it."""
    return {
        key: (value.dtype, tuple(value.shape), value.contiguous().numpy().tobytes())
        if isinstance(value, torch.Tensor)
        else value
        for key, value in sample.items()
    }


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return list(left) == list(right) and bits(left) == bits(right)


def test_every_transform_is_tried() -> None:
    public = [getattr(egoloader.transforms, name) for name in egoloader.transforms.__all__]
    classes = {one for one in public if isinstance(one, type) and issubclass(one, Transform)}
    tried = {type(one) for one in TRANSFORMS.values()}
    inverses = {type(TRANSFORMS[name].inverse()) for name in INVERTIBLE}
    assert tried | inverses | {Transform} == classes


@pytest.mark.parametrize("name", TRANSFORMS)
@settings(deadline=None, max_examples=25)
@given(drawn=batches())
def test_a_batch_comes_out_as_its_samples_do(name: str, drawn: Any) -> None:
    transform, (made, batch) = TRANSFORMS[name], drawn
    alone = [transform(sample) for sample in made]
    assert same(transform(batch), collate(alone))
    if name in INVERTIBLE:
        back = transform.inverse()
        assert same(back(transform(batch)), collate([back(sample) for sample in alone]))


@pytest.mark.parametrize("name", TRANSFORMS)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_what_comes_out_is_as_declared_and_new(name: str, data: Any) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.float16]))
    transform, sample = TRANSFORMS[name], data.draw(samples(dtype))
    before = bits(sample)
    made = transform(sample)
    assert list(shapes_of(made).items()) == list(transform.shapes(shapes_of(sample)).items())
    assert same(made, transform(sample))
    assert (
        not {one.dtype for one in made.values() if torch.is_tensor(one)}
        - {one.dtype for one in sample.values() if torch.is_tensor(one)}
        - {torch.bool}
    )
    for key, value in made.items():
        if torch.is_tensor(value) and not any(value is one for one in sample.values()):
            value.fill_(1)  # a transform behind it may write into what it is handed
            assert value.is_contiguous(), key
    assert bits(sample) == before


@pytest.mark.parametrize("name", INVERTIBLE)
@settings(deadline=None, max_examples=50)
@given(sample=samples())
def test_there_and_back_again(name: str, sample: Sample) -> None:
    transform = TRANSFORMS[name]
    back = transform.inverse()(transform(sample))
    # A mask of dimensions tells where parts that may be absent are padded.
    masks = ("is_other_span",) if "optional" in name else ("is_pad", "is_other_span")
    joined = {"hand", "joints"} if name in JOINING else set()
    joined |= {f"{key}_{mask}" for key in joined for mask in ("is_pad", "is_other_span")}
    assert set(back) == set(sample)
    assert [key for key in back if key not in joined] == [
        key for key in sample if key not in joined
    ]
    for mask in masks if joined else ():
        wanted = sample[f"hand_{mask}"] | sample[f"joints_{mask}"]
        for key in ("hand", "joints"):
            assert torch.equal(back.pop(f"{key}_{mask}"), wanted)
    for key in back:
        value = sample[key]
        if not torch.is_tensor(value) or not value.is_floating_point():
            assert bits({key: back[key]}) == bits({key: value})
            continue
        wanted, found = value.double(), back[key].double()
        if key == "hand" and name == "to angles" and not wanted.any():
            continue  # angles of 0 are no turn, so that what is absent comes back as none
        if key in QUATERNIONS:  # q and -q are the same
            signs = (wanted[..., 3:7] * found[..., 3:7]).sum(-1, keepdim=True).sign()
            found[..., 3:7] *= torch.where(signs < 0, -1.0, 1.0)
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_is_a_value(name: str) -> None:
    transform = TRANSFORMS[name]
    again = pickle.loads(pickle.dumps(transform))
    assert again == transform
    assert hash(again) == hash(transform)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(transform, dataclasses.fields(transform)[0].name, ())  # type: ignore[arg-type]
    if name in INVERTIBLE and "fixed" not in name:
        assert transform.inverse().inverse() == transform
    elif name not in INVERTIBLE:
        wanted = rf"{type(transform).__name__}: there is no inverse: \w+"
        with pytest.raises(SettingsError, match=wanted):
            transform.inverse()


def test_which_look_at_one_step_alone() -> None:
    windowed = {"IntoFrame", "OutOfFrame", "RelativeToFirst", "FromFirst", "Resample", "Stride"}
    windowed |= {"RelativeActions", "AbsoluteActions", "DeltaActions", "AccumulatedActions"}
    for transform in TRANSFORMS.values():
        if isinstance(transform, Chain):
            assert not transform.is_per_row
            assert Chain(transform.transforms[1:]).is_per_row
        else:
            assert transform.is_per_row == (type(transform).__name__ not in windowed)


# What doesn't fit.

SHAPES = {"hand": (4, 7), "hand_is_pad": (4,), "head": (7,), "text": None, "image": (3, 8, 6)}


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            PoseRotation(keys=["hands"], target=["xyz", "matrix"]),
            "key 'hands'; did you mean 'hand'?",
        ),
        (Stride(keys=["text"], every=2), "key 'text' is no tensor"),
        (Stride(keys=["head"], every=2), r"'head' must be a chunk, \(n, D\), .* shape \[7\]"),
        (Stride(keys=["hand"], every=2, start=4), "has 4 steps, and none is left"),
        (
            PoseRotation(keys=["image"], target=["xyz", "matrix"]),
            r"key 'image' has rows of 6 numbers, and \[xyz, quaternion_wxyz\] has 7",
        ),
        (SelectDimensions(keys=["hand"], dimensions=[0, 7]), "rows of 7 numbers, and no 7"),
        (IntoFrame(keys=["head"], reference="hand"), r"'hand', .*\[4, 7\], has steps: set step"),
        (
            IntoFrame(keys=["hand"], reference="head", step=-1),
            r"'head', of the shape \[7\], has no steps: leave step out",
        ),
        (IntoFrame(keys=["head"], reference="hand", step=4), "'hand' has 4 steps, and no 4"),
        (IntoFrame(keys=["hand"], reference="haed"), "no key 'haed'; did you mean 'head'"),
        (PadDimensions(keys=["hand"], given=6, size=9), "rows of 7 numbers, and not of 6"),
        (Rename(keys=["hand"], to=["head"]), "there is a key 'head' already"),
        (Rename(keys=["fps"], to=["rate"]), "no key 'fps'"),
    ],
)
def test_what_cannot_work_is_refused_before_training(transform: Transform, message: str) -> None:
    wanted = rf"{type(transform).__name__}: .*{message}"
    with pytest.raises(SettingsError, match=f"^{wanted}"):
        transform.shapes(SHAPES)
    first = Rename(keys=["image"], to=["picture"])
    if "image" not in getattr(transform, "keys", ()):
        with pytest.raises(SettingsError, match=rf"^transforms\[1\], {wanted}"):
            Chain([first, transform]).shapes(SHAPES)


def test_a_mask_that_is_none_of_its_keys_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"key 'hand', \[4, 7\], has a mask of the shape \[3\]"):
        Stride(keys=["hand"], every=2).shapes(SHAPES | {"hand_is_pad": (3,)})
    keypoints = {"points": (4, 21, 3), "points_is_pad": (4,)}
    with pytest.raises(SettingsError, match=r"rows of key 'points' are of the shape \[21, 3\]"):
        Stride(keys=["points"], every=2).shapes(keypoints)
    assert IntoFrame(keys=["points"], reference="head", row=["xyz"]).shapes(
        keypoints | {"head": (7,)}
    ) == keypoints | {"head": (7,)}


def test_padded_dimensions_come_last() -> None:
    padded = PadDimensions(keys=["hand"], given=7, size=9)
    with pytest.raises(
        SettingsError, match=r"transforms\[1\], .* 'hand' are padded; pad them behind it"
    ):
        Chain([padded, Stride(keys=["hand"], every=2)]).shapes(SHAPES)


def test_numbers_that_are_no_floats_are_refused() -> None:
    sample = {"a": torch.zeros(7, dtype=torch.int64)}
    with pytest.raises(TransformError, match=r"PoseRotation: key 'a' must hold floating .*int64"):
        PoseRotation(keys=["a"], target=["xyz", "matrix"])(sample)
    parts = {"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.float64)}
    with pytest.raises(TransformError, match=r"Concatenate: \['a', 'b'\] have several dtypes"):
        Concatenate(keys=["a", "b"], sizes=[2, 2], whole="c")(parts)


def test_a_chain_takes_transforms_that_declare_their_shapes() -> None:
    with pytest.raises(SettingsError, match=r"Chain: transforms\[0\] declares no shapes"):
        Chain([lambda sample: sample])  # type: ignore[list-item]
    with pytest.raises(SettingsError, match="Chain: transforms must be a list"):
        Chain(Stride(keys=["a"], every=2))  # type: ignore[arg-type]
    wanted = r"^transforms\[1\], Stride: there is no inverse: the steps"
    with pytest.raises(SettingsError, match=wanted):
        Chain([Rename(keys=["a"], to=["b"]), Stride(keys=["b"], every=2)]).inverse()
    assert Chain([])({"a": 1}) == {"a": 1}


# In a dataset, and in a recipe.


def poses_of(path: Path, total: int = 9, bad: int | None = None) -> Path:
    group = foreign_group(path, total)
    rows = np.zeros((total, 7), dtype=np.float32)
    rows[:, 0], rows[:, 3] = np.arange(total), 1
    if bad is not None:
        rows[bad] = 0
    foreign_numbers(group, "pose", rows)
    return path


def entries() -> KeyMap:
    spec = KeySpec(zarr_key="pose", key_type="action_keys", horizon=3, mask=True)
    absent = KeySpec(zarr_key="arm", key_type="proprio_keys", history=2, optional=True, shape=(7,))
    return KeyMap({"pose": spec, "arm": absent})


def test_in_a_dataset_an_absent_array_stays_zero_and_a_failure_names_the_frame(
    tmp_path: Path,
) -> None:
    turn = PoseRotation(keys=["pose", "arm"], target=["xyz", "rotation_6d"])
    ds = ZarrDataset(poses_of(tmp_path / "good.zarr"), entries(), transforms=[turn])
    sample = ds[7]
    assert sample["pose"][:, 0].tolist() == [7, 8, 8]
    assert sample["pose"][0, 3:].tolist() == [1, 0, 0, 0, 1, 0]
    assert sample["pose_is_pad"].tolist() == [False, False, True]
    assert sample["arm"].shape == (2, 9)
    assert not sample["arm"].any()
    assert sample["arm_is_pad"].all()
    bad = ZarrDataset(poses_of(tmp_path / "bad.zarr", bad=6), entries(), transforms=[turn])
    wanted = r"episode 'bad.zarr', frame 5: transform PoseRotation failed: .*key 'pose', row \[1\]"
    with pytest.raises(SampleError, match=wanted):
        bad[5]


def test_a_chain_is_checked_against_a_sample_before_training(human: Path) -> None:
    given_ = shapes_of(ZarrDataset(human, human_keymap(mode="cartesian", horizon=4))[3])
    hands = ["left.action_ee_pose", "right.action_ee_pose"]
    chain = Chain(
        [
            IntoFrame(keys=hands, reference="obs_head_pose"),
            Concatenate(keys=hands, sizes=[7, 7], whole="action"),
        ]
    )
    made = chain.shapes(given_)
    assert made["action"] == (4, 14)
    assert not set(hands) & set(made)


RECIPE = (
    "data.transforms=["
    "{_target_: egoloader.transforms.PoseRotation, keys: [a, b], target: [xyz, rotation_6d, 1],"
    " source: [xyz, quaternion_xyzw, 1]},"
    "{_target_: egoloader.transforms.FixedFrame, keys: [a], row: [xyz, rotation_6d, 1],"
    " matrix: [[1, 0, 0, 0.5], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]},"
    "{_target_: egoloader.transforms.Concatenate, keys: [a, b], sizes: [10, 10], whole: action}]"
)


def test_a_recipe_lists_transforms_in_order() -> None:
    built = make(compose([RECIPE]).data)._options["transforms"]
    assert [type(one).__name__ for one in built] == ["PoseRotation", "FixedFrame", "Concatenate"]
    assert built[0] == PoseRotation(
        keys=["a", "b"], source=["xyz", "quaternion_xyzw", 1], target=["xyz", "rotation_6d", 1]
    )
    assert built[0].keys == ("a", "b")
    assert type(built[1].matrix) is tuple
    assert all(type(row) is tuple for row in built[1].matrix)
    made = Chain(built).shapes({"a": (2, 8), "b": (2, 8)})
    assert made == {"action": (2, 20)}


def test_a_recipe_that_cannot_be_meant_is_named() -> None:
    with pytest.raises(SettingsError, match=r"PoseRotation: target has a part 'rotation_6D'"):
        make(compose([RECIPE.replace("rotation_6d, 1],", "rotation_6D, 1],", 1)]).data)
    with pytest.raises(ConfigError, match=r"data\.transforms.* 'seys'"):
        make(compose([RECIPE.replace("keys", "seys", 1)]).data)
