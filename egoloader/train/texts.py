"""Texts that a policy is told, as the tokens that its training samples had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from egoloader.errors import SettingsError, near_miss
from egoloader.tokens import TextCollate, tokens_key
from egoloader.train.spec import SampleSpec, vocabularies
from egoloader.transforms.transform import mask_key

__all__ = ["kept_collate", "made_collate", "with_tokens"]


def kept_collate(collate_fn: object) -> TextCollate | None:
    """Return what makes the tokens of training samples, if a checkpoint can keep it."""
    if not isinstance(collate_fn, TextCollate):
        return None
    try:
        collate_fn.to_plain()
    except SettingsError:  # one of the user's own
        return None
    return collate_fn


def made_collate(
    collate_fn: TextCollate | Mapping[str, Any] | None, specs: Mapping[str, SampleSpec]
) -> TextCollate | None:
    """Return what makes the tokens of texts, of its plain form where that is given.

    Args:
        collate_fn: makes them; None where it is not known.
        specs: per embodiment, what samples are.

    Raises:
        SettingsError: it is something else, or doesn't make the tokens that samples have.
    """
    if isinstance(collate_fn, Mapping):
        collate_fn = TextCollate.from_plain(collate_fn)
    if collate_fn is None:
        return None
    if not isinstance(collate_fn, TextCollate):
        raise SettingsError(f"collate_fn must be a TextCollate, or None, got {collate_fn!r:.200}")
    made = vocabularies(collate_fn)
    for key, size in sorted({text for spec in specs.values() for text in spec.texts.items()}):
        if key not in made:
            raise SettingsError(
                f"collate_fn makes no tokens of {key!r}, which samples have; {near_miss(key, made)}"
            )
        if made[key] != size:
            raise SettingsError(
                f"collate_fn makes tokens of {key!r} below {made[key]}, and those of samples are "
                f"below {size}; give the one that they are collated by"
            )
    return collate_fn


def with_tokens(
    batch: Mapping[str, Any], spec: SampleSpec, collate_fn: TextCollate | None
) -> dict[str, Any]:
    """Return a batch with the tokens of its texts, on the device of its rates.

    Args:
        batch: as the last transform has left it. Tokens that are there stay as they are, and need
            no text.
        spec: what samples are.
        collate_fn: makes tokens; None where it is not known.

    Raises:
        SettingsError: there is neither a text nor its tokens; a text is no list of one for each
            sample; or there are no tokens, and `collate_fn` is not known.
    """
    names = {key: (tokens_key(key), mask_key(tokens_key(key))) for key in spec.texts}
    missing = [key for key, both in names.items() if batch.keys().isdisjoint(both)]
    if not missing:
        return dict(batch)
    if collate_fn is None:
        tokens, mask = names[missing[0]]
        raise SettingsError(
            f"the policy takes {tokens!r} and {mask!r}, and the batch lacks them; it can't make "
            f"them of {missing[0]!r}, as a checkpoint keeps no tokenizer but ByteTokenizer. Give "
            "them as the TextCollate that it was trained with makes them"
        )
    rates = batch["fps"]
    for key in missing:
        _check_texts(batch, key, len(rates))
    made = collate_fn.add_tokens(batch, missing)
    return made | {name: made[name].to(rates.device) for key in missing for name in names[key]}


def _check_texts(batch: Mapping[str, Any], key: str, count: int) -> None:
    """Refuse what is no list of texts, one for each of so many samples."""
    if key not in batch:
        raise SettingsError(
            f"the policy takes the text {key!r}, and the batch lacks it, and its tokens "
            f"{tokens_key(key)!r}; {near_miss(key, batch)}"
        )
    texts = batch[key]
    if not isinstance(texts, list):
        raise SettingsError(
            f"{key!r} must be a list of texts, one for each of {count} samples, "
            f"got a {type(texts).__name__}: {texts!r:.80}"
        )
    if len(texts) != count:
        raise SettingsError(
            f"{key!r} must be a list of texts, one for each of {count} samples, got {len(texts)}"
        )
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise SettingsError(
                f"{key!r} must be a list of texts, and its place {place} holds a "
                f"{type(text).__name__}: {text!r:.80}"
            )
