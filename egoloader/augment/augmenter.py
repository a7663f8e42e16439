"""Steps of augmentation one behind the other, on whole batches, on their device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from egoloader.augment.draws import uniforms
from egoloader.augment.geometry import PlaceStep, composed, warp
from egoloader.augment.step import FrameStep, Step
from egoloader.errors import SettingsError, near_miss

__all__ = ["ImageAugment"]

#: Ends of the keys under which keymaps have a camera's past.
_PAST = ("_hist", "_mem")
#: Numbers in frames that are changed together on a CPU, where they then stay in its caches. With
#: fewer, threads wait for each other more often, which costs much where cores are busy.
_BLOCK = 2**22

Images = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ImageAugment:
    """Changes images at random, a whole batch at a time, on the device that they are on.

        augment = ImageAugment([ColorJitter(brightness=0.3, hue=0.05), Affine(degrees=5)])
        images = augment({"front": batch["front"]}, batch["sample_seed"])

    What becomes of a sample's images is a function of its `sample_seed`, the camera and the steps,
    so of the dataset's seed, epoch, episode and frame: never of the rest of the batch, of cameras
    that are absent, of the device, of workers, of a resume, or of PyTorch's generators, which are
    left as they are. Each step draws on its own, steps of one kind by their order: one more step of
    another kind changes none of the others' draws.

    Every camera has draws of its own. All frames of a window have the same, and so have
    `<camera>_hist` and `<camera>_mem`, the camera's past; `shared` names other keys of this kind.
    A camera that it names may share another one's draws itself.

    Steps in a row that change where pixels come from sample the image once. A frame that is all
    zero, as of an absent camera, stays exactly zero. Nothing waits for the device, and no gradient
    passes. There is no flip: it would need the actions, and the left and right hand, flipped, too.

    Args:
        steps: in the order that they are applied in.
        shared: {key: camera}, keys whose draws are those of another camera's.

    Raises:
        SettingsError: something else than steps, or none; or keys that share each other's draws in
            a circle.
    """

    steps: tuple[Step, ...]
    shared: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        steps = self.steps
        if not isinstance(steps, Sequence) or not steps:
            raise SettingsError(f"ImageAugment: steps must list at least one, got {steps!r}")
        for place, step in enumerate(steps):
            if not isinstance(step, FrameStep | PlaceStep):
                raise SettingsError(
                    f"ImageAugment: steps[{place}] is no step of egoloader.augment: {step!r}"
                )
        shared = {} if self.shared is None else self.shared
        pairs = shared.items() if isinstance(shared, Mapping) else [(None, None)]
        if not all(isinstance(name, str) for pair in pairs for name in pair):
            raise SettingsError(
                f"ImageAugment: shared must be {{key: camera}}, got {self.shared!r}"
            )
        object.__setattr__(self, "steps", tuple(steps))
        object.__setattr__(self, "shared", dict(shared))
        for key in shared:
            self._camera(key)

    def check_cameras(self, cameras: Collection[str]) -> None:
        """Refuse a name in `shared` that is none of the cameras, which would share nothing.

        Args:
            cameras: keys of all images that there are, of all embodiments.

        Raises:
            SettingsError: there is one; names the near miss.
        """
        for pair in (self.shared or {}).items():
            for name in pair:
                _check_shared(name, cameras)

    def __call__(self, images: Images, sample_seed: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return images changed, in new memory.

        Args:
            images: per key (B, 3, H, W), or (B, n, 3, H, W) of a window: uint8 in 0…255 or float in
                0…1, in any layout of memory.
            sample_seed: (B,) int64, as batches have it.

        Returns:
            The same keys and shapes, float32 in 0…1.

        Raises:
            SettingsError: these are no such images or seeds; names the key.
        """
        _check_seeds(sample_seed)
        for key, frames in images.items():
            _check_images(key, frames, len(sample_seed))
        drawn: dict[tuple[str, torch.device], list[torch.Tensor]] = {}
        made = {}
        with torch.no_grad():
            for key, frames in images.items():
                camera = self._camera(key)
                place = (camera, frames.device)
                if place not in drawn:
                    drawn[place] = self._draws(camera, sample_seed.to(frames.device))
                made[key] = self._augmented(frames, drawn[place])
        return made

    def augment_batch(self, batch: Mapping[str, Any], cameras: Sequence[str]) -> dict[str, Any]:
        """Return a batch with the images of some cameras changed; the rest is passed on.

        Args:
            batch: with `sample_seed`, as loaders make it.
            cameras: keys of it.

        Raises:
            SettingsError: a key is not there, or the one whose draws it shares (names the near
                miss); or see `__call__`.
        """
        for key in ("sample_seed", *cameras):
            if key not in batch:
                raise SettingsError(f"the batch has no key {key!r}; {near_miss(key, batch)}")
            if self.shared and key in self.shared:
                _check_shared(self.shared[key], batch)
        images = {key: batch[key] for key in cameras}
        return {**batch, **self(images, batch["sample_seed"])}

    def _camera(self, key: str) -> str:
        """Return the camera whose draws a key has, and that has none of another's."""
        passed = [key]
        while (camera := self._next(passed[-1])) not in passed:
            passed.append(camera)
        if camera != passed[-1]:
            circle = " → ".join(map(repr, [*passed[passed.index(camera) :], camera]))
            raise SettingsError(
                f"ImageAugment: shared goes in a circle: {circle}; leave one out (<camera>_hist "
                "and <camera>_mem share the camera's draws anyway)"
            )
        return camera

    def _next(self, key: str) -> str:
        """Return the camera that a key names as the one whose draws it has, else the key."""
        if self.shared and key in self.shared:
            return self.shared[key]
        end = next((end for end in _PAST if key.endswith(end)), "")
        return key.removesuffix(end)

    def _draws(self, camera: str, sample_seed: torch.Tensor) -> list[torch.Tensor]:
        """Return of each step (B, 1 + num_draws): whether it is applied, and how."""
        kinds: dict[str, int] = {}
        draws = []
        for step in self.steps:
            kind = type(step).__name__
            kinds[kind] = kinds.get(kind, 0) + 1
            draws.append(uniforms(sample_seed, 1 + step.num_draws, camera, kind, kinds[kind]))
        return draws

    def _augmented(self, images: torch.Tensor, draws: Sequence[torch.Tensor]) -> torch.Tensor:
        frames = images.flatten(0, -4)
        in_window = images.shape[1] if images.dim() == 5 else 1
        per_frame = [one[:, None].expand(-1, in_window, -1).flatten(0, 1) for one in draws]
        made = torch.empty(frames.shape, dtype=torch.float32, device=frames.device)
        size = frames[0].numel() if len(frames) else 1
        together = max(1, _BLOCK // size) if frames.device.type == "cpu" else max(1, len(frames))
        for start in range(0, len(frames), together):
            part = slice(start, start + together)
            given, block = frames[part], made[part]
            if images.dtype != torch.float32 or isinstance(self.steps[0], FrameStep):
                # Else the first step does not write into what it is given.
                given = block.copy_(given)
            if images.dtype == torch.uint8:
                block.div_(255)
            changed = self._changed(given, [one[part] for one in per_frame])
            if changed is not block:
                block.copy_(changed)
        return made.view(images.shape)

    def _changed(self, frames: torch.Tensor, draws: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return frames, (N, 3, H, W), behind all steps."""
        for places in _runs(self.steps):
            steps = [self.steps[place] for place in places]
            if isinstance(steps[0], FrameStep):
                frames = _recoloured(frames, steps[0], draws[places[0]])
            else:
                frames = _moved(frames, steps, [draws[place] for place in places])
        return frames


def _runs(steps: Sequence[Step]) -> list[list[int]]:
    """Return places of steps: of such together as move pixels once, of others each on its own."""
    runs: list[list[int]] = []
    for place, step in enumerate(steps):
        if runs and _is_one_move([*(steps[one] for one in runs[-1]), step]):
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _is_one_move(steps: Sequence[Step]) -> bool:
    """Return whether steps all move pixels, and see the same beyond the image."""
    seen = {one.beyond if isinstance(one, PlaceStep) else "no move" for one in steps}
    return len(seen - {None}) <= 1 and "no move" not in seen


def _recoloured(frames: torch.Tensor, step: FrameStep, draws: torch.Tensor) -> torch.Tensor:
    """Return frames behind a step; they may be written into."""
    if step.p == 1:
        return step.apply(frames, draws[:, 1:])
    is_on = (draws[:, 0] < step.p)[:, None, None, None]
    return torch.where(is_on, step.apply(frames.clone(), draws[:, 1:]), frames)


def _moved(
    frames: torch.Tensor, steps: Sequence[Step], draws: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return frames whose pixels have moved in all of the steps, sampled once."""
    height, width = frames.shape[-2:]
    # Whatever the default dtype is, which trainers set to that of the weights.
    eye = torch.eye(2, 3, dtype=torch.float32, device=frames.device)
    same_place = eye.expand(len(frames), -1, -1)
    sources = same_place
    is_on = torch.zeros(len(frames), dtype=torch.bool, device=frames.device)
    padding = "border"
    for step, numbers in zip(steps, draws, strict=True):
        assert isinstance(step, PlaceStep)
        is_step_on = numbers[:, 0] < step.p
        moved = step.sources(numbers[:, 1:], (height, width))
        sources = composed(sources, moved.where(is_step_on[:, None, None], same_place))
        is_on |= is_step_on
        padding = step.beyond or padding
    made = warp(frames, sources, padding)
    if any(step.p == 1 for step in steps):
        return made
    return torch.where(is_on[:, None, None, None], made, frames)


def _check_shared(name: str, cameras: Collection[str]) -> None:
    if name not in cameras:
        raise SettingsError(
            f"ImageAugment: shared names {name!r}, and there is no such camera; "
            f"{near_miss(name, cameras)}"
        )


def _check_seeds(sample_seed: torch.Tensor) -> None:
    if not isinstance(sample_seed, torch.Tensor):
        raise SettingsError(f"sample_seed must be a tensor, got {type(sample_seed).__name__}")
    if sample_seed.dim() != 1 or sample_seed.dtype != torch.int64:
        raise SettingsError(
            f"sample_seed must be (B,) int64, got {list(sample_seed.shape)} {sample_seed.dtype}"
        )


def _check_images(key: str, images: torch.Tensor, batch_size: int) -> None:
    if not isinstance(images, torch.Tensor):
        raise SettingsError(
            f"key {key!r} holds a {type(images).__name__}, and only one tensor can be augmented: "
            "of cameras of several sizes set `size` in the keymap; encoded frames come as pixels "
            'with image_dtype="uint8"'
        )
    if images.dim() not in (4, 5) or images.shape[-3] != 3:
        raise SettingsError(
            f"key {key!r} must be (B, 3, H, W), or (B, n, 3, H, W), got {list(images.shape)}"
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise SettingsError(
            f"key {key!r} must be uint8 in 0…255 or float in 0…1, and is {images.dtype}"
        )
    if len(images) != batch_size:
        raise SettingsError(
            f"key {key!r} has {len(images)} samples, and sample_seed has {batch_size}"
        )
