# Two commands a newcomer needs: `make demo` and `make test`. Each sets up what it needs.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Real releases of Hermes, each in an environment of its own, for the tests that ask Hermes
# itself whether it accepts what was written.
HERMES := .venv-hermes-0.19.0 .venv-hermes-0.13.0

# What the bench is run beside.
BENCH        := .venv-bench .venv-bench-peers
PEERS        := honcho circus supervisor opentelemetry-distro langgraph \
                langgraph-checkpoint-sqlite openai-agents dbos
DEBIAN_PEERS := tini dumb-init s6 runit

.PHONY: demo test test-slow sweep-kills test-matrix lint clean bench bench-quick fuzz soak torture

demo: $(VENV)/.installed
	$(BIN)/hermes-supervise demo

test: $(VENV)/.installed $(HERMES:%=%/.installed) lint
	$(BIN)/python -P -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# Random lives and real deaths against a model: make torture [SEED=x] [SECONDS=60] [KILLS=n]
# [RECORD=1], which rewrites the figures.
torture: $(VENV)/.installed
	$(BIN)/python -m torture --seed '$(SEED)' --seconds $(or $(SECONDS),60) \
	    --kills $(or $(KILLS),0) $(if $(RECORD),--record)

# A gateway's days in minutes: SESSIONS of them, 10,000 if not said; nothing piles up.
soak: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python tests/soak.py $(SESSIONS)

# Coverage-guided, on what reads bytes that others wrote: SECONDS in all, 60 if not said.
fuzz: .venv-fuzz/.installed
	.venv-fuzz/bin/python -m fuzz $(SECONDS)

.venv-fuzz/.installed:
	$(PYTHON) -m venv .venv-fuzz
	.venv-fuzz/bin/python -m pip install --quiet --editable . atheris
	touch $@

# What takes minutes: every state that a loss of power may leave, a thousand recoveries beside
# living writers, a lock held for two minutes, five gigabytes in small pages, broken copies of
# the product that the campaign must catch.
test-slow: $(VENV)/.installed
	SLOW=all $(BIN)/python -P -m pytest tests/test_power_loss.py tests/test_storage.py \
	    tests/test_torture.py

# Killed after every single operation, and again while it recovers; then broken copies of the
# product, each of which that must catch. Some minutes; it rewrites the figures.
sweep-kills: $(VENV)/.installed
	$(BIN)/python tests/kill_sweep.py --record
	$(BIN)/python tests/kill_sweep.py --mutants

# Every release, front end, death and moment; half an hour, and it rewrites the table.
test-matrix: $(VENV)/.installed
	$(BIN)/python tests/matrix.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

.venv-hermes-%/.installed:
	$(PYTHON) -m venv .venv-hermes-$*
	.venv-hermes-$*/bin/python -m pip install --quiet 'hermes-agent[acp]==$*'
	touch $@

# The project as a wheel, as users have it (an editable install's import hook alone takes longer
# than all of a launch), and the peers; each in an environment of its own.
bench: $(BENCH:%=%/.installed) .venv-hermes-0.19.0/.installed
	$(PYTHON) -m bench

bench-quick: $(BENCH:%=%/.installed) .venv-hermes-0.19.0/.installed
	$(PYTHON) -m bench --quick

.PHONY: .venv-bench/.installed
.venv-bench/.installed:
	test -d .venv-bench || $(PYTHON) -m venv .venv-bench
	rm -rf build
	.venv-bench/bin/python -m pip install --quiet --force-reinstall --no-deps .
	.venv-bench/bin/python -m pip install --quiet .
	rm -rf build

.venv-bench-peers/.installed:
	$(PYTHON) -m venv .venv-bench-peers
	.venv-bench-peers/bin/python -m pip install --quiet $(PEERS)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get install -qq --yes --no-install-recommends $(DEBIAN_PEERS) || \
	    echo "without $(DEBIAN_PEERS): they will be left out"; fi
	touch $@

clean:
	rm -rf $(VENV) $(BENCH) .venv-hermes-* .venv-fuzz .fuzz build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
