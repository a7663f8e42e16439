"""How samples are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from egoloader.batch import Sample
from egoloader.errors import SettingsError, check_whole, near_miss

__all__ = ["ImageDtype", "MixedSizes", "SampleSettings", "Steps"]

ImageDtype = Literal["uint8", "float32", "jpeg"]
MixedSizes = Literal["error", "list"]
#: Transforms: from sample to sample, in the order that they are applied in.
Steps = Sequence[Callable[[Sample], Sample]]


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """How samples are made.

    Args:
        image_dtype: `uint8` in 0…255, `float32` in 0…1 (the same values / 255), or `jpeg`, the
            encoded bytes as they are stored: of them only the head is checked, and an entry's
            `size` is left to whoever decodes them.
        annotation_cutoff: end every `action_keys` horizon with the annotation span that holds the
            frame; the steps past it are padded.
        transforms: callables from sample to sample, applied in order; or a list of them for each
            embodiment.
        mixed_sizes: what becomes of a batch of images of several sizes: `error`, or `list`, which
            hands every batch's images out as a list of B.
        seed: of what is random about a sample; see `sample_seed` in `ZarrDataset`.
        marks_replaced: whether samples say if they are there in the place of a bad one.

    Raises:
        SettingsError: an option that can't be meant, or a transform that can't be called.
    """

    image_dtype: ImageDtype = "uint8"
    annotation_cutoff: bool = False
    transforms: Steps | Mapping[str, Steps] = ()
    mixed_sizes: MixedSizes = "error"
    seed: int = 0
    marks_replaced: bool = False

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, 0)
        for name, options in (("image_dtype", ImageDtype), ("mixed_sizes", MixedSizes)):
            value = getattr(self, name)
            if value not in get_args(options):
                hint = near_miss(str(value), get_args(options))
                raise SettingsError(f"{name} is {value!r}; {hint}")
        if not isinstance(self.annotation_cutoff, bool):
            raise SettingsError(f"annotation_cutoff is true or false: {self.annotation_cutoff!r}")
        if not isinstance(self.transforms, Mapping):
            object.__setattr__(self, "transforms", _checked("transforms", self.transforms))
            return
        if not self.transforms:
            raise SettingsError("a mapping of transforms needs at least one embodiment")
        lists = {
            name: _checked(f"transforms[{name!r}]", one) for name, one in self.transforms.items()
        }
        object.__setattr__(self, "transforms", lists)

    def transforms_of(self, embodiment: str) -> Steps:
        """Return the transforms of an embodiment's samples; the same object every time.

        Raises:
            SettingsError: they are listed by embodiment, and not for this one.
        """
        if not isinstance(self.transforms, Mapping):
            return self.transforms
        if embodiment not in self.transforms:
            raise SettingsError(
                f"there are episodes of embodiment {embodiment!r} and no transforms for it; "
                f"{near_miss(embodiment, self.transforms)} (an empty list leaves samples as they "
                "are)"
            )
        return self.transforms[embodiment]


def _checked(name: str, steps: object) -> Steps:
    if not isinstance(steps, Sequence) or isinstance(steps, str):
        raise SettingsError(f"{name} is a list of callables, got {steps!r}")
    for step in steps:
        if not callable(step):
            raise SettingsError(f"{name} are callables, got {step!r}")
    return tuple(steps)
