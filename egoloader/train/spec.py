"""What a policy has to know of the samples it gets: keys, shapes, embodiments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from egoloader.batch import Sample
from egoloader.dataset import MultiDataset
from egoloader.errors import SettingsError, near_miss
from egoloader.keymap import KeyMap
from egoloader.keyspec import DTYPES
from egoloader.sample import SampleMaker
from egoloader.tokens import TextCollate, tokens_key
from egoloader.transforms import Chain, Transform
from egoloader.transforms.transform import mask_key

__all__ = ["RecordedAction", "SampleSpec", "describe", "vocabularies"]


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedAction:
    """What an action entry of the keymap is ahead of the transforms.

    Attributes:
        shape: (n, D…).
        dtype: the name of what its numbers leave as, as in an entry of the keymap.
        is_absent: whether no episode has it, so that what is predicted of it was never trained.

    Raises:
        SettingsError: there is no such dtype.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    is_absent: bool = False

    def __post_init__(self) -> None:
        if type(self.dtype) is not str or self.dtype not in DTYPES:
            raise SettingsError(
                f"unknown dtype {self.dtype!r} of an action; {near_miss(str(self.dtype), DTYPES)}"
            )

    def blank(self, batch_size: int, device: torch.device) -> torch.Tensor:
        """Return zeros in the place of what is not known yet: (batch_size, n, D…)."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return torch.zeros((batch_size, *self.shape), dtype=dtype, device=device)


@dataclasses.dataclass(frozen=True, slots=True)
class SampleSpec:
    """Shapes of one embodiment's samples, in the samples' order.

    Attributes:
        cameras: per camera entry, its number of frames.
        states: per proprio entry, its size with all steps: n * D.
        actions: per action chunk, its shape: (H, D…).
        texts: per entry that comes with tokens of its text, what these are below.
        recorded: per action entry of the keymap, what it is ahead of the transforms.
        optional: per state with a mask of padded steps, which tells where an episode lacks what it
            is made of, those entries of the keymap: optional ones.
    """

    cameras: dict[str, int]
    states: dict[str, int]
    actions: dict[str, tuple[int, ...]]
    texts: dict[str, int] = dataclasses.field(default_factory=dict)
    recorded: dict[str, RecordedAction] = dataclasses.field(default_factory=dict)
    optional: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Keys of a batch that a policy predicts from."""
        tokens = [tokens_key(key) for key in self.texts]
        masks = [mask_key(key) for key in (*self.optional, *tokens)]
        return "fps", *self.cameras, *self.states, *tokens, *masks

    def check_observed(self, observed: Mapping[str, Any]) -> None:
        """Refuse states that a robot may lack without the masks that tell whether it does.

        Args:
            observed: a batch ahead of the transforms. States that are missing altogether are not
                asked for here.

        Raises:
            SettingsError: a mask is missing; names it as it is ahead of the transforms.
        """
        for key in (key for keys in self.optional.values() for key in keys):
            mask = mask_key(key)
            if key in observed and mask not in observed:
                raise SettingsError(
                    f"the policy takes {mask!r}, true where zeros stand in for {key!r}, and the "
                    f"batch lacks it; {near_miss(mask, observed)}"
                )

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SampleSpec:
        """Make a spec from what `dataclasses.asdict` gave, as a checkpoint keeps it.

        Raises:
            SettingsError: something else, or what another version of the package has kept.
        """
        _check_fields(cls, plain)
        cameras, states, texts = (dict(plain[name]) for name in ("cameras", "states", "texts"))
        actions = {key: tuple(shape) for key, shape in plain["actions"].items()}
        recorded = {}
        for key, one in plain["recorded"].items():
            _check_fields(RecordedAction, one)
            recorded[key] = RecordedAction(tuple(one["shape"]), one["dtype"], one["is_absent"])
        optional = {key: tuple(keys) for key, keys in plain["optional"].items()}
        return cls(cameras, states, actions, texts, recorded, optional)


def describe(
    sources: Mapping[str, MultiDataset], vocabulary: Mapping[str, int] | None = None
) -> dict[str, SampleSpec]:
    """Describe each source's samples, from its first one.

    Args:
        sources: per embodiment, its episodes.
        vocabulary: per key of texts that come with tokens, what these are below.

    Raises:
        SettingsError: no action chunk, or one whose padding the keymap doesn't mask; images that
            are not pixels; an action that a transform has joined to something else.
    """
    return {name: _describe(name, source, vocabulary or {}) for name, source in sources.items()}


