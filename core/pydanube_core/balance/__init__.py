"""How evenly brokers are loaded, and what would help: one pure function for reports, leaders and consoles."""

from pydanube_core.balance.assess import Assessment, Deduction, ResourceView, Verdict, WhatIf, assess
from pydanube_core.balance.facts import BrokerLoad, LoadReport, Policy, Resource, Snapshot, TopicLoad
from pydanube_core.balance.measures import Spread, gini, robust_z, spread_of
from pydanube_core.balance.plan import Move, Rejection

__all__ = [
    "Assessment",
    "BrokerLoad",
    "Deduction",
    "LoadReport",
    "Move",
    "Policy",
    "Rejection",
    "Resource",
    "ResourceView",
    "Snapshot",
    "Spread",
    "TopicLoad",
    "Verdict",
    "WhatIf",
    "assess",
    "gini",
    "robust_z",
    "spread_of",
]
