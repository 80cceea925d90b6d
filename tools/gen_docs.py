"""Write the generated pages of docs/ (PAGES below), the words that shells complete (cli/pydanube_cli/completion/words.json), and the declarations that
the command line reads (admin_core/pydanube_admin/engine/declarations.json).

    python tools/gen_docs.py            write them
    python tools/gen_docs.py --check    write nothing; print a diff and exit with 1 when one has drifted

Their texts stand here; the tables come from pydanube_mcp, pydanube_broker.settings.sections and .status.metric_table, pydanube_core.errors
and the registry of pydanube_admin.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pydanube_admin.engine.declaration import FILE as DECLARATIONS
from pydanube_admin.engine.declaration import file_text
from pydanube_admin.registry import OPERATIONS
from pydanube_broker.settings.sections import Entry, Settings, sections
from pydanube_broker.status.metric_table import METRICS, MetricArea
from pydanube_cli import main as command_words
from pydanube_connect.describing import settings_of
from pydanube_connect.installed import OURS, connector_class
from pydanube_core import errors
from pydanube_core.diagnosis.findings import Rule, RuleArea
from pydanube_core.diagnosis.rules import RULES
from pydanube_core.telemetry import TABLES
from pydanube_core.telemetry.tables import TableColumn
from pydanube_mcp import McpClient, print_config

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools import completion_words, console_page, operations_page  # noqa: E402  # neighbours, found by their folder
from tools.generated_files import write_or_compare  # noqa: E402
from tools.tables import json_text, table  # noqa: E402

DOCS: Final = ROOT / "docs"
HEAD: Final = "<!-- Written by tools/gen_docs.py (make docs); do not edit. -->\n\n"

# Settings that are read and checked but have nothing to act on yet, with the piece of work that brings it.
WITHOUT_EFFECT: Final[Mapping[str, str]] = {}

REFERENCE: Final = """\
# Reference

Tables generated from the code.

