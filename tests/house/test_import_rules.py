"""Who may import whom (ARCHITECTURE.md), read from the syntax trees of the built wheel.

The rules are the tables below. Imports inside functions and under TYPE_CHECKING count for the direction: a
dependency that is hidden is still one. Only the third-party table looks at import time alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

# Package -> our packages it may import. The command is the composition root, so it may import all of them.
DIRECTION: dict[str, set[str]] = {
    "pydanube_core": set(),
    "pydanube_storage": {"pydanube_core"},
    "pydanube_broker": {"pydanube_storage", "pydanube_core"},
    "pydanube": {"pydanube_core"},
    "pydanube_admin": {"pydanube", "pydanube_core"},
    "pydanube_mcp": {"pydanube_admin", "pydanube", "pydanube_core"},
    # The live tail and what is committed come from the broker, through the SDK and the operations.
    "pydanube_spark": {"pydanube_admin", "pydanube", "pydanube_storage", "pydanube_core"},
    "pydanube_tui": {"pydanube_admin", "pydanube", "pydanube_core"},
    "pydanube_connect": {"pydanube", "pydanube_core"},
    "pydanube_cli": {
        "pydanube_tui",
        "pydanube_connect",
        "pydanube_spark",
        "pydanube_mcp",
        "pydanube_admin",
        "pydanube",
        "pydanube_broker",
        "pydanube_storage",
        "pydanube_core",
    },
}

BASE = {
    "anyio",
    "backports",
    "compression",  # of the standard library, from Python 3.14 on
    "google",
    "hpack",
    "lz4",
    "pydantic",
    "pydantic_core",
    "sniffio",
    "typing_extensions",
}
# Modules that may import more of ours: topics as tables, for which the extra `tier` is installed.
DIRECTION_OF_MODULE: dict[str, set[str]] = {"pydanube.tables": {"pydanube_storage"}}

# Package -> third-party modules it may load when it is imported: those of the extra it is installed with.
# pydanube_mcp and pydanube_cli import what an extra brings inside the function that needs it.
THIRD_PARTY: dict[str, set[str]] = {
    "pydanube_core": {"backports", "compression", "google", "hpack", "lz4"},
    "pydanube_storage": BASE,
    "pydanube_broker": BASE
    | {
        "numpy",
        "prometheus_client",
        "psutil",
        "starlette",
        "uvicorn",
        "uvloop",
        "fastavro",
        "jsonschema_rs",
    },
    "pydanube": BASE,
    "pydanube_admin": BASE,
    "pydanube_mcp": BASE | {"mcp", "mcp_types", "starlette", "uvicorn"},
    "pydanube_spark": BASE | {"numpy", "pyarrow", "pyspark", "fastavro"},
    "pydanube_tui": BASE | {"aiohttp", "rich", "textual", "textual_serve"},
    "pydanube_connect": BASE,
    "pydanube_cli": BASE,
}

_DECODING = ("avro", "column", "fault", "json_schema", "protobuf", "registry")
# Single modules which the base install holds and never imports (test_base_install blocks the extras): the broker
# checks and cuts batches with the one, the benchmark starts brokers with the other.
THIRD_PARTY_OF_MODULE: dict[str, set[str]] = {
    "pydanube.pytest_plugin": {"pytest"},  # pytest loads it
    "pydanube_core.batch.arranged": {"numpy"},
    "pydanube_core.batch.crc": {"numpy"},
    "pydanube_core.batch.gather": {"numpy"},
    "pydanube_core.batch.plain": {"numpy"},
    "pydanube_core.batch.select": {"numpy"},
    "pydanube_core.batch.validate": {"numpy"},
    **{  # the tier's process, which alone has the extra `tier`
        f"pydanube_storage.parquet.{name}": {"numpy", "pyarrow"}
        for name in ("columns", "decode", "encode", "export", "nulls", "read", "write")
    },
    **{
        f"pydanube_storage.topics.{name}": {"fastavro", "numpy", "pyarrow"}
        for name in ("reading", "rows", *(f"decoding.{each}" for each in _DECODING))
    },
    **{
        f"pydanube_storage.telemetry.{name}": {"numpy", "pyarrow"}
        for name in ("reading", "upkeep", "writing")
    },
    # Connectors, which are loaded by their entry points; where the library is missing, the error names the extra
    "pydanube_connect.delta.sink": {"deltalake", "pyarrow"},
    "pydanube_connect.http.sink": {"httpx"},
    **{
        f"pydanube_connect.postgres.{name}": {"psycopg"}
        for name in ("connecting", "replication", "sink", "source", "tables")
    },
    "pydanube_connect.kafka.registry": {"fastavro"},
    "pydanube_connect.kafka.source": {"confluent_kafka"},
    "pydanube_connect.mqtt.source": {"paho"},
    "pydanube_connect.vectors.pgvector": {"psycopg"},
    "pydanube_connect.vectors.qdrant": {"qdrant_client"},
    "pydanube_connect.webhook.source": {"uvicorn"},
    "pydanube_cli.bench.fleet": {"psutil"},
    "pydanube_cli.bench.payloads": {"numpy"},
}

# Decisions without I/O, clock, chance or logging: time and facts come in as arguments
# (docs/style.md#decide-then-act).
PURE = (
    "pydanube_core",
    "pydanube_core.*",
    "pydanube_broker.recent",
    "pydanube_broker.subscription",
    "pydanube_broker.subscription.*",
    "pydanube_broker.chain.piece",
    "pydanube_broker.copying.credit",
    "pydanube_broker.copying.messages",
    "pydanube_broker.copying.piece",
    "pydanube_broker.topics.limits",
    "pydanube_broker.topics.log_state",
    "pydanube_broker.topics.producers",
    "pydanube_broker.topics.rate_limit",
    "pydanube_broker.journal.records",
    "pydanube_broker.schema.avro.*",
    "pydanube_broker.schema.binding",
    "pydanube_broker.schema.differences",
    "pydanube_broker.schema.formats",
    "pydanube_broker.schema.json_schema.*",
    "pydanube_broker.schema.json_text",
    "pydanube_broker.relay.decision",
    "pydanube_broker.schema.protobuf.compat",
    "pydanube_broker.schema.protobuf.payload",
    "pydanube_broker.schema.protobuf.compat",
    "pydanube_broker.schema.step_budget",
    "pydanube_broker.schema.vocabulary",
    "pydanube_broker.journal.tail_cache",
    "pydanube_mcp.fencing",
    "pydanube_mcp.sizing",
    "pydanube_spark.reports.pages.charts",
    "pydanube_spark.reports.pages.markup",
    "pydanube_tui.filters",
    "pydanube_tui.page",
    "pydanube_tui.payloads",
    "pydanube_tui.text",
    "pydanube_storage.objects.names",
    "pydanube_storage.topics.extent",
    "pydanube_storage.metadata.model",
    "pydanube_storage.metadata.leases",
    "pydanube_storage.metadata.engine",
    "pydanube_storage.metadata.errors",
    "pydanube_storage.metadata.etcd.messages",
    "pydanube_storage.metadata.etcd.address",
)
NOT_PURE = (
    "pydanube_core.generated",  # protoc's output, and the pool it registers in
    "pydanube_core.generated.*",
    # The one connection of HTTP/2 clients on a transport, of the SDK and between brokers: both may import only the core.
    "pydanube_core.http2_link",
    "pydanube_core.kill_steps",  # a hook of tests
    "pydanube_core.schema_formats.protobuf.protoc",  # runs the compiler, for the broker and for readers
)
IMPURE_MODULES = {
    "anyio",
    "asyncio",
    "grpc",
    "logging",
    "multiprocessing",
    "os",
    "random",
    "secrets",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "time",
    "uvloop",
}

# The modules that read and write our protobuf messages; everything else sees dataclasses.
GENERATED_USERS = (
    "pydanube_core.generated",
    "pydanube_core.generated.*",
    "pydanube_core.services",  # the table of gRPC methods
    "pydanube_core.ops_call",  # danube.ops/Call: its request and its answer
    "pydanube_storage.metadata.etcd.*",  # etcd's own messages
    "pydanube_broker.services.*",
    "pydanube.client",  # Match
    "pydanube.wire.connections",  # Resolve, before a stream is opened
    "pydanube.wire.clusters",  # the same, of each cluster
    "pydanube.schemas",  # the registry's unary calls
    "pydanube.testing.faults",  # answers in a broker's place
    "pydanube.receiving.control",  # what a consume stream is told: acknowledgements, credit, seeks
    "pydanube.receiving.acks",  # ranges and masks become the message that says them
    "pydanube.receiving.repeated_answers",  # answers under the number of another session
    "pydanube.receiving.lane_answers",  # acks, nacks and their like
    "pydanube.*.*_lane",  # a stream to one broker each: messages become batches, answers receipts
    "pydanube_admin.compat.*",  # danube_admin and the registry's changes: translation is all they do
    "pydanube.wire.ops_channel",  # danube.ops/Call: what carries it
    "pydanube_admin.core",  # danube.ops/Call: the operation side
    "pydanube_admin.remote",  # danube.ops/Call: the calling side
    # Tolerated until they are moved into one of the above:
    "pydanube_broker.serving.topic_access",  # reads an OpenProducer to find its topic
    "pydanube_cli.bench.official",  # the official clients' messages
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module, and where."""

    importer: str
    imported: str
    line: int
    at_import_time: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def matches(module: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(module, pattern) for pattern in patterns)


