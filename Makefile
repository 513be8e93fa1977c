# make run    two Spark applications share a Kafka group over real data, with checks
#             BOOTSTRAP=host:port on a Kafka of yours; KAFKA=1 on an Apache Kafka fetched for it; VERBOSE=1 all logs
# make test   lint, types, layers, every test on the embedded broker and on a real Apache Kafka;
#             PYTEST_ARGS='-n 0 -k word' for a few in one process
# make lint   the first three of these
# make conformance   writes docs/conformance.md: which test shows which behaviour of Kafka's own group tests
#
# Every target does its own set-up in .venv; needed beforehand: Python 3.10+, Java 17+.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := spark_groupsource jobs tests benchmarks pyspark_groupsource.py
PYTEST_ARGS ?=

.PHONY: run test lint conformance python-there java-there clean
.DELETE_ON_ERROR:

run: java-there $(VENV)/.ready-demo
	@$(BIN)/python jobs/demo.py $(if $(BOOTSTRAP),--bootstrap-servers $(BOOTSTRAP)) $(if $(KAFKA),--kafka) \
	  $(if $(VERBOSE),--verbose)

test: java-there lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.ready-test
	$(BIN)/flake8 $(SOURCES)
	$(BIN)/isort --check-only --quiet $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

conformance: $(VENV)/.ready-test
	$(BIN)/python tests/conformance/report.py

# setup.cfg lists the dependencies: a newer one means install again
$(VENV)/.ready-%: setup.cfg pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) (once; again when setup.cfg changes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable '.[$(EXTRAS_$*)]'
	@touch $@

EXTRAS_demo := demo
EXTRAS_test := demo,fast,test

$(BIN)/python: | python-there
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  rm -rf $(VENV); echo "make: $(PYTHON) cannot create a virtual environment; install its venv module" \
	       "(Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }

python-there:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: no $(PYTHON) on the PATH; install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: $$($(PYTHON) --version) is too old; Python 3.10 or newer is needed: make PYTHON=/path/to/python3" >&2; \
	  exit 1; }

java-there: python-there
	@$(PYTHON) jobs/kafka_jars.py

clean:
	rm -rf $(VENV) build *.egg-info
