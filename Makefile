# make demo   the whole pipeline on Pong, ten minutes or so after the install, ends with an HTML report
# make test   the tests but the long ones, 13 minutes on two slow cores after the install; LEFT_OUT="slow or gpu" has those, too
SHELL := /bin/bash
VENV ?= .venv
# Any Python 3.10-3.13: the one called python3 where it fits, else the newest there is.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& { echo $$python; break; }; done)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PINS := $(VENV)/constraints.txt
RUN_DIR ?= runs/demo
# Three files of tests at a time on two cores, for tests wait: on a game's clock, on a process that is killed. A file's
# tests share what its fixtures make. Threads that wait for others give their core away, as in the program.
TOGETHER := --numprocesses 3 --dist loadfile --no-loadscope-reorder
# They begin commands by the hundred, each of which would compile every module of ours where the shell forbids to keep it.
PYTEST := PYTHONDONTWRITEBYTECODE= GOMP_SPINCOUNT=3000 $(BIN)/python -m pytest

.PHONY: help install demo test test-full base docs lint clean
help:
	@sed -n 's/^# make/make/p' Makefile
	@echo "make install / test-full / base / docs / lint / clean; PYTHON=... picks the interpreter, VENV=... the folder"

install: $(STAMP)

# Lava 0.10.0 is final and declares Python < 3.11, yet works to 3.13 with deploy/lava/loader.py: its own needs
# come with the [lava] extra, and it is installed without asking them. So are NeuroBench, which a test compares
# with, its snnTorch, and CleanRL, whose networks a test saves: what else they ask for (datasets, audio, old pins) the
# tests do not touch. dm_control declares labmaze, which has no wheel for Python 3.13 and is not needed: the rest comes
# with the [control] extra. A PyTorch that was put there before stays: docs/install.md says how to get a small one.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.10-3.13 found; install one or give PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'pip>=23'
	cp constraints.txt $(PINS)
	@if $(BIN)/python -m pip show --quiet torch 2>/dev/null; then \
		echo "the PyTorch in $(VENV) stays; the tests are written with $$(grep ^torch== constraints.txt)"; \
		sed -i /^torch==/d $(PINS); fi
	$(BIN)/python -m pip install -c $(PINS) torch
	$(BIN)/python -m pip install -c $(PINS) --editable '.[train,video,lava,onnx,control,sweep,serve,dev]'
	$(BIN)/python -m pip install -c $(PINS) --no-deps --ignore-requires-python lava-nc neurobench snntorch cleanrl \
		dm_control
	@touch $@

demo: install
	$(BIN)/spikestill run --config demo --run_dir $(RUN_DIR)

# Continuous integration leaves out the slow ones alone.
LEFT_OUT ?= long or slow or gpu
test: install
	$(PYTEST) $(TOGETHER) -m "not ($(LEFT_OUT))"

test-full: install
	$(PYTEST) $(TOGETHER) -m "not gpu"

# The base install alone, in an environment of its own: no PyTorch, small, and it plays.
BASE := build/base
BASE_LIMIT_MB := 450
base:
	rm -rf $(BASE)
	$(PYTHON) -m venv $(BASE)
	@SECONDS=0; $(BASE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt . && \
		echo "base install: $$SECONDS s"
	@size=$$(du -sm $(BASE) | cut -f1); echo "base install: $$size MB"; test $$size -lt $(BASE_LIMIT_MB)
	@! $(BASE)/bin/python -c 'import torch' 2>/dev/null
	cd $(BASE) && bin/spikestill doctor && bin/spikestill play pong --seconds 3 --view none --run_dir play

# The documentation as a site in build/site; its tools are installed when it is first made.
docs: install
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable '.[docs]'
	$(BIN)/python -m pytest -q tests/docs -k "link or index or notebook"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
