"""Short ways to write keymaps."""

from __future__ import annotations

from typing import Any

from egoloader import KeyMap, KeySpec

POSE, CAMERA = "left.obs_ee_pose", "images.front_1"


def entry(zarr_key: str = POSE, key_type: Any = "proprio_keys", **fields: Any) -> KeySpec:
    """Return an entry of the pose, unless told of another array."""
    return KeySpec(zarr_key=zarr_key, key_type=key_type, **fields)


def camera(**fields: Any) -> KeySpec:
    """Return an entry of the front camera."""
    return entry(CAMERA, "camera_keys", **fields)


def keymap(**entries: KeySpec) -> KeyMap:
    """Return a keymap of entries by name."""
    return KeyMap(entries)
