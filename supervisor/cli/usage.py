"""What --help says: our own commands, and the text around them.

A supervised run never loads it, unless its command is given without `--`.
"""

from __future__ import annotations

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


def usage() -> str:
    """The text of --help."""
    from .options import describe  # start-up: a run asks for the names of the commands alone

    commands = [f"  {name:<12} {meaning}" for name, (_, meaning) in COMMANDS.items()]
    return USAGE.format(commands="\n".join(commands), options=describe())


def brief_usage() -> str:
    """What a command line without a word is answered with: the text of --help up to the options."""
    brief = usage().partition("\noptions:\n")[0]
    return f"{brief}\nhermes-supervise --help lists the options as well.\n"


def version() -> str:
    from importlib import metadata  # start-up: only for --version

    return f"hermes-supervise {metadata.version('hermes-supervise')}"
