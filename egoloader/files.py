"""Open files of this process, bounded in number. POSIX only: reads are `pread`."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_OPEN_FILES", "OpenFiles", "Signature", "StoredFile", "open_files"]

#: Files that a process keeps open at once.
MAX_OPEN_FILES = 64

#: Size in bytes, time of modification in ns, and inode: what tells a file from its successor.
Signature = tuple[int, int, int]


class _Handle:
    """A file's number, closed with it. No weak reference leads here.

    One to what is closing still does: Python runs `__del__` before it clears them, and another
    thread would read from a number that is closed, or another file's by then.
    """

    __slots__ = ("number",)

    def __init__(self, path: str) -> None:
        self.number = -1
        # A pipe that somebody left there would have its reader wait for a writer.
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class StoredFile:
    """One open file, for reading from any thread; closed when nobody holds it any more.

    Whoever gets it by a weak reference may read from it, too.

    Raises:
        OSError: the file can't be opened, or is a pipe or device; IsADirectoryError where it is a
            folder.
    """

    __slots__ = ("__weakref__", "_fd", "_handle", "signature", "size")

    def __init__(self, path: str) -> None:
        self._handle = _Handle(path)
        self._fd = self._handle.number
        status = os.fstat(self._fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        #: Bytes of the file when it was opened.
        self.size = status.st_size
        self.signature: Signature = (status.st_size, status.st_mtime_ns, status.st_ino)

    def read_into(self, memory: npt.NDArray[np.uint8], start: int) -> memoryview:
        """Read bytes from `start` on into memory; return them, fewer than it has at the end."""
        view = memory.data
        done = os.preadv(self._fd, (view,), start)
        while 0 < done < memory.nbytes:
            more = os.preadv(self._fd, (view[done:],), start + done)
            if not more:
                break
            done += more
        return view[:done]

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop), fewer at the file's end."""
        data = os.pread(self._fd, stop - start, start)
        if len(data) == stop - start or not data:
            return data
        # A request that is larger than the system serves at once.
        parts = [data]
        at = start + len(data)
        while at < stop and (part := os.pread(self._fd, stop - at, at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)


class OpenFiles:
    """Those that were asked for longest ago are let go first. Safe to ask from threads.

    A file that somebody still reads from stays open until they are done.

    Args:
        capacity: files that are kept open.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.forget()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str, signature: Signature) -> StoredFile:
        """Return the file at a path, opened if need be.

        Args:
            path: of the file.
            signature: which file is meant; one that is open and another is let go. What is at the
                path now may be yet another: the caller compares.

        Raises:
            OSError: the file can't be opened.
        """
        with self._lock:
            file = self._files.get(path)
            if file is not None and file.signature == signature:
                self._files.move_to_end(path)
                return file
        file = StoredFile(path)
        with self._lock:
            self._files[path] = file
            self._files.move_to_end(path)
            if len(self._files) > self._capacity:
                self._files.popitem(last=False)
        return file

    def forget(self) -> None:
        """Let all files go, and start with a lock that nobody holds."""
        self._lock = threading.Lock()
        self._files: OrderedDict[str, StoredFile] = OrderedDict()


_FILES = OpenFiles(MAX_OPEN_FILES)
# A forked child has its parent's lock as it was, perhaps held, and a bound of its own.
os.register_at_fork(after_in_child=_FILES.forget)


def open_files() -> OpenFiles:
    """Return the files that this process has open."""
    return _FILES
