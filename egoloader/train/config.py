"""Where Hydra's configs are, and what its complaints mean. The only module that knows its types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep
from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    ConfigIndexError,
    ConfigTypeError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

import egoloader
from egoloader.errors import ConfigError, EgoloaderError, near_miss
from egoloader.train.targets import misfits, place_of

__all__ = [
    "CONFIG_ERRORS",
    "compose",
    "config_dir",
    "explain",
    "make",
    "make_all",
    "make_as",
    "refuse_misfits",
    "refuse_odd_choices",
    "refuse_plain_groups",
    "refuse_unused",
    "sample_folder",
]

_T = TypeVar("_T")
#: What is looked for in groups that hold several things to build.
_TAKEN = {"norm": ("numbers", "images"), "augment": ("images",)}
#: What Hydra raises when a config is wrong.
CONFIG_ERRORS = (HydraException, OmegaConfBaseException)


def config_dir() -> Path:
    """Return the folder of the configs: in the installed package, else in the source checkout."""
    package = Path(egoloader.__file__).parent
    shipped = package / "configs"
    return shipped if shipped.is_dir() else package.parent / "configs"


def sample_folder() -> str:
    """Return the folder of the sample episodes that ship with the package (simulated)."""
    return str(Path(egoloader.__file__).parent / "samples")


def compose(overrides: Sequence[str]) -> DictConfig:
    """Compose the training config with overrides, as `egoloader train` does.

    Raises:
        ConfigError: an override names what is not there, or can't be parsed.
    """
    refuse_odd_choices(overrides)
    try:
        with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
            config = hydra.compose("train", list(overrides))
    except CONFIG_ERRORS as error:
        raise explain(error) from error
    refuse_unused(config)
    return config


def refuse_odd_choices(overrides: Iterable[str]) -> None:
    """Refuse `logger=null`, `norm=5` and the like, which Hydra takes for mistakes of the configs.

    Raises:
        ConfigError: an override sets a whole group to what is no choice's name.
    """
    groups = _groups()
    for override in overrides:
        group, is_set, _ = override.partition("=")
        if group not in groups or not is_set:
            continue
        try:
            choice = OverridesParser.create().parse_override(override).value()
        except OverrideParseException:  # which Hydra tells best, when it composes
            continue
        chosen = choice if isinstance(choice, list) else [choice]
        if all(isinstance(one, str | Sweep) for one in chosen):
            continue
        names = sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))
        if choice is None:
            # The data's options are taken from the one, and the others have a choice for it.
            hint = f"~{group} takes it out of the config"
            if group in ("sampler", "norm", "augment"):
                hint = f"choose one, as in {group}={'none' if 'none' in names else names[0]}"
            raise ConfigError(f"{override}: a group can't be null; {hint}")
        raise ConfigError(f"{override}: {group} is chosen by name, as one of {', '.join(names)}")


def refuse_plain_groups(config: DictConfig) -> None:
    """Refuse what stands in the place of a group's options.

    Raises:
        ConfigError: a group holds no options by name.
    """
    for name in sorted(_groups() & set(map(str, config))):
        if config[name] is not None and not isinstance(config[name], DictConfig):
            raise ConfigError(f"{name} must hold options by name, got {_plain(config[name])!r}")


def refuse_unused(config: DictConfig) -> None:
    """Refuse an option of some groups that nothing takes, as `+sampler.…` can add.

    Raises:
        ConfigError: there is one; names the near miss.
    """
    for group, taken in _TAKEN.items():
        for name in map(str, config.get(group) or ()):
            if name not in taken:
                raise ConfigError(f"there is no {group}.{name}; {near_miss(name, taken)}")
    options = config.get("sampler")
    data = OmegaConf.to_container(config.get("data") or OmegaConf.create({}), resolve=False)
    if not isinstance(options, DictConfig) or not isinstance(data, dict) or "_target_" not in data:
        return
    given = {value for value in data.values() if isinstance(value, str)}
    # Those that the data takes, or would take if its own option were not set.
    known = [name for name in map(str, options) if f"${{sampler.{name}}}" in given or name in data]
    for name in map(str, options):
        if name not in known:
            raise ConfigError(f"there is no sampler.{name}; {near_miss(name, known)}")


def make(node: Any, **extra: Any) -> Any:
    """Instantiate a config node; what it builds gets plain Python containers.

    Raises:
        EgoloaderError: what the built object raised.
        ConfigError: the node can't be instantiated; names the option, and the near miss.
    """
    try:
        return hydra.utils.instantiate(node, _convert_="all", **extra)
    except InstantiationException as error:
        is_ours = any(isinstance(link, EgoloaderError) for link in _chain(error))
        problem = None if is_ours else next(misfits(node, extra), None)
        raise (explain(error, node) if problem is None else ConfigError(problem)) from error
    except CONFIG_ERRORS as error:
        raise explain(error) from error
    except TypeError as error:  # Hydra's, of its own flags: those of targets are none
        raise ConfigError(_first_line(error)) from error


def make_as(kind: type[_T], config: DictConfig, name: str, **extra: Any) -> _T:
    """Instantiate what an option of the config describes, by its dotted name.

    Raises:
        EgoloaderError: what the built object raised.
        ConfigError: it describes nothing, or something of another kind.
    """
    node = OmegaConf.select(config, name)
    wanted = f"{name} must describe {kind.__name__}, as in {{_target_: …, …}}"
    if not isinstance(node, DictConfig) or "_target_" not in node:
        raise ConfigError(f"{wanted}; got {_plain(node)!r}")
    built = make(node, **extra)
    if not isinstance(built, kind):
        raise ConfigError(f"{wanted}; {node['_target_']} makes {type(built).__name__}")
    return built


def make_all(kind: type[_T], config: DictConfig, group: str) -> list[_T]:
    """Instantiate the named choices of a group; one that is set to null is left out.

    Raises:
        EgoloaderError: what a built object raised.
        ConfigError: one is of another kind.
    """
    names = [name for name, node in (config.get(group) or {}).items() if node is not None]
    return [make_as(kind, config, f"{group}.{name}") for name in names]


def refuse_misfits(node: Any, package: str, **extra: Any) -> None:
    """Refuse options of a package's classes that are not what these say they take.

    Raises:
        ConfigError: there is one; names it, and what it may be.
    """
    problem = next(misfits(node, extra, package), None)
    if problem is not None:
        raise ConfigError(problem)


def explain(error: BaseException, node: Any = None) -> EgoloaderError:
    """Turn an error of Hydra's into one sentence: what is wrong, and the near miss.

    Args:
        error: what was raised.
        node: that was to be built, of a config; None for none.
    """
    for link in _chain(error):
        if isinstance(link, EgoloaderError):
            return link
    for link in _chain(error):
        if isinstance(link, MissingMandatoryValue):
            name = getattr(link, "full_key", None) or "an option"
            return ConfigError(f"{name} is not set; give it, as in {name}=…")
    for link in _chain(error):
        full_key, parent = getattr(link, "full_key", None), getattr(link, "parent_node", None)
        problem = _misplaced(link, str(full_key), parent) if full_key else None
        if problem:
            return ConfigError(problem)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return ConfigError(f"there is no {group}={name}; {near_miss(name, error.options or ())}")
    if isinstance(error, InstantiationException):
        message, _, place = str(error).partition("\nfull_key: ")
        what = place_of(node, place.strip()) or "the config"
        reason = _first_line(error.__cause__) if error.__cause__ else " ".join(message.split())
        return ConfigError(f"{what} can't be built: {reason}")
    message = _first_line(error)
    if isinstance(error, OverrideParseException):
        message += (
            " (values with spaces, commas, accents or '=' need quotes of their own, as in "
            "\"data.folder='my episodes'\")"
        )
    return ConfigError(message)


def _misplaced(error: BaseException, full_key: str, there: Any) -> str | None:
    """Return what is wrong with the place of an override, if that is it.

    Args:
        error: one of OmegaConf's.
        full_key: of the override.
        there: what the place is in, or of a clash of kinds, what is there.
    """
    if isinstance(error, ConfigTypeError):
        if "merge" not in str(error):
            return None
        kinds = ["a list", "options by name"]
        has, given = kinds if isinstance(there, ListConfig) else reversed(kinds)
        return (
            f"{given} can't be merged into {full_key}, which holds {has}; to have it replaced, "
            f"set it to null first: {full_key}=null '{full_key}=…'"
        )
    if isinstance(error, ConfigIndexError) and isinstance(there, ListConfig):
        return f"there is no {full_key}; the list has {len(there)}, counted from 0"
    if isinstance(there, DictConfig):
        # Which may hold dots itself.
        key = str(getattr(error, "key", None))
        name = key if full_key.endswith(key) else full_key.rpartition(".")[2]
        return _unknown_option(full_key.removesuffix(name).rstrip("."), name, map(str, there))
    return None


def _unknown_option(parent: str, name: str, known: Iterable[str]) -> str:
    options = [key for key in known if not key.startswith("_")]
    where = f"{parent!r} has" if parent else "the config has"
    message = f"{where} no option {name!r}; {near_miss(name, options)}"
    if any("." in key for key in options):
        return message + (
            " A key that holds dots is overridden in dict form, as in "
            "'keymap.entries={observation.state: {history: 4}}'"
        )
    full_key = f"{parent}.{name}".lstrip(".")
    written = f"'+{parent}={{{name}: …}}'" if "." in name else f"+{full_key}=…"
    message += f" To pass an option that the config does not list, write {written}"
    if parent and not options:
        message += f", or all of them in dict form: '{parent}={{{name}: …}}'"
    return message


def _groups() -> set[str]:
    return {path.name for path in config_dir().iterdir() if path.is_dir()}


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value


def _chain(error: BaseException) -> Iterable[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else type(error).__name__
