"""Options of a config against what is to be built of it: by name, and by kind."""

from __future__ import annotations

import inspect
import pkgutil
import pydoc
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf

import egoloader
from egoloader import augment, transforms
from egoloader.errors import near_miss

__all__ = ["misfits", "place_of"]

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
#: What annotations are called where people write YAML.
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    types.NoneType: "null",
}


class _Call(NamedTuple):
    """What a config asks for: a target, with options in plain containers.

    Attributes:
        where: its path in the config.
        node: the target and its options.
        extra: names of options that it gets besides.
    """

    where: str
    node: Mapping[Any, Any]
    extra: frozenset[str]

    @property
    def target(self) -> str:
        """The dotted name of what is called."""
        return str(self.node["_target_"])

    @property
    def options(self) -> dict[str, Any]:
        """The options themselves, without what Hydra takes."""
        return {str(k): v for k, v in self.node.items() if not str(k).startswith("_")}

    def at(self, option: str = "") -> str:
        """Return the path of an option, or of the call itself."""
        return ".".join(part for part in (self.where, option) if part)


def misfits(node: Any, extra: Iterable[str] = (), package: str = "") -> Iterator[str]:
    """Yield what is wrong with the calls that a config asks for.

    That is a target that is not there, an option that it does not take, or lacks, and a value that
    is not of the annotated type. What annotations say is not always all that a function takes: ask
    ahead of a call only of packages that are known for it.

    Args:
        node: of a config.
        extra: names of options that the node gets besides its own.
        package: that the targets to look at belong to; of none, all.
    """
    for call in _calls_of(node, extra):
        if call.target.startswith(package):
            yield from _in_call(call)


def place_of(node: Any, joined: str) -> str:
    """Return the path of a call in a config that Hydra writes without brackets: `steps[0]`.

    Args:
        node: of a config.
        joined: as Hydra has it, `steps0`.
    """
    found = (call.where for call in _calls_of(node, ()))
    return next((one for one in found if one.replace("[", "").replace("]", "") == joined), joined)


def _calls_of(node: Any, extra: Iterable[str]) -> Iterator[_Call]:
    if isinstance(node, DictConfig | ListConfig | dict | list):
        config: Any = node if OmegaConf.is_config(node) else OmegaConf.create(node)
        plain = OmegaConf.to_container(config, resolve=True)
        yield from _calls(plain, str(config._get_full_key(None)), frozenset(extra))


def _calls(node: Any, where: str, extra: frozenset[str]) -> Iterator[_Call]:
    if isinstance(node, list):
        for place, child in enumerate(node):
            yield from _calls(child, f"{where}[{place}]", frozenset())
    elif isinstance(node, Mapping):
        if isinstance(node.get("_target_"), str):
            yield _Call(where, node, extra)
        for key, child in node.items():
            yield from _calls(child, f"{where}.{key}".lstrip("."), frozenset())


def _in_call(call: _Call) -> Iterator[str]:
    called = _found(call.target)
    if called is None:
        yield from (f"{call.at()}: {problem}".lstrip(": ") for problem in _unknown(call.target))
        return
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # nothing to call, or it doesn't say what it takes
        return
    yield from _wrong_names(call, parameters)
    yield from _wrong_values(call, parameters, _hints(called))


def _wrong_names(call: _Call, parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    given = set(call.options) | call.extra
    known = [one.name for one in parameters if one.kind in _BY_NAME]
    name = call.target.rpartition(".")[2]
    place = f"{call.at()}: " if call.at() else ""
    if not any(one.kind == inspect.Parameter.VAR_KEYWORD for one in parameters):
        for option in sorted(given - set(known)):
            yield f"{place}{name} has no option {option!r}; {near_miss(option, known)}"
    if call.node.get("_partial_") or call.node.get("_args_"):
        return
    for one in parameters:
        is_needed = one.default is inspect.Parameter.empty and one.kind in _BY_NAME
        if is_needed and one.name not in given:
            yield f"{place}{name} needs the option {one.name!r}"


def _wrong_values(
    call: _Call, parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any]
) -> Iterator[str]:
    defaults = {one.name: one.default for one in parameters}
    for option, value in call.options.items():
        if option not in defaults or option not in hints or _is_made(value):
            continue
        is_default = type(value) is type(defaults[option]) and value == defaults[option]
        if not is_default and not _fits(value, hints[option]):
            yield f"{call.at(option)} must be {_spelled(hints[option])}, got {value!r}"


def _is_made(value: Any) -> bool:
    """Return whether a value is to be built itself, or holds what is."""
    return any(True for _ in _calls(value, "", frozenset()))


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a plain value is of an annotated type; where that can't be told, it is."""
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(hint))
    if origin is None:
        return value is None
    if origin is float:
        return type(value) in (int, float)
    if origin is int:
        return type(value) is int
    if not isinstance(origin, type):
        return True
    if isinstance(value, list) and issubclass(origin, Sequence):
        (of, *_) = get_args(hint) or (Any,)
        return origin is not str and all(_fits(one, of) for one in value)
    try:
        return isinstance(value, origin)
    except TypeError:  # a protocol
        return True


def _spelled(hint: Any) -> str:
    origin, inside = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        # A number may be a whole one.
        kinds = [one for one in inside if one is not int or float not in inside]
        return " or ".join(dict.fromkeys(map(_spelled, kinds)))
    if origin is Literal:
        return " or ".join(map(repr, inside))
    if isinstance(origin, type) and issubclass(origin, Sequence) and origin is not str:
        return "a list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping"
    return _KINDS.get(origin, getattr(origin, "__name__", str(origin)))


def _hints(called: Any) -> dict[str, Any]:
    try:
        return get_type_hints(called.__init__ if inspect.isclass(called) else called)
    except (NameError, TypeError, AttributeError):  # names that are there for a type checker only
        return {}


def _unknown(target: str) -> Iterator[str]:
    """Yield what is wrong with the name of something that is not there, if it is told here."""
    name = target.rpartition(".")[2]
    home = next((one for one in (transforms, augment, egoloader) if name in one.__all__), None)
    if home is not None:
        yield f"there is no {target!r}; did you mean '{home.__name__}.{name}'?"
    elif name == target:
        yield f"there is no {target!r}; targets are dotted names, as in egoloader.transforms.Drop"
    else:
        yield from _missing_part(target)


def _missing_part(target: str) -> Iterator[str]:
    """Yield which part of a dotted name is not there, if something before it is."""
    above, _, name = target.rpartition(".")
    if not above:
        return
    owner = _found(above)
    if owner is None:
        yield from _missing_part(above)
        return
    public = getattr(owner, "__all__", [one for one in dir(owner) if not one.startswith("_")])
    modules = [one.name for one in pkgutil.iter_modules(getattr(owner, "__path__", []))]
    yield f"{above} has no {name!r}; {near_miss(name, {*public, *modules})}"


def _found(name: str) -> Any:
    """Return what a dotted name stands for, None where there is no such thing."""
    try:
        return pydoc.locate(name)
    except pydoc.ErrorDuringImport:  # which what asks for it tells best
        return None
