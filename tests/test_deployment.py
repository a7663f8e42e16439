"""Predicted actions come back as they were recorded, whatever transforms lie between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from egoloader.errors import SettingsError, TransformError
from egoloader.keyspec import DTYPES
from egoloader.train.deployment import predict_recorded
from egoloader.train.spec import RecordedAction
from egoloader.transforms import (
    Chain,
    Concatenate,
    DeltaActions,
    Drop,
    IntoFrame,
    PadDimensions,
    PoseRotation,
    RelativeActions,
    RelativeToFirst,
    Rename,
    Stride,
    Transform,
)

POSES = ["state", "action"]
WHOLE = [
    IntoFrame(keys=POSES, reference="head"),
    Drop(keys=["head"]),
    RelativeActions(keys=["action"], reference="state", step=-1),
    PoseRotation(keys=POSES, target=["xyz", "rotation_6d"]),
    Concatenate(keys=["action", "grip"], sizes=[9, 1], whole="arm"),
    Stride(keys=["state"], every=2),
    Rename(keys=["arm", "state"], to=["target", "pose"]),
    PadDimensions(keys=["target"], given=10, size=12),
]
RECORDED = {"action": RecordedAction((5, 7)), "grip": RecordedAction((5, 1))}


def poses(generator: np.random.Generator, *lead: int) -> torch.Tensor:
    """Return poses, xyz and wxyz with w >= 0: (*lead, 7)."""
    count = int(np.prod(lead))
    turns = Rotation.random(count, random_state=generator).as_quat(
        canonical=True, scalar_first=True
    )
    rows = np.concatenate([generator.normal(size=(count, 3)), turns], axis=1)
    return torch.from_numpy(rows.reshape(*lead, 7).astype(np.float32))


def batch(size: int = 3) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        "fps": torch.full((size,), 30.0),
        "head": poses(generator, size),
        "state": poses(generator, size, 4),
        "action": poses(generator, size, 5),
        "action_is_pad": torch.zeros(size, 5, dtype=torch.bool),
        "grip": torch.from_numpy(generator.random((size, 5, 1)).astype(np.float32)),
        "grip_is_pad": torch.zeros(size, 5, dtype=torch.bool),
    }


def observed(whole: dict[str, Any]) -> dict[str, Any]:
    return {key: whole[key] for key in ("fps", "head", "state")}


@pytest.mark.parametrize("kept", range(len(WHOLE) + 1))
def test_what_is_predicted_behind_transforms_comes_back_as_it_was_recorded(kept: int) -> None:
    whole, transforms = batch(), WHOLE[:kept]
    known = Chain(transforms)(whole)
    seen: list[dict[str, Any]] = []

    def forward(transformed: dict[str, Any]) -> dict[str, torch.Tensor]:
        seen.append(transformed)
        names = [key for key in ("action", "grip", "arm", "target") if key in known]
        # As a network gives them: rows flat.
        return {key: known[key].reshape(*known[key].shape[:2], -1) for key in names}

    made = predict_recorded(observed(whole), RECORDED, transforms, forward)
    assert {key: tuple(value.shape) for key, value in made.items()} == {
        key: (3, *action.shape) for key, action in RECORDED.items()
    }
    for key, value in made.items():
        assert torch.allclose(value, whole[key], atol=1e-5), key
    # The network sees the observations transformed, as in training, and no actions.
    for key in ("head", "state", "pose"):
        assert (key in seen[0]) == (key in known)
        assert key not in known or torch.equal(seen[0][key], known[key])
    masks = [seen[0][key] for key in seen[0] if key.endswith("_is_pad") and "dim" not in key]
    assert masks
    assert all(bool(mask.all()) for mask in masks)


def test_actions_that_are_there_are_not_looked_at() -> None:
    whole = batch()
    known = Chain(WHOLE)(whole)
    spoilt = {**whole, "action": torch.full_like(whole["action"], torch.nan)}
    made = predict_recorded(spoilt, RECORDED, WHOLE, lambda _: {"target": known["target"]})
    assert torch.allclose(made["action"], whole["action"], atol=1e-5)


def test_deltas_add_up_again() -> None:
    whole = batch()
    chain = [DeltaActions(keys=["grip"], reference="grip_now", row=["scalar"])]
    whole["grip_now"] = torch.rand(3, 1)
    known = Chain(chain)(whole)["grip"]
    made = predict_recorded(
        {"fps": whole["fps"], "grip_now": whole["grip_now"]},
        {"grip": RecordedAction((5, 1))},
        chain,
        lambda _: {"grip": known},
    )
    assert torch.allclose(made["grip"], whole["grip"], atol=1e-6)


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([Stride(keys=["grip"], every=2)], "can't be given as they are recorded: Stride"),
        ([IntoFrame(keys=["action"], reference="tail")], "there is no key 'tail'"),
        (
            [RelativeToFirst(keys=["grip"], row=["xyz"])],
            "RelativeToFirst tells 'grip' from its own first step, which is not observed",
        ),
        ([RelativeToFirst(keys=["action"])], "tells 'action' from its own first step"),
    ],
)
def test_what_cannot_be_taken_back_is_refused(transforms: list[Transform], message: str) -> None:
    def forward(transformed: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {key: transformed[key] for key in ("action", "grip")}

    width = 3 if "grip" in message else 1
    recorded = {"action": RecordedAction((5, 7)), "grip": RecordedAction((5, width))}
    with pytest.raises(SettingsError, match=message):
        predict_recorded(observed(batch()), recorded, transforms, forward)


@pytest.mark.parametrize("place", [0, 1])
def test_actions_that_are_left_out_do_not_keep_others_from_coming_back(place: int) -> None:
    whole = batch()
    transforms: list[Transform] = [IntoFrame(keys=["action"], reference="head")]
    transforms.insert(place, Drop(keys=["grip"]))
    known = Chain(transforms)(whole)["action"]
    made = predict_recorded(observed(whole), RECORDED, transforms, lambda _: {"action": known})
    assert set(made) == {"action"}
    assert torch.allclose(made["action"], whole["action"], atol=1e-5)


def test_a_window_of_states_may_be_told_from_its_first_step() -> None:
    whole, chain = batch(), [RelativeToFirst(keys=["state"])]
    made = predict_recorded(observed(whole), RECORDED, chain, lambda _: {"grip": whole["grip"]})
    assert torch.equal(made["grip"], whole["grip"])


def test_a_batch_without_its_rate_is_refused() -> None:
    with pytest.raises(SettingsError, match="'fps'"):
        predict_recorded({"state": torch.zeros(2, 7)}, RECORDED, [], lambda _: {})
    for wrong in (30.0, [30.0, 30.0], torch.tensor(30.0)):
        with pytest.raises(SettingsError, match=r"'fps' must be a tensor of a rate per sample"):
            predict_recorded({"fps": wrong}, RECORDED, [], lambda _: {})


# What actions are of.


def test_actions_are_of_the_dtype_that_they_were_recorded_with() -> None:
    whole = batch()
    for key in ("state", "action", "grip"):
        whole[key] = whole[key].double()
    for key in ("state", "action"):  # quaternions of as many digits
        whole[key][..., 3:] /= whole[key][..., 3:].norm(dim=-1, keepdim=True)
    known = Chain(WHOLE)(whole)["target"]
    assert known.dtype == torch.float64
    recorded = {key: RecordedAction(one.shape, "float64") for key, one in RECORDED.items()}
    made = predict_recorded(observed(whole), recorded, WHOLE, lambda _: {"target": known})
    for key, value in made.items():
        assert value.dtype == torch.float64
        assert torch.allclose(value, whole[key], rtol=0, atol=1e-12), key


def numbers(dtype: str, *values: float, transforms: Sequence[Transform] = ()) -> torch.Tensor:
    """Return an action of a dtype for which such numbers were predicted."""
    predicted = torch.tensor(values)[None, :, None]
    recorded = {"grip": RecordedAction((len(values), 1), dtype)}
    rates = {"fps": torch.tensor([30.0])}
    name = "hand" if transforms else "grip"
    made = predict_recorded(rates, recorded, transforms, lambda _: {name: predicted})["grip"]
    assert made.shape == (1, len(values), 1)
    assert made.dtype == getattr(torch, dtype)
    return made[0, :, 0]


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_floats_are_what_is_predicted(bits: int) -> None:
    dtype = f"float{bits}"
    wanted = torch.tensor([0.1, -7.25, torch.nan]).to(getattr(torch, dtype))
    assert torch.equal(numbers(dtype, 0.1, -7.25, torch.nan).nan_to_num(9), wanted.nan_to_num(9))


@pytest.mark.parametrize("transforms", [[], [Rename(keys=["grip"], to=["hand"])]])
@pytest.mark.parametrize("dtype", sorted(DTYPES - {"bool", "float16", "float32", "float64"}))
def test_whole_numbers_are_the_nearest_that_the_dtype_holds(
    dtype: str, transforms: list[Transform]
) -> None:
    values = (-1e30, -3.6, -0.4, 0.6, 1.5, 2.5, 126.6, 1e30, -torch.inf, torch.inf)
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    # float64 holds the largest number of 64 bits only with its last ones left out.
    most = min(most, int(np.nextafter(float(most), 0)) if most > 2**53 else most)
    wanted = [least, max(-4, least), 0, 1, 2, 2, 127, most, least, most]
    assert numbers(dtype, *values, transforms=transforms).tolist() == wanted


def test_a_flag_is_true_where_it_is_more_likely_than_not() -> None:
    made = numbers("bool", -3.0, 0.0, 0.49, 0.51, 1.0, 7.0)
    assert made.tolist() == [False, False, False, True, True, True]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64"])
def test_nan_is_no_whole_number(dtype: str) -> None:
    with pytest.raises(TransformError, match=f"NaN is predicted for 'grip', .* torch.{dtype}"):
        numbers(dtype, 1.0, torch.nan)