- [Settings](#settings): where they come from, and every key
- [Errors](#errors): every code, with its exit code and its gRPC status
- [Diagnosis](#diagnosis): the faults that the broker finds, its rules, and the remedies
- [Metrics](#metrics): the series for Prometheus
- [Telemetry](#telemetry): the tables of samples in the object store

The [operations](operations.md), the [console](console.md) and the [configuration of AI clients](ai-clients.md) have pages of their own.

"""

CONFIGURATION: Final = """\
## Settings

A broker takes its settings from three places. A later one wins:

1. a TOML file: `danube up --config danube.toml`,
2. environment variables: `DANUBE_<SECTION>__<KEY>`, for example `DANUBE_LOG__LEVEL=debug`,
3. flags of `danube up` and `danube broker`.

An unknown section or key is an error that names the line and the closest name that exists. So is a variable with one
underscore where two belong (`DANUBE_LOG_LEVEL`). Durations are written `100ms`, `90s`, `5m`, `24h`. Sizes are written
`64KiB`, `32MiB`, `1GiB` or as a plain number of bytes.

- `danube config init` writes a file with every key, commented.
- `danube config check --config FILE` finds mistakes without starting anything.
- `danube config show` prints the value in force and where it came from.

"""

ERRORS: Final = """\
## Errors

Every face shows the same error: a code, a sentence with the failure and its remedy, facts, and the calls that
help.

| face | where the error is |
|---|---|
| command line | the message on stderr, or with `--json` one line `{"error": …}`, and the exit code below |
| Python SDK | an exception, a `pydanube_core.errors.ClusterError`, with the attributes below |
| JSON-RPC | `error.data`, under the JSON-RPC code −32000 |
| MCP | `isError` and `structuredContent.error` |
| gRPC | the status below, with `CODE: message` |

| field | meaning |
|---|---|
| `code` | one of the codes below |
| `message` | what failed, where, and what to do next |
| `retryable` | whether the same call may succeed later |
| `retry_after_ms` | the earliest sensible time to try again, if the broker can compute it |
| `details` | facts: for bad input `field` and `value`, for others the topic, the offset, the port … |
| `next` | calls that would help: `operation`, `tool`, `command`, `arguments`, `why` |

If the commit of a publish failed, `details.outcome` is `"unknown"`: the message may or may not be stored. A retry by the
same producer session is safe, because the broker recognises it. A new send may store the message a second time. If the
answer to a change of administration was lost, `details.outcome` is `"unknown"`, too, and `retryable` is false: nothing
retries it, and the calls in `next` (`danube changes list`, `danube audit query`) show whether it was made.

Exit code 0 is success, also when the reader of a pipe closes it. 130 is an interrupt. Usage errors exit with 2.
"""

EXITS: Final = {
    1: "refused because of the present state, so the same call will fail again",
    2: "the call itself is wrong",
    3: "retryable",
    4: "refused by a rule or for lack of permission",
    5: "data is damaged",
    6: "the condition that the command checks is not met",
}

DIAGNOSIS: Final = """\
## Diagnosis

A broker samples itself every `diagnosis.sample_interval` and reports faults. No language model is involved.

| question | command | MCP tool |
|---|---|---|
| all faults | `danube diagnose cluster` | `health_check` |
| why is a subscription behind | `danube diagnose subscription TOPIC SUBSCRIPTION` | `analyze_consumer_lag` |
| faults of a topic | `danube diagnose topic TOPIC` | `diagnose_topic` |
| why does nothing come in | `danube diagnose producer TOPIC` | `diagnose_producer` |
| faults that have lasted | `danube alerts list` | `list_alerts` |

With `--fail-on warning` the command exits with 6 when there is a finding of that severity or a worse one.

A finding names its rule, its subject, a severity (`info`, `warning`, `critical`), a confidence, the evidence (the
numbers that decided), how many other causes were ruled out (`--explain` lists each with the number that speaks against it), the
facts that the broker cannot observe (`unobservable`), and the next calls. The worst findings come first: by severity, then those of the broker
itself, then by the number of messages that wait or were refused. Of one subject, causes come before effects. Text written by
clients (keys, reasons, over MCP also names of consumers and producers) is under `untrusted`.

The verdict is `failing` with a critical finding, `degraded` with a warning, `unknown` if too little could be seen, otherwise
`healthy`. A finding of severity `info` does not change it.

Findings about one subject use the facts of the moment and the samples of the last `diagnosis.window`. Counts named
`…_in_window` are of that time. Other counts began with the broker. A diagnosis of the cluster counts equal findings as one:
it shows the worst with its evidence and names the next four. `alerts list` has the others. The answer stays below 8 KB.

A finding in `diagnosis.open_after` consecutive samples opens an alert. `diagnosis.close_after` samples without
it close the alert.

Thresholds of your own are the policies `alert_unread_messages` and `alert_unread_age_s` (seconds) of a topic, of its
namespace, or in `[policies]` of the settings. They hold for each subscription. Beyond them there is the finding
`threshold_exceeded` beside its cause, and an alert.

    ./danube topics set-policies orders --policies alert_unread_messages=10000,alert_unread_age_s=600

### The status of a subscription

`danube subscriptions lag` shows one for each subscription and partition. The first line that holds wins:

| status | holds when |
|---|---|
| `UNKNOWN` | there are fewer than 3 samples or half of those expected, the newest is older than 3 intervals, or a short history decides nothing. Never counted as healthy |
| `DATA_LOST` | messages were trimmed before they were read |
| `CAUGHT_UP` | nothing is unread, or nothing older than two samples |
| `AT_RISK` | retention takes the oldest unread message within two samples, or within a fifth of its time while the subscription is not gaining |
| `STUCK` | the cursor has not moved for `diagnosis.stuck_after`, and there was unread messages for as long |
| `FALLING_BEHIND` | the lower bound (95 %) of the lag's slope is above 0, and the lag right after acknowledgements grew: it grows, however large it is |
| `SLOW` | gaining, but it will take more than an hour, or neither gaining nor losing, with old messages or without a consumer |
| `CATCHING_UP` | gaining, or consumers keep pace and everything is read within `diagnosis.stuck_after` |

Rates are slopes by Theil and Sen: the median of the slopes between all pairs of samples, which one odd sample cannot
bend. None spans a gap of three intervals, or a move of the cursor by an operation or a client. A status is entered after
`open_after` samples and left after `close_after`. `CAUGHT_UP` counts immediately. Until half of a window has been observed, so does
every other status, and findings that depend on it are `provisional`: at most a warning, without an alert, with `settles_at`.
After a restart the broker reads its last window back from telemetry. Until samples of this run show a pace, the status is that
of the run before, provisional, with `measured_until_ms` in its evidence.
`eta_s` is the lag divided by the rate at which it shrinks. Where it does not shrink, `eta_s` is null with the reason
`not_gaining`. How all this is checked: [measurements](research/measurements.md#diagnosis).

The rules follow, with their evidence. A rule that names no severity is a warning.

"""


def configuration() -> str:
    """Return the section on settings: a table for each section of the file."""
    entries: dict[str, list[Entry]] = {}
    for entry in Settings().entries():
        entries.setdefault(entry.section, []).append(entry)
    return CONFIGURATION + "\n".join(
        section_text(name, inspect.getdoc(model) or "", entries[name]) for name, model in sections().items()
    )


def section_text(name: str, summary: str, entries: list[Entry]) -> str:
    note = ""
    if name in WITHOUT_EFFECT:
        note = f"Checked, but without effect yet ({WITHOUT_EFFECT[name]}).\n\n"
    rows = []
    for entry in entries:
        later = WITHOUT_EFFECT.get(entry.name)
        meaning = entry.description + (f"; without effect yet ({later})" if later else "")
        default = "unset" if entry.default is None else f"`{json_text(entry.default)}`"
        kind = " or ".join(f"`{word}`" for word in entry.words) or entry.kind.value
        rows.append((f"`{entry.key}`", kind, default, meaning))
    return f"### [{name}] settings\n\n{summary}\n\n{note}{table(('key', 'type', 'default', 'meaning'), rows)}"


def error_codes() -> str:
    """Return the section on errors: a table for each exit code."""
    parts = [ERRORS]
    for number, meaning in EXITS.items():
        rows = [
            (f"`{code.name}`", summary_of(code.name), code.grpc.name)
            for code in errors.CODES.values()
            if code.exit == number
        ]
        parts.append(f"### Exit {number}: {meaning}\n\n{table(('code', 'meaning', 'gRPC status'), rows)}")
    missing = {code.exit for code in errors.CODES.values()} - set(EXITS)
    assert not missing, f"exit codes without a heading: {missing}"
    return "\n".join(parts)


def summary_of(code: str) -> str:
    """The docstring of the class that carries the code."""
    return inspect.getdoc(type(errors.error_for(code, ""))) or ""


def diagnosis() -> str:
    """Return the section on diagnosis: its terms, and a table of evidence for each rule."""
    parts = [DIAGNOSIS.rstrip() + "\n"]
    for area, title in (
        (RuleArea.SUBSCRIPTION, "a subscription"),
        (RuleArea.TOPIC, "a topic"),
        (RuleArea.BROKER, "a broker"),
    ):
        parts.append(f"### Rules: {title}\n")
        parts += [rule_text(rule) for rule in RULES.values() if rule.area is area]
    return "\n".join(parts)


def rule_text(rule: Rule) -> str:
    """Return the text of one rule: when it holds, its severity if that is not `warning`, its remedy, its evidence."""
    severity = "" if rule.severity == "warning" else f" Severity: {rule.severity}."
    evidence = "".join(f"- `{name}`: {meaning}\n" for name, meaning in rule.evidence.items())
    return f"#### {rule.name}\n\nHolds when {rule.holds}.{severity} Remedy: {rule.helps}.\n\n{evidence}"


def telemetry() -> str:
    """Return the section on telemetry: a table for each table of samples."""
    tables_with = Counter(column_row(column) for each in TABLES.values() for column in each.columns)
    shared = [row for row, count in tables_with.items() if count >= SHARED_COLUMN_TABLES]
    parts = [TELEMETRY_TEXT, f"### Telemetry: columns of several tables\n\n{columns(shared)}"]
    for each in TABLES.values():
        rows = [column_row(column) for column in each.columns]
        common = ", ".join(row[0] for row in rows if row in shared)
        own = columns(row for row in rows if row not in shared)
        parts.append(f"### Telemetry table: {each.name}\n\n{each.meaning}\n\nWith {common}, and:\n\n{own}")
    return "\n".join(parts)


SHARED_COLUMN_TABLES: Final = 2


def columns(rows: Iterable[tuple[str, str, str]]) -> str:
    return "".join(f"- {name} ({kind}): {meaning}\n" for name, kind, meaning in rows)


def column_row(column: TableColumn) -> tuple[str, str, str]:
    """Return a column's name, its type and unit, and its meaning."""
    unit = f", {column.unit}" if column.unit and not column.name.endswith(f"_{column.unit}") else ""
    return f"`{column.name}`", f"{column.kind.value}{'?' if column.nullable else ''}{unit}", column.meaning


TELEMETRY_TEXT: Final = """\
## Telemetry

Each broker writes samples of itself every few seconds, as Parquet in the object store:

    <tier.url>/<cluster>/telemetry/<table>/date=YYYY-MM-DD/<start>-<end>-<broker>-<generation>-<random>.parquet

`start` and `end` are milliseconds since 1970: the file holds samples taken in between. Small files of an hour become
one. After `telemetry.downsample_after` only the last sample of each minute is kept, after `telemetry.keep` the last of
each hour, after `telemetry.keep_downsampled` nothing. A file of a higher generation replaces those of its broker whose
times lie within its own: they are deleted ten minutes later, and a reader that lists the folder leaves them out.
[Reports](spark.md) and the Spark source `danube_telemetry` do so. Once no replaced file is left, a glob is exact:

    duckdb -c "select topic, max(unread_offsets) from 'danube-data/objects/*/telemetry/cursors/*/*.parquet' group by 1"

A row is one sample. A subject that has not changed is written again about once a minute, so the last row of a subscription
holds for 75 s at the default interval, and a time without rows is a time without telemetry. Counters count since the broker
started. A row with another `incarnation` comes from another start. In a file the rows of a subject lie together, the newest
first. While the broker's clock is behind its last row, it writes nothing, so that each moment has one row. A clock
that was set back by more than an hour is accepted. Types with `?` may be null.
"""

METRICS_PAGE: Final = """\
## Metrics

`GET /metrics` on the metrics port (9040), in the text form of Prometheus. Beyond `metrics.topic_series_limit` topics the
quietest are summed under `topic="_other"`. Series of subscriptions take at most 2 MiB (≈ 5 000 subscriptions): those with the least
lag, and those of topics in `_other`, are summed under `subscription="_other"`, their oldest age is the greatest. Counters count since the broker started. Kind and labels
are in brackets. A counter with labels shows a series
once it has counted something. Configuration of Prometheus, alert rules and dashboards: [observability](operating.md#observability).

"""


def metrics() -> str:
    parts = [METRICS_PAGE]
    for area in MetricArea:
        parts.append(f"### Metrics: {area}\n\n")
        parts += [
            f"- `{one.shown_name}` ({', '.join((one.kind, *(f'`{label}`' for label in one.labels)))}): {one.text}\n"
            for one in METRICS.values()
            if one.area is area
        ]
        parts.append("\n")
    return "".join(parts)


AI_CLIENTS: Final = """\
# AI clients

The configuration to paste into each program. `danube mcp --print-config CLIENT` prints the same with the path of the program on
your machine. The abilities of an assistant are on the page [administering with an AI assistant](ai-administration.md).

There are two ways to a broker:

- **local**: the program starts `danube mcp`, which calls the broker's admin port. `DANUBE_ADMIN_ENDPOINT` names another
  address than `http://127.0.0.1:50051`. With `--read-only` it neither offers nor allows changes.
- **over HTTP**: `danube up` serves MCP at `http://127.0.0.1:8765/mcp`, for this machine. From elsewhere it needs TLS and
  `[auth] mode = "required"` ([security](security.md)). Every request then carries a bearer token, which the blocks below take
  from where the program keeps secrets. With `DANUBE_TOKEN_FILE` or `DANUBE_TOKEN` set, `--print-config` prints these blocks.

The blocks are printed by the command, and tests speak MCP over both ways, with and without tokens. The programs themselves,
and a sign-in at a provider, were not run.

"""
AI_CLIENTS_END: Final = """\
## ChatGPT, Claude on the web, and others that connect from elsewhere

Their connectors call a public HTTPS address and sign in by OAuth. The broker is the resource server. The authorization
server is your identity provider (Keycloak, Entra ID, Auth0 …), which must support the registration of such clients. Configure the
provider's tokens in the broker:

```toml
[tls]
cert = "server.crt"                    # of a public authority: connectors trust no other
key = "server.key"
[auth]
mode = "required"
issuer = "https://login.example/realms/ops"
audience = "https://broker.example:8765/mcp"
jwt_keys = "jwks.json"                 # the provider's JWK set, saved
```

Give the connector `https://broker.example:8765/mcp`. It is answered with 401 and the page
`/.well-known/oauth-protected-resource/mcp` (RFC 9728), which names the issuer. The principal is the token's `principal_name`,
otherwise its `sub`. `danube bindings create` gives it roles. Never open a tunnel to a port without authentication.
"""
AI_PROGRAM: Final = Path("/usr/local/bin/danube")
AI_PLACES: Final[Mapping[McpClient, tuple[str, str]]] = {
    McpClient.CLAUDE_DESKTOP: (
        "Claude Desktop",
        "Settings → Developer → Edit Config opens `claude_desktop_config.json`. Restart it afterwards.",
    ),
    McpClient.CLAUDE_CODE: ("Claude Code", "A command: run it in your project."),
    McpClient.CURSOR: ("Cursor", "`~/.cursor/mcp.json`, or `.cursor/mcp.json` of a project."),
    McpClient.WINDSURF: ("Windsurf", "`~/.codeium/windsurf/mcp_config.json`."),
    McpClient.VSCODE: ("Visual Studio Code", "`.vscode/mcp.json`, or MCP: Open User Configuration."),
}


def ai_clients() -> str:
    parts = [AI_CLIENTS]
    for client in McpClient:
        title, where = AI_PLACES[client]
        language = "sh" if client is McpClient.CLAUDE_CODE else "json"
        parts.append(f"## {title}\n\n{where}\n\n")
        parts.append(f"```{language}\n{print_config(client, program=AI_PROGRAM)}\n```\n\n")
        try:
            text = print_config(client, url="http://127.0.0.1:8765/mcp")
        except errors.InvalidArgument:
            parts.append("Over HTTP: its file takes programs only.\n\n")
        else:
            locked = print_config(client, url="https://broker.example:8765/mcp", token=True)
            parts.append(
                f"Over HTTP:\n\n```{language}\n{text}\n```\n\nWith a token:\n\n```{language}\n{locked}\n```\n\n"
            )
    return "".join(parts) + AI_CLIENTS_END


def reference() -> str:
    """Return the page of settings, errors, diagnosis, metrics and telemetry."""
    sections = (configuration, error_codes, diagnosis, metrics, telemetry)
    return REFERENCE + "\n".join(section().rstrip() + "\n" for section in sections)


CONNECTORS: Final = """# Settings of connectors

The table `[settings]` of a connector's file. Guarantees, examples and the other tables of the file are on the page
[Connect](connect.md). `danube connect list NAME` prints the same.

"""


def connectors() -> str:
    parts = []
    for name in sorted(OURS):
        model = connector_class(name, path="docs").settings_model
        rows = [(f"`{fact.name}`", fact.type, f"`{fact.default}`", fact.about) for fact in settings_of(model)]
        parts.append(f"## {name}\n\n" + table(("setting", "type", "default", "meaning"), rows))
    return CONNECTORS + "\n".join(part.rstrip() + "\n" for part in parts)


PAGES: Final = {
    "ai-clients.md": ai_clients,
    "connectors.md": connectors,
    "console.md": console_page.page,
    "operations.md": operations_page.page,
    "reference.md": reference,
}
# What is no page: the words that shells complete
WORDS: Final = ROOT / "cli" / "pydanube_cli" / "completion" / "words.json"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated documents.")
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    # First: the command line reads it, and its calls stand on the pages.
    remedy = "make docs"
    if write_or_compare({DECLARATIONS: file_text(OPERATIONS.values())}, check=check, remedy=remedy):
        return 1
    written = {DOCS / name: HEAD + write().rstrip() + "\n" for name, write in PAGES.items()}
    words = completion_words.text(
        command_words.COMMANDS, command_words.GROUPS, command_words.GROUP_SUMMARIES, command_words.leaf_of
    )
    written[WORDS] = words + "\n"
    return write_or_compare(written, check=check, remedy=remedy)


if __name__ == "__main__":
    sys.exit(main())
