"""Consent to destructive changes: by the person at the client if it shows forms, else by the plan's token.

Every destructive change needs one of the two, and every refusal names the next step:

    the client shows forms       the person types the name of the deleted object, a token alone is not enough
    it does not, --confirm auto  the plan's token, which only the maker of the plan can use, once
    it does not, --confirm human no consent over MCP: the error holds the command for a person to run, and no key,
                                 because tokens that leave the server are sealed (`SealedClient`)

A client of the 2026 protocol gets the question as the answer to its call and repeats the call with the
person's answer. The plan's token travels in the state that the SDK seals to the call, its arguments and its
age. A client of the 2025 protocol gets the question while its call waits. A client that takes tasks gets a
long change as a task that waits for the answer.

A plan's token permits its holder to make the change, on the command line or over JSON-RPC too. A model that
must not apply plans must not hold one. So tokens are sealed everywhere: the secret is encrypted and
authenticated with a key of this process. Only the argument `plan_token` of a change is opened, on its way to
the admin core. A token that was not sealed here opens nothing.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from weakref import WeakKeyDictionary

import anyio
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.mcpserver import Context
from mcp.types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from pydanube_admin.engine.models import Effect
from pydanube_admin.registry import OPERATIONS
from pydanube_admin.remote import OpsClient
from pydanube_admin.wording.radius import loss_text
from pydanube_core.errors import ClusterError, PermissionDenied
from pydanube_core.spelling import shown

from pydanube_mcp.stdio import not_counted

ASK_TIMEOUT_S: Final = 600.0  # as long as a plan lives by default
MOST_QUESTIONS: Final = 128  # that wait for a person at one client
_MODERN: Final = "2026-07-28"
CONSENT: Final = "consent"  # the name of the question
_FIELD: Final = "name"


class Confirm(StrEnum):
    AUTO = "auto"
    HUMAN = "human"  # only a person's own answer, never a token from a model


class Answer(StrEnum):
    YES = "yes"
    NO = "no"
    UNASKED = "unasked"  # the question reached no person


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question to a person about one plan."""

    plan: Mapping[str, Any]
    cluster: str | None

    @property
    def name(self) -> str:
        """Return the name that has to be typed: that of the object that the plan deletes."""
        arguments = self.plan["arguments"]
        for key in ("subscription", "topic", "subject", "namespace", "broker_id"):
            if arguments.get(key):
                return str(arguments[key])
        return str(self.plan["operation"])

    @property
    def text(self) -> str:
        given = ", ".join(f"{key} {shown(value)}" for key, value in self.plan["arguments"].items())
        where = f" on the cluster {self.cluster}" if self.cluster else ""
        undo = "It can be undone for a while." if self.plan["reversible"] else "It cannot be undone."
        return (
            f"{self.plan['operation']} ({given}){where} takes away "
            f"{loss_text(self.plan['blast_radius'], self.plan['later'])}. {undo} Type {shown(self.name)} to go on."
        )

    @property
    def schema(self) -> dict[str, Any]:
        field = {"type": "string", "title": "Name", "description": f"{shown(self.name)}, to go on"}
        return {"type": "object", "properties": {_FIELD: field}, "required": [_FIELD]}

    def judge(self, action: str, content: Mapping[str, Any] | None) -> Answer:
        typed = (content or {}).get(_FIELD)
        right = isinstance(typed, str) and typed.strip() in (self.name, self.name.rpartition("/")[2])
        return Answer.YES if action == "accept" and right else Answer.NO


def can_ask(context: Context[Any, Any] | None) -> bool:
    """Return whether the client shows forms. Elicitation without a named mode means forms."""
    if context is None:
        return False
    try:
        capabilities = context.client_capabilities
    except ValueError:  # a context outside a request
        return False
    elicitation = capabilities.elicitation if capabilities else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def waits(context: Context[Any, Any]) -> bool:
    """Return whether the question comes while the call waits (2025), not as the call's answer (2026)."""
    return (context.protocol_version or "") < _MODERN


def question_result(question: Question, token: str) -> InputRequiredResult:
    """Return the answer with the question. The client repeats the call with the reply and the state."""
    params = ElicitRequestFormParams(message=question.text, requested_schema=question.schema)
    state = {"token": token, "plan": dict(question.plan) | {"diff": []}, "cluster": question.cluster}
    return InputRequiredResult(
        input_requests={CONSENT: ElicitRequest(params=params)}, request_state=json.dumps(state)
    )


