"""python -m fuzz [SECONDS] [TARGET…]: coverage-guided fuzzing; the targets share the time.

If a target fails, its input is kept as `crash-…` in .fuzz/TARGET, and the output says how to repeat
it: python -m fuzz again TARGET FILE.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_FOLDER = Path(".fuzz")
_SECONDS = 60


def main(words: list[str]) -> int:
    if words[:1] == ["run"]:
        return _run(*words[1:])
    from .seeds import seeds
    from .targets import TARGETS

    if words[:1] == ["again"]:
        TARGETS[words[1]](Path(words[2]).read_bytes())
        print("it holds")
        return 0
    seconds = int(words.pop(0)) if words and words[0].isdecimal() else _SECONDS
    failed = []
    for name in words or TARGETS:
        corpus = _FOLDER / name
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds()):
            (corpus / f"seed-{number:02d}").write_bytes(seed)
        share = max(1, seconds // len(words or TARGETS))
        command = [sys.executable, "-m", "fuzz", "run", name, str(share)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        print(f"{name:<12} {_figures(lines)}", flush=True)
        if done.returncode:
            failed.append(name)
            print("\n".join(lines[-40:]))
            print(f"again: python -m fuzz again {name} {corpus}/crash-…")
    return 1 if failed else 0


def _run(name: str, seconds: str) -> int:
    """Fuzz one target in this process. The fuzzer never returns."""
    import atheris

    # The fuzzer is guided by coverage of our code, so that code must be imported instrumented.
    with atheris.instrument_imports(include=["hermes_supervise"]):
        from .targets import TARGETS
    target = TARGETS[name]
    corpus = str(_FOLDER / name)
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={corpus}/", "-max_len=20000"]
    atheris.Setup(
        ["fuzz", corpus, "-print_final_stats=1", "-verbosity=1", "-timeout=20", *options], target
    )
    atheris.Fuzz()
    return 0


def _figures(lines: list[str]) -> str:
    wanted = ("number_of_executed_units", "average_exec_per_sec", "peak_rss_mb")
    found = [line.split("::")[1].strip() for line in lines if any(word in line for word in wanted)]
    return ", ".join(found) or "no figures"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
