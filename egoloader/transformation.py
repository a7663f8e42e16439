"""Transforms at work: checked before there are samples, and applied to whole batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import numpy as np
import numpy.typing as npt
import torch

from egoloader.batch import Batch, Field, Sample, Values
from egoloader.errors import SampleError, SettingsError
from egoloader.frameindex import marks_of
from egoloader.sample import SampleMaker, Steps, check_sample
from egoloader.share import Share
from egoloader.transforms import Chain, Concatenate, Shape, Transform

__all__ = ["ShapeCheck", "transformed"]

IntArray = npt.NDArray[np.int64]


class ShapeCheck:
    """Checks transforms against what samples hold, once for each kind of samples.

    What is no `Transform` declares no shapes, and is not checked. Nor is what stands behind it, but
    as it is called, where masks alone tell steps from the axes of rows.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[str, tuple[Field, ...]]] = set()

    def check(self, maker: SampleMaker) -> None:
        """Refuse transforms that can't change an episode's samples.

        Nothing is read for that, but where something does not fit and the size of a camera, which
        is declared nowhere, may be to blame: then its first frame tells the size.

        Raises:
            SettingsError: one of them can't work; names it, its place, and the embodiment.
        """
        chain = _declared(maker.transforms)
        if not chain.transforms:
            return
        fields = maker.fields()
        if (maker.embodiment, fields) in self._seen:
            return
        self._seen.add((maker.embodiment, fields))
        try:
            _check_shapes(chain, maker, fields)
        except SettingsError:
            if not any(field.is_image and not field.has_pixels for field in fields):
                raise
            first = np.zeros(1, np.int64)
            Share([maker], first, first, range(1), marks_of([0])).fetch()  # learns the sizes
            _check_shapes(chain, maker, maker.fields())


def _declared(steps: Steps) -> Chain:
    """Return those transforms as one that stand ahead of the first that declares no shapes."""
    declared = list[Transform]()
    for step in steps:
        if not isinstance(step, Transform):
            break
        declared.append(step)
    return Chain(tuple(declared))


def _chain(steps: Steps) -> Chain | None:
    """Return transforms as one, if there are any and all declare their shapes."""
    chain = _declared(steps)
    return chain if steps and len(chain.transforms) == len(steps) else None


def _check_shapes(chain: Chain, maker: SampleMaker, fields: Sequence[Field]) -> None:
    leads = {entry.key: len(entry.steps) for entry in (*maker.kind.rows, *maker.kind.images)}
    try:
        chain.shapes({field.key: _shape(field) for field in fields}, leads)
        _check_optional(chain, {key for key, spec in maker.keymap.items() if spec.optional})
    except SettingsError as error:
        raise SettingsError(
            f"embodiment {maker.embodiment!r}, episode {maker.name!r}: {error}"
        ) from error


def _check_optional(chain: Chain, optional: Set[str]) -> None:
    """Refuse to join keys that an episode may lack to others, as if it could not."""
    for where, one in _each(chain):
        made = {key for key, olds in one.origins.items() if not optional.isdisjoint(olds)}
        if isinstance(one, Concatenate):
            unlisted = [key for key in one.keys if key in optional and key not in one.optional]
            if unlisted:
                raise SettingsError(
                    f"{where}, Concatenate: an episode may lack {unlisted[0]!r}, optional in the "
                    f"keymap, and would then pad all of {one.whole!r}; list it as optional of the "
                    "Concatenate, too, so that its dimensions alone are padded"
                )
            made = set()  # what is absent is told by a mask of dimensions from here on
        optional = (optional - set(one.origins)) | made


def _each(chain: Chain, within: str = "") -> Iterator[tuple[str, Transform]]:
    for place, one in enumerate(chain.transforms):
        where = f"{within}transforms[{place}]"
        if isinstance(one, Chain):
            yield from _each(one, f"{where}, ")
        else:
            yield where, one


def _shape(field: Field) -> Shape:
    """Return the shape of a sample's value as it is handed out; None for no tensor."""
    if field.shape is None or not field.is_image:
        return field.shape
    *lead, height, width, channels = field.shape
    return (*lead, channels, height, width)


def transformed(batch: Batch, makers: Sequence[SampleMaker], numbers: IntArray) -> Batch:
    """Apply transforms to the samples of a batch, which are alike.

    Where all are `Transform`s, they are called once with the whole batch, and what they leave alone
    stays in its memory; else once a sample.

    Args:
        batch: of B samples, of which none was asked for.
        makers: of these samples, whose transforms are the same, and maybe of others.
        numbers: (B,), B >= 1, which of them made each sample.

    Raises:
        SampleError: one failed; names it, the episode and the frame.
    """
    steps = makers[numbers[0]].transforms
    if not steps:
        return batch
    chain = _chain(steps)
    if chain is None:
        return Batch.of_samples(_by_sample(batch, makers, numbers), batch.fields)
    try:
        return _as_one(batch, chain)
    except Exception as error:
        _by_sample(batch, makers, numbers)  # raises where a sample is to blame
        names = list(dict.fromkeys(makers[number].name for number in numbers.tolist()))
        raise SampleError(
            f"transforms take each sample of a batch, and not the batch: {error!r}; a Transform "
            "must take any leading axes, other callables are called sample by sample",
            episode=", ".join(names[:8]),
        ) from error


def _by_sample(batch: Batch, makers: Sequence[SampleMaker], numbers: IntArray) -> list[Sample]:
    return [makers[n].transform(sample) for n, sample in zip(numbers.tolist(), batch, strict=True)]


def _as_one(batch: Batch, chain: Chain) -> Batch:
    given = batch.tensors
    assert given is not None
    listed = {id(given[key]) for key in batch.listed_keys}
    made: Sample = given
    for step in chain.transforms:
        made = check_sample(step(made))
    for key, value in made.items():
        _check_values(key, value, len(batch))
    # An image that a batch lists is one under another name, too.
    fields = [Field(key, is_image=id(value) in listed) for key, value in made.items()]
    return Batch(fields, made, len(batch))


def _check_values(key: str, value: Values, size: int) -> None:
    lead = value.shape[:1] if isinstance(value, torch.Tensor) else (len(value),)
    if not isinstance(value, torch.Tensor | list) or tuple(lead) != (size,):
        raise TypeError(
            f"key {key!r} must be a tensor of {size} samples, or a list of as many, and not "
            f"{type(value).__name__}"
        )
