# mypy: ignore-errors
"""Runs, in Hermes' own interpreter, the hooks that a dead Hermes process owes a session.

Never prompts, and never runs a shell hook that the user has not approved; of its own it
prints one line an outcome. A script, not a module of the shim: it is started by its path,
with the interpreter, the environment and the folder of the process that died.

On standard input, a JSON object:

    owed            [[hook name, keyword arguments], …] in the order they are to run
    cut_off         those of them that the dead process had begun to run
    shell_hooks     whether this process ran shell hooks at all
    webhooks        whether it called webhooks
    session, platform, db, timeout
    parent          who started us: with it gone, so are we, and what is left is run again
    ledger, key     the file to note in what was begun and what ended, and under which name

Each callback runs in a fork of its own with a time limit: one that hangs, floods, forks or kills
its process group costs only itself. Begun and ended are noted one by one, so that a run that was
cut off, or in which one failed, repeats only those, with `attempt` in their arguments.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import select
import signal
import sys
import time

_RAISED = 1
_NOTHING_TO_DO = 3
_KEPT = 2048
# How often, in seconds, a fork is looked at where its end cannot be waited for.
_LOOK = 0.05
_WENT_WELL = ("ok", "nothing to do")
_PR_SET_PDEATHSIG = 1
_WEBHOOKS = "agent.outbound_webhooks"


def main() -> int:
    _prepare_imports()
    asked = json.load(sys.stdin)
    _end_with(int(asked["parent"]))
    manager = _load_plugins(
        shell_hooks=bool(asked["shell_hooks"]), webhooks=bool(asked.get("webhooks"))
    )
    run = Runner(asked)
    for name, arguments in asked["owed"]:
        before = 1 if name in asked.get("cut_off", ()) else 0
        if name == "on_session_finalize":
            run.once("memory provider", lambda attempt: _tell_memory(asked))
            run.once("context engine", lambda attempt: _tell_context_engine(asked))
        arguments = {**_constants(), **arguments}
        callbacks = getattr(manager, "_hooks", None)
        if not isinstance(callbacks, dict):  # a release that keeps them elsewhere: all as one
            work = lambda attempt, n=name, a=arguments: manager.invoke_hook(n, **a)  # noqa: E731
            run.once(name, work, before)
            continue
        for callback in list(callbacks.get(name, ())):
            run.once(
                f"{name} of {_whose(callback)}",
                lambda attempt, c=callback, a=arguments: _call(c, {**a, "attempt": attempt}),
                before,
            )
    return 1 if run.failed else 0


def _prepare_imports() -> None:
    """From 0.21 on, Hermes' interpreter has none of its packages before this module is imported.
    Nothing is to be installed or updated here; without that Hermes starts no process of its own."""
    name = "HERMES_DISABLE_LAZY_INSTALLS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        import hermes_bootstrap  # noqa: F401
    except ImportError:
        pass
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _constants() -> dict[str, object]:
    """What the release's own `invoke_hook` adds to every call."""
    import hermes_cli.plugins

    version = getattr(hermes_cli.plugins, "OBSERVER_SCHEMA_VERSION", None)
    return {} if version is None else {"telemetry_schema_version": version}


def _whose(callback) -> str:
    """A name that is the same in every run: where it is defined, and what it is called."""
    where = getattr(callback, "__module__", None) or "?"
    if where == _WEBHOOKS:  # its name has the address in it, and that may have a key in it
        return f"{where}.outbound_webhook"
    return f"{where}.{getattr(callback, '__qualname__', type(callback).__qualname__)}"


def _call(callback, arguments: dict[str, object]) -> None:
    """With what it accepts: a strict signature does not fail for what it does not know."""
    try:
        parameters = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError, NameError):  # NameError: an annotation, from Python 3.14 on
        parameters = None
    if parameters is not None and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        named = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
        arguments = {name: value for name, value in arguments.items() if name in named}
    result = callback(**arguments)
    if inspect.isawaitable(result):
        import asyncio  # only where a plugin has coroutine functions

        asyncio.run(_awaited(result))
    webhooks = sys.modules.get(_WEBHOOKS)
    if getattr(callback, "__module__", None) == _WEBHOOKS and hasattr(webhooks, "flush"):
        # It is sent by a thread, which goes with this process. The runner has the time limit.
        webhooks.flush(timeout=3600.0)


