"""Texts of a batch as tokens, made where a batch is put together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from egoloader.bytetokens import ByteTokenizer
from egoloader.collation import collate
from egoloader.errors import SampleError, SettingsError, check_whole, near_miss

__all__ = ["Collate", "TextCollate", "tokens_key"]

#: From B samples to a dict batch.
Collate = Callable[[Sequence[dict[str, Any]]], dict[str, Any]]

#: Texts whose tokens are kept, and their characters at most.
_MAX_TEXTS, _MAX_CHARACTERS = 4096, 4096
_IDS, _MASK = "input_ids", "attention_mask"
_LARGEST_ID = 2**63 - 1
#: Names of what plain values stand for.
_TARGET, _COLLATE, _BYTES = "_target_", "egoloader.TextCollate", "egoloader.ByteTokenizer"

Ids = npt.NDArray[np.int64]


def tokens_key(key: str) -> str:
    """Return the key of the tokens of a text; their mask is at `<key>_tokens_is_pad`."""
    return f"{key}_tokens"


class _Known:
    """The tokens of texts that came before, for as many as are kept; of one process.

    A lock is around the tokenizer: those that are not made for threads would fail in them.
    """

    def __init__(self) -> None:
        self._renew()

    def __reduce__(self) -> tuple[object, ...]:
        return _Known, ()

    def _renew(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._ids: dict[str, Ids] = {}

    def look_up(
        self, texts: Sequence[str], tokenize: Callable[[list[str]], list[Ids]]
    ) -> dict[str, Ids]:
        """Return the tokens of texts, of which only those that are not known are tokenized."""
        if self._pid != os.getpid():
            self._renew()  # a forked child has its parent's lock, which a thread may have held
        with self._lock:
            found = {text: self._ids[text] for text in texts if text in self._ids}
            missing = [text for text in dict.fromkeys(texts) if text not in found]
            if missing:
                found |= dict(zip(missing, tokenize(missing), strict=True))
            for text in missing:
                if len(text) <= _MAX_CHARACTERS:
                    self._ids[text] = found[text]
            while len(self._ids) > _MAX_TEXTS:
                del self._ids[next(iter(self._ids))]
        return found


class _Place(NamedTuple):
    """A text of a batch: its key, and the sample's place."""

    key: str
    place: int