def modules_of(wheel: Path) -> dict[str, Path]:
    """Dotted name -> file, of all our modules."""
    found = {}
    for path in sorted(wheel.rglob("*.py")):
        parts = path.relative_to(wheel).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path, *, known: set[str]) -> Iterator[Import]:
    """Every import statement of a module, with relative ones and `from package import module` resolved."""
    is_package = path.name == "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))

    def walk(node: ast.AST, *, at_import_time: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            names: list[str] = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    anchor = module.split(".") if is_package else module.split(".")[:-1]
                    anchor = anchor[: len(anchor) - (child.level - 1)]
                    base = ".".join([*anchor, base] if base else anchor)
                for alias in child.names:
                    whole = f"{base}.{alias.name}"
                    names.append(whole if whole in known else base)
            for name in dict.fromkeys(names):
                line = getattr(child, "lineno", 0)
                yield Import(importer=module, imported=name, line=line, at_import_time=at_import_time)
            deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            )
            yield from walk(child, at_import_time=at_import_time and not deferred)

    yield from walk(tree, at_import_time=True)


@pytest.fixture(scope="module")
def modules(wheel: Path) -> dict[str, Path]:
    return modules_of(wheel)


@pytest.fixture(scope="module")
def imports(modules: dict[str, Path]) -> list[Import]:
    return [found for name, path in modules.items() for found in imports_of(name, path, known=set(modules))]


