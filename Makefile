# Two commands do everything: `make demo` and `make test`. Both make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_SECONDS ?= 20
export YOLO_OFFLINE := true
export YOLO_AUTOINSTALL := false

.DEFAULT_GOAL := help
.PHONY: help install demo test lint unit bench-real soak samples clean

help:
	@echo "make demo        run three sample cameras with a live table ($(DEMO_SECONDS) s; DEMO_SECONDS=60 for longer)"
	@echo "make install     make .venv with vidserve in it, for a service"
	@echo "make test        ruff, mypy --strict and all tests"
	@echo "make bench-real  the four real clips in ../shared, one over RTSP, for 60 s"
	@echo "make soak        500 reconnects, 20 cameras that come and go, bad neighbours (20 min; SOAK=--help)"
	@echo "make samples     render the sample clips and train the sample model anew (about an hour)"
	@echo "make clean       remove .venv and caches"

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not found: sudo apt install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "vidserve needs Python >= 3.11; $(PYTHON) is `$(PYTHON) --version 2>&1`. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "venv cannot be made: sudo apt install python3-venv"; exit 1; }

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@echo "Installing vidserve into $(VENV): PyTorch brings a few gigabytes, and nothing is said until it is done ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "Installing vidserve and its tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,demo]'
	@touch $@ $(VENV)/.demo

install: $(VENV)/.demo

demo: $(VENV)/.demo
	@DEMO_SECONDS=$(DEMO_SECONDS) $(BIN)/vidserve demo

test: lint unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Most tests wait more than they work: three at a time, by file. Then those that measure.
unit: $(VENV)/.dev
	$(BIN)/pytest -n 3 --dist loadfile -m "not alone"
	$(BIN)/pytest -m alone

bench-real: $(VENV)/.dev
	$(BIN)/python -m tests.bench_real

soak: $(VENV)/.dev
	$(BIN)/python -m tests.soak $(SOAK)

samples: $(VENV)/.dev
	$(BIN)/python samples/render.py && nice -n 19 $(BIN)/python samples/train.py --hours 0.78

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
