"""The entry point: arguments in, exit status out.

    hermes-supervise [OPTIONS] [--] COMMAND [ARG…]    supervise COMMAND
    hermes-supervise NAME [ARG…]                      one of our own commands

Never lets an error of ours keep the agent from running, unless `--strict` asks for that.
"""

from __future__ import annotations

import sys

from .cli import options
from .model.options import Options
from .process import launch

# Our own commands, each a module of the same name in cli/commands/: its usage, with a line for each
# form, and what it is for.
COMMANDS = {
    "ps": ("[--watch] [--json]", "list supervised runs and what each session is doing"),
    "sessions": (
        "[--all] [--json] [SESSION...]\nforget SESSION...|--all",
        "list interrupted sessions and how to resume them",
    ),
    "show": (
        "[SESSION] [--no-transcript] [--json]",
        "show what happened to a session, and its transcript",
    ),
    "report": (
        "SESSION [-o FILE] [--redact]",
        "write the same as an HTML page, to keep or to share",
    ),
    "recover": ("[RUN...] [--notify] [--json]", "recover what an earlier crash left behind"),
    "hooks": (
        "[list] [--json]\nretry ID...|--all\nforget ID...|--all",
        "list pending, failed and abandoned hooks; retry them",
    ),
    "doctor": ("[--prove] [--json] [-- COMMAND]", "check this machine, and what would be captured"),
    "desktop": (
        "install [OPTIONS] -- COMMAND\nlist [--json]\nremove [--name NAME] [--force]\n"
        "systemd [--name NAME] -- COMMAND",
        "install desktop launchers; print a systemd unit",
    ),
    "fleet": (
        "[list] [--watch] [--json]\nreport [-o FILE]\n"
        "recover SESSION...|--all-lost [--db PATH]\nlost MACHINE [--because TEXT] [--wait]\n"
        "forget SESSION...|--machine MACHINE|--older-than DAYS [OPTIONS]\n"
        "init\nmigrate\ndoctor [--json]\nkey FILE",
        "list all machines' sessions; recover those of a lost one",
    ),
    "metrics": ("[-o FILE]", "print counters as Prometheus text"),
    "sweep": ("[--dry-run] [--db PATH] [--json]", "end stale sessions from before supervision"),
    "config": ("[--json]", "show the settings and where each one comes from"),
    "emit": (
        "[--session ID] session|message|delta|title|end [OPTIONS] [TEXT|-]",
        "report messages from a supervised script",
    ),
    "completions": ("bash|zsh|fish", "print a shell completion script"),
    "shell-init": ("bash|zsh|fish", "print a script that supervises agents in your shell"),
    "demo": ("\nshow SESSION", "see it work with a small agent"),
    "help": ("[NAME]", "show this help, or that of a command"),
    "version": ("", "show the version"),
}

# What our own processes execute, with the number of words.
_INTERNAL = (("adopt", 2), ("read-transcripts", 2), ("call-hook", 3), ("ship", 2))

USAGE = """\
usage: hermes-supervise [OPTIONS] [--] COMMAND [ARG...]

Run an AI agent so that nothing the user saw is lost when it dies. Messages,
tool calls and the reply in progress are written to state.db, and the
end-of-session hooks run in place of the dead agent. No setup is needed:

  hermes-supervise -- hermes chat    an unmodified Hermes
  hermes-supervise -- claude         or codex, copilot, gemini, opencode, pi,
                                     qwen: tracked through their transcripts

commands (hermes-supervise NAME --help says more):
{commands}

options:
{options}

Every option can also be set with a variable (HERMES_SUPERVISE_HOOK_TIMEOUT=5)
or in config.toml (hook_timeout = 5). A flag overrides a variable; a variable
overrides the file; `hermes-supervise config` prints where the file is.
HERMES_SUPERVISE=0 turns capture off: the agent does not contact its supervisor.

exit status: the agent's own; if a signal killed the agent, the same signal.
125: the supervisor failed, or an option was wrong. 126: COMMAND cannot be run.
127: COMMAND was not found.
"""


def main() -> None:
    arguments = sys.argv[1:]
    first = arguments[0] if arguments else ""
    if not arguments:
        # Like other commands that run a command: without one it is an error, and says how.
        _accept_any_character()
        print(brief_usage(), end="", file=sys.stderr)
        sys.exit(launch.OUR_FAILURE)
    if first in options.HELP + options.VERSION:
        _answer(first)
    elif first in COMMANDS:
        sys.exit(_run_command(*arguments))
    elif (first, len(arguments)) in _INTERNAL:
        _run_internal(*arguments)
    else:
        _supervise(arguments)


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
    from .cli.arguments import Asked, parse  # start-up: commands do not need it

    try:
        chosen, command = parse(arguments)
    except Asked as asked:
        _answer(str(asked))
        return
    except options.UsageError as error:
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
    close = options.suggestion(word, COMMANDS)
    return close or "; `hermes-supervise --help` lists the commands"


def _may_start(chosen: Options) -> bool:
    """Report what is wrong in config.toml. False if --strict then forbids to start the agent."""
    if not chosen.quiet:
        launch.say("\n  ".join(chosen.problems), loud=True)
    return not chosen.strict


def _run_command(name: str, *arguments: str) -> int:
    """Run one of our own commands. Returns its exit status."""
    from importlib import import_module  # start-up: a supervised run needs none of these

    from .cli.errors import FAILED, CommandError, report  # start-up: the same
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
        report(str(error), as_json=as_json)
        return FAILED
    assert isinstance(status, int)
    return status


def _accept_any_character() -> None:
    """Replace characters that the user's locale does not have, instead of failing."""
    from io import TextIOWrapper  # start-up: a supervised run prints nothing

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def usage() -> str:
    """The text of --help."""
    commands = [f"  {name:<12} {meaning}" for name, (_, meaning) in COMMANDS.items()]
    return USAGE.format(commands="\n".join(commands), options=options.describe())


def brief_usage() -> str:
    """What a command line without a word is answered with: the text of --help up to the options."""
    brief = usage().partition("\noptions:\n")[0]
    return f"{brief}\nhermes-supervise --help lists the options as well.\n"


def version() -> str:
    from importlib import metadata  # start-up: only for --version

    return f"hermes-supervise {metadata.version('hermes-supervise')}"


def _answer(flag: str) -> None:
    """For --help and --version."""
    _accept_any_character()
    print(usage() if flag in options.HELP else version() + "\n", end="")


if __name__ == "__main__":
    main()