def root_of(module: str) -> str:
    return module.split(".")[0]


def test_packages_of_the_wheel_are_those_of_the_table(modules: dict[str, Path]) -> None:
    assert {root_of(name) for name in modules} == set(DIRECTION)


def test_dependencies_point_one_way(imports: list[Import]) -> None:
    wrong = [
        str(found)
        for found in imports
        if root_of(found.imported) in DIRECTION
        and root_of(found.imported) != root_of(found.importer)
        and root_of(found.imported)
        not in DIRECTION[root_of(found.importer)] | DIRECTION_OF_MODULE.get(found.importer, set())
    ]
    assert wrong == []


def test_broker_client_and_admin_core_meet_only_in_the_command(imports: list[Import]) -> None:
    sides = {"pydanube_broker", "pydanube", "pydanube_admin"}
    # The admin core stands above the client by DIRECTION; neither knows the broker, nor the broker them.
    meeting = {
        root_of(found.importer)
        for found in imports
        if root_of(found.imported) in sides and root_of(found.imported) != root_of(found.importer)
    }
    above = {"pydanube_mcp", "pydanube_spark", "pydanube_tui", "pydanube_connect", "pydanube_cli"}
    assert meeting <= {"pydanube_admin", *above}
    wires_broker = {root_of(f.importer) for f in imports if root_of(f.imported) == "pydanube_broker"}
    assert wires_broker <= {"pydanube_broker", "pydanube_cli"}


def test_pure_modules_do_no_io_and_read_no_clock(imports: list[Import]) -> None:
    wrong = [
        str(found)
        for found in imports
        if matches(found.importer, PURE)
        and not matches(found.importer, NOT_PURE)
        and root_of(found.imported) in IMPURE_MODULES
    ]
    assert wrong == []


