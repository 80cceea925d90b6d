"""The Helm chart: every set of values against Kubernetes' own schemas, its settings against ours, wrong values as sentences.

No cluster runs here, so nothing of the chart has been installed; the script of its test pod runs against a broker.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pydanube_broker.settings.load import load_settings

from tests.deploy.conftest import DEPLOY, go_module, go_program
from tests.support.broker_process import BrokerProcess

CHART = DEPLOY / "helm" / "danube"
KUBERNETES = "v1.34.1"
VALUES = sorted((CHART / "ci").glob("*.yaml"))
pytestmark = pytest.mark.timeout(900)  # the tools are built at their first use


@pytest.fixture(scope="module")
def helm() -> str:
    return go_program("helm.sh/helm/v3/cmd/helm@v3.22.0")


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Schemas of the kinds that the chart has, made from the API description in Kubernetes' own module."""
    source = go_module(f"k8s.io/kubernetes@{KUBERNETES}") / "api" / "openapi-spec" / "swagger.json"
    definitions = json.loads(source.read_text())["definitions"]
    for definition in definitions.values():
        _tightened(definition)
    folder = tmp_path_factory.mktemp("schemas")
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            group = f"{kind['group'].split('.')[0]}-" if kind["group"] else ""
            file = folder / f"{kind['kind'].lower()}-{group}{kind['version']}.json"
            if kind["kind"] in KINDS:
                root = {"$ref": f"#/definitions/{name}", "definitions": definitions}
                file.write_text(json.dumps(root))
    return folder


KINDS = {"ConfigMap", "Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy", "Pod"}


def _tightened(schema: Any) -> None:
    """What the description leaves to its readers: unknown fields are mistakes, and ports may be names."""
    if isinstance(schema, list):
        for each in schema:
            _tightened(each)
    if not isinstance(schema, dict):
        return
    for each in schema.values():
        _tightened(each)
    if schema.get("format") == "int-or-string":
        schema.pop("type", None)
        schema.pop("format")
        schema["type"] = ["string", "integer"]
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        schema.setdefault("additionalProperties", False)


def rendered(helm: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [helm, "template", "d", str(CHART), "--kube-version", KUBERNETES, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_what_is_rendered_is_what_kubernetes_takes(helm: str, schemas: Path, values: Path) -> None:
    kubeconform = go_program("github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0")
    linted = subprocess.run(
        [helm, "lint", "--strict", str(CHART), "-f", str(values)], capture_output=True, text=True
    )
    assert linted.returncode == 0, linted.stdout
    text = rendered(helm, "-f", str(values)).stdout
    where = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    words = [kubeconform, "-strict", "-summary", "-skip", "ServiceMonitor", "-schema-location", where, "-"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Invalid: 0, Errors: 0", done.stdout), done.stdout


def test_the_judge_refuses_what_kubernetes_would(schemas: Path) -> None:
    kubeconform = go_program("github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0")
    wrong = (
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: x}\nspec: {maxUnavailabel: 1}\n"
    )
    where = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    words = [kubeconform, "-strict", "-schema-location", where, "-"]
    done = subprocess.run(words, input=wrong, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "maxUnavailabel" in done.stdout


def test_several_brokers_have_names_of_their_own_and_one_address(helm: str) -> None:
    text = rendered(helm, "-f", str(CHART / "ci" / "several-locked-values.yaml")).stdout
    (pod,) = [part for part in text.split("\n---\n") if "kind: StatefulSet" in part]
    names = dict(re.findall(r"name: (DANUBE_\w+), value: \"?([^\"}]+)", pod))
    assert names["DANUBE_SERVER__ADVERTISED_URL"] == "https://$(POD_NAME).d-brokers.default.svc:6650"
    assert names["DANUBE_SERVER__CONNECT_URL"] == "https://d.default.svc:6650"
    assert (names["DANUBE_TLS__CLIENT_CA"], names["DANUBE_TLS__CLIENT_AUTH"]) == (
        "/etc/danube-tls/ca.crt",
        "none",
    )
    assert "topologyKey: topology.kubernetes.io/zone" in pod
    assert "replicas: 3" in pod
    one = rendered(helm).stdout
    assert "CONNECT_URL" not in one
    assert "topologyKey" not in one


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_settings_are_those_of_a_broker(helm: str, values: Path, tmp_path: Path) -> None:
    text = rendered(helm, "-f", str(values), "--show-only", "templates/configmap.yaml").stdout
    body = text.split("danube.toml: |\n", 1)[1]
    file = tmp_path / "danube.toml"
    file.write_text("\n".join(line.removeprefix("    ") for line in body.splitlines()))
    settings = load_settings(file, {})
    assert settings.log.format == "json"
    if values.stem.startswith("small"):
        assert settings.journal.tail_cache_bytes == 8 << 20
    if values.stem.startswith("full"):
        assert (settings.tier.path_style, settings.topics.max_message_bytes) == (True, 1_000_000)


def test_the_pod_of_helm_test_passes_where_a_broker_answers_and_fails_where_none_does(
    helm: str, broker: BrokerProcess
) -> None:
    text = rendered(helm, "--show-only", "templates/tests/walk.yaml").stdout
    script = text.split("- |\n", 1)[1].split("      resources:", 1)[0]

    def tried(grpc: str, admin: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "DANUBE_BROKER_URL": grpc, "DANUBE_ADMIN_ENDPOINT": admin}
        words = ["sh", "-ec", textwrap.dedent(script)]
        return subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    done = tried(broker.url, broker.admin)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tried("http://127.0.0.1:1", "http://127.0.0.1:1").returncode != 0


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("brokers=3", "settings.metadata.url names no etcd while brokers is 3"),
        (
            "brokers=3,settings.metadata.url=etcd://e:2379/x",
            "settings.tier.url names no object store while brokers is 3",
        ),
        ("brokers=0", "brokers is 0: use 1 to 99"),
        ("brokers=x", "at '/brokers': got string, want integer"),
        ("service.type=Foo", 'service.type is "Foo": use ClusterIP'),
        ("service.type=NodePort", 'service.type is "NodePort" while networkPolicy.enabled is true'),
        ("graceSeconds=0", "graceSeconds is 0: use 1 to 600"),
        ("volume.size=20G", 'volume.size is "20G": write it like 20Gi'),
        ("image.pullPolicy=no", 'image.pullPolicy is "no"'),
        ("tls.clientCertificates=true", "tls.secret is empty while tls.clientCertificates is true"),
        ("auth.mode=false", 'auth.mode is false: use "off" (in quotes)'),
        ("auth.mode=required", 'tls.secret is empty while auth.mode is "required"'),
        ("auth.mode=required,tls.secret=x,serviceMonitor.enabled=true", "auth.scrapeSecret is empty"),
        ("settings.auth.mode=required", "settings.auth.mode cannot be set: use auth.mode"),
        ("settings.tls.cert=x", "settings.tls cannot be set"),
        ("settings.server.host=x", "settings.server cannot be set"),
        ("settings.log.a[0]=1", "settings.log.a is a slice"),
        ("settings.tier.url=s3://b/x", 'secrets is empty while settings.tier.url is "s3://b/x"'),
        ("replicas=1", "additional properties 'replicas' not allowed"),
    ],
)
def test_a_wrong_value_is_one_sentence_that_names_it(helm: str, value: str, sentence: str) -> None:
    done = rendered(helm, "--set", value)
    assert done.returncode == 1
    assert sentence in done.stderr
