"""Options of single keys, for all embodiments or for some."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from egoloader.errors import SettingsError, near_miss

__all__ = ["KeyOptions", "key_options"]

Option = TypeVar("Option")


@dataclass(frozen=True, slots=True)
class KeyOptions(Generic[Option]):
    """What is chosen for keys.

    Attributes:
        shared: by key, for all embodiments.
        single: by embodiment, then by key; goes ahead of what is shared.
    """

    shared: Mapping[str, Option]
    single: Mapping[str, Mapping[str, Option]]

    def of(self, embodiment: str) -> dict[str, Option]:
        """Return what is chosen for the keys of an embodiment."""
        return {**self.shared, **self.single.get(embodiment, {})}

    def to_plain(self, plain: Callable[[Option], Any]) -> dict[str, Any]:
        """Return it as it was given, options by a function of them."""
        return {
            **{key: plain(one) for key, one in self.shared.items()},
            **{
                name: {key: plain(one) for key, one in keys.items()}
                for name, keys in self.single.items()
            },
        }

    def check_known(self, option: str, known: Mapping[str, Collection[str]]) -> None:
        """Refuse keys that there are no statistics of, and embodiments.

        Args:
            option: how errors call it.
            known: by embodiment, its keys.

        Raises:
            SettingsError: there is one; says the near miss, or how options of an embodiment's keys
                are given.
        """
        every = {key for keys in known.values() for key in keys}
        for name in self.shared:
            if name in known and name not in every:
                raise SettingsError(
                    f"{option}: {name!r} is an embodiment; give {{{name!r}: {{key: …}}}}"
                )
        _check_names(option, self.shared, every)
        for name, keys in self.single.items():
            if name not in known:
                raise SettingsError(
                    f"{option}: what {name!r} maps is for an embodiment of that name, and there is "
                    f"none; {near_miss(name, known)}"
                )
            _check_names(f"{option} of {name!r}", keys, known[name])


def key_options(
    option: str, given: Mapping[Any, Any], checked: Callable[[str, str, Any], Option]
) -> KeyOptions[Option]:
    """Return what is chosen for keys: {key: …}, {embodiment: {key: …}}, or both in one.

    Args:
        option: how errors call it.
        given: what is mapped is of an embodiment, all else of a key.
        checked: returns what can be meant of (how errors call it, the key, what is given).

    Raises:
        SettingsError: a name is no text, or what `checked` refuses.
    """
    shared: dict[str, Option] = {}
    single: dict[str, dict[str, Option]] = {}
    for name, one in _named(option, given):
        if not isinstance(one, Mapping):
            shared[name] = checked(option, name, one)
            continue
        where = f"{option} of {name!r}"
        single[name] = {key: checked(where, key, its) for key, its in _named(where, one)}
    return KeyOptions(shared, single)


def _named(option: str, given: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, one in given.items():
        if not isinstance(name, str):
            raise SettingsError(f"{option}: keys are texts, got {name!r}")
        yield name, one


def _check_names(option: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise SettingsError(
                f"{option}: there are no statistics of {name!r}; {near_miss(name, known)}"
            )
