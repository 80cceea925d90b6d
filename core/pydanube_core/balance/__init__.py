"""How evenly brokers are loaded, and which moves would help: one pure function for reports, leaders and consoles."""

from pydanube_core.balance.assess import Assessment, BalanceVerdict, assess
from pydanube_core.balance.facts import BrokerLoad, LoadReport, Policy, Resource, Snapshot, TopicLoad
from pydanube_core.balance.measures import spread_of
from pydanube_core.balance.numbers import excess_of, moves_by_number
from pydanube_core.balance.plan import Move

__all__ = [
    "Assessment",
    "BalanceVerdict",
    "BrokerLoad",
    "LoadReport",
    "Move",
    "Policy",
    "Resource",
    "Snapshot",
    "TopicLoad",
    "assess",
    "excess_of",
    "moves_by_number",
    "spread_of",
]
