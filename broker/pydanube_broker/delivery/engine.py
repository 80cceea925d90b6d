"""Parts that all pumps of a broker share."""

from __future__ import annotations

from collections import Counter

from pydanube_broker.delivery.cursor_keeper import CursorKeeper
from pydanube_broker.delivery.dead_letter_desk import DeadLetterDesk
from pydanube_broker.delivery.deadlines import Deadlines
from pydanube_broker.delivery.turns import Turns
from pydanube_broker.give_way import GiveWay


class DeliveryEngine:
    """Parts that all pumps of a broker share."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.give_way = GiveWay()
        self.deadlines = Deadlines()
        self.cursors = CursorKeeper()
        self.dropped: Counter[tuple[str, str]] = Counter()  # (topic, reason): messages lost on purpose
        self.dead_letters: DeadLetterDesk  # set by whoever owns topics, before the first delivery

    def close(self) -> None:
        self.deadlines.close()
        self.cursors.close()
        self.give_way.close()
