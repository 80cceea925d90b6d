"""The file ACCEPT_LOSS lets one start go on without what is damaged, and no second one."""

from __future__ import annotations

from pathlib import Path

from pydanube_broker.topics.agreement import LossAccepted


def test_a_loss_is_accepted_once(tmp_path: Path) -> None:
    assert not LossAccepted(tmp_path)
    (tmp_path / "ACCEPT_LOSS").touch()
    given = LossAccepted(tmp_path)
    assert given
    given.used()
    assert given, "of this start"
    assert not LossAccepted(tmp_path), "the next loss needs a new permission"
    LossAccepted(tmp_path).used()