@dataclass(frozen=True, kw_only=True)
class TextCollate:
    """Collates samples, and puts the tokens of texts next to them.

    For a `DataLoader`, an `EpisodeLoader` or an `EpisodeDataModule` as `collate_fn`. Of each key
    with texts, a batch gets `<key>_tokens`, (B, L) int64, and `<key>_tokens_is_pad`, (B, L) bool,
    true behind the end of a text. All else is what `collate` hands out, uncopied.

        collate_fn:
          _target_: egoloader.TextCollate
          tokenizer: {_target_: egoloader.ByteTokenizer, max_length: 64}
          keys: [task]

    The tokenizer is called once a batch at most, by one thread at a time, with the distinct texts
    of all keys that have not come lately; so the same text must always give the same tokens.

    Args:
        tokenizer: from a list of texts to a list of as many lists of ids; or to a mapping, with
            `input_ids` and maybe an `attention_mask` (0 where an id pads), of lists, arrays or
            tensors, as Hugging Face's tokenizers give.
        keys: of the texts.
        max_length: L; longer texts lose their last tokens. Without it, L is the length of the
            longest text of the batch (1 at least).
        pad_id: what stands where a text has ended, in place of what the tokenizer put there.
        options: passed to every call of the tokenizer, by name.

    Raises:
        SettingsError: an option that can't be meant.
    """

    tokenizer: Callable[..., Any]
    keys: Sequence[str]
    max_length: int | None = None
    pad_id: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    _known: _Known = field(default_factory=_Known, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.tokenizer):
            raise SettingsError(f"tokenizer must take a list of texts, got {self.tokenizer!r}")
        keys = self.keys
        is_list = isinstance(keys, Sequence) and not isinstance(keys, str) and keys
        if not is_list or not all(isinstance(key, str) for key in keys):
            raise SettingsError(f"keys must list sample keys, got {keys!r}")
        object.__setattr__(self, "keys", tuple(dict.fromkeys(keys)))
        if self.max_length is not None:
            check_whole("max_length", self.max_length, 1)
        check_whole("pad_id", self.pad_id, 0)
        if not isinstance(self.options, Mapping):
            raise SettingsError(f"options must map names to values, got {self.options!r}")

    def __call__(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the batch of samples, with tokens.

        Raises:
            SettingsError: there are no texts at a key, or a key for the tokens is taken; see
                `collate`, too.
            SampleError: the tokenizer failed, or gave no tokens; names the episode and the frame.
        """
        return self.add_tokens(collate(samples), self.keys)

    def add_tokens(self, batch: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
        """Return a batch with tokens next to the texts of some keys.

        Args:
            batch: with a list of B texts at each of the keys.
            keys: of texts.

        Raises:
            SettingsError, SampleError: as a call does.
        """
        places: dict[str, _Place] = {}
        for key in keys:
            for place, text in enumerate(self._texts(batch, key)):
                places.setdefault(text, _Place(key, place))
        known = self._known.look_up(list(places), lambda texts: self._tokens(texts, places, batch))
        made: dict[str, Any] = {}
        for key, value in batch.items():
            made[key] = value
            if key in keys:
                made |= self._padded(key, [known[text] for text in value])
        return made

    def to_plain(self) -> dict[str, Any]:
        """Return it as a recipe lists it, in plain values, as a checkpoint keeps it.

        Raises:
            SettingsError: it, or its tokenizer, is none of egoloader's own classes, or the
                tokenizer is passed options; so that it couldn't be made again.
        """
        tokenizer = self.tokenizer
        if type(self) is not TextCollate or type(tokenizer) is not ByteTokenizer or self.options:
            raise SettingsError(
                f"{self!r:.200} can't be made again from a checkpoint, which only a TextCollate "
                "with a ByteTokenizer, and without options, can"
            )
        return {
            _TARGET: _COLLATE,
            "tokenizer": {_TARGET: _BYTES, "max_length": tokenizer.max_length},
            "keys": list(map(str, self.keys)),
            "max_length": self.max_length,
            "pad_id": self.pad_id,
        }

    @classmethod
    def from_plain(cls, plain: object) -> TextCollate:
        """Return what `to_plain` made plain; nothing but egoloader's own classes is made of it.

        Raises:
            SettingsError: something else, or options that can't be meant.
        """
        options = _options(plain, _COLLATE, ("tokenizer", "keys", "max_length", "pad_id"))
        tokenizer = _options(options.pop("tokenizer"), _BYTES, ("max_length",))
        return TextCollate(tokenizer=ByteTokenizer(**tokenizer), **options)

    def _texts(self, batch: Mapping[str, Any], key: str) -> list[str]:
        if key not in batch:
            raise SettingsError(
                f"there is no key {key!r} to tokenize; {near_miss(key, batch)} Every embodiment's "
                "keymap needs it: an entry with text: task fits any episode"
            )
        texts = batch[key]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            what = texts[0] if isinstance(texts, list) and texts else texts
            raise SettingsError(f"key {key!r} must hold texts, and holds a {type(what).__name__}")
        for taken in (tokens_key(key), f"{tokens_key(key)}_is_pad"):
            if taken in batch:
                raise SettingsError(f"there is a key {taken!r} already; rename it")
        return texts

    def _tokens(
        self, texts: list[str], places: Mapping[str, _Place], batch: Mapping[str, Any]
    ) -> list[Ids]:
        """Tokenize texts; where that fails, name a sample that has one it fails for."""
        try:
            return self._tokenized(texts)
        except Exception as error:
            text, failure = self._first_failing(texts, error)
            raise _failure(text, places[text], batch, failure) from failure

    def _first_failing(self, texts: list[str], error: Exception) -> tuple[str, Exception]:
        """Return the first text that fails alone; the first of all where none does."""
        for text in texts if len(texts) > 1 else ():
            try:
                self._tokenized([text])
            except Exception as found:
                return text, found
        return texts[0], error

    def _tokenized(self, texts: list[str]) -> list[Ids]:
        made = self.tokenizer(list(texts), **self.options)
        masks = None
        if isinstance(made, Mapping):
            if _IDS not in made:
                raise TypeError(f"the tokenizer returned no {_IDS!r}, but {sorted(made)}")
            masks, made = made.get(_MASK), made[_IDS]
        rows = _rows(made, len(texts), "ids")
        if masks is None:
            return rows
        kept = []
        for ids, mask in zip(rows, _rows(masks, len(texts), _MASK), strict=True):
            if len(ids) != len(mask):
                raise TypeError(f"a text has {len(ids)} ids, and {len(mask)} in {_MASK}")
            kept.append(ids[mask != 0])
        return kept

    def _padded(self, key: str, rows: Sequence[Ids]) -> dict[str, torch.Tensor]:
        length = self.max_length or max(1, *map(len, rows))
        ids = np.full((len(rows), length), self.pad_id, dtype=np.int64)
        is_pad = np.ones(ids.shape, dtype=np.bool_)
        for place, row in enumerate(rows):
            count = min(len(row), length)
            ids[place, :count], is_pad[place, :count] = row[:count], False
        name = tokens_key(key)
        return {name: torch.from_numpy(ids), f"{name}_is_pad": torch.from_numpy(is_pad)}


def _options(plain: object, target: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the options that stand in plain values for what `target` names."""
    made = dict(plain) if isinstance(plain, Mapping) else {}
    if set(made) != {_TARGET, *names} or made[_TARGET] != target:
        raise SettingsError(
            f"{target} in plain values is {{{_TARGET}: {target}, {', '.join(names)}: …}}, "
            f"got {plain!r:.200}"
        )
    return {name: made[name] for name in names}


def _rows(values: Any, count: int, what: str) -> list[Ids]:
    """Return whole numbers from 0 on of each of some texts: (n,) int64 each."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, str | Mapping) or not hasattr(values, "__len__") or len(values) != count:
        raise TypeError(f"the tokenizer must return {what} for each of {count} texts")
    rows = []
    for one in values:
        row = np.asarray(one)
        if row.ndim == 1 and not row.size:
            row = row.astype(np.int64)
        if row.ndim != 1 or row.dtype.kind not in "iub":
            raise TypeError(f"the {what} of a text must be whole numbers, got {one!r:.80}")
        if row.size and not 0 <= row.min() <= row.max() <= _LARGEST_ID:
            raise TypeError(f"the {what} of a text must be from 0 on, got {one!r:.80}")
        rows.append(row.astype(np.int64))
    return rows


def _failure(text: str, place: _Place, batch: Mapping[str, Any], error: Exception) -> SampleError:
    """Return the error for a text, with the sample that it is of."""
    episodes, frames = batch.get("episode"), batch.get("frame_index")
    return SampleError(
        f"the tokenizer failed for {text!r:.80} ({place.key!r}): {error!r}",
        episode="" if episodes is None else str(episodes[place.place]),
        frame=None if frames is None else int(frames[place.place]),
    )
