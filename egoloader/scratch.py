"""The hidden folder that an episode is written in, and how it becomes the episode: by rename."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from egoloader.catalog import find_episodes, is_episode, is_group
from egoloader.errors import EpisodeExistsError, WriterError
from egoloader.store import GROUP_FILES

__all__ = ["ScratchFolder"]

#: What a rename onto something that can't be replaced in one step fails with.
_OCCUPIED = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})

#: How the folder is opened: nothing else that has its name is taken for it, and no link followed.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ScratchFolder:
    """A folder beside `target`, on the same file system, that nobody takes for an episode.

    It is locked while its writer lives, so that a second writer to one path is refused at once, and
    what a killed one left is cleared away by the next, which also brings back an old episode that
    the killed one had just moved aside. POSIX only; where a file system shared by several machines
    keeps no locks, the rename at the end refuses one of them.

    Args:
        target: where the episode is to appear; its parent folder is made if there is none.
        overwrite: whether an episode at `target` may be replaced.

    Raises:
        EpisodeExistsError: something is at `target` and may not be replaced, or somebody is writing
            to it.
        WriterError: `target` can't be the path of a folder.
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        self._target, self._overwrite = target, overwrite
        if not target.name or target.name == "..":
            raise WriterError(f"{target} can't be an episode's path: it ends in no name")
        self._check_target()
        for folder in target.parents:
            if is_episode(folder):
                raise WriterError(f"{target} lies inside {folder}, which is an episode itself")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise WriterError(f"{target}: {error.filename} is a file, not a folder") from error
        self.path = target.with_name(f".{target.name}.partial")
        self._lock = _lock(self.path, target)
        try:
            self._clear()
            self._check_target()
        except BaseException:
            self.remove()
            raise

    def publish(self) -> None:
        """Rename the folder to the target, whole: a reader sees all of it or none.

        A folder can't be replaced in one step, so the old episode steps aside first. It comes back
        if the new one can't take its place.

        Raises:
            EpisodeExistsError: something is at the target and may not be replaced.
        """
        self._check_target()
        aside: list[Path] = []
        try:
            while not self._take_place():
                if not self._overwrite:
                    raise _exists(self._target)
                old = self._old(len(aside))
                # Another writer may be replacing it at this moment.
                with suppress(FileNotFoundError):
                    self._target.rename(old)
                    aside.append(old)
        except BaseException:
            if aside and not os.path.lexists(self._target):
                aside[-1].rename(self._target)
            raise
        self._unlock()
        if aside:
            # Under the lock again, or a writer that begins now would clear away the same; if one
            # has begun, it does.
            with suppress(EpisodeExistsError):
                self._lock = _lock(self.path, self._target)
                self._clear()

    def remove(self) -> None:
        """Remove the folder if it is still there."""
        # It is hidden and never opens, so at worst it takes room; an error on the way out of
        # another one would only hide that.
        if self._lock >= 0:
            with suppress(OSError):
                _close_to_readers(self.path)
            shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _clear(self) -> None:
        """Remove what a writer that was killed left, but not the only whole episode there is."""
        _close_to_readers(self.path)
        for left in self.path.iterdir():
            _remove(left)
        aside: list[Path] = []
        while os.path.lexists(self._old(len(aside))):
            aside.append(self._old(len(aside)))
        if aside and not os.path.lexists(self._target) and is_group(aside[-1]):
            aside.pop().rename(self._target)
        for old in reversed(aside):  # so that whoever is killed here leaves no gap
            _remove(old)

    def _old(self, number: int) -> Path:
        return Path(f"{self.path}.old{number}")

    def _unlock(self) -> None:
        if self._lock >= 0:
            # Not by closing alone: a child that was forked meanwhile has it open, too.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
        self._lock = -1

    def _take_place(self) -> bool:
        try:
            self.path.rename(self._target)
        except OSError as error:
            if error.errno in _OCCUPIED:
                return False
            raise
        return True

    def _check_target(self) -> None:
        if not os.path.lexists(self._target):
            return
        if not self._overwrite:
            raise _exists(self._target)
        if self._target.is_dir():
            _check_replaceable(self._target)


def _lock(path: Path, target: Path) -> int:
    """Make a folder of one's own; return what holds its lock as long as it is open.

    Raises:
        EpisodeExistsError: another writer has it.
    """
    while True:
        with suppress(FileExistsError):
            path.mkdir()
        try:
            handle = os.open(path, _FOLDER)
        except FileNotFoundError:
            continue  # its writer has just published or removed it
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BlockingIOError as error:
            os.close(handle)
            raise EpisodeExistsError(
                f"{target} is being written to by another writer; let it finish, or choose another "
                "path"
            ) from error
        except FileNotFoundError:
            pass
        os.close(handle)


def _check_replaceable(folder: Path) -> None:
    """Refuse to replace a folder of other things: an episode, or what is left of one, may go."""
    try:
        names = {entry.name for entry in folder.iterdir()}
        if not names:
            return
        if folder.suffix != ".zarr" and names.isdisjoint(GROUP_FILES):
            raise EpisodeExistsError(
                f"{folder} is a folder, but not that of an episode; overwrite replaces episodes "
                "only, so choose another path, or remove the folder"
            )
        held = find_episodes(folder)[0]
    except FileNotFoundError:
        # It is one episode or holds none, or another writer is replacing it at this moment.
        return
    raise EpisodeExistsError(
        f"{folder} holds episodes, such as {held!r}; overwrite replaces one episode only, so give "
        "a path below it"
    )


def _exists(target: Path) -> EpisodeExistsError:
    return EpisodeExistsError(f"{target} exists already; pass overwrite=True to replace it")


def _close_to_readers(folder: Path) -> None:
    """Remove a group's own metadata: what is left of it while the rest goes never opens."""
    for name in GROUP_FILES:
        (folder / name).unlink(missing_ok=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        _close_to_readers(path)
        shutil.rmtree(path)
    else:
        path.unlink()
