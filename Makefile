# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
# Lists the packages, from an environment of its own: it needs a grammar for jsonschema that `import ray` would read
# too where it finds it, and each of Ray's processes in the tests would take 1.7 s of CPU more to start.
LISTER := $(VENV)/lister/bin/cyclonedx-py
# Where it is set (containers often do), every start of the command line compiles everything anew: 0.3 s each.
unexport PYTHONDONTWRITEBYTECODE
# What is installed is compiled on all cores; pip would take one. Some libraries have files that are no Python, and a
# fifth of all is what nothing imports: their tests, and libraries of Ray's.
COMPILE = $(BIN)/python -m compileall -qq -j 0 -x '/(tests?|ansible_test|mypyc?)/|/ray/(data|llm|rllib|serve|train|tune)/' $(VENV)/lib || true

.PHONY: pages screenshots demo check unit test lint bench seeds docs install system packages dist audit mutations crossings kept places gpu real-aws other-ray notebook im nova kubernetes apptainer enroot clean

install: $(STAMP)

# Debian's packages and PyPI's need each other for nothing, and each takes one core: both at once.
$(STAMP): pyproject.toml scripts/system.sh
	@$(MAKE) --no-print-directory -j 2 system packages
	@touch $(STAMP)

system:
	@sh scripts/system.sh

# A new pip unpacks in half the time of the one that Python 3.11 brings.
packages:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=26'
	@DIST_EXTRA_CONFIG=$(CURDIR)/scripts/wheels.cfg $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable '.[all,dev]'
	@$(COMPILE)

# The demo needs PyTorch only; a full installation serves as well.
$(DEMO_STAMP): pyproject.toml
	@echo "make demo: first Trainmaster, PyTorch, NumPy and scikit-learn are installed into $(VENV), once; nothing else is changed."
	@echo "  To download: up to 3 GB, since PyPI's PyTorch brings NVIDIA's libraries (4 minutes at 100 Mbit/s);"
	@echo "  300 MB where pip finds a PyTorch for CPUs. Then 1 to 2 minutes to unpack and compile. Ctrl-C stops it; it can be begun again."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --no-compile --disable-pip-version-check --editable '.[torch]'
	@echo "make demo: compiling what was installed"
	@$(COMPILE)
	@touch $(DEMO_STAMP)

demo: $(if $(wildcard $(STAMP)),install,$(DEMO_STAMP))
	@echo "make demo: trains a small network on two processes, in ten seconds: examples/digits/recipe.yaml"
	@$(BIN)/trainmaster run examples/digits/recipe.yaml --yes
	@echo
	@echo "That was a run. Next:"
	@echo "  $(BIN)/trainmaster status latest               what it did, and what it used"
	@echo "  $(BIN)/trainmaster models get latest my-model  its model, as files"
	@echo "  $(BIN)/trainmaster quote examples/digits       how long it would take, and what it would cost"
	@echo "  docs/quickstart.md                                  a script and a recipe of your own, in five minutes"

lint: install
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/file_length.py
	@$(BIN)/python scripts/import_circles.py

# What to run before every commit: linters, types, and all unit tests but the long simulations, which `make test` has too.
# Hypothesis makes up 10 examples, as in `make test`, or 20 at most where a test names a number; called alone, it has 100,
# or that number.
check: install
	@$(MAKE) --no-print-directory -j 2 lint unit

# One thread for NumPy's sums in each process: on two cores a second one costs half as much CPU again and gives nothing.
# In a new checkout one process compiles for all three, beside the linters: each would do it itself, with 15 s of CPU.
unit: export TRAINMASTER_EXAMPLES ?= 10
# Files of tests lie in memory where there is room, so that nothing waits for a disk; only those of what fails are left.
unit: export PYTEST_DEBUG_TEMPROOT ?= $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 4000000 2>/dev/null && echo /dev/shm)
unit: UNIT ?= -n 3 --dist worksteal -m 'not simulation' src tests/unit
unit: install
	@test -d tests/unit/__pycache__ || test -z '$(filter -n,$(UNIT))' || $(BIN)/python -m pytest --collect-only -q src tests/unit >/dev/null 2>&1 || true
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -o tmp_path_retention_policy=failed $(UNIT)

test: install
	@bash scripts/test.sh $(BIN)/python

bench: install
	@$(BIN)/python benchmarks/run_all.py

# What the users of the four papers did, and each of their claims as yes or no: 42 minutes on a quiet machine.
# `make seeds SEEDS='--quick --only fc2'` takes fewer points, or one paper.
seeds: install im
	@$(BIN)/python benchmarks/papers/seeds.py $(SEEDS)

# The pages of docs/ as a site, in site/. A link that leads nowhere is an error.
docs: install
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# The packages (the version is the newest tag's), and the list of all that they were tested with (an SBOM as CycloneDX has it).
dist: install
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .
	@test -x $(LISTER) || $(BIN)/python -m venv $(VENV)/lister
	@$(VENV)/lister/bin/python -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7,<8'
	@$(BIN)/python scripts/sbom.py $(LISTER)

# JupyterLab in an environment of its own, for its test: 120 MB, and one of its libraries makes Ray slow.
notebook: install
	@test -x $(VENV)/notebook/bin/jupyter-lab || $(BIN)/python -m venv $(VENV)/notebook
	@$(VENV)/notebook/bin/python -m pip install --quiet --disable-pip-version-check 'jupyterlab>=4.2,<5'

