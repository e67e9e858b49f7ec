# The interface of this project for people and CI: `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help prepare test-tools demo down test test-long test-kubernetes check lint types layers pages docs generate tools env spark-env e2e e2e-up e2e-down chaos soak chaos-short chaos-operator evidence seeds mutations images krew olm release audit bench fuzz clean

export PYTHONPATH := operator
# Some machines say that Python shall write no bytecode: every process of a test compiled all it imports.
export PYTHONDONTWRITEBYTECODE :=
# A control plane for tests may grow: 115 tests with one took 43 s of a processor with GOGC=50, 37 s so.
export GOGC ?= 400
UV ?= $(shell command -v uv 2>/dev/null || echo .venv/bin/uv)
RUN := .venv/bin/python
# CI judges a change by one order of the tests, as by the same examples each time (tests/conftest.py).
PYTEST = $(RUN) -m pytest -p no:cacheprovider$(if $(CI), --randomly-seed=1)
without_long = $(PYTEST) -m 'not long' $(1)
ignoring = $(foreach part,$(1),--ignore tests/$(part))
# Half of what is left: the last command was alone for ten minutes, with a processor idle beside it.
ROWS_AND_JOBS = client hostile storage transfer wire
# Each is on the path of what runs in it; the simulation is a package of tests/.
TEST_FOLDERS = $(shell find tests benchmarks -type d -not -name '__pycache__' -not -path 'tests/simulation*' -not -path 'benchmarks/harness*' | sort | paste -sd:)

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

demo: prepare ## Run the main job on real parts: ROWS=, PARTITIONS=, INPUT=file.parquet, KEY=column, PICTURE=file.svg
	@$(RUN) -m rezone.cli.main demo $(if $(ROWS),--rows $(ROWS)) $(if $(PARTITIONS),--partitions $(PARTITIONS)) $(if $(INPUT),--input $(INPUT)) $(if $(KEY),--key $(KEY)) $(if $(PICTURE),--picture $(PICTURE))

down: ## Stop the one-machine cluster of `make demo` and `rezone local up`; STATE_DIR= for another one
	@$(RUN) -m rezone.cli.main local $(if $(STATE_DIR),--state-dir $(STATE_DIR)) down

test: test-tools prepare checkers ## Run the test suite on a real API server, RocksDB and Spark
ifdef TEST_ARGS
	$(RUN) -m pytest $(TEST_ARGS)
else
	$(RUN) hack/beside.py "$(call without_long,tests/controller)" "$(call without_long,$(ROWS_AND_JOBS:%=tests/%))" "$(call without_long,tests/datanode)" "$(call without_long,tests/simulation)" "$(call without_long,$(call ignoring,controller datanode simulation $(ROWS_AND_JOBS)))"
endif

# CI has no time for the long simulations; of some kinds it has the seeds of a storm alone.
test-long: test-tools prepare checkers ## Run the tests that `make test` leaves out: processes killed in each state, large jobs of Spark, the longest simulations
	$(RUN) hack/beside.py "$(PYTEST) -m long tests/controller" "$(PYTEST) -m long $(call ignoring,controller simulation)" $(if $(CI),,"$(PYTEST) -m long tests/simulation")

test-kubernetes: prepare ## Run the tests that need an API server on another version of Kubernetes: VERSION=1.37, built once
	@REZONE_KUBERNETES_VERSION="$(VERSION)" python3 -m rezone.local.tools
	REZONE_KUBERNETES_VERSION="$(VERSION)" $(PYTEST) $(or $(TEST_ARGS),tests/kube tests/resources tests/controller)

check: lint types layers pages ## Lint, types, layers, generated files, links, the documentation site

pages: env
	$(RUN) -m rezone.resources.generate --check --helm "$$(python3 -m rezone.local.tools helm)"
	$(RUN) hack/protocols_page.py
	$(RUN) hack/glossary.py
	$(RUN) hack/mutations.py --check
	$(RUN) hack/links.py
	$(RUN) hack/docs_site.py

docs: env ## Build the documentation site into build/site, without a network
	$(RUN) hack/docs_site.py

# Ruff's cache keeps which modules are ours, and that changes with what folders have.
lint: env
	.venv/bin/ruff check --no-cache .
	.venv/bin/ruff format --check .

types: env
	MYPYPATH=operator .venv/bin/mypy -p rezone
	MYPYPATH=operator:. .venv/bin/mypy -p e2e
	MYPYPATH=operator:$(TEST_FOLDERS) .venv/bin/mypy --explicit-package-bases --exclude '/conftest\.py$$' tests benchmarks

layers: env
	.venv/bin/lint-imports

generate: env ## Write all generated files: CRDs, chart copies, manifests
	$(RUN) -m rezone.resources.generate --helm "$$(python3 -m rezone.local.tools helm)"

e2e: prepare ## Run both end-to-end suites: the main job, and a real cluster that breaks (docs/contribute/e2e.md)
	$(RUN) -m pytest e2e -s $(TEST_ARGS)

e2e-up: prepare ## Make the cluster of the end-to-end suite and leave it running
	$(RUN) -m e2e.kind up

e2e-down: env ## End what a run with REZONE_E2E_KEEP=1, or one that was killed, has left
	$(RUN) -m e2e.kind down

chaos: prepare ## Make FAULTS= (all) in networks, disks, clocks and processes, each alone, then a STORM= (240) of seconds by SEED=
	PYTHONPATH=operator:. $(RUN) -m e2e.chaos --faults "$(or $(FAULTS),all)" --storm-seconds $(or $(STORM),240) $(if $(SEED),--seed $(SEED)) $(if $(REPORT),--report $(REPORT))

