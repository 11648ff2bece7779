# `make demo` and `make test` do everything on a machine with Python 3.11 or newer (with venv and pip) and make.

#: PYTHON         the interpreter the virtual environment is made from (python3)
PYTHON ?= python3
#: VENV           the folder of the virtual environment (.venv)
VENV ?= .venv
#: TORCH          the torch that pip installs first (the version in constraints.txt); for another build, give
#:                TORCH="torch==2.13.0 --index-url YOUR_INDEX"; after a change give `make clean` first
TORCH ?= $(shell grep '^torch==' constraints.txt)
#: DEMO_OUTPUT    the folder that the demo writes to (runs/demo)
DEMO_OUTPUT ?= runs/demo
#: DEMO_SETTINGS  changed settings of the demo's recipe, such as "seconds=300 short=true"; give another DEMO_OUTPUT too
DEMO_SETTINGS ?=
#: SITE           the folder that `make docs` writes the site to (build/site)
SITE ?= build/site
#: PYTEST         further arguments for pytest, such as "-x tests/wire", or "-n 8" for more processes than two
PYTEST ?=

#: SOAK           further arguments for the soaks, such as "--minutes 10 --nodes 8"; `--help` lists them
SOAK ?=

#: FLWR           the Flower that `make test-flower` installs, separately from everything else
FLWR ?= flwr==1.42.*

#: EXTRAS         the packages that `make test-extras` installs, separately from everything else
EXTRAS ?= onnx onnxscript onnxruntime tensorboard wandb mlflow-skinny sqlalchemy alembic pyarrow

#: HUGGING_FACE   what `make test-hugging-face` installs, separately from everything else
HUGGING_FACE ?= datasets==4.8.* transformers==5.22.* flwr-datasets==0.6.*

#: BROWSER        the browser of `make test-browser`, a Chromium (chromium; Debian: apt-get install chromium)
BROWSER ?= chromium

#: TRITON         the Triton that `make test-kernels` installs, separately from everything else
TRITON ?= triton==3.9.0

BIN := $(VENV)/bin
KERNELS := tests/training/test_fused.py tests/training/test_captured.py tests/training/test_stacked.py tests/training/test_evaluation_head.py tests/benchmarks/test_compiled.py tests/server/test_fused_sums.py tests/equivalence/test_graphed.py $(wildcard tests/training/test_folded*.py)
FLOWER := tests/flower tests/deploy tests/equivalence/test_flower_equals_simulated.py tests/e2e/test_deploy.py tests/e2e/test_deploy_faults.py tests/e2e/test_deploy_network.py tests/e2e/test_deploy_strangers.py
EXTRA_TESTS := tests/experiments/test_onnx.py tests/trackers/test_packages.py

.DEFAULT_GOAL := help
.PHONY: help demo docs test test-slow test-flower test-kernels test-extras test-hugging-face test-browser test-docs soak soak-grid lint format clean

help: ## List targets and variables
	@echo "Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile
	@echo "Variables:"
	@sed -n 's/^#: /  /p' Makefile

demo: $(VENV)/demo.stamp ## Set up, then compare FedGMR with its ablation, FedAvg and FedAsync (minutes)
	$(BIN)/fedgmr demo output=$(DEMO_OUTPUT) $(DEMO_SETTINGS)

docs: $(VENV)/docs.stamp ## Set up, then build the documentation's site into SITE, offline, warnings as errors (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python docs/make_site.py $(SITE)

test: lint ## Set up, then lint, type-check and run the tests that are not slow
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow" $(PYTEST)

test-slow: $(VENV)/dev.stamp ## Run the slow tests (status 5 of pytest: there are none), then test-flower
	$(BIN)/pytest -m slow $(PYTEST) || test $$? -eq 5
	$(MAKE) test-flower

test-flower: $(VENV)/dev.stamp ## Run the tests of deployments, the slow ones too, with the other release of Flower
	test -d $(VENV)/flwr || $(BIN)/python -m pip install --no-deps --target $(VENV)/flwr '$(FLWR)'
	PYTHONPATH=$(abspath $(VENV)/flwr) $(BIN)/pytest $(FLOWER) $(PYTEST)

test-kernels: $(VENV)/dev.stamp ## Run the tests of the GPU kernels in Triton's interpreter, without a GPU (minutes)
	test -d $(VENV)/triton || $(BIN)/python -m pip install --no-deps --target $(VENV)/triton $(TRITON)
	TRITON_INTERPRET=1 PYTHONPATH=$(VENV)/triton $(BIN)/pytest $(KERNELS) $(PYTEST)

test-extras: $(VENV)/dev.stamp ## Run the tests of ONNX files and trackers with their packages
	test -d $(VENV)/extras || $(BIN)/python -m pip install -c $(VENV)/constraints.txt --target $(VENV)/extras $(EXTRAS)
	PYTHONPATH=$(abspath $(VENV)/extras) $(BIN)/pytest $(EXTRA_TESTS) $(PYTEST)

# dill, by which datasets are told apart, knows packages by `site-packages` in their path.
test-hugging-face: $(VENV)/dev.stamp ## Run the tests of Hugging Face's datasets and models, and of Flower's partitioners
	test -d $(VENV)/hf || $(BIN)/python -m pip install --target $(VENV)/hf/site-packages $(HUGGING_FACE) $$(grep -E '^(numpy|pandas|pillow)==' constraints.txt)
	PYTHONPATH=$(abspath $(VENV)/hf/site-packages) $(BIN)/pytest tests/tasks/test_hugging_face.py $(PYTEST)

test-browser: $(VENV)/dev.stamp ## Run the tests of the page of runs in a browser; PICTURES=FOLDER keeps pictures of it
	BROWSER=$(BROWSER) $(BIN)/pytest tests/pages/test_browser.py $(PYTEST)

test-docs: $(VENV)/dev.stamp $(VENV)/docs.stamp ## Run the tests of the documents, and build their site
	$(BIN)/pytest tests/docs $(PYTEST)

soak: $(VENV)/dev.stamp ## Keep 20 SuperNodes at work on this machine for an hour while programs are killed at random
	$(BIN)/python benchmarks/soak.py $(SOAK)

soak-grid: $(VENV)/dev.stamp ## The same in one process and virtual time: 1,000 nodes, 100,000 updates (minutes)
	PYTHONPATH=tests $(BIN)/python benchmarks/soak_grid.py $(SOAK)

lint: $(VENV)/dev.stamp ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/dev.stamp ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the virtual environment, caches and build outputs; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and without its dependencies, so that an index given in TORCH is asked for torch only. The installed
# build is then pinned for everything after it, so that no dependency brings another one.
$(VENV)/%.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON) is older than Python 3.11: name another, such as make PYTHON=python3.12")'
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-deps $(TORCH)
	grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >> $(VENV)/constraints.txt
	$(BIN)/python -m pip install -c $(VENV)/constraints.txt -e '.[$*]'
	touch $@ $(if $(filter dev,$*),$(VENV)/demo.stamp)
