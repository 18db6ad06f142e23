# make demo    the main job on real data (QUICK=1: the first 30,000 flights)
# make compare one workload under each scheme of group coordination (QUICK=1: with five members only, in two minutes)
# make test    the tests (ARGS="-k name": some of them)
# make quick   rules, wire, short simulations: tests that need Python alone, where most mistakes are seen
# make check   format, lint, types, layers, generated files and locks fresh, mutants that can be planted
# make soak    the seeded simulations, kill -9 tests and schedules of kills at length (SEEDS=20000 KILLS=20 SCHEDULES=50)
# make mutants plant known bugs one at a time and see that the tests notice each (ARGS="-k fetch": some of them)
# make wheel   a wheel for every Python, and one for this Python with compiled modules, into dist
# make release  the sdist and the wheels, each installed and tried
# make compiled  the tests of the compiled modules, on that wheel (ARGS=…)
# make bench   the benchmarks (ARGS=…)
# make lock    resolve the dependencies anew into requirements/
# make clean   remove .venv and what the tools left behind
#
# All of it needs Python 3.11 to 3.13 and make. PYTHON=… picks an interpreter, VENV=… another folder for the environment.

SHELL := /bin/sh
VENV ?= .venv
ARGS ?=
QUICK ?=
SEEDS ?= 20000
KILLS ?= 20
SCHEDULES ?= 50
WORKERS ?= 2
# Half of the time of `make test` goes by in waiting: for servers to start, for sessions to end.
TEST_WORKERS ?= 3
BIN := $(VENV)/bin
# Hundreds of processes of tests import the same sources, and every worker the same tests: bytecode is kept.
unexport PYTHONDONTWRITEBYTECODE
CHECKS := format lint types layers generated locks hygiene mutants
CODE := src tests tools $(wildcard benchmarks) $(wildcard examples)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
# The lock files name every package with its hashes, so pip resolves nothing and fetches no build tool of its own choice.
LOCKED := $(PIP_INSTALL) --require-hashes --no-deps --no-build-isolation

ifeq ($(OS),Windows_NT)
$(error muster runs on Linux and macOS; on Windows use it inside WSL 2)
endif

.PHONY: help release demo compare quick test class-data collected check soak mutants wheel compiled test-compiled bench lock clean $(CHECKS:%=check-%)
.DEFAULT_GOAL := help

help:
	@sed -n '/^# make/s/^# //p' Makefile

demo: $(VENV)/.stamp-demo $(VENV)/.stamp-java
	@$(BIN)/muster demo $(if $(QUICK),--quick) $(ARGS)

compare: $(VENV)/.stamp-dev $(VENV)/.stamp-java
	@$(BIN)/muster compare $(if $(QUICK),--quick) $(ARGS)

# Where nothing may be left out, the Java from PyPI is tested beside the machine's own.
test: class-data $(if $(MUSTER_REQUIRE_ALL),$(VENV)/.stamp-jre)
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal $(ARGS)

# Rules, wire, short simulations, and clients beside our own broker; no program but Python. Libraries of macOS break in a
# forked process.
QUICK_WORKERS := $(if $(filter Darwin,$(shell uname)),-n 2 --dist worksteal,-p tests.support.forks --forks 3)
QUICK_TESTS := $(addprefix tests/,unit wire simulation architecture) $(addprefix tests/integration/test_,broken_clients.py broken_drafts.py group_events.py group_topic.py serve.py any_requests.py)
quick: $(VENV)/.stamp-dev
	@MUSTER_QUICK=1 MUSTER_FIRST_SEED=0 MUSTER_SEEDS=2 $(BIN)/python -m pytest -q $(QUICK_WORKERS) -m "not slow and not peers" $(QUICK_TESTS) $(ARGS)

# Have the class data made that Kafka's JVMs in tests share.
class-data: $(VENV)/.stamp-dev $(VENV)/.stamp-java
	@$(BIN)/python -m tests.support.making_class_data

# Have pytest read all tests once: each worker would else rewrite the assertions of all of them for itself.
collected: class-data
	@found=$$($(BIN)/python -m pytest --collect-only -q) || { echo "$$found" | tail -60; exit 1; }; echo "$$found" | tail -1