async def _awaited(result) -> None:
    await result


def _load_plugins(*, shell_hooks: bool, webhooks: bool):
    """As Hermes itself does when it starts: environment file, plugins, approved shell hooks,
    webhooks."""
    try:
        from hermes_cli.env_loader import load_hermes_dotenv

        load_hermes_dotenv()
    except Exception as error:
        _say("environment file", f"failed: {type(error).__name__}")
    from hermes_cli.plugins import discover_plugins, get_plugin_manager

    discover_plugins()
    if shell_hooks:
        try:
            from agent.shell_hooks import register_from_config
            from hermes_cli.config import load_config

            register_from_config(load_config(), accept_hooks=False)
        except Exception as error:
            _say("shell hooks", f"failed: {type(error).__name__}")
    if webhooks:
        try:
            from agent.outbound_webhooks import register_from_config as register_webhooks
            from hermes_cli.config import load_config

            register_webhooks(load_config())
        except Exception as error:
            _say("webhooks", f"failed: {type(error).__name__}")
    return get_plugin_manager()


def _messages(asked: dict[str, object]) -> list[object]:
    from pathlib import Path  # Hermes has loaded it by now

    from hermes_state import SessionDB

    db = SessionDB(Path(asked["db"]))
    try:
        return list(db.get_messages_as_conversation(asked["session"]))
    finally:
        db.close()


def _tell_memory(asked: dict[str, object]) -> bool:
    from hermes_cli.config import load_config

    name = (load_config().get("memory") or {}).get("provider")
    if not name:
        return False
    from agent.memory_manager import MemoryManager
    from plugins.memory import load_memory_provider

    provider = load_memory_provider(name)
    if provider is None or not provider.is_available():
        return False
    manager = MemoryManager()
    manager.add_provider(provider)
    about = {
        "session_id": asked["session"],
        "platform": asked["platform"],
        "hermes_home": os.environ.get("HERMES_HOME") or os.path.expanduser("~/.hermes"),
        "agent_context": "primary",
        "agent_workspace": "hermes",
    }
    try:
        from hermes_cli.profiles import get_active_profile_name

        about["agent_identity"] = get_active_profile_name()
    except Exception:
        pass
    manager.initialize_all(**about)
    manager.on_session_end(_messages(asked))
    manager.shutdown_all()
    return True


def _tell_context_engine(asked: dict[str, object]) -> bool:
    from hermes_cli.config import load_config

    name = (load_config().get("context") or {}).get("engine")
    if not name or name == "compressor":
        return False
    from plugins.context_engine import load_context_engine

    engine = load_context_engine(name)
    if engine is None:
        from hermes_cli.plugins import get_plugin_context_engine

        engine = get_plugin_context_engine()
    if engine is None or getattr(engine, "name", name) != name:
        return False
    engine.on_session_end(asked["session"], _messages(asked))
    return True