def said(context: Context[Any, Any]) -> tuple[Question, str, Answer] | None:
    """Return the question, the plan's token and the answer of a repeated call, or None for a first call.

    The SDK accepts only a state that this server has sealed for this call and these arguments.
    """
    if context.request_state is None:
        return None
    state = json.loads(context.request_state)
    question = Question(plan=state["plan"], cluster=state["cluster"])
    given = (context.input_responses or {}).get(CONSENT)
    if not isinstance(given, ElicitResult):
        return question, state["token"], Answer.UNASKED
    return question, state["token"], question.judge(given.action, given.content)


#: calls that wait for a person's answer
_questions: Final = WeakKeyDictionary[Connection, int]()


async def ask_now(question: Question, context: Context[Any, Any]) -> Answer:
    """Send the question while the call waits. Any failure on the way counts as no consent."""
    connection = context.request_context.session._connection
    if _questions.setdefault(connection, 0) >= MOST_QUESTIONS:
        return Answer.UNASKED
    _questions[connection] += 1
    try:
        with anyio.fail_after(ASK_TIMEOUT_S), not_counted():
            result = await context.request_context.session.elicit_form(
                message=question.text,
                requested_schema=question.schema,
                related_request_id=context.request_context.request_id,
            )
    except (MCPError, TimeoutError, ValueError, RuntimeError):
        return Answer.UNASKED
    finally:
        _questions[connection] -= 1
    return question.judge(result.action, result.content)


def refusal(question: Question, answer: Answer, by_a_person: Mapping[str, Any]) -> PermissionDenied:
    """Return the refusal. If the question reached no person, it holds the command for one to run."""
    why = "the person did not agree" if answer is Answer.NO else "the question to the person was not answered"
    return PermissionDenied(
        f"{why}. Nothing was changed. Do not try again without a new order from your user",
        field=_FIELD,
        plan_id=question.plan["plan_id"],
        next=[by_a_person] if answer is Answer.UNASKED else (),
    )


_TOKEN: Final = re.compile(r"(p[0-9a-f]{24})\.([A-Za-z0-9_-]{24})(?![A-Za-z0-9_-])")
_SEALED: Final = re.compile(r"(p[0-9a-f]{24})\.([A-Za-z0-9_-]{40})")
_TOKEN_FIELD: Final = "plan_token"
_SECRET_BYTES: Final = 18
_MARK_BYTES: Final = 12
_KEY: Final = secrets.token_bytes(32)
_OPENS_NOTHING: Final = "A" * 24

assert 4 * (_SECRET_BYTES + _MARK_BYTES) == 3 * 40, (
    "a sealed secret has another length, so it is not sealed again"
)


def sealed(text: str) -> str:
    """Return the text with every plan token sealed."""
    return _TOKEN.sub(lambda match: f"{match[1]}.{_seal(match[1], match[2])}", text)


def opened(token: str) -> str:
    """Return the plan token that was sealed here, or for any other text a token that opens nothing."""
    match = _SEALED.fullmatch(token)
    if match is None:
        return _TOKEN.sub(lambda found: f"{found[1]}.{_OPENS_NOTHING}", token)
    plan_id, both = match[1], urlsafe_b64decode(match[2])
    secret = urlsafe_b64encode(_masked(plan_id, both[:_SECRET_BYTES])).decode()
    genuine = hmac.compare_digest(both[_SECRET_BYTES:], _mark(plan_id, secret))
    return f"{plan_id}.{secret if genuine else _OPENS_NOTHING}"


def _seal(plan_id: str, secret: str) -> str:
    hidden = _masked(plan_id, urlsafe_b64decode(secret))
    return urlsafe_b64encode(hidden + _mark(plan_id, secret)).decode()


def _masked(plan_id: str, secret: bytes) -> bytes:
    # A different mask for each plan, used only for its one secret
    mask = hmac.digest(_KEY, b"mask " + plan_id.encode(), "sha256")
    return bytes(one ^ other for one, other in zip(secret, mask, strict=False))


def _mark(plan_id: str, secret: str) -> bytes:
    return hmac.digest(_KEY, f"mark {plan_id}.{secret}".encode(), "sha256")[:_MARK_BYTES]


class SealedClient(OpsClient):
    """A client that shows only sealed plan tokens, in results and errors, and opens one only to carry out a change."""

    async def call_json(
        self, operation: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> bytes:
        given = dict(arguments or {})
        called = OPERATIONS.get(operation)
        if (
            called is not None
            and called.effect is not Effect.READ
            and isinstance(given.get(_TOKEN_FIELD), str)
        ):
            given[_TOKEN_FIELD] = opened(given[_TOKEN_FIELD])
        try:
            result = await super().call_json(operation, given, **options)
        except ClusterError as error:
            text = error.to_json()
            if _TOKEN.search(text) is None:
                raise
            raise ClusterError.from_json(sealed(text)) from error
        text = result.decode()
        return result if _TOKEN.search(text) is None else sealed(text).encode()
