"""Every transform, and samples that all of them take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from egoloader import collate
from egoloader.batch import Sample
from egoloader.transforms import (
    CanonicalQuaternion,
    Chain,
    Concatenate,
    DeltaActions,
    Drop,
    FixedFrame,
    FlattenRows,
    IntoFrame,
    InvertGripper,
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
from tests.turns import seeds, some_poses

STEPS, HISTORY = 4, 3
POSE, GRIPPED = ["xyz", "quaternion_wxyz"], ["xyz", "quaternion_wxyz", 1]
EXTRINSIC = [[0, -1, 0, 0.1], [1, 0, 0, -0.2], [0, 0, 1, 0.3], [0, 0, 0, 1]]

#: Transforms of `samples`; those behind a name that ends with "lossy" have no inverse.
TRANSFORMS: dict[str, Transform] = {
    "to xyzw": PoseRotation(keys=["hand", "head"], target=["xyz", "quaternion_xyzw"]),
    "to 6d": PoseRotation(keys=["hand", "past"], target=["xyz", "rotation_6d"]),
    "to angles": PoseRotation(keys=["hand"], target=["xyz", "yaw_pitch_roll"]),
    "to matrix": PoseRotation(keys=["arm"], source=GRIPPED, target=["xyz", "matrix", 1]),
    "canonical, lossy": CanonicalQuaternion(keys=["arm"], row=GRIPPED),
    "into a frame": IntoFrame(keys=["hand", "past"], reference="head"),
    "into a past frame": IntoFrame(keys=["hand", "head"], reference="past", step=-1),
    "into an arm's frame": IntoFrame(keys=["hand"], reference="arm", step=0, reference_row=GRIPPED),
    "points into a frame": IntoFrame(keys=["points"], reference="head", row=["2 x xyz"]),
    "into a fixed frame": FixedFrame(keys=["hand", "head"], matrix=EXTRINSIC),
    "relative to the first": RelativeToFirst(keys=["hand", "past"]),
    "relative": RelativeActions(keys=["hand"], reference="past", step=-1),
    "relative joints": RelativeActions(keys=["joints"], reference="state", row=["2 x scalar", 1]),
    "deltas": DeltaActions(keys=["hand"], reference="head"),
    "deltas of joints": DeltaActions(keys=["joints"], reference="state", row=["3 x scalar"]),
    "resample, lossy": Resample(keys=["arm", "joints"], steps=7),
    "resample turns, lossy": Resample(keys=["hand", "past"], steps=3, row=POSE),
    "stride, lossy": Stride(keys=["hand", "counts"], every=2, start=1),
    "concatenate": Concatenate(keys=["hand", "joints"], sizes=[7, 3], whole="action"),
    "concatenate optional": Concatenate(
        keys=["joints", "hand"], sizes=[3, 7], whole="action", optional=["hand"]
    ),
    "concatenate all optional": Concatenate(
        keys=["hand", "joints"], sizes=[7, 3], whole="action", optional=["joints", "hand"]
    ),
    "split": Split(keys=["where", "turn"], sizes=[3, 4], whole="hand"),
    "rename": Rename(keys=["hand", "text"], to=["action", "words"]),
    "drop, lossy": Drop(keys=["hand", "text"]),
    "select, lossy": SelectDimensions(keys=["arm", "counts"], dimensions=[1, 0]),
    "pad": PadDimensions(keys=["joints", "counts"], given=3, size=5),
    "flatten": FlattenRows(keys=["grid"], shape=[2, 3]),
    "flatten numbers": FlattenRows(keys=["width", "frame"], shape=[]),
    "unflatten": UnflattenRows(keys=["points"], shape=[3, 2]),
    "invert": InvertGripper(keys=["arm"], low=0, high=1, dimensions=[7]),
    "chain": Chain(
        [
            IntoFrame(keys=["hand"], reference="head"),
            PoseRotation(keys=["hand"], target=["xyz", "rotation_6d"]),
            Concatenate(keys=["hand", "joints"], sizes=[9, 3], whole="action"),
            PadDimensions(keys=["action"], given=12, size=16),
        ]
    ),
}
#: The parts of the rows that hold rotations.
QUATERNIONS = {"hand": 3, "past": 3, "arm": 3, "head": 3}


def some_sample(
    rng: np.random.Generator, *, is_absent: bool = False, dtype: torch.dtype = torch.float32
) -> Sample:
    """Return a sample, of an arm that is there, or one that is absent."""

    def numbers(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.uniform(-2, 2, shape)).to(dtype)

    gripper = torch.linspace(0, 1, STEPS, dtype=dtype)[:, None]
    sample: Sample = {
        "hand": some_poses(rng, (STEPS,), dtype),
        "hand_is_pad": torch.from_numpy(rng.random(STEPS) < 0.5),
        "hand_is_other_span": torch.from_numpy(rng.random(STEPS) < 0.5),
        "text": str(rng.choice(["pick", "place"])),
        "head": some_poses(rng, (), dtype),
        "past": some_poses(rng, (HISTORY,), dtype),
        "joints": numbers(STEPS, 3),
        "joints_is_pad": torch.zeros(STEPS, dtype=torch.bool),
        "joints_is_other_span": torch.from_numpy(rng.random(STEPS) < 0.5),
        "state": numbers(3),
        "arm": torch.cat([some_poses(rng, (STEPS,), dtype), gripper], dim=1),
        "counts": torch.arange(STEPS * 3).reshape(STEPS, 3),
        "points": numbers(6),
        "grid": numbers(STEPS, 2, 3),
        "width": numbers(STEPS),
        "width_is_pad": torch.from_numpy(rng.random(STEPS) < 0.5),
        "frame": torch.tensor(7),
        "fps": torch.tensor(30.0),
        "frame_index": torch.tensor(3),
    }
    if is_absent:
        sample["hand"] = torch.zeros(STEPS, 7, dtype=dtype)
        sample["hand_is_pad"] = torch.ones(STEPS, dtype=torch.bool)
    return sample


@st.composite
def samples(draw: st.DrawFn, dtype: torch.dtype = torch.float32) -> Sample:
    """Samples; one in some has an arm that is absent."""
    rng, is_absent = np.random.default_rng(draw(seeds)), draw(st.integers(0, 5)) == 5
    return some_sample(rng, is_absent=is_absent, dtype=dtype)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Sample], dict[str, Any]]:
    """Samples, and the batch of them; some rows of numbers are NaN."""
    made = draw(st.lists(samples(), min_size=1, max_size=3))
    for sample in made:
        if sample["hand"].any() and draw(st.booleans()):
            sample["hand"][draw(st.integers(0, STEPS - 1))] = math.nan
        if draw(st.integers(0, 3)) == 3:
            sample["head"][draw(st.integers(0, 6))] = math.nan
    return made, collate(made)
