"""The entry point: arguments in, exit status out.

    hermes-supervise [OPTIONS] [--] COMMAND [ARG…]    supervise COMMAND
    hermes-supervise NAME [ARG…]                      one of our own commands

Never lets an error of ours keep the agent from running, unless `--strict` asks for that.
"""

from __future__ import annotations

import gc
import sys

from .model.options import Options, UsageError
from .process import launch

# What our own processes execute, with the number of words.
_INTERNAL = (("adopt", 2), ("read-transcripts", 2), ("call-hook", 3), ("ship", 2))


def main() -> None:
    arguments = sys.argv[1:]
    first = arguments[0] if arguments else ""
    if not arguments:
        from .cli.usage import brief_usage  # start-up: a run does not need it

        # Like other commands that run a command: without one it is an error, and says how.
        _accept_any_character()
        print(brief_usage(), end="", file=sys.stderr)
        sys.exit(launch.OUR_FAILURE)
    if (first, len(arguments)) in _INTERNAL:
        _run_internal(*arguments)
    elif first[:1] != "-" and _is_command(first):
        sys.exit(_run_command(*arguments))
    elif first[:1] == "-" and first != "--" and _asks(first):
        _answer(first)
    else:
        _supervise(arguments)


def _asks(word: str) -> bool:
    from .cli.options import HELP, VERSION  # start-up: a command line with `--` does not need it

    return word in HELP + VERSION


def _is_command(word: str) -> bool:
    from .cli.usage import COMMANDS  # start-up: a command line with `--` does not need it

    return word in COMMANDS


def _run_internal(name: str, *arguments: str) -> None:
    """What our own processes execute; the names and arguments are frozen (docs/stability.md)."""
    # Each is loaded alone: the others would only make it slower.
    if name == "adopt":
        from .run.successor import take_over  # start-up: only a successor

        take_over(*arguments)
    elif name == "read-transcripts":
        from os import _exit  # start-up: only the transcripts' process

        from .transcripts.main import watch  # start-up: the same

        _exit(watch(*arguments))  # without waiting for its threads
    elif name == "ship":
        from .replica.shipper import ship  # start-up: only the shipper

        sys.exit(ship(*arguments))
    else:
        from .hooks.plugins import call  # start-up: only a runner of hooks

        sys.exit(call(*arguments))


def _supervise(arguments: list[str]) -> None:
    # While modules are loaded, nothing becomes garbage. `run/start.py` enables it again.
    gc.disable()
    from .cli.arguments import Asked, parse  # start-up: commands do not need it

    try:
        chosen, command = parse(arguments)
    except Asked as asked:
        _answer(str(asked))
        return
    except UsageError as error:
        from .cli.errors import folded  # start-up: only for an error

        launch.say(folded(f"{error}; see `hermes-supervise --help`"))
        sys.exit(launch.OUR_FAILURE)
    if not command:
        launch.say("no command given; see `hermes-supervise --help`")
        sys.exit(launch.OUR_FAILURE)
    if chosen.notify and not chosen.quiet:
        from .desktop import notify  # start-up: only with --notify

        launch.add_sink(notify.tell)
    if chosen.problems and not _may_start(chosen):
        sys.exit(launch.OUR_FAILURE)
    from .process.signals import die_by_signal, signal  # start-up: commands do not need it

    try:
        _start(command, chosen)
    except launch.CannotLaunch as error:
        word = command[0]
        misspelt = error.code == launch.NOT_FOUND and arguments[0] == word and "/" not in word
        launch.say(f"{error}{_hint(word) if misspelt else ''}", loud=True)
        sys.exit(error.code)
    except KeyboardInterrupt:  # before the agent was started; later signals go to the agent
        die_by_signal(signal.SIGINT)


def _start(command: list[str], chosen: Options) -> None:
    try:
        from .run.start import supervise  # start-up: commands do not need it
    except Exception as error:  # an upgrade is replacing our files, or no descriptor is left
        if chosen.strict:
            launch.say(f"cannot supervise: {error}", loud=True)
            sys.exit(launch.OUR_FAILURE)
        launch.say(f"cannot supervise, running the agent without supervision: {error}", loud=True)
        launch.exec_unsupervised(command)
    else:
        supervise(command, chosen)


def _hint(word: str) -> str:
    """For a word that is not a program, and may be a misspelt command of ours."""
    from .cli.options import suggestion  # start-up: only for an error
    from .cli.usage import COMMANDS  # start-up: the same

    close = suggestion(word, COMMANDS)
    return close or "; `hermes-supervise --help` lists the commands"


def _may_start(chosen: Options) -> bool:
    """Report what is wrong in config.toml. False if --strict then forbids to start the agent."""
    if not chosen.quiet:
        launch.say("\n  ".join(chosen.problems), loud=True)
    return not chosen.strict


def _run_command(name: str, *arguments: str) -> int:
    """Run one of our own commands. Returns its exit status."""
    from importlib import import_module  # start-up: a supervised run needs none of these

    from .cli.errors import FAILED, CommandError, described, report  # start-up: the same
    from .process.signals import die_by_signal, signal  # start-up: the same

    _accept_any_character()
    as_json = "--json" in arguments
    try:
        module = name.replace("-", "_")
        status = import_module(f".cli.commands.{module}", __package__).main(list(arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # `show | head`
        die_by_signal(signal.SIGPIPE)
    except KeyboardInterrupt:
        die_by_signal(signal.SIGINT)
    except CommandError as error:
        report(str(error), as_json=as_json)
        return error.status
    except OSError as error:  # a folder or file of ours that cannot be used
        report(described(error), as_json=as_json)
        return FAILED
    assert isinstance(status, int)
    return status


def _accept_any_character() -> None:
    """Replace characters that the user's locale does not have, instead of failing."""
    from io import TextIOWrapper  # start-up: a supervised run prints nothing

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _answer(flag: str) -> None:
    """For --help and --version."""
    _accept_any_character()
    from .cli.options import HELP  # start-up: a run does not need it
    from .cli.usage import usage, version  # start-up: the same

    print(usage() if flag in HELP else version() + "\n", end="")


if __name__ == "__main__":
    main()
