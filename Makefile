# make run    two Spark applications share a Kafka group and write real data exactly once, with checks
#             BOOTSTRAP=host:port on a Kafka of yours; KAFKA=1 on an Apache Kafka fetched for it; VERBOSE=1 all logs
# make check  lint and every test that needs neither Java, Spark nor a real Kafka: run it before each commit
# make test   lint and the tests, on the embedded broker and on a real Apache Kafka
# make test-matrix   the Spark part of the tests with each PySpark (4.0 to 4.3) and each Python of this machine, in
#             environments in .venv-matrix; writes docs/runtimes-matrix.md. MATRIX_ARGS='--spark 4.0 --python 3.11'
#             selects, MATRIX_ARGS=--lowest runs `make check`'s tests with the lowest version of each dependency
# make soak   the tests with their long variants, then longer scenarios of kills and random schedules, for a nightly
#             run; SEED=N repeats one
# make bench  every benchmark beside its rivals, written into benchmarks/figures.md: 13 minutes; QUICK=1 3, FULL=1 40
# make bench-compare BASE=commit   processor time of this checkout beside that of another commit, as ratios
# make test-yarn   applications on HDFS and YARN with one node, from Hadoop's jars: docs/yarn.md; 4 GB of memory
# make lint   style, types, layers, conflict markers
#             PYTEST_ARGS='-n 0 -k word' passes arguments to pytest: here, the tests with that word, in one process
# make docs   writes the generated pages of docs/, and builds the site in build/site
# make docs-diagrams, make docs-options   write one of these pages: the state diagrams, the options and settings
# make notebook-screenshots   executes docs/tour.ipynb and renders it in headless Chromium: PNG files in build/notebook
# make conformance   writes build/conformance.md: which test shows which behavior of Kafka's own tests
#
# Every target does its own set-up in .venv; needed beforehand: Python 3.10+; Java 17+ except for check and lint.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := spark_groupsource jobs tests benchmarks docs pyspark_groupsource.py
PYTEST_ARGS ?=
# hundreds of Python processes start in a run: keep the compiled modules
unexport PYTHONDONTWRITEBYTECODE
ifndef SEED
SEED := $(shell date +%s)
endif

.PHONY: run check quick-tests test test-matrix test-yarn soak bench bench-compare lint docs docs-diagrams docs-options notebook-screenshots conformance
.PHONY: python-there java-there clean
.DELETE_ON_ERROR:

run: java-there $(VENV)/.ready-demo
	@$(BIN)/python jobs/demo.py $(if $(BOOTSTRAP),--bootstrap-servers $(BOOTSTRAP)) $(if $(KAFKA),--kafka) \
	  $(if $(VERBOSE),--verbose)

# lint and the tests side by side, each printed when it is done
check: $(VENV)/.ready-test
	@$(MAKE) --no-print-directory --jobs --output-sync=target lint quick-tests

# a test that starts Java without the mark for it must fail here, also on a machine that has Java
quick-tests: $(VENV)/.ready-test
	JAVA_HOME=/nonexistent $(BIN)/python tests/support/run_tests.py --plan quick --hypothesis-profile check \
	  -m 'not java and not kafka and not spark and not slow' $(PYTEST_ARGS)

# the tests with every variant, then their scenarios with random seeds and many more events; hours, stops at the first
# that fails
soak: export PYTHONPATH := jobs:tests
soak: java-there $(VENV)/.ready-test
	$(BIN)/python tests/support/run_tests.py --soak --hypothesis-profile soak $(PYTEST_ARGS)
	$(BIN)/python tests/simulation/coordinator_simulation.py --seed $(SEED) --schedules 100000
	$(BIN)/python tests/simulation/application_simulation.py --seed $(SEED) --schedules 50000
	$(BIN)/python tests/simulation/application_simulation.py --seed $(SEED) --schedules 50000 --features all
	$(BIN)/python tests/chaos/broker_kills.py --seed $(SEED) --kills 200
	$(BIN)/python tests/chaos/power_loss.py --seed $(SEED) --rounds 300
	$(BIN)/python tests/chaos/exactly_once.py --seed $(SEED) --records 50000 --kills 50
	$(BIN)/python tests/attacks/fuzz_wire.py
	$(BIN)/python tests/attacks/fuzz_wire.py --sasl
	$(BIN)/python tests/chaos/fuzz_json_values.py --seed $(SEED) --minutes 10 --spark
	$(BIN)/python tests/attacks/hostile.py --seed $(SEED) --minutes 10
	$(BIN)/python tests/chaos/fuzz_avro_values.py --seed $(SEED) --minutes 10
	$(BIN)/python tests/chaos/fuzz_protobuf_values.py --seed $(SEED) --minutes 10
	$(BIN)/python tests/chaos/compare_brokers.py --seed $(SEED) --requests 50000
	$(BIN)/python tests/chaos/stream.py --seed $(SEED) --events 60
	$(BIN)/python tests/chaos/stream.py --seed $(SEED) --events 30 --kafka --applications 3 --assignor cooperative-sticky
	$(BIN)/python tests/chaos/stream.py --seed $(SEED) --events 20 --graceful
	$(BIN)/python tests/chaos/stream.py --seed $(SEED) --events 10 --applications 3 --executors 8
	$(BIN)/python tests/chaos/copies.py --seed $(SEED) --events 50
	$(BIN)/python tests/chaos/copies.py --seed $(SEED) --events 50 --kafka
	$(BIN)/python tests/chaos/copies.py --seed $(SEED) --events 20 --executors 2
	$(BIN)/python tests/histories/record.py --seed $(SEED) --histories 1000
	$(BIN)/python tests/histories/record.py --seed $(SEED) --histories 100 --kafka
	$(BIN)/python tests/histories/record.py --seed $(SEED) --histories 30 --three-brokers
	$(BIN)/python tests/histories/record.py --seed $(SEED) --histories 20 --spark
	$(BIN)/python tests/chaos/coordinator_moves.py --seed $(SEED) --moves 20
	$(BIN)/python tests/chaos/coordinator_moves.py --seed $(SEED) --moves 10 --kafka --spark
	$(BIN)/python tests/chaos/database_kills.py --seed $(SEED) --kills 10
	$(BIN)/python tests/chaos/rebalance_causes.py --seed $(SEED)
	$(BIN)/python tests/chaos/endurance.py