def vocabularies(collate_fn: object) -> dict[str, int]:
    """Return, per key whose texts are tokenized, what its tokens are below.

    Args:
        collate_fn: a `TextCollate`; any other has none.

    Raises:
        SettingsError: the tokenizer doesn't say, by its length or its `vocab_size`.
    """
    if not isinstance(collate_fn, TextCollate):
        return {}
    tokenizer: Any = collate_fn.tokenizer
    # A length counts tokens that were added to it, too.
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else getattr(tokenizer, "vocab_size", 0)
    if type(size) is not int or size < 1:
        raise SettingsError(
            "the policy has to know how many different tokens there are; give the tokenizer a "
            f"vocab_size, a whole number that they are below: {type(tokenizer).__name__} has none"
        )
    return dict.fromkeys(collate_fn.keys, max(size, collate_fn.pad_id + 1))


def _describe(name: str, source: MultiDataset, vocabulary: Mapping[str, int]) -> SampleSpec:
    sample, keymap = source[0], source.keymaps[name]
    spec = SampleSpec({}, {}, {}, {}, _recorded(source, keymap))
    for key, roots in _roots(name, source, keymap, sample).items():
        value, role = sample[key], _role(name, key, roots, keymap)
        if role == "camera_keys":
            _check_camera(name, key, value)
            spec.cameras[key] = 1 if value.dim() == 3 else len(value)
        elif role == "proprio_keys":
            spec.states[key] = value.numel()
            optional = tuple(root for root in roots if keymap[root].optional)
            if optional and mask_key(key) in sample:
                spec.optional[key] = optional
        elif role == "action_keys":
            _check_action(name, key, value, sample)
            spec.actions[key] = tuple(value.shape)
        elif key in vocabulary:
            spec.texts[key] = vocabulary[key]
    if not spec.actions:
        raise SettingsError(f"the keymap of {name!r} has no action_keys entry to predict")
    return spec


def _roots(
    name: str, source: MultiDataset, keymap: KeyMap, sample: Sample
) -> dict[str, tuple[str, ...]]:
    """Return the entries of the keymap that a sample's keys are made of, if any, in order."""
    steps = source.settings.transforms_of(name)
    origins = Chain(tuple(one for one in steps if isinstance(one, Transform))).origins
    found = {
        key: tuple(root for root in origins.get(key, (key,)) if root in keymap) for key in sample
    }
    return {key: roots for key, roots in found.items() if roots}


def _role(name: str, key: str, roots: Sequence[str], keymap: KeyMap) -> str:
    """Return the `key_type` of the entries that a sample's key is made of."""
    kinds = sorted({keymap[root].key_type for root in roots})
    if len(kinds) > 1:
        raise SettingsError(
            f"key {key!r} of {name!r} joins {' and '.join(kinds)} ({', '.join(roots)}), so "
            "that a policy can't tell what to predict; join actions to actions"
        )
    return kinds[0]


def _check_fields(kind: type[RecordedAction | SampleSpec], plain: object) -> None:
    """Refuse plain values that are not those of a dataclass's fields."""
    names = [field.name for field in dataclasses.fields(kind)]
    if not isinstance(plain, Mapping) or set(plain) != set(names):
        found = sorted(map(str, plain)) if isinstance(plain, Mapping) else plain
        raise SettingsError(
            f"a {kind.__name__} is made of {', '.join(names)}, got {found!r:.200}; a checkpoint of "
            "another version of egoloader can't be used, train the policy anew"
        )


def _recorded(source: MultiDataset, keymap: KeyMap) -> dict[str, RecordedAction]:
    """Return what action entries are ahead of the transforms."""
    maker = SampleMaker(next(source.open_each()), keymap, source.settings)
    absent = _absent(source, keymap)
    return {
        field.key: RecordedAction(field.shape, field.dtype.name, field.key in absent)
        for field in maker.fields()
        if field.key in keymap
        and keymap[field.key].key_type == "action_keys"
        and field.shape is not None
        and field.dtype is not None
    }


def _absent(source: MultiDataset, keymap: KeyMap) -> set[str]:
    """Return the optional action entries that no episode has the arrays of."""
    absent = {key for key, one in keymap.items() if one.optional and one.key_type == "action_keys"}
    episodes = source.open_each()
    while absent and (episode := next(episodes, None)) is not None:
        absent = {key for key in absent if not episode.has(keymap[key].zarr_key)}
    return absent


def _check_camera(name: str, key: str, value: Any) -> None:
    if not torch.is_tensor(value):
        raise SettingsError(
            f"camera entry {key!r} of {name!r} comes as encoded bytes, and the policy needs "
            "pixels; set data.image_dtype=uint8 or data.image_dtype=float32"
        )


def _check_action(name: str, key: str, value: torch.Tensor, sample: Mapping[str, Any]) -> None:
    mask = sample.get(mask_key(key))
    if mask is None or mask.dim() == 0 or value.dim() == 0:
        raise SettingsError(
            f"action entry {key!r} of {name!r} needs a horizon and a mask, or padded steps would "
            "be learned as actions; set keymap.masks=true, or mask: true on the entry"
        )
