"""The error tree is what its picture says, and errors survive the way between processes."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re

import pytest

from egoloader import errors
from egoloader.errors import (
    EpisodeError,
    FolderNotFoundError,
    MissingExtraError,
    near_miss,
    require_extra,
)

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and value.__module__ == errors.__name__
}
EPISODE_ERRORS = [value for value in CLASSES.values() if issubclass(value, EpisodeError)]


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Read the docstring's picture: name to (parent, builtin in brackets)."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([\s│├└─]*)([A-Z]\w+(?:Error|Warning))(?: \((\w+)\))?(?:\s|$)", line)
        if not found:
            continue
        indent, name, builtin = len(found[1]), found[2], found[3]
        above = [(depth, parent) for depth, parent in above if depth < indent]
        tree[name] = (above[-1][1] if above else None, builtin)
        above.append((indent, name))
    return tree


def test_the_picture_is_the_tree() -> None:
    tree = drawn_tree()
    assert set(tree) == set(CLASSES)
    for name, (parent, builtin) in tree.items():
        bases = [base.__name__ for base in CLASSES[name].__bases__]
        wanted = [base for base in (parent, builtin) if base is not None]
        if name == "EgoloaderError":
            wanted = ["Exception"]
        assert bases == wanted, name


def test_everything_public_is_exported() -> None:
    public = {
        name
        for name, value in vars(errors).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == errors.__name__
    }
    assert set(errors.__all__) == public
    assert errors.__all__ == sorted(errors.__all__)


def test_every_error_that_is_raised_is_a_builtin_error_too() -> None:
    leaves = [kind for kind in CLASSES.values() if not kind.__subclasses__()]
    for kind in leaves:
        standard = [
            base
            for base in kind.__mro__
            if base.__module__ == builtins.__name__
            and base not in (object, BaseException, Exception, Warning)
        ]
        assert standard, kind


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES.keys())
def test_every_class_says_what_it_is_for(kind: type) -> None:
    assert kind.__doc__


@pytest.mark.parametrize("kind", EPISODE_ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "where", [{}, {"key": "left.obs_ee_pose"}, {"key": "left.obs_ee_pose", "frame": 17}]
)
def test_episode_errors_survive_pickling(
    kind: type[EpisodeError], where: dict[str, object]
) -> None:
    error = kind("it's 'broken'", episode="a/ep.zarr", **where)  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    for name in ("message", "episode", "key", "frame"):
        assert getattr(again, name) == getattr(error, name)


@pytest.mark.parametrize("kind", EPISODE_ERRORS, ids=lambda kind: kind.__name__)
def test_episode_errors_name_episode_key_and_frame(kind: type[EpisodeError]) -> None:
    error = kind("it's 'broken'", episode="a/ep.zarr", key="images.front_1", frame=0)
    noun = "folder" if kind is FolderNotFoundError else "episode"
    assert str(error) == f"{noun} 'a/ep.zarr', key 'images.front_1', frame 0: it's 'broken'"
    assert str(kind("it broke", episode="a/ep.zarr")) == f"{noun} 'a/ep.zarr': it broke"


@pytest.mark.parametrize(
    "kind",
    [kind for kind in CLASSES.values() if not issubclass(kind, EpisodeError)],
    ids=lambda kind: kind.__name__,
)
def test_other_errors_survive_pickling(kind: type[Exception]) -> None:
    again = pickle.loads(pickle.dumps(kind("it broke")))
    assert type(again) is kind
    assert str(again) == "it broke"


def test_only_a_dataset_index_is_an_index_error() -> None:
    assert [kind for kind in CLASSES.values() if issubclass(kind, IndexError)] == [
        errors.FrameIndexError
    ]
    assert not any(issubclass(kind, StopIteration) for kind in CLASSES.values())


def test_a_near_miss_names_the_closest() -> None:
    known = ["left.obs_keypoints", "right.obs_keypoints", "images.front_1"]
    assert near_miss("left.obs_keypoint", known) == "did you mean 'left.obs_keypoints'?"


def test_without_a_near_miss_all_are_listed_up_to_a_dozen() -> None:
    assert near_miss("zzz", ["b", "a"]) == "there are: 'a', 'b'."
    assert near_miss("zzz", []) == "there are none."
    many = near_miss("zzz", [f"key{n:02}" for n in range(50)])
    assert "'key11'" in many
    assert "'key12'" not in many
    assert "…" in many


def test_an_extra_is_imported_or_named() -> None:
    assert require_extra("json", extra="convert").loads("3") == 3
    with pytest.raises(MissingExtraError, match=r"egoloader\[convert\]") as caught:
        require_extra("no_such_library.part", extra="convert")
    assert isinstance(caught.value, ImportError)
    assert "no_such_library" in str(caught.value)


@pytest.mark.parametrize("kind", EPISODE_ERRORS, ids=lambda kind: kind.__name__)
def test_episode_errors_can_be_made_of_their_text_alone(kind: type[EpisodeError]) -> None:
    # As PyTorch does with an error that comes home from a worker.
    assert str(kind("Caught in worker 0: it broke")) == "Caught in worker 0: it broke"