bench: java-there $(VENV)/.ready-test
	$(BIN)/python benchmarks/run.py $(if $(QUICK),--quick)$(if $(FULL),--full)

bench-compare: $(VENV)/.ready-test
	@test -n "$(BASE)" || { echo "make: name the commit to compare with: make bench-compare BASE=commit" >&2; exit 1; }
	$(BIN)/python benchmarks/compare.py --base $(BASE)

test: java-there lint
	$(BIN)/python tests/support/run_tests.py --rerun $(PYTEST_ARGS)

test-yarn: java-there $(VENV)/.ready-test
	$(BIN)/python -m pytest --yarn -n 0 -s tests/yarn $(PYTEST_ARGS)

test-matrix: java-there python-there
	$(PYTHON) tests/support/run_matrix.py $(MATRIX_ARGS)

lint: $(VENV)/.ready-test
	@! grep -rnIE '^(<<<<<<<|>>>>>>>)( |$$)' --exclude-dir=.git --exclude-dir=.venv --exclude-dir='.*_cache' . || { \
	  echo "make: conflict markers are left in the lines above; resolve them" >&2; exit 1; }
	$(BIN)/ruff check --quiet $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.ready-test
	$(BIN)/python docs/generate.py
	@$(MERMAID) || echo "make: without npm, the diagrams of the site are drawn by a script of another host" >&2
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file conf/mkdocs.yml

# the script that draws the diagrams of the site, so that it works without a network; in later ones the theme of the
# site does not color the arrowheads
MERMAID = test -e build/mermaid/mermaid.min.js || { mkdir -p build/mermaid && cd build/mermaid && \
  npm pack --silent mermaid@11.12.3 >/dev/null 2>&1 && \
  tar -xzf mermaid-11*.tgz --strip-components=2 package/dist/mermaid.min.js; }

docs-diagrams: $(VENV)/.ready-test
	$(BIN)/python docs/generate.py states.md

docs-options: $(VENV)/.ready-test
	$(BIN)/python docs/generate.py options.md

# needs Chromium (apt install chromium); no other target does
notebook-screenshots: java-there $(VENV)/.ready-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[notebook]' nbconvert playwright
	$(BIN)/python docs/notebook_screenshots.py build/notebook

conformance: $(VENV)/.ready-test
	$(BIN)/python tests/conformance/report.py

# setup.cfg lists the dependencies: a newer one means install again
$(VENV)/.ready-%: setup.cfg pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) (once; again when setup.cfg changes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --editable '.[$(EXTRAS_$*)]'
	@$(CACHES_$*)
	@touch $@

EXTRAS_demo := demo
EXTRAS_test := demo,fast,test

# compiled modules for PySpark's archive: each Python process of Spark starts a second earlier. Then the caches of mypy,
# pytest, hypothesis and numba, so that the first `make check` takes as long as every other; errors show there
COMPILE := $(BIN)/groupsource compile-pyspark >/dev/null
CACHES_demo := $(COMPILE)
CACHES_test := $(COMPILE); { $(BIN)/mypy & $(BIN)/python -m pytest -n 0 --collect-only -qq; \
  $(BIN)/python -m pytest -n 0 -qq tests/records/test_parser.py; wait; } >/dev/null 2>&1 || true

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
