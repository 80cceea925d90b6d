# Everything here needs Python 3.11 or newer and PyPI; the environment (.venv) is made on the way.
# Another interpreter: make run PYTHON=/path/to/python3.13
ifdef PYTHON
export PYTHON
endif

VENV := .venv/bin

.PHONY: help run audit test test-long soak test-cluster test-connect test-deploy test-javascript diagnosis release site lint conformance fuzz mutants bench proto docs clean env-run env-dev env-spark

help:
	@echo "make run           start a broker on ./danube-data, with MCP and JSON-RPC (Ctrl-C stops it)"
	@echo "make test          the test suite, without its long tests"
	@echo "make lint          style, types, import rules, drift of generated code and documents"
	@echo "make test-long     the whole test suite"
	@echo "make test-cluster  three brokers, etcd and a store as processes, each of which fails under load (root, Linux)"
	@echo "make test-connect  connectors with real servers of other systems (root, Debian)"
	@echo "make diagnosis     thirty faults with ten seeds each, and healthy twins for hours"
	@echo "make test-deploy   deploy/ with the tools it is for: promtool, helm, podman … as far as they are installed"
	@echo "make test-javascript  the client for JavaScript and TypeScript: installs, builds, tests (Node and npm)"
	@echo "make conformance   outside judges of our protocols"
	@echo "make audit         known weaknesses of what the image installs (pip-audit, asks PyPI)"
	@echo "make fuzz          property tests with many more examples (FUZZ_EXAMPLES=20000), atheris on HTTP/2 (FUZZ_SECONDS=120)"
	@echo "make mutants       small faults in critical code that no near test finds: 200 of them, hours (ARGS=\"--since REV --room journal\")"
	@echo "make soak          an hour of everything at once, failed by what grows"
	@echo "make bench         measure: needs a quiet machine"
	@echo "make proto docs    write the generated code, the generated documents"
	@echo "make site          the documentation site, in dist/site"
	@echo "make release       wheel, sdist, bundle, notes and checksums in dist/ (TAG=vX.Y.Z)"
	@echo "make clean         remove what can be made again; keeps ./danube-data"

env-run:
	@tools/bootstrap run

env-dev:
	@tools/bootstrap dev

# PySpark, for tests/spark and the types of pydanube_spark: 456 MB.
env-spark:
	@tools/bootstrap spark

# exec: signals reach the broker itself, and make ends with its status.
run: env-run
	@exec ./danube up --data-dir ./danube-data

test: env-dev
	@$(VENV)/python tools/gate.py test $(ARGS)

# Faults with ten seeds, honest work for hours of a quick clock: half an hour on two quiet cores.
diagnosis: env-dev
	@$(VENV)/python -m pytest tests/diagnosis -m "" -q $(ARGS)

# Ten scenarios of one to three minutes; CLUSTER_SEED=N for the seed that a failure prints. ARGS go to pytest.
# Real servers of other systems: PostgreSQL and mosquitto of the system (root, Debian), Kafka from Maven Central.
test-connect: env-dev
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || apt-get install -y -q postgresql
	@command -v mosquitto >/dev/null || apt-get install -y -q --no-install-recommends mosquitto
	@command -v mvn >/dev/null || apt-get install -y -q --no-install-recommends openjdk-17-jre-headless maven
	@$(VENV)/python -m tests.connect.servers
	@$(VENV)/python -m pytest tests/connect -q -rs $(ARGS)

test-cluster: env-dev
	@$(VENV)/python -m pytest tests/cluster -m "" -q -s $(ARGS)

# An hour of everything at once, failed by anything that grows: benchmarks/soak.py.
soak: env-dev
	@$(VENV)/python benchmarks/soak.py $(ARGS)

test-long: env-dev
	@$(VENV)/python tools/gate.py test-long $(ARGS)

lint: env-dev
	@$(VENV)/python tools/gate.py lint

test-deploy: env-dev
	@$(VENV)/python tools/gate.py deploy

test-javascript: env-dev
	@$(VENV)/python tools/gate.py javascript

conformance: env-dev
	@$(VENV)/python tools/gate.py conformance

# In an environment of its own: its dependencies are not ours.
audit: env-dev
	@$(VENV)/python -m venv .venv/pip-audit
	@.venv/pip-audit/bin/python -m pip install --quiet pip-audit
	@.venv/pip-audit/bin/pip-audit --require-hashes --disable-pip --strict -r deploy/image/requirements.txt

fuzz: env-dev
	@$(VENV)/python tools/gate.py fuzz $(ARGS)

# What it draws, runs and writes stands at the head of tools/faults.py.
mutants: env-dev
	@$(VENV)/python -m tools.faults $(ARGS)

bench: env-run
	@for scenario in e2e publish consume latency await unary backlog; do \
	    echo "== bench $$scenario"; $(VENV)/danube bench $$scenario $(ARGS) || exit; done

proto: env-dev
	@$(VENV)/python tools/gen_protos.py
	@$(VENV)/python tools/gen_javascript_protos.py

# Strictly: a dead link or a page that no menu has ends it.
site: env-dev
	@$(VENV)/python -m tools.build_site

# make release TAG=v0.2.0: the steps before it stand at the head of tools/release.py.
release: env-dev
	@$(VENV)/python tools/release.py --tag "$(TAG)"

docs: env-dev
	@$(VENV)/python tools/gen_admin_client.py
	@$(VENV)/python tools/gen_docs.py
	@$(VENV)/python tools/gen_observability.py

clean:
	rm -rf clients/javascript/dist clients/javascript/node_modules
	rm -rf .venv .venv-spark .tools build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './danube-data/*' -prune -exec rm -rf {} +
