"""Diagnosis without guessing: lag statuses and rules, pure; shared by the broker, alerts, reports and consoles."""

from pydanube_core.diagnosis.age import AgeQuality, UnreadAge, append_time_between
from pydanube_core.diagnosis.lag_status import (
    LagJudgement,
    LagStatus,
    Rewind,
    StuckReason,
    eta_of_partitions,
    judge_lag,
)
from pydanube_core.diagnosis.lag_window import LagWindow, Retention
from pydanube_core.diagnosis.options import DiagnosisOptions
from pydanube_core.diagnosis.settled_status import SettledStatus
from pydanube_core.diagnosis.settling import Settling
from pydanube_core.diagnosis.skew import hot_parts
from pydanube_core.diagnosis.slopes import Slope, theil_sen

__all__ = [
    "AgeQuality",
    "DiagnosisOptions",
    "LagJudgement",
    "LagStatus",
    "LagWindow",
    "Retention",
    "Rewind",
    "SettledStatus",
    "Settling",
    "Slope",
    "StuckReason",
    "UnreadAge",
    "append_time_between",
    "eta_of_partitions",
    "hot_parts",
    "judge_lag",
    "theil_sen",
]