# Each check is a target of its own: `make -k check` goes on after the first that fails.
check: $(CHECKS:%=check-%)

$(CHECKS:%=check-%): check-%: $(VENV)/.stamp-dev
	@echo "check: $*"
	@$($*)

format = $(BIN)/ruff format --quiet --diff $(CODE)
lint = $(BIN)/ruff check --quiet $(CODE)
types = $(BIN)/mypy
layers = $(BIN)/lint-imports --no-logo
generated = $(BIN)/python -m muster.protocol.definitions.codegen --check && $(BIN)/python -m tools.typed_settings --check
locks = $(BIN)/python tools/lock.py --check
hygiene = $(BIN)/python tools/hygiene.py && $(BIN)/python tools/english.py
mutants = $(BIN)/python -m tools.mutants --check

# They reach the tests as MUSTER_SEEDS, MUSTER_KILLS and MUSTER_SCHEDULES (tests/support/scale.py).
soak: $(VENV)/.stamp-dev $(VENV)/.stamp-java
	@MUSTER_SEEDS=$(SEEDS) MUSTER_KILLS=$(KILLS) MUSTER_SCHEDULES=$(SCHEDULES) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m soak --timeout 0 $(ARGS)

mutants: $(VENV)/.stamp-dev $(VENV)/.stamp-java
	@$(BIN)/python -m tools.mutants -n $(WORKERS) $(ARGS)

WHEEL := $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index

wheel: $(VENV)/.stamp-dev
	@$(BIN)/python -m tools.compiled build/compiled
	@rm -rf dist
	@$(WHEEL) --wheel-dir dist .
	@MUSTER_COMPILED="$(CURDIR)/build/compiled" $(WHEEL) --wheel-dir dist/compiled .

# It needs the network: each package is installed with what it depends on.
release: wheel
	@$(BIN)/python tools/release.py

# The wheel is unpacked, not installed: the environment keeps the sources.
COMPILED_TESTS := $(addprefix tests/unit/,protocol coordinator log broker) tests/wire
compiled: wheel
	@$(MAKE) --no-print-directory test-compiled

# On the wheel that is there.
test-compiled: $(VENV)/.stamp-dev
	@rm -rf build/unpacked
	@$(BIN)/python -m zipfile -e dist/compiled/*.whl build/unpacked
	@PYTHONPATH="$(CURDIR)/build/unpacked" $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not interpreted and not slow" $(COMPILED_TESTS) $(ARGS)

bench: $(VENV)/.stamp-dev $(VENV)/.stamp-java
	@$(BIN)/python -m benchmarks $(ARGS)

lock: $(VENV)/.stamp-base
	@$(LOCKED) -r requirements/lock.txt
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/lock.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

# A changed lock makes the environment anew, so that nothing of an older one stays in it.
$(VENV)/.stamp-base: requirements/build.txt requirements/demo.txt requirements/dev.txt requirements/jre.txt tools/preflight.py
	@set -e; python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
	    for one in python3 python3.13 python3.12 python3.11; do \
	        if "$$one" tools/preflight.py python >/dev/null 2>&1; then python="$$one"; break; fi; \
	    done; \
	fi; \
	"$${python:-python3}" tools/preflight.py python; \
	echo "making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv --clear "$(VENV)"
	@$(LOCKED) -r requirements/build.txt
	@touch $@

$(VENV)/.stamp-demo: $(VENV)/.stamp-base pyproject.toml
	@echo "installing muster and its locked dependencies"
	@$(LOCKED) -r requirements/demo.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation --no-index --editable .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-demo
	@echo "installing the locked development tools"
	@$(LOCKED) -r requirements/dev.txt
	@touch $@

$(VENV)/.stamp-java: $(VENV)/.stamp-base
	@if $(BIN)/python tools/preflight.py java; then :; else \
	    echo "no java of 17 or newer found: installing a Java runtime into $(VENV)"; \
	    $(MAKE) --no-print-directory $(VENV)/.stamp-jre; \
	fi
	@touch $@

$(VENV)/.stamp-jre: $(VENV)/.stamp-base
	@$(LOCKED) -r requirements/jre.txt
	@touch $@
