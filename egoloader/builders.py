"""Whole keymaps from a few options, for the embodiments that share a set of array names.

Poses are xyz in metres, then a wxyz quaternion (7 numbers); keypoints are 21 x xyz in metres.
Which frame of reference they are in is the recording's choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from egoloader.errors import KeyMapError, near_miss
from egoloader.keymap import Interpolation, KeyMap, KeySpec, TextSource
from egoloader.options import BuilderOptions, Names, named_arrays

__all__ = ["eva_keymap", "human_keymap", "state_action_keymap"]

HumanMode = Literal["keypoints", "cartesian"]
EvaMode = Literal["cartesian", "joints"]

_SIDES = ("left", "right")
_HUMAN_FRONT = {"observations.images.front_img_1": "images.front_1"}
_EVA_CAMERAS = {
    "observations.images.front_img_1": "images.front_1",
    "observations.images.right_wrist_img": "images.right_wrist",
    "observations.images.left_wrist_img": "images.left_wrist",
}


def human_keymap(
    mode: HumanMode = "keypoints",
    *,
    horizon: int = 30,
    proprio_history: int = 1,
    history_stride_s: float | None = None,
    rate_hz: float | None = None,
    horizon_s: float | None = None,
    proprio_history_s: float | None = None,
    interpolation: Interpolation = "nearest",
    image_history_gap_s: float | None = None,
    image_memory: int | None = None,
    image_memory_stride_s: float = 1.0,
    annotation_key: str | None = None,
    annotation_text: TextSource = "annotation",
    masks: bool = False,
    norm_mode: bool = False,
) -> KeyMap:
    """Make the keymap of a person with a head camera.

    Args:
        mode: `keypoints` takes hand keypoints and wrist poses, `cartesian` end-effector poses.
        horizon: steps of the action chunks, in frames.
        proprio_history: steps of the proprio history, now included.
        history_stride_s: seconds between those steps; one frame unless given.
        rate_hz: steps a second of the windows that are given in seconds, at any frame rate.
        horizon_s: of the action chunks, with `rate_hz`, in the place of `horizon`.
        proprio_history_s: of the proprio history, with `rate_hz`, in the place of
            `proprio_history`.
        interpolation: what such steps are between two frames, see `KeySpec`; with `linear` or
            `slerp`, poses turn on the shorter way, and all else is linear.
        image_history_gap_s: adds `<front key>_hist`, the front camera that many seconds ago.
        image_memory: adds `<front key>_mem`, the front camera at that many steps, oldest first and
            now included, and `<front key>_mem_is_pad`.
        image_memory_stride_s: seconds between the steps of the memory.
        annotation_key: adds a text, under this sample key: that of the frame's annotations.
        annotation_text: or, with `task`, that of the episode's task; with `annotation_or_task`, the
            latter where no annotation holds the frame, or there are none.
        masks: emit `<key>_is_pad` for every entry with a window or a lag.
        norm_mode: leave out every camera, as statistics of numbers need none.

    Raises:
        KeyMapError: an unknown mode, or an option that `KeySpec` refuses.
    """
    if mode not in get_args(HumanMode):
        raise KeyMapError(f"unknown mode {mode!r}; {near_miss(str(mode), get_args(HumanMode))}")
    if mode == "cartesian":
        actions = {f"{side}.action_ee_pose": f"{side}.obs_ee_pose" for side in _SIDES}
        states = _same(f"{side}.obs_ee_pose" for side in _SIDES)
    else:
        arrays = [f"{side}.{what}" for side in _SIDES for what in ("keypoints", "wrist_pose")]
        actions = {_with_prefix(name, "action"): _with_prefix(name, "obs") for name in arrays}
        states = _same(_with_prefix(name, "obs") for name in arrays)
    options = BuilderOptions(
        horizon=horizon,
        proprio_history=proprio_history,
        history_stride_s=history_stride_s,
        rate_hz=rate_hz,
        horizon_s=horizon_s,
        proprio_history_s=proprio_history_s,
        interpolation=interpolation,
        image_history_gap_s=image_history_gap_s,
        image_memory=image_memory,
        image_memory_stride_s=image_memory_stride_s,
        annotation_key=annotation_key,
        annotation_text=annotation_text,
        masks=masks,
        norm_mode=norm_mode,
    )
    return _build(_HUMAN_FRONT, actions, states, ("obs_head_pose",), options)


def eva_keymap(
    mode: EvaMode = "cartesian",
    *,
    horizon: int = 30,
    proprio_history: int = 1,
    history_stride_s: float | None = None,
    rate_hz: float | None = None,
    horizon_s: float | None = None,
    proprio_history_s: float | None = None,
    interpolation: Interpolation = "nearest",
    image_history_gap_s: float | None = None,
    image_memory: int | None = None,
    image_memory_stride_s: float = 1.0,
    annotation_key: str | None = None,
    annotation_text: TextSource = "annotation",
    masks: bool = False,
    norm_mode: bool = False,
) -> KeyMap:
    """Make the keymap of the two-armed Eva robot, with a front and two wrist cameras.

    Args:
        mode: `cartesian` takes end-effector poses, `joints` joint angles in rad.
        horizon: as for `human_keymap`, like every option that follows.
        proprio_history: see `human_keymap`.
        history_stride_s: see `human_keymap`.
        rate_hz: see `human_keymap`.
        horizon_s: see `human_keymap`.
        proprio_history_s: see `human_keymap`.
        interpolation: see `human_keymap`.
        image_history_gap_s: see `human_keymap`.
        image_memory: see `human_keymap`.
        image_memory_stride_s: see `human_keymap`.
        annotation_key: see `human_keymap`.
        annotation_text: see `human_keymap`.
        masks: see `human_keymap`.
        norm_mode: see `human_keymap`.

    Raises:
        KeyMapError: an unknown mode, or an option that `KeySpec` refuses.
    """
    if mode not in get_args(EvaMode):
        raise KeyMapError(f"unknown mode {mode!r}; {near_miss(str(mode), get_args(EvaMode))}")
    what = "ee_pose" if mode == "cartesian" else "joints"
    actions = [f"{side}.cmd_{part}" for side in _SIDES for part in (what, "gripper")]
    states = [f"{side}.obs_{part}" for side in _SIDES for part in (what, "gripper")]
    options = BuilderOptions(
        horizon=horizon,
        proprio_history=proprio_history,
        history_stride_s=history_stride_s,
        rate_hz=rate_hz,
        horizon_s=horizon_s,
        proprio_history_s=proprio_history_s,
        interpolation=interpolation,
        image_history_gap_s=image_history_gap_s,
        image_memory=image_memory,
        image_memory_stride_s=image_memory_stride_s,
        annotation_key=annotation_key,
        annotation_text=annotation_text,
        masks=masks,
        norm_mode=norm_mode,
    )
    return _build(_EVA_CAMERAS, _same(actions), _same(states), (), options)


def state_action_keymap(
    state: Names = (),
    action: Names = (),
    camera: Names = (),
    *,
    horizon: int = 30,
    proprio_history: int = 1,
    history_stride_s: float | None = None,
    rate_hz: float | None = None,
    horizon_s: float | None = None,
    proprio_history_s: float | None = None,
    interpolation: Interpolation = "nearest",
    image_history_gap_s: float | None = None,
    image_memory: int | None = None,
    image_memory_stride_s: float = 1.0,
    annotation_key: str | None = None,
    annotation_text: TextSource = "annotation",
    masks: bool = False,
    norm_mode: bool = False,
) -> KeyMap:
    """Make a keymap from an episode's own array names.

    Args:
        state: arrays read as proprio history: a name, a list of names, or `{sample key: name}`.
            Without a mapping, an array's name is its sample key.
        action: arrays read as action chunks, in the same forms.
        camera: cameras, in the same forms; the first one is the front camera.
        horizon: as for `human_keymap`, like every option that follows.
        proprio_history: see `human_keymap`.
        history_stride_s: see `human_keymap`.
        rate_hz: see `human_keymap`.
        horizon_s: see `human_keymap`.
        proprio_history_s: see `human_keymap`.
        interpolation: of all states and actions, see `KeySpec`; with `linear`, those called
            `pose` or `…_pose` turn on the shorter way; with `slerp`, all must be poses or
            quaternions.
        image_history_gap_s: see `human_keymap`.
        image_memory: see `human_keymap`.
        image_memory_stride_s: see `human_keymap`.
        annotation_key: see `human_keymap`.
        annotation_text: see `human_keymap`.
        masks: see `human_keymap`.
        norm_mode: see `human_keymap`.

    Raises:
        KeyMapError: no array at all, two entries of one sample key, an image option without a
            camera, or an option that `KeySpec` refuses.
    """
    options = BuilderOptions(
        horizon=horizon,
        proprio_history=proprio_history,
        history_stride_s=history_stride_s,
        rate_hz=rate_hz,
        horizon_s=horizon_s,
        proprio_history_s=proprio_history_s,
        interpolation=interpolation,
        image_history_gap_s=image_history_gap_s,
        image_memory=image_memory,
        image_memory_stride_s=image_memory_stride_s,
        annotation_key=annotation_key,
        annotation_text=annotation_text,
        masks=masks,
        norm_mode=norm_mode,
        has_poses=False,
    )
    return _build(
        named_arrays("camera", camera),
        named_arrays("action", action),
        named_arrays("state", state),
        (),
        options,
    )


def _build(
    cameras: Mapping[str, str],
    actions: Mapping[str, str],
    states: Mapping[str, str],
    current: Iterable[str],
    options: BuilderOptions,
) -> KeyMap:
    entries: dict[str, KeySpec] = {}

    def add(key: str, spec: KeySpec) -> None:
        if key in entries:
            raise KeyMapError(
                f"sample key {key!r} is taken twice; give arrays as {{sample key: name}}"
            )
        entries[key] = spec

    for key, spec in _camera_entries(cameras, options).items():
        add(key, spec)
    for key, array in actions.items():
        window = _on_grid(array, options, "horizon") or {"horizon": options.horizon}
        add(key, _spec(array, "action_keys", mask=options.masks, **window))
    for key, array in states.items():
        window = _on_grid(array, options, "history") or {"history": options.proprio_history}
        stride = options.history_stride_s
        add(key, _spec(array, "proprio_keys", stride_s=stride, mask=options.masks, **window))
    for array in current:
        add(array, _spec(array, "proprio_keys"))
    text = options.annotation_text
    annotation = _spec(
        "annotations", "annotation_keys", text=text, optional=text == "annotation_or_task"
    )
    if options.annotation_key is not None:
        add(options.annotation_key, annotation)
    return KeyMap(entries)


def _on_grid(
    array: str, options: BuilderOptions, window: Literal["horizon", "history"]
) -> dict[str, object]:
    """Return the fields of a window in seconds; none where frames are counted."""
    seconds = options.horizon_s if window == "horizon" else options.proprio_history_s
    if seconds is None:
        return {}
    between = options.interpolation
    if between == "linear" and _is_pose(array):
        between = "slerp"  # between the numbers of two quaternions there is no rotation
    elif between == "slerp" and options.has_poses and not _is_pose(array):
        between = "linear"
    return {f"{window}_s": seconds, "rate_hz": options.rate_hz, "interpolation": between}


def _is_pose(array: str) -> bool:
    """Return whether an array is called `pose`, or `…_pose`."""
    return array.replace(".", "_").split("_")[-1] == "pose"


def _camera_entries(cameras: Mapping[str, str], options: BuilderOptions) -> dict[str, KeySpec]:
    wants_past = options.image_history_gap_s is not None or options.image_memory is not None
    if wants_past and not cameras:
        raise KeyMapError("image_history_gap_s and image_memory need a camera")
    entries = {key: _spec(array, "camera_keys") for key, array in cameras.items()}
    if wants_past:
        front, array = next(iter(cameras.items()))
        if options.image_history_gap_s is not None:
            entries[f"{front}_hist"] = _spec(
                array, "camera_keys", lag_s=options.image_history_gap_s, mask=options.masks
            )
        if options.image_memory is not None:
            entries[f"{front}_mem"] = _memory_spec(array, options)
    # Built all the same under norm_mode, so that a wrong option is refused in both modes.
    return {} if options.norm_mode else entries


def _memory_spec(array: str, options: BuilderOptions) -> KeySpec:
    spec = _spec(
        array,
        "camera_keys",
        history=options.image_memory,
        stride_s=options.image_memory_stride_s,
        mask=True,
    )
    if options.image_memory == 1:
        # A history of one has no time axis; a list of one offset keeps it.
        return dataclasses.replace(spec, history=None, stride_s=None, offsets=(0,))
    return spec


def _spec(array: str, key_type: str, **fields: object) -> KeySpec:
    try:
        return KeySpec(zarr_key=array, key_type=key_type, **fields)  # type: ignore[arg-type]
    except KeyMapError as error:
        raise KeyMapError(f"entry of array {array!r}: {error}") from None


def _same(names: Iterable[str]) -> dict[str, str]:
    return {name: name for name in names}


def _with_prefix(name: str, prefix: str) -> str:
    side, what = name.split(".")
    return f"{side}.{prefix}_{what}"
