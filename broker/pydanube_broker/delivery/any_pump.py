"""Either of the two pumps: of a reliable topic's subscription, or of a non-reliable one's."""

from typing import TypeAlias

from pydanube_broker.delivery.non_reliable import LivePump
from pydanube_broker.delivery.pump import SubscriptionPump

AnyPump: TypeAlias = SubscriptionPump | LivePump
