# The whole set-up: `make demo` and `make test` work on a fresh machine with Python 3.11+ and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo/digits
.DEFAULT_GOAL := help
# Every command, agent and model host is a process: without bytecode on disk each compiles the whole source anew.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test slow cluster-tests nightly devices bench lint types protos clean help

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*##/  /'

$(VENV)/.plan: pyproject.toml requirements/ci.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c requirements/ci.txt -e '.[all]'
	touch $@

# One resolution for all; modules are compiled when they are first imported, and Debian's packages come meanwhile.
$(VENV)/.test: pyproject.toml requirements/ci.txt requirements/protoc.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@packages=$$(tests/tools/debian-packages.sh ask); \
	tests/tools/debian-packages.sh install $$packages & \
	$(PIP) install --no-compile 'pip>=25.1' && \
	$(PIP) install --no-compile -c requirements/ci.txt -e '.[all,ocr]' --group test && \
	$(PIP) install --no-compile --no-deps --upgrade --target $(VENV)/protoc -r requirements/protoc.txt; \
	status=$$?; wait; exit $$status
	touch $(VENV)/.plan $@

demo: $(VENV)/.plan  ## profile, plan, serve, measure and report examples/digits
	$(BIN)/python -m jellybean demo $(DEMO)

# COST=1: each test's processor seconds. RANDOM=SEED: in random order.
TIER = COST='$(COST)' RANDOM_ORDER='$(RANDOM)' tests/tools/run-tier
test: $(VENV)/.test  ## run the tests of each change (COST=1: print what they cost; RANDOM=7: in random order)
	$(TIER) test

slow: $(VENV)/.test  ## the tests to run before a merge, beside those of `make test`
	$(TIER) slow

# RANDOM=SEED: in random order.
cluster-tests: $(VENV)/.test  ## the tests of Kubernetes on the API server that JELLYBEAN_TEST_KUBECONFIG names
	@test -n "$$JELLYBEAN_TEST_KUBECONFIG" || { echo 'cluster-tests: set JELLYBEAN_TEST_KUBECONFIG to the kubeconfig of' \
		'an administrator of a cluster that nothing else uses, made by kind or envtest as CONTRIBUTING.md says' >&2; exit 2; }
	$(BIN)/python -m pytest -rs -m 'cluster and not nightly' $(if $(RANDOM),-p randomly --randomly-dont-reset-seed \
		--randomly-seed=$(RANDOM)) tests/integration/k8s tests/property/k8s tests/e2e/cli

nightly: $(VENV)/.test  ## all tests, and other execution providers
	$(TIER) nightly
	$(MAKE) devices

# Only one build of onnxruntime can be installed: each further one gets an environment of its own over $(VENV).
DEVICE_TESTS := tests/e2e/devices tests/unit/agent/execution/test_devices.py tests/unit/documents/test_devices.py
$(VENV)-%/.done: $(VENV)/.test
	$(BIN)/python -m venv --without-pip $(VENV)-$*
	$(BIN)/python -c "import site, sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> "$$($(VENV)-$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/base.pth"
	$(BIN)/python -m pip --disable-pip-version-check -q --python $(VENV)-$*/bin/python install --no-deps onnxruntime-$*
	touch $@

devices: $(VENV)-openvino/.done $(VENV)-gpu/.done  ## test other execution providers than the CPU's
	$(VENV)-openvino/bin/python -m pytest $(DEVICE_TESTS); status=$$?; \
	$(VENV)-gpu/bin/python -m pytest $(DEVICE_TESTS) && exit $$status

bench: $(VENV)/.test  ## run all benchmarks, write docs/benchmarks.md (hours)
	$(BIN)/python -m benchmarks

lint: $(VENV)/.test  ## ruff and the rules of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.test  ## mypy --strict
	$(BIN)/mypy

# The stubs' compiler is older than the runtime in .venv, so that the stubs run on old runtimes too: requirements/protoc.txt.
protos: $(VENV)/.test  ## regenerate the stubs beside the .proto files
	cd protos && PYTHONPATH=../$(VENV)/protoc ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $$(find jellybean_protos -name '*.proto')

.PHONY: matrix lock dist audit sbom
matrix:          ## unit and property tests of the wheel on each Python that is installed; ROWS="3.12 oldest" for some
	$(PYTHON) tests/tools/matrix.py $(ROWS)

lock:            ## the newest versions of all dependencies into requirements/ci.txt
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install -q 'pip>=25.1'
	$(VENV)-lock/bin/python -m pip install -q -e '.[all,ocr]' --group test
	$(VENV)-lock/bin/python tests/tools/lock.py
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install -q pip-audit cyclonedx-bom
	$(VENV)-lock/bin/python tests/tools/lock.py audit

# Tools that no test needs, in an environment of their own.
$(VENV)-audit/.done: requirements/audit.txt
	test -x $(VENV)-audit/bin/python || $(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip --disable-pip-version-check -q install -r requirements/audit.txt
	touch $@

audit: $(VENV)-audit/.done  ## scan the locked dependencies for published vulnerabilities (network)
	$(PYTHON) -m tests.tools.audit $(VENV)-audit/bin/pip-audit

# Of an environment with the wheel and what it needs, nothing else.
sbom: $(VENV)-audit/.done  ## bill of materials of an installation with the extra `all`: build/sbom.cdx.json (CycloneDX)
	rm -rf $(VENV)-sbom
	$(PYTHON) -m venv --without-pip $(VENV)-sbom
	$(VENV)-audit/bin/python -m pip --disable-pip-version-check -q --python $(VENV)-sbom/bin/python install -c requirements/ci.txt '.[all]'
	mkdir -p build
	$(VENV)-audit/bin/cyclonedx-py environment --validate --output-reproducible --spec-version 1.6 \
		--pyproject pyproject.toml --output-format JSON --output-file build/sbom.cdx.json $(VENV)-sbom/bin/python
	rm -rf $(VENV)-sbom

dist:            ## sdist and wheel into dist/, as a release publishes them
	rm -rf dist $(VENV)-dist
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install -q build twine
	$(VENV)-dist/bin/python -m build
	$(VENV)-dist/bin/python -m twine check --strict dist/*

clean:           ## remove what the targets made
	rm -rf $(VENV) $(VENV)-openvino $(VENV)-gpu $(VENV)-matrix $(VENV)-lock $(VENV)-dist $(VENV)-audit $(VENV)-sbom .cost build dist demo
