"""Steps between the numbers of episodes and those that a policy is trained on, and back.

Transforms are listed in the order that they are applied in, in code or in a recipe:

    data:
      transforms:
        - _target_: egoloader.transforms.IntoFrame
          keys: [left.obs_ee_pose, left.action_ee_pose]
          reference: obs_head_pose
        - _target_: egoloader.transforms.PoseRotation
          keys: [left.obs_ee_pose, left.action_ee_pose]
          target: [xyz, rotation_6d]

    rotation                PoseRotation · CanonicalQuaternion
    frame of reference      IntoFrame · OutOfFrame · FixedFrame · RelativeToFirst · FromFirst
    actions                 RelativeActions · AbsoluteActions · DeltaActions · AccumulatedActions
    steps                   Resample · Stride
    keys                    Concatenate · Split · Rename · Drop
    dimensions              SelectDimensions · PadDimensions · CutDimensions · InvertGripper
    axes of rows            FlattenRows · UnflattenRows

`Transform` says what they have in common; `Chain` makes one of several. `to_plain` and
`from_plain` keep them in checkpoints.
"""

from __future__ import annotations

from egoloader.transforms.actions import (
    AbsoluteActions,
    AccumulatedActions,
    DeltaActions,
    RelativeActions,
)
from egoloader.transforms.chain import Chain
from egoloader.transforms.chunks import Resample, Stride
from egoloader.transforms.coordinates import (
    FixedFrame,
    FromFirst,
    IntoFrame,
    OutOfFrame,
    RelativeToFirst,
)
from egoloader.transforms.dimensions import CutDimensions, PadDimensions, SelectDimensions
from egoloader.transforms.fields import Concatenate, Drop, Rename, Split
from egoloader.transforms.grippers import InvertGripper
from egoloader.transforms.plain import from_plain, to_plain
from egoloader.transforms.poses import CanonicalQuaternion, PoseRotation
from egoloader.transforms.rows import FlattenRows, UnflattenRows
from egoloader.transforms.transform import Shape, Transform, shapes_of

__all__ = [
    "AbsoluteActions",
    "AccumulatedActions",
    "CanonicalQuaternion",
    "Chain",
    "Concatenate",
    "CutDimensions",
    "DeltaActions",
    "Drop",
    "FixedFrame",
    "FlattenRows",
    "FromFirst",
    "IntoFrame",
    "InvertGripper",
    "OutOfFrame",
    "PadDimensions",
    "PoseRotation",
    "RelativeActions",
    "RelativeToFirst",
    "Rename",
    "Resample",
    "SelectDimensions",
    "Shape",
    "Split",
    "Stride",
    "Transform",
    "UnflattenRows",
    "from_plain",
    "shapes_of",
    "to_plain",
]
