"""How many messages all consumers of one subscription have received: a counter in a file that they all map.

None of them knows how many messages will be its own, so each adds up the counts of all and leaves when nothing is
missing. One 8-byte word a worker, each written by one process only.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final, Self

import numpy as np

_WORD: Final = 8


def make_tally(path: Path, workers: int) -> None:
    """A new file with a zero for each worker."""
    path.write_bytes(bytes(_WORD * workers))


class Tally:
    """One worker's view; leave the block to unmap the file."""

    def __init__(self, path: str, index: int) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._words: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.frombuffer(self._map, dtype=np.uint64)
        self._index = index

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self._words  # the map cannot be closed while an array looks at it
        self._map.close()

    def put(self, received: int) -> None:
        """Say how many messages this worker has received."""
        self._words[self._index] = received

    def total(self) -> int:
        """How many all workers have."""
        return int(self._words.sum())
