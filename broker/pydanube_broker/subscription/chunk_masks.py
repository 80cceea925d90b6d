"""Messages of the window as bit masks of its chunks, for plans of key-shared with thousands of short ranges.

A `ChunkMasks` is a sequence of ranges, which are computed only on access. The shell and the core use the masks: a
few operations per chunk instead of several per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from pydanube_broker.subscription.chunk import Chunk
from pydanube_broker.subscription.ranges import Range, normalise, ranges_of


class ChunkMasks(Sequence[Range]):
    """Messages by ascending chunk, at least one, no mask of 0. Valid until the window changes."""

    __slots__ = ("_ranges", "masks")

    def __init__(self, masks: Sequence[tuple[Chunk, int]]) -> None:
        self.masks = masks
        self._ranges: list[Range] | None = None

    @property
    def first(self) -> int:
        """Return the offset of the first message."""
        chunk, mask = self.masks[0]
        return chunk.start + (mask & -mask).bit_length() - 1

    @property
    def end(self) -> int:
        """Return one past the last message's offset."""
        chunk, mask = self.masks[-1]
        return chunk.start + mask.bit_length()

    @property
    def messages(self) -> int:
        return sum(mask.bit_count() for _, mask in self.masks)

    def below(self, offset: int) -> list[tuple[Chunk, int]]:
        """Return the messages with smaller offsets."""
        found: list[tuple[Chunk, int]] = []
        for chunk, mask in self.masks:
            if chunk.start >= offset:
                break
            if chunk.start + mask.bit_length() > offset:
                mask &= (1 << (offset - chunk.start)) - 1
            if mask:
                found.append((chunk, mask))
        return found

    def ranges(self) -> list[Range]:
        """Return the messages as a normal list of ranges."""
        if self._ranges is None:
            self._ranges = normalise(r for chunk, mask in self.masks for r in ranges_of(mask, chunk.start))
        return self._ranges

    @overload
    def __getitem__(self, at: int) -> Range: ...
    @overload
    def __getitem__(self, at: slice) -> list[Range]: ...
    def __getitem__(self, at: int | slice) -> Range | list[Range]:
        return self.ranges()[at]

    def __len__(self) -> int:
        return len(self.ranges())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.ranges() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ChunkMasks({self.ranges()[:4]}, {self.messages} messages)"