# Infrastructure Manager in an environment of its own, for the tests of the provider `im`: 736 MB. They skip without it.
IM := $(or $(TRAINMASTER_CACHE),$(HOME)/.cache/trainmaster)/im-2.0.0
im:
	@test -x $(IM)/bin/python || { rm -rf $(IM).new && $(PYTHON) -m venv $(IM).new \
		&& $(IM).new/bin/python -m pip install --quiet --disable-pip-version-check IM==2.0.0 && mv $(IM).new $(IM); }

# A real Nova with Placement and Keystone, for the tests of the provider `openstack`: 451 MB. They skip without it.
NOVA := $(or $(TRAINMASTER_CACHE),$(HOME)/.cache/trainmaster)/nova-34
nova:
	@test -x $(NOVA)/bin/keystone-manage || { rm -rf $(NOVA).new $(NOVA) && $(PYTHON) -m venv $(NOVA).new \
		&& $(NOVA).new/bin/python -m pip install --quiet --disable-pip-version-check 'nova>=34,<35' 'keystone>=30,<31' \
			openstack-placement wsgi-intercept testtools fixtures oslotest && mv $(NOVA).new $(NOVA); }

# A real Kubernetes, for the tests of the provider `kubernetes`: built once from Debian's source, in half an hour on two
# free cores; 360 MB. They skip without it. TRAINMASTER_KUBERNETES_PROGRAMS names the programs of another version.
KUBERNETES := $(or $(TRAINMASTER_CACHE),$(HOME)/.cache/trainmaster)/kubernetes-1.20
kubernetes:
	@test -x $(KUBERNETES)/kubelet || nice -n 19 sh scripts/build_kubernetes.sh $(KUBERNETES)

# Debian's Apptainer, for the tests of containers without a daemon: half a minute, 78 MB. They skip without it.
apptainer:
	@sh scripts/build_apptainer.sh $(or $(TRAINMASTER_CACHE),$(HOME)/.cache/trainmaster)/apptainer

# Enroot, for the same tests: some seconds; ENROOT_SOURCE names its git repository where GitHub is not reached.
enroot:
	@sh scripts/build_enroot.sh $(or $(TRAINMASTER_CACHE),$(HOME)/.cache/trainmaster)/enroot

# Known holes in what is installed, as PyPI's advisories have them; packages that it cannot be asked about are named.
audit: install
	@$(BIN)/pip-audit --local --skip-editable --progress-spinner off

# The contract of clusters by another version of Ray, before Ray is upgraded: links to this environment, and that Ray.
OTHER_RAY ?= 2.59.0
other-ray: install
	@test -d build/ray-$(OTHER_RAY) || { mkdir -p build && rm -rf build/ray.new && cp -al $(VENV) build/ray.new \
		&& build/ray.new/bin/python -m pip install --quiet --disable-pip-version-check --no-deps ray==$(OTHER_RAY) \
		&& mv build/ray.new build/ray-$(OTHER_RAY); }
	@build/ray-$(OTHER_RAY)/bin/python -m pytest -v -m ray tests/contract/test_cluster_gangs.py tests/contract/test_cluster_nodes.py

# What tests of the rules about money, machines, models and chunks do not notice.
mutations: install
	@$(BIN)/python scripts/mutations.py

# At most ten minutes on a machine with an NVIDIA GPU: NCCL, DDP, FSDP, what is observed, memory, a quote that is kept.
gpu: install
	@$(BIN)/python -m pytest -m gpu -rs tests/integration/test_gpu.py tests/unit/executors/supervisor/test_gpus.py

# Rents machines on EC2 with your credentials, for CAP dollars at most, loses one, and looks whether anything is left.
real-aws: install
	@$(BIN)/python scripts/real_aws.py --cap $(CAP)

# What is marked `crossings`: every framework x machine x fault x driver, what a run has in it x who drives it, and the
# minute of a hand-over, frameworks that take a minute to be imported, and second seeds, engines and databases, but for
# those that `make test` has: hours.
crossings: install
	@$(BIN)/python -m pytest -v -m crossings tests/integration/lab tests/integration/volumes tests/integration/remote
	@$(BIN)/python -m pytest -v -m crossings tests/contract tests/integration/test_*.py

# Twelve kinds of runs, here and in a lab, of which each says of its quote what is so: ten minutes. `make test` has eight short ones.
kept: install
	@$(BIN)/python benchmarks/quotes_kept.py --subset 1

# Runs on the real schedulers that fit on this machine, with every fault, and the contracts of all places. What was
# skipped, and why, stands at the end: a real Kubernetes is there only after `make kubernetes`.
places: install nova
	@WITH_PLACES=1 sh scripts/system.sh
	@$(BIN)/python -m pytest -v -rs -m 'places or not crossings' tests/contract/test_slurm_provider.py tests/contract/test_kubernetes_provider.py \
		tests/contract/test_kubernetes_server.py tests/contract/test_openstack_provider.py tests/contract/test_ray_provider.py tests/integration/places tests/integration/lab/test_lab_openstack*.py

# The rules of all pages, in both sizes, light and dark, with 5,000 runs: `make test` has a part of it. As root, also a
# member of a team on a phone who trains on machines of the lab.
pages: install
	@TRAINMASTER_PAGES=all $(BIN)/python -m pytest -v -m 'crossings or not crossings' tests/integration/test_pages_*.py
	@TRAINMASTER_PAGES=all $(BIN)/python -m pytest -v tests/integration/lab/test_lab_pages.py

# Every page at 1440x900 and 390x844, light and dark, in screenshots/: to be looked at.
screenshots: install
	@$(BIN)/python scripts/screenshots.py --every --out screenshots

clean:
	rm -rf dist site $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
