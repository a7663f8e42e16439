"""One mutated episode: made by base, class and seed, read, and judged."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.bases import BASES, Base
from tests.fuzz.edits import NEIGHBOUR
from tests.fuzz.memory import Watch
from tests.fuzz.mutations import CLASSES, Files, Material, Mutation, load_files
from tests.fuzz.outcomes import Judgement, Verdict, judge
from tests.fuzz.probe import Probe, Reading

__all__ = ["Case", "Outcome", "Workshop", "cases"]

#: What a mutated episode is called.
_NAME = "mutated.zarr"


@dataclass(frozen=True, slots=True)
class Case:
    """Which episode is mutated, and how."""

    base: str
    kind: str
    seed: int

    def drawer(self, purpose: str) -> random.Random:
        """Return what draws for a purpose; the same every time."""
        return random.Random(f"{self.base} {self.kind} {self.seed} {purpose}")

    def __str__(self) -> str:
        return f"{self.base} {self.kind} {self.seed}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case.

    Attributes:
        case: which.
        what: was done to the episode.
        judgement: whether that is right.
        seconds: that reading it took.
        peak: bytes that the process grew by meanwhile, at most.
    """

    case: Case
    what: str
    judgement: Judgement
    seconds: float
    peak: int


def cases(per_class: int) -> list[Case]:
    """Return so many cases of each class, the bases in turn."""
    names = list(BASES)
    return [Case(names[n % len(names)], kind, n) for n in range(per_class) for kind in CLASSES]


class Workshop:
    """Makes and judges cases, in a folder of its own.

    Args:
        root: an empty folder.
        probe: reads an episode.
    """

    def __init__(self, root: Path, probe: Probe) -> None:
        self._root, self._probe = root, probe
        self._files, self._siblings = dict[str, Files](), dict[str, Files]()
        for base in BASES.values():
            for number, found in enumerate([self._files, self._siblings]):
                path = root / "good" / f"{base.name}-{number}"
                base.write(path, base.recording(number))
                found[base.name] = load_files(path)

    def mutation(self, case: Case) -> Mutation:
        """Return what is done in a case."""
        base = case.base
        strangers = [files for name, files in self._files.items() if name != base]
        material = Material(BASES[base], self._files[base], self._siblings[base], strangers)
        return CLASSES[case.kind](case.drawer("mutation"), material)

    def run(self, case: Case) -> Outcome:
        """Make a case's episode, read it, and judge what comes of it."""
        base, mutation = BASES[case.base], self.mutation(case)
        path = self.place(case, mutation)
        with Watch() as watch:
            start = time.monotonic()
            reading = self._read(base, path, case)
            seconds = time.monotonic() - start
        if isinstance(reading, Judgement):
            judgement = reading
        else:
            judgement = judge(base, base.recording(), mutation, path, reading)
        if watch.is_over:
            judgement = Judgement(Verdict.WRONG, f"it takes {watch.peak / 2**20:.0f} MiB")
        return Outcome(case, mutation.what, judgement, seconds, watch.peak)

    def _read(self, base: Base, path: Path, case: Case) -> Reading | Judgement:
        try:
            return self._probe(base, path, case.drawer("reading"))
        except Exception as error:  # that a user would have met
            return Judgement(Verdict.WRONG, f"it raises {error!r:.300}")

    def place(self, case: Case, mutation: Mutation) -> Path:
        """Write a case's episode, and a good one beside it; return its path."""
        shutil.rmtree(self._root / "case", ignore_errors=True)
        mutation.write(self._files[case.base], self._root / "case" / _NAME)
        (self._root / "case" / NEIGHBOUR).symlink_to(self._root / "good" / f"{case.base}-1")
        return self._root / "case" / _NAME