def test_pure_modules_lean_on_pure_modules_only(imports: list[Import]) -> None:
    wrong = [
        str(found)
        for found in imports
        if matches(found.importer, PURE)
        and not matches(found.importer, NOT_PURE)
        and root_of(found.imported) in DIRECTION
        and not matches(found.imported, PURE)
    ]
    assert wrong == []


# Package -> how deep a place is: 2 for rooms, 9 for modules.
@pytest.mark.parametrize(
    ("package", "depth"),
    [
        ("pydanube_broker", 2),
        ("pydanube_broker", 9),
        ("pydanube_admin", 2),
        ("pydanube_admin", 9),
        ("pydanube_cli", 2),
        ("pydanube_cli", 9),
        ("pydanube_core", 9),
        ("pydanube_storage", 9),
        ("pydanube", 9),
        ("pydanube_mcp", 9),
        ("pydanube_spark", 9),
        ("pydanube_tui", 9),
        ("pydanube_connect", 9),
    ],
)
def test_no_circle_of_imports(package: str, depth: int, imports: list[Import]) -> None:
    def place(module: str) -> str:
        return ".".join(module.split(".")[:depth])

    below: dict[str, set[str]] = {}
    for found in imports:
        ours = root_of(found.importer) == root_of(found.imported) == package
        if ours and place(found.importer) != place(found.imported) != package:
            below.setdefault(place(found.importer), set()).add(place(found.imported))
    with suppress(
        StopIteration
    ):  # what is left when everything that imports nothing left is taken away, again and again
        while True:
            free = next(one for one, needs in below.items() if not needs & below.keys())
            del below[free]
    assert below == {}


@pytest.mark.parametrize(
    "pattern", [*PURE, *NOT_PURE, *GENERATED_USERS, *DIRECTION_OF_MODULE, *THIRD_PARTY_OF_MODULE]
)
def test_modules_named_by_the_tables_exist(pattern: str, modules: dict[str, Path]) -> None:
    assert any(fnmatchcase(name, pattern) for name in modules), f"{pattern} matches nothing: renamed?"


def test_generated_code_is_read_by_its_codecs_only(imports: list[Import]) -> None:
    wrong = [
        str(found)
        for found in imports
        if found.imported.startswith("pydanube_core.generated")
        and not matches(found.importer, GENERATED_USERS)
    ]
    assert wrong == []


def test_third_party_modules_loaded_at_import_belong_to_the_extra(imports: list[Import]) -> None:
    wrong = [
        str(found)
        for found in imports
        if found.at_import_time
        and root_of(found.imported) not in DIRECTION
        and root_of(found.imported) not in sys.stdlib_module_names
        and root_of(found.imported)
        not in THIRD_PARTY[root_of(found.importer)] | THIRD_PARTY_OF_MODULE.get(found.importer, set())
    ]
    assert wrong == []


def test_the_tiers_process_reads_nothing_of_the_cluster(
    imports: list[Import], modules: dict[str, Path]
) -> None:
    """Every broker starts one: what it does not use would double its start."""
    below: dict[str, set[str]] = {}
    for found in imports:
        if found.at_import_time and found.imported in modules:
            below.setdefault(found.importer, set()).add(found.imported)
    reached, left = set[str](), ["pydanube_broker.tier.process", "pydanube_broker.tier.work"]
    while left:
        name = left.pop()
        packages = {name.rsplit(".", count)[0] for count in range(name.count(".") + 1)}
        left += (below.get(name, set()) | packages) - reached
        reached |= {name} | packages
    assert "pydanube_broker.journal.journal" in reached, "the walk follows imports"
    assert [name for name in sorted(reached) if name.startswith("pydanube_broker.cluster")] == []


def test_resolver_sees_relative_deferred_and_member_imports(tmp_path: Path) -> None:
    source = "from . import b\nfrom ..core import x\ndef f():\n    import numpy\nfrom pkg.sub import b as c\n"
    path = tmp_path / "a.py"
    path.write_text(source, encoding="utf-8")
    found = list(imports_of("pkg.sub.a", path, known={"pkg.sub.b", "pkg.core"}))
    assert [(f.imported, f.at_import_time) for f in found] == [
        ("pkg.sub.b", True),
        ("pkg.core", True),
        ("numpy", False),
        ("pkg.sub.b", True),
    ]
