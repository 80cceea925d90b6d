"""The operations of diagnosis."""

from __future__ import annotations

from typing import Final

from pydanube_admin.diagnosis.handlers import (
    diagnose_cluster,
    diagnose_producer,
    diagnose_subscription,
    diagnose_topic,
    list_alerts,
)
from pydanube_admin.diagnosis.models import (
    AlertItem,
    AlertsRequest,
    DiagnoseClusterRequest,
    DiagnoseProducerRequest,
    DiagnoseSubscriptionRequest,
    DiagnoseTopicRequest,
    DiagnosisResult,
)
from pydanube_admin.effect import Effect
from pydanube_admin.models import Page
from pydanube_admin.operation import Example, Operation

DIAGNOSIS_OPERATIONS: Final = (
    Operation(
        name="diagnose.cluster",
        tool="health_check",
        title="Health check",
        effect=Effect.READ,
        permission="cluster:read",
        reversible=None,
        summary="Check everything: findings worst first, with evidence and the next call.",
        request=DiagnoseClusterRequest,
        result=DiagnosisResult,
        handler=diagnose_cluster,
        examples=(Example(arguments={}, note="what is wrong now"),),
        default_profile=True,
        condition="passed",
    ),
    Operation(
        name="diagnose.subscription",
        tool="analyze_consumer_lag",
        title="Analyze consumer lag",
        effect=Effect.READ,
        permission="topics:read",
        reversible=None,
        summary="Say why a subscription is behind, or that it is not: findings, causes ruled out, the next call.",
        request=DiagnoseSubscriptionRequest,
        result=DiagnosisResult,
        handler=diagnose_subscription,
        examples=(
            Example(arguments={"topic": "orders", "subscription": "billing"}, note="why billing is behind"),
            Example(
                arguments={"topic": "orders", "subscription": "billing", "fail_on": "warning"},
                note="exit with 6 if something is wrong",
            ),
        ),
        default_profile=True,
        condition="passed",
    ),
    Operation(
        name="diagnose.topic",
        tool="diagnose_topic",
        title="Diagnose a topic",
        effect=Effect.READ,
        permission="topics:read",
        reversible=None,
        summary="Say what is wrong with a topic and its subscriptions.",
        request=DiagnoseTopicRequest,
        result=DiagnosisResult,
        handler=diagnose_topic,
        examples=(Example(arguments={"topic": "orders"}, note="a topic and its subscriptions"),),
        default_profile=True,
        condition="passed",
    ),
    Operation(
        name="diagnose.producer",
        tool="diagnose_producer",
        title="Diagnose a producer",
        effect=Effect.READ,
        permission="topics:read",
        reversible=None,
        summary="Say what keeps messages from coming in: throttling, schema, silence, disk, journal.",
        request=DiagnoseProducerRequest,
        result=DiagnosisResult,
        handler=diagnose_producer,
        examples=(Example(arguments={"topic": "orders"}, note="all producers of a topic"),),
        default_profile=True,
        condition="passed",
    ),
    Operation(
        name="alerts.list",
        tool="list_alerts",
        title="List alerts",
        effect=Effect.READ,
        permission="cluster:read",
        reversible=None,
        summary="List alerts: findings that lasted, worst first, with when they opened.",
        request=AlertsRequest,
        result=Page[AlertItem],
        handler=list_alerts,
        examples=(
            Example(arguments={}, note="what is open"),
            Example(arguments={"include_closed": True}, note="also the last ones that closed"),
        ),
        default_profile=True,
    ),
)
