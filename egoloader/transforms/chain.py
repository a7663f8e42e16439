"""Transforms one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from egoloader.batch import Sample
from egoloader.errors import SettingsError
from egoloader.transforms.transform import Leads, Shape, Transform

__all__ = ["Chain"]


@dataclass(frozen=True, slots=True)
class Chain(Transform):
    """Transforms one behind the other, as one.

        chain = Chain(transforms)
        chain.shapes(shapes_of(dataset_without_transforms[0]))   # refuses what can't work
        chain.inverse()(chain(sample))

    Args:
        transforms: in the order that they are applied in; none changes nothing.

    Raises:
        SettingsError: one is none of this package, so that what comes out of it is not known.
    """

    transforms: tuple[Transform, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.transforms, Sequence):
            self._refuse(f"transforms must be a list, got {self.transforms!r}")
        for place, one in enumerate(self.transforms):
            if not isinstance(one, Transform):
                self._refuse(
                    f"transforms[{place}] declares no shapes; make it a Transform: {one!r}"
                )
        object.__setattr__(self, "transforms", tuple(self.transforms))

    @property
    def is_per_row(self) -> bool:
        """Whether all of them are."""
        return all(one.is_per_row for one in self.transforms)

    def _traced(self, given: Mapping[str, Shape], leads: Leads) -> tuple[dict[str, Shape], Leads]:
        shapes = dict(given)
        for place, one in enumerate(self.transforms):
            try:
                shapes, leads = one._traced(shapes, leads)
            except SettingsError as error:
                raise SettingsError(f"transforms[{place}], {error}") from None
        return shapes, leads

    @property
    def origins(self) -> Mapping[str, tuple[str, ...]]:
        """Which keys each key that they make is made of, in the end."""
        made: dict[str, tuple[str, ...]] = {}
        for one in self.transforms:
            # All at once: names may be swapped.
            made |= {
                key: tuple(root for old in olds for root in made.get(old, (old,)))
                for key, olds in one.origins.items()
            }
        return made

    def inverse(self) -> Chain:
        """Return the inverses, the last one first.

        Raises:
            SettingsError: one has none; names it, and its place.
        """
        inverses = []
        for place, one in reversed(list(enumerate(self.transforms))):
            try:
                inverses.append(one.inverse())
            except SettingsError as error:
                raise SettingsError(f"transforms[{place}], {error}") from None
        return Chain(tuple(inverses))

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        shapes = dict(given)
        for one in self.transforms:
            shapes = one._shapes(shapes)
        return shapes

    def _apply(self, sample: Sample) -> Sample:
        for one in self.transforms:
            sample = one._apply(sample)
        return sample
