"""Diagnosis without guessing: lag statuses and rules. Pure, and shared by the broker, alerts, reports and consoles."""

from pydanube_core.diagnosis.age import AgeQuality, UnreadAge
from pydanube_core.diagnosis.lag_status import (
    LagJudgement,
    LagStatus,
    StuckReason,
    eta_of_partitions,
    judge_lag,
)
from pydanube_core.diagnosis.lag_window import LagWindow, Retention
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.settled_status import SettledStatus
from pydanube_core.diagnosis.slopes import theil_sen

__all__ = [
    "AgeQuality",
    "DiagnosisOptions",
    "LagJudgement",
    "LagStatus",
    "LagWindow",
    "Retention",
    "SettledStatus",
    "StuckReason",
    "UnreadAge",
    "eta_of_partitions",
    "judge_lag",
    "theil_sen",
]
