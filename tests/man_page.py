"""man/hermes-supervise.1, made from the tables of --help; run as a script it is written anew."""

from __future__ import annotations

from pathlib import Path

from hermes_supervise.supervisor.commands import surface
from hermes_supervise.supervisor.commands.surface import Command, Flag
from hermes_supervise.supervisor.options import TABLE

PAGE = Path(__file__).parent.parent / "man" / "hermes-supervise.1"

DESCRIPTION = """\
Runs COMMAND, an AI agent, so that nothing the user saw is lost when it dies. Every message and
every streamed character is taken down before the agent shows it; when the agent is killed, runs
out of memory or loses its terminal, what is missing goes into Hermes' state.db, the session is
marked interrupted, and the end-of-session hooks run in place of the dead process.

The agent does not notice: terminal, signals, job control, pipes and exit status stay its own. An
unmodified Hermes needs nothing else; Claude Code, Codex, Gemini CLI and opencode are followed by
what they write themselves; any other agent by a file of JSON messages (--watch) or by what it says
through the SDK or the wire protocol.

Options end at the first word that is none, or at --. A word that is one of the commands below is
that command if it comes first, and COMMAND if it stands behind --."""

SIGNALS = """\
What the terminal sends (Ctrl-C, Ctrl-Z, a change of size) reaches the agent as without us. TERM,
HUP, INT, QUIT, USR1 and USR2 that reach the supervisor alone are passed on, once. An agent that is
still there --grace seconds after a TERM or HUP is killed. If the supervisor is killed, the agent
goes on, and another supervisor takes its place."""

EXIT = [
    ("N", "The agent's own status. If a signal killed it, we die of the same signal; as process 1 "
          "of a container, which cannot, with 128 and the signal's number."),
    ("125", "The supervisor failed, or an option was not understood."),
    ("126", "COMMAND cannot be run."),
    ("127", "COMMAND was not found."),
]  # fmt: skip

VARIABLES = [
    ("HERMES_SUPERVISE", "0 keeps an agent from speaking to its supervisor."),
    ("HERMES_HOME", "The folder whose state.db is used where nothing else is said."),
    ("NO_COLOR", "If set, no colours."),
    ("XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR", "Where files are; see below."),
]  # fmt: skip

FILES = [
    ("$XDG_CONFIG_HOME/hermes-supervise/config.toml", "Settings (~/.config)."),
    ("$XDG_STATE_HOME/hermes-supervise/runs/", "Runs under way, or left behind (~/.local/state)."),
    ("$XDG_STATE_HOME/hermes-supervise/reports/", "What became of the sessions of past runs."),
    ("$XDG_STATE_HOME/hermes-supervise/hooks/", "Hooks that wait, are done, or were given up."),
    ("$XDG_STATE_HOME/hermes-supervise/notices.log", "What was said with --notify."),
    ("$XDG_RUNTIME_DIR/hermes-supervise/", "Sockets."),
]

EXAMPLES = [
    ("Hermes, unmodified:", "hermes-supervise -- hermes chat"),
    ("Start it again if it crashes:", "hermes-supervise --restart on-crash -- claude"),
    ("What happened, and how to go on:", "hermes-supervise sessions"),
    ("A launcher for the desktop:", "hermes-supervise desktop install -- claude"),
    ("The first process of a container:", 'ENTRYPOINT ["hermes-supervise", "--"]'),
]  # fmt: skip


def page() -> str:
    commands = surface.commands()
    lines = [
        '.\\" Made by `python tests/man_page.py` from the tables that --help is made of.',
        ".TH HERMES\\-SUPERVISE 1",
        ".SH NAME",
        "hermes\\-supervise \\- run an AI agent so that nothing the user saw is lost when it dies",
        ".SH SYNOPSIS",
        ".B hermes\\-supervise",
        "[\\fIOPTIONS\\fR] [\\fB\\-\\-\\fR] \\fICOMMAND\\fR [\\fIARG\\fR ...]",
    ]
    for one in commands:
        lines += [".br", f".B hermes\\-supervise {one.name}", _text(one.usage) or "\\&"]
    lines += [".SH DESCRIPTION", *_paragraphs(DESCRIPTION)]
    lines += [".SH OPTIONS", *(line for flag in surface.run_flags() for line in _flag(flag))]
    lines += [".SH COMMANDS"]
    for one in commands:
        lines += _command(one)
    lines += [".SH SIGNALS", *_paragraphs(SIGNALS), ".SH EXIT STATUS", *_list(EXIT)]
    lines += [".SH ENVIRONMENT", *_list(VARIABLES)]
    each = f"Each option, by its name, as in {TABLE[4].variable}=5. A flag wins over a variable,"
    lines += _list([("HERMES_SUPERVISE_<OPTION>", f"{each} a variable over config.toml.")])
    lines += [".SH FILES", *_list(FILES), ".SH EXAMPLES"]
    for what, line in EXAMPLES:
        lines += [".TP", _text(what), f"\\fB{_text(line)}\\fR"]
    lines += [".SH SEE ALSO", ".BR systemd.unit (5),", ".BR notify\\-send (1)"]
    return "\n".join(lines) + "\n"


def _command(one: Command, above: str = "") -> list[str]:
    name = f"{above}{one.name}"
    lines = [f".SS {_text(f'{name} {one.usage}'.strip())}"]
    lines.append(_text(one.meaning))
    for flag in one.flags:
        if "--help" not in flag.names:
            lines += _flag(flag)
    for below in one.below:
        lines += _command(below, f"{name} ")
    return lines


def _flag(flag: Flag) -> list[str]:
    names = ", ".join(f"\\fB{_text(name)}\\fR" for name in flag.names)
    value = f" \\fI{_text(flag.value)}\\fR" if flag.value else ""
    return [".TP", names + value, _text(flag.meaning)]


def _list(told: list[tuple[str, str]]) -> list[str]:
    return [line for what, text in told for line in (".TP", f"\\fB{_text(what)}\\fR", _text(text))]


def _paragraphs(text: str) -> list[str]:
    return "\n.PP\n".join(_text(" ".join(part.split())) for part in text.split("\n\n")).split("\n")


def _text(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("...", "\\&...")
    return f"\\&{text}" if text[:1] in (".", "'") else text


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