class Runner:
    """Runs each callback once, in a fork, and notes its beginning and its end."""

    def __init__(self, asked: dict[str, object]) -> None:
        self.failed = False
        self._parent = int(asked["parent"])
        self._timeout = float(asked["timeout"])
        self._key = asked["key"]
        self._ledger = asked["ledger"]
        self._namesakes: dict[str, int] = {}
        self._begun: dict[str, int] = {}
        self._ended: set[str] = set()
        try:
            with open(self._ledger, encoding="utf-8", errors="replace") as file:
                for line in file:
                    self._remember(line)
        except FileNotFoundError:
            pass

    def _remember(self, line: str) -> None:
        try:
            noted = json.loads(line)
        except ValueError:
            return  # the line that was being written when its writer died
        if noted.get("outcome") in _WENT_WELL:
            self._ended.add(noted["hook"])
        elif "outcome" not in noted:
            self._begun[noted["hook"]] = self._begun.get(noted["hook"], 0) + 1

    def once(self, what: str, work, before: int = 0) -> None:
        """`before`: how often it had begun in the process that died."""
        number = self._namesakes[what] = self._namesakes.get(what, 0) + 1
        key = f"{self._key}:{what}" + (f"#{number}" if number > 1 else "")
        if key in self._ended:
            return
        if os.getppid() != self._parent:  # there is no prctl here, and another runner goes on
            os._exit(_RAISED)
        attempt = before + self._begun.get(key, 0) + 1
        self._note(hook=key, command=what, attempt=attempt, at=time.time())
        outcome, output = _isolated(self._timeout, lambda: work(attempt))
        self._note(hook=key, command=what, attempt=attempt, outcome=outcome, output="")
        if outcome != "nothing to do":
            self.failed |= outcome != "ok"
            _say(what, outcome)
            if output:
                os.write(1, output + b"\n")

    def _note(self, **line: object) -> None:
        fd = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Begins with a newline: a torn line before it must not swallow this one.
            os.write(fd, b"\n" + json.dumps(line).encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)


def _isolated(timeout: float, work) -> tuple[str, bytes]:
    """Run `work` in a fork and a process group of its own; how it went, and what it printed."""
    reading, writing = os.pipe()
    runner = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_the_fork(work, writing, runner)
    os.close(writing)
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # it has done so itself, or has gone
    in_time, output = _attend(pid, reading, timeout)
    try:
        os.killpg(pid, signal.SIGKILL)  # itself if it hangs, and whatever it left running
    except ProcessLookupError:
        pass
    status = os.waitpid(pid, 0)[1]
    os.close(reading)
    if not in_time:
        return f"timed out after {timeout:g} s", output
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}", output
    code = os.WEXITSTATUS(status)
    outcomes = {0: "ok", _RAISED: "raised", _NOTHING_TO_DO: "nothing to do"}
    return outcomes.get(code, f"exit {code}"), output


def _be_the_fork(work, output: int, runner: int) -> None:
    code = _RAISED
    try:
        os.setpgid(0, 0)
        _end_with(runner)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = _NOTHING_TO_DO if work() is False else 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _end_with(parent: int) -> None:
    """End when the parent does; where there is no prctl, not in the middle of a callback."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except AttributeError:
        pass
    if os.getppid() != parent:
        os._exit(_RAISED)


def _attend(pid: int, output: int, timeout: float) -> tuple[bool, bytes]:
    """Read what it prints until it ends or its time is up; keep the first of it only."""
    try:
        ended = os.pidfd_open(pid)
    except (AttributeError, OSError):  # another system, an old kernel, or not permitted
        ended = None
    os.set_blocking(output, False)
    poller = select.poll()
    if ended is not None:
        poller.register(ended, select.POLLIN)
    poller.register(output, select.POLLIN)
    deadline = time.monotonic() + timeout
    kept = b""
    over = False
    while not over and (left := deadline - time.monotonic()) > 0:
        if ended is not None:
            ready = {fd for fd, _ in poller.poll(left * 1000)}
            over = ended in ready
        else:
            over = _has_ended(pid)  # first: what it has printed by then is read below
            ready = {fd for fd, _ in poller.poll(0 if over else 1000 * min(left, _LOOK))}
        if output in ready:
            try:
                piece = os.read(output, 65536)
            except BlockingIOError:
                continue
            kept = (kept + piece)[:_KEPT]
            if not piece:
                poller.unregister(output)
    if ended is not None:
        os.close(ended)
    return over, kept.strip()


def _has_ended(pid: int) -> bool:
    """Whether a child has ended. It is not reaped: until then its group keeps its number."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    # macOS before Python 3.13. `ps` lists a zombie as one.
    return os.popen(f"ps -o stat= -p {pid}").read().strip()[:1] in ("", "Z")


def _say(what: str, outcome: str) -> None:
    os.write(1, f"{what}: {outcome}\n".encode())


if __name__ == "__main__":
    # What plugins leave behind, threads for one, must not keep the runner.
    code = main()
    sys.stdout.flush()
    os._exit(code)
