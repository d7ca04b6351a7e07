"""The door: arguments in, exit status out.

    hermes-supervise [OPTIONS] [--] COMMAND [ARG…]    supervise COMMAND
    hermes-supervise NAME [ARG…]                      one of our own commands

Never lets a fault of ours keep the agent from running, unless `--strict` asks for that.
"""

from __future__ import annotations

import sys

from . import launch, options

# Our own commands, each a module of the same name in commands/: what follows the name, and
# what it is for.
COMMANDS = {
    "ps": ("[--json]", "what runs under supervision, and what it is doing"),
    "sessions": ("[--all] [--json]", "interrupted sessions, and how to resume each"),
    "show": ("[SESSION] [--json]", "the story of a death, and the transcript"),
    "report": ("SESSION [-o FILE]", "the same as a page of HTML, to keep or to share"),
    "recover": ("[RUN...] [--json]", "finish what an earlier crash left"),
    "hooks": ("[retry ID...|--all] [--json]", "hooks that wait, failed, were given up"),
    "doctor": ("[--json] [-- COMMAND]", "is all in place? what would be captured?"),
    "desktop": ("install|remove|list", "launchers for agents, and a unit for systemd"),
    "sweep": ("[--dry-run] [--db PATH]", "end sessions that leaked before we came"),
    "config": ("[--json]", "the settings, and where each came from"),
    "emit": ("[--session ID] WHAT [TEXT|-]", "from a supervised script: say what it says"),
    "completions": ("bash|zsh|fish", "a script that completes all this in a shell"),
    "demo": ("", "see it work on a small agent"),
}

USAGE = """\
usage: hermes-supervise [OPTIONS] [--] COMMAND [ARG...]

Runs an AI agent so that nothing the user saw is lost when it dies: the
streamed reply, the tool calls and the session go into state.db, and the
end-of-session hooks run in its place. Nothing has to be set up:

  hermes-supervise -- hermes chat    an unmodified Hermes
  hermes-supervise -- claude         or codex, gemini, opencode: followed by
                                     what they write themselves

commands (hermes-supervise NAME --help tells more):
{commands}

options:
{options}

Each option can be set as HERMES_SUPERVISE_<NAME>, too, as in
HERMES_SUPERVISE_HOOK_TIMEOUT=5, or in config.toml, by its name with
underscores (hook_timeout = 5); `hermes-supervise config` says where that file
is. A flag wins over a variable, a variable over the file.
HERMES_SUPERVISE=0 keeps an agent from speaking to its supervisor.

exit status: the agent's own; if a signal killed it, the same signal.
Ours: 125 the supervisor failed, or an option was not understood;
126 COMMAND cannot be run; 127 COMMAND not found.
"""


def main() -> None:
    arguments = sys.argv[1:]
    if arguments and arguments[0] in options.HELP + options.VERSION:
        _tell(arguments[0])
        return
    if arguments and arguments[0] in COMMANDS:
        sys.exit(_call(*arguments))
    if len(arguments) == 2 and arguments[0] == "adopt":  # said by a witness, not by people
        from .start import adopt

        adopt(arguments[1])
        return
    if len(arguments) == 2 and arguments[0] == "read-transcripts":  # said by a supervisor
        from os import _exit

        from .watchers.main import watch

        _exit(watch(arguments[1]))  # whatever its threads are at
    if len(arguments) == 3 and arguments[0] == "call-hook":  # said by a runner of hooks
        from .hooks.plugins import call

        sys.exit(call(*arguments[1:]))
    try:
        chosen, command_line = options.parse(arguments)
    except options.Asked as asked:
        _tell(str(asked))
        return
    except options.UsageError as error:
        launch.say(f"{error}; see hermes-supervise --help")
        sys.exit(launch.OUR_FAILURE)
    if not command_line:
        launch.say("no command given; see hermes-supervise --help")
        sys.exit(launch.OUR_FAILURE)
    if chosen.notify and not chosen.quiet:
        from .desktop import notify

        launch.tell_also(notify.tell)
    if chosen.problems and not _goes_on(chosen):
        sys.exit(launch.OUR_FAILURE)
    from .signals import die_of, signal
    from .start import supervise

    try:
        supervise(command_line, chosen)
    except launch.CannotLaunch as error:
        word = command_line[0]
        misspelt = error.code == launch.NOT_FOUND and arguments[0] == word and "/" not in word
        launch.say(f"{error}{_hint(word) if misspelt else ''}", loud=True)
        sys.exit(error.code)
    except KeyboardInterrupt:  # before the agent was started; later signals are the agent's
        die_of(signal.SIGINT)


def _hint(word: str) -> str:
    """For what is no program, and may have been meant for us."""
    close = options.meant(word, COMMANDS)
    return close or "; for our own commands see hermes-supervise --help"


def _goes_on(chosen: options.Options) -> bool:
    """Tell what is wrong in config.toml; whether the agent runs all the same."""
    if not chosen.quiet:
        launch.say("\n  ".join(chosen.problems), loud=True)
    return not chosen.strict


def _call(name: str, *arguments: str) -> int:
    """One of our own commands; its exit status."""
    from importlib import import_module

    from .signals import die_of, signal

    code = 1
    _fit_the_locale()
    try:
        code = import_module(f".commands.{name}", __package__).main(list(arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # `show | head`
        die_of(signal.SIGPIPE)
    except KeyboardInterrupt:
        die_of(signal.SIGINT)
    except OSError as error:  # a folder or file of ours that is not as it should be
        launch.say(str(error))
    return code


def _fit_the_locale() -> None:
    """A character that the user's locale does not have is no reason to show nothing."""
    from io import TextIOWrapper

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _describe_commands() -> str:
    return "\n".join(f"  {name:<12} {meaning}" for name, (_, meaning) in COMMANDS.items())


def _tell(flag: str) -> None:
    _fit_the_locale()
    if flag in options.HELP:
        print(USAGE.format(commands=_describe_commands(), options=options.describe()), end="")
        return
    from importlib.metadata import version

    print(f"hermes-supervise {version('hermes-supervise')}")


if __name__ == "__main__":
    main()
