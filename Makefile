# berth: few verbs. `make demo` and `make test` do all set-up by themselves.
PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
# uv trusts the authorities that it ships, unlike pip. Where the machine has its own (Debian, Fedora, SUSE), they count.
ifneq (,$(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem))
export UV_SYSTEM_CERTS ?= 1
endif

# Byte code is kept, or else every command that a test starts, and pytest for its assertions, would compile it anew: of
# 22 s of processor time to collect the tests 10 are left. The install compiles it, or else each of the tests' workers would.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow coverage check bench dist docs install native lock clean

# Interpreted: with the compiler the first run takes three times as long, 32.8 s instead of 10.8 (bench/demo.py).
demo: export NUMBA_DISABLE_JIT := 1
demo: .venv/.installed
	$(BIN)/berth $(DEMO) --seeds 5 --out out/demo
	@echo; echo "Two jobs on one fake GPU, through the queue of this machine:"
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/local_queue/demo.sh

# What people have (whole GPUs, first come first served), shared GPUs with backfilling, and a bound: the same with the true run times.
DEMO := compare synthetic:demo --policies fifo+whole-gpus,easy+fifo+best-fit,easy+sjf+best-fit --knowledge user

install: .venv/.installed

# uv installs in seconds what takes pip minutes.
.venv/.uv: requirements/uv.lock
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock
	touch $@

.venv/.installed: .venv/.uv requirements/plain.lock pyproject.toml hatch_build.py papers/pyproject.toml
	$(UV) --compile-bytecode --require-hashes -r requirements/plain.lock
	$(UV) --no-deps --no-build-isolation -e . -e papers
	$(BIN)/python -m compileall -q -j 2 src papers/src
	touch $@

.venv/.dev: .venv/.installed requirements/dev.lock
	$(UV) --compile-bytecode --require-hashes -r requirements/dev.lock
	touch $@

native:
	$(MAKE) -s -C native

# What is marked slow is left to CI, and so are most examples of a property (tests/examples.py). Of partitions' tests, those
# start containers, one at a time.
test: .venv/.dev
	$(MAKE) -s -j2 -C native tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --ignore=tests/partition -m "not slow"
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/partition -m "not slow"

test-slow: .venv/.dev
	$(MAKE) -s -j2 -C native tests
	$(BIN)/python -m pytest -q tests/partition -m slow
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --ignore=tests/partition -m slow

# Which lines the tests that are not slow run, by file; TESTS names fewer, such as `make coverage TESTS=tests/cli`.
TESTS ?= tests papers/tests --ignore=tests/partition
coverage: .venv/.dev
	rm -rf build/coverage && mkdir -p build/coverage
	-$(BIN)/python -m coverage run -m pytest -q -m "not slow" $(TESTS)
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage html -q
	$(BIN)/python -m coverage report
	@echo build/coverage/html/index.html

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file bench/mypy.ini bench
	$(BIN)/lint-imports
	cd papers && ../$(BIN)/lint-imports
	$(MAKE) -s -C native check-format

docs: .venv/.dev
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo build/docs/index.html

# A source archive and a wheel for every Linux with glibc as new as this machine's needs; and the wheel of the papers.
dist: .venv/.dev
	rm -rf build/dist dist
	BERTH_NATIVE=1 $(BIN)/python -m hatchling build -d build/dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair -w dist build/dist/*.whl
	cp build/dist/*.tar.gz dist/
	cd papers && ../$(BIN)/python -m hatchling build -t wheel -d ../dist

bench: .venv/.dev
	for script in $(filter-out bench/harness.py bench/pair_network.py,$(wildcard bench/*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

lock: .venv/.dev
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-annotate -o requirements/uv.lock requirements/uv.in
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-annotate -o requirements/plain.lock pyproject.toml requirements/build.in
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-annotate -c requirements/plain.lock -o requirements/dev.lock requirements/dev.in
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-annotate -c requirements/dev.lock -o requirements/build.lock requirements/build.in
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-annotate -c requirements/dev.lock -o requirements/agent.lock requirements/agent.in
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-annotate -c requirements/dev.lock -o requirements/steerer.lock requirements/steerer.in
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-annotate -c requirements/dev.lock -o requirements/bench.lock requirements/bench.in

clean:
	examples/local_queue/demo.sh --stop
	rm -rf .venv build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
