# Everything works on a fresh clone with Python 3.11 or newer; set-up happens in .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
NO_INDEX := "kvlab: set-up needs PyPI; behind a mirror, set PIP_INDEX_URL to its address"
SETUP := pyproject.toml constraints.txt setup.py
export OMP_NUM_THREADS ?= 1
export NO_MKDOCS_2_WARNING = 1
# Else every process of the tests compiles kvlab and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-all real lab test test-slow test-all check gpu kernels-report vllm kvpress format lint types unit notebooks playground docs pages serve release clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

# The first program of this seed, which is shown, is one that H2O fails.
DEMO := --backend reference --task jumps@fewest=22,most=24 --budgets 65% --seed 4

demo: .venv/demo  ## run a program under two methods, then compare three on 12 programs, in NumPy
	@echo "First a program that H2O fails, then more programs of this size, counted."
	@$(BIN)/kvlab compare $(DEMO) --problems 12 --methods "full h2o caote:h2o tova" \
	  --play "h2o caote:h2o" $(ARGS)

demo-all: .venv/demo  ## compare every method on the same programs
	$(BIN)/kvlab compare $(DEMO) $(ARGS)

REAL := --model smollm2 --methods "streaming_llm h2o caote:h2o fast_caote:h2o tova caote:tova \
  snapkv@window=32,schedule=every_block caote:snapkv@window=32 ahakv@recent=32"

real: .venv/fast  ## measure methods on SmolLM2, a real language model of 82 MB, and play three of them
	$(BIN)/kvlab models get smollm2
	$(BIN)/kvlab perplexity $(REAL) --window 256 --windows 12 --batch-size 12 --budgets 50% $(ARGS)
	$(BIN)/kvlab view kvlab-report/real.html --model smollm2 --problem 0 --budget 60% \
	  --most-values 40000 --methods "full tova h2o streaming_llm"

lab: .venv/fast .venv/lab  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab --notebook-dir=notebooks --ContentsManager.hide_globs='["*.py", "__pycache__"]' \
	  notebooks/00_kv_cache.ipynb $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

test: .venv/dev lint  ## what CI runs
	@$(MAKE) notebooks
	@$(MAKE) --jobs=2 --output-sync=target types docs
	@$(MAKE) unit pages

test-slow: .venv/dev  ## the slow tests; with ARGS="--turn N", a third of them, as CI does
	$(BIN)/python -m pytest -n 2 -m slow $(ARGS)

test-all: .venv/dev  ## all tests, slow ones too
	$(BIN)/python -m pytest -n 2 -m "slow or not slow" $(ARGS)

check: .venv/dev lint types unit  ## everything but notebooks and docs

gpu:  ## on a GPU, with PYTHON=... that has kvlab and CUDA: kernels tested, sanitized, timed
	KVLAB_TUNE=0 $(PYTHON) -m pytest tests/kernels tests/fast/test_cuda.py tests/lab/benchmarks \
	  -m "slow or not slow"
	KVLAB_TUNE=0 PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 1 \
	  $(PYTHON) -m kvlab.fast.lab.benchmarks.kernels --small
	$(PYTHON) -m kvlab.fast.lab.benchmarks.kernels --out kernels-gpu.json
	$(PYTHON) -m kvlab.fast.lab.benchmarks.end_to_end --out end-to-end-gpu.json

kernels-report: .venv/dev  ## compile every kernel for six GPUs, none needed, and write what it became
	PYTHONPATH=docs $(BIN)/python -m study.report_kernels --out docs/study/results/kernels.json $(ARGS)

vllm: .venv/dev  ## install vLLM for CPUs, test kvlab inside it, and compare what it writes with kvlab
	test -x "$$($(BIN)/python -c 'from kvlab.fast.lab.engines import python; print(python("vllm"))')" || \
	  $(BIN)/kvlab engines install vllm
	$(BIN)/python -m pytest tests/vllm -m "slow or not slow"
	$(BIN)/kvlab engines check vllm --plugin $(ARGS)

kvpress: | .venv/bin/python  ## make an environment with kvpress, and test the bridge in it
	test -x .venv/kvpress/bin/python || $(PYTHON) -m venv .venv/kvpress
	.venv/kvpress/bin/pip install -q -e '.[fast,kvpress]' beartype hypothesis pytest
	.venv/kvpress/bin/python -m pytest -o addopts="--import-mode=importlib -p no:kvlab" tests/bridges

format: .venv/dev  ## rewrite the sources as the linter wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: .venv/dev  ## formatting and lint, nothing rewritten
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/dev  ## check the types
	$(BIN)/pyright

unit: .venv/dev  ## the fast tests; the tests of a file share what they made, so they share a process
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

playground: .venv/docs  ## build the playground alone: open site/playground/index.html
	PYTHONPATH=docs $(BIN)/python docs/hooks/playground_page.py
	@echo "open site/playground/index.html"

notebooks: .venv/dev  ## run the notebooks that changed, and write them with their outputs
	$(BIN)/python notebooks/run_notebooks.py

docs: .venv/dev  ## build the site into site/, with the outputs that the notebooks hold
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pages: .venv/dev  ## open every page of the built site in Chromium
	@command -v chromium > /dev/null || echo "kvlab: the pages are not checked: \
	  there is no Chromium; with root's rights: apt-get install chromium"
	$(BIN)/python -m pytest -m site tests/browser

PORT ?= 8000

serve:  ## show the built site at http://localhost:8000, or at PORT=...
	@test -d site || { echo "kvlab: there is no site/ yet: make docs"; exit 1; }
	@$(PYTHON) -c 'import socket; socket.create_server(("", $(PORT)))' 2> /dev/null || \
	  { echo "kvlab: port $(PORT) is taken: make serve PORT=8001"; exit 1; }
	$(PYTHON) -m http.server -d site $(PORT)

release:  ## sdist and wheel, checked as the index does and tried
	rm -rf dist build && $(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install -qq --disable-pip-version-check build twine
	build/tools/bin/python -m build -o dist .
	build/tools/bin/python -m twine check --strict dist/*
	$(PYTHON) tests/support/try_wheel.py dist
	@! grep -q 'https://.*OWNER' pyproject.toml || \
	  echo "kvlab: before you upload dist/, fill in OWNER in pyproject.toml, [project.urls]"

clean:  ## remove the environment and everything built
	rm -rf .venv build dist site kvlab-report *.egg-info

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "kvlab: needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv --clear .venv || { rm -rf .venv; \
	  echo "kvlab: $(CURDIR)/.venv cannot be made: clone kvlab to where you may write"; exit 1; }

.venv/demo: $(SETUP) | .venv/bin/python
	@echo "setting up .venv: once, and about a minute"
	@$(INSTALL) --no-compile -e . || { echo $(NO_INDEX); exit 1; }
	@touch $@

.venv/fast .venv/docs .venv/lab: $(SETUP) | .venv/bin/python
	@echo "setting up $@: once, and some minutes"
	@$(INSTALL) -e '.[$(@F)]' || { echo $(NO_INDEX); exit 1; }
	@touch $@ .venv/demo

.venv/dev: $(SETUP) | .venv/bin/python
	@echo "setting up .venv for everything: once, some minutes and 3.5 GB"
	@$(INSTALL) -e '.[fast,sweep,eval,dev,docs,notebooks]' || { echo $(NO_INDEX); exit 1; }
	@touch $@ .venv/demo .venv/fast .venv/docs