soak: prepare ## Let storms of all faults come one after the other for SECONDS= (3600) by SEED=, REPORT=file.json; RECORD=1 keeps it in docs/evidence.json
	mkdir -p build
	PYTHONPATH=operator:. $(RUN) -m e2e.chaos --faults none --soak-seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED)) --report $(or $(REPORT),build/soak.json)
	$(if $(RECORD),$(RUN) hack/evidence.py --soak $(or $(REPORT),build/soak.json))

chaos-short: prepare ## Make three of these faults, or say that this machine cannot
	PYTHONPATH=operator:. $(RUN) -m e2e.chaos --faults short --or-skip $(if $(SEED),--seed $(SEED))

chaos-operator: prepare ## Kill the operator at every point, delete objects at every state, and simulate with SEEDS= (1500) pairs of faults and storms
	REZONE_SIMULATION_SEEDS=$(or $(SEEDS),1500) $(RUN) -m pytest tests/controller/deaths/test_controller_killed.py tests/controller/deaths/test_controller_killed_resharding.py tests/controller/deaths/test_controller_killed_spark.py tests/controller/deaths/test_controller_deletions.py tests/controller/deaths/test_controller_recovering.py tests/controller/on_cluster/test_controller_lost_machine.py tests/controller/deaths/test_controller_restored.py tests/simulation $(TEST_ARGS)

evidence: prepare ## Record what SEEDS= (1000) seeds and all faults on real processes show in docs/evidence.json (hours; STORM=, FAULTS=)
	mkdir -p build
	PYTHONPATH=operator:tests $(RUN) -m simulation.many --seeds $(or $(SEEDS),1000) --report build/seeds.json
	PYTHONPATH=operator:. $(RUN) -m e2e.chaos --faults "$(or $(FAULTS),all)" --storm-seconds $(or $(STORM),240) $(if $(SEED),--seed $(SEED)) --report build/chaos.json
	$(RUN) hack/evidence.py build/seeds.json build/chaos.json

seeds: env ## Simulate SEEDS= (1000) seeds of each storm, fewer of expensive ones, on all processors, from FIRST= (0): failures, and seeds a minute
	PYTHONPATH=operator:tests $(RUN) -m simulation.many --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) $(if $(STORMS),--storms $(STORMS))

mutations: prepare ## Break the product in one place after the other and see that tests fail: NAMES="B-08 load-row-by-row"
	$(RUN) hack/mutations.py $(NAMES)

images: ## Build the three images; OUTPUT=directory writes archives that kind can load
	@python3 hack/images.py $(if $(OUTPUT),--output $(OUTPUT)) $(IMAGES_ARGS)

krew: env ## Write the plugin of kubectl for krew into OUTPUT= (dist): BASE_URL= of the archive, HOMEPAGE=
	$(UV) build --quiet --wheel --out-dir $(or $(OUTPUT),dist)
	$(RUN) hack/krew.py --wheel $(or $(OUTPUT),dist)/rezone-*-py3-none-any.whl --base-url "$(BASE_URL)" --homepage "$(HOMEPAGE)" --output $(or $(OUTPUT),dist)

olm: env ## Write the bundle for the Operator Lifecycle Manager into OUTPUT= (dist/olm): HOMEPAGE=
	$(RUN) hack/olm.py --homepage "$(HOMEPAGE)" --output $(or $(OUTPUT),dist/olm)

release: env ## Build wheel, chart, plugin for krew, bundle for OLM, SBOM and checksums into OUTPUT= (dist/release), the same each time: BASE_URL=, HOMEPAGE=, ARTIFACT_HUB_ID=
	$(RUN) hack/release.py --uv $(UV) --helm "$$(python3 -m rezone.local.tools helm)" --base-url "$(BASE_URL)" --homepage "$(HOMEPAGE)" --artifact-hub-id "$(ARTIFACT_HUB_ID)" --output $(or $(OUTPUT),dist/release)

audit: env ## Check digests and licences of all dependencies; ONLINE=1 asks OSV for known vulnerabilities, too
	$(RUN) hack/audit.py
	$(if $(ONLINE),$(UV) audit --frozen)

bench: env ## Run all benchmarks; each prints its ratios
	@for b in $(filter-out benchmarks/harness/%,$(sort $(wildcard benchmarks/*/*.py))); do echo "== $$b"; PYTHONPATH=operator:benchmarks $(RUN) $$b || exit 1; done

env: .venv/.complete ## Make the Python environment from the lock file

.venv/.complete: pyproject.toml uv.lock $(wildcard operator/native/*)
	@bash hack/environment.sh
	@touch $@

fuzz: env ## Give hostile bytes to every parser of bytes from outside, for long
	REZONE_FUZZ_EXAMPLES=$${EXAMPLES:-100000} .venv/bin/pytest tests/hostile tests/storage/test_hostile_bytes.py --timeout=0

test-tools: ## Install what only tests need, a browser and g++, where this user can
	@bash hack/prerequisites.sh tests

tools: ## Build the control plane's binaries once into the cache
	@python3 -m rezone.local.tools

checkers: ## Build once what tests check charts, alerts and bundles with
	@python3 -m rezone.local.tools helm kube-score promtool prometheus operator-verify

# The Go builds need nothing of the environment, so both are made at once.
prepare: ## Make the environment and, beside it, the control plane's binaries
	@bash hack/prerequisites.sh
	@$(MAKE) --no-print-directory -j2 env tools

clean: ## Remove the environment and caches of this checkout
	rm -rf build .cache .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
