"""Completion for fish. Pure.

A place is where the cursor can be: "run", one of our commands, such as "hooks" or "hooks/retry", or
the number of the word at which the agent's own command line starts.
"""

from __future__ import annotations

from .schema import FILES, PROGRAMS, SESSIONS, Command, Flag

_TEMPLATE = r"""# Completion for fish, made by `hermes-supervise completions fish`.

# Fish also loads what it once read from the man page. Load that now, and drop it.
complete -C 'hermes-supervise ' >/dev/null 2>&1
complete -c hermes-supervise -e

function __hermes_supervise_place
    set -l tokens (commandline -opc)
    set -l place run
    set -l i 2
    if set -q tokens[2]; and contains -- $tokens[2] @COMMANDS@
        set place $tokens[2]
        set i 3
    end
    while test $i -le (count $tokens)
        set -l word $tokens[$i]
        if test "$word" = --
            if contains -- $place @AGENTS@
                math $i + 1
            else
                echo nowhere
            end
            return
        else if contains -- $place:$word @VALUED@
            set i (math $i + 1)
        else if string match -q -- '-*' $word
        else if contains -- $place/$word @BELOW@
            set place $place/$word
        else if contains -- $place @AGENTS@
            echo $i
            return
        end
        set i (math $i + 1)
    end
    echo $place
end

function __hermes_supervise_at
    contains -- (__hermes_supervise_place) $argv
end

function __hermes_supervise_first
    test (count (commandline -opc)) -eq 1
end

# The agent's own command line, as fish completes it without us.
function __hermes_supervise_agent
    set -l place (__hermes_supervise_place)
    set -l tokens (commandline -opc)
    set -l words
    # Programs only if none of our commands matches; after `--` there are only programs.
    if __hermes_supervise_first
        for name in @COMMANDS@
            string match -q -- (string escape --style=regex -- (commandline -ct))'*' $name
            and return
        end
    end
    if string match -qr '^[0-9]+$' -- $place
        test $place -le (count $tokens); and set words (string escape -- $tokens[$place..-1])
    else if not contains -- $place @AGENTS@; or string match -q -- '-*' (commandline -ct)
        return
    end
    complete -C (string join ' ' -- $words (commandline -ct))
end

complete -c hermes-supervise -f -a '(__hermes_supervise_agent)'
@LINES@
"""


def render(flags: list[Flag], commands: list[Command]) -> str:
    places = {"run": Command("run", "", "", flags, "COMMAND")}
    lines = [
        f"-n __hermes_supervise_first -a {command.name} -d {_quoted(command.meaning)}"
        for command in commands
    ]
    for command in commands:
        _collect(command.name, command, places)
    for place, command in places.items():
        at = f"-n '__hermes_supervise_at {place}'"
        lines += [f"{at} {_flag(flag)}" for flag in command.flags]
        lines += [f"{at} -a {below.name} -d {_quoted(below.meaning)}" for below in command.below]
        if command.choices:
            lines.append(f"{at} -a {_quoted(' '.join(command.choices))}")
        elif command.takes in SESSIONS:
            lines.append(f"{at} -a '(hermes-supervise completions sessions 2>/dev/null)'")
    agents = [place for place, command in places.items() if command.takes == "COMMAND"]
    valued = [
        f"{place}:{name}"
        for place, command in places.items()
        for flag in command.flags
        if flag.value
        for name in flag.names
    ]
    below = [place for place in places if "/" in place]
    return (
        _TEMPLATE.replace("@COMMANDS@", " ".join(command.name for command in commands))
        .replace("@AGENTS@", " ".join(agents))
        .replace("@VALUED@", " ".join(valued))
        .replace("@BELOW@", " ".join(below))
        .replace("@LINES@", "\n".join(f"complete -c hermes-supervise {line}" for line in lines))
    )


def _collect(place: str, command: Command, into: dict[str, Command]) -> None:
    into[place] = command
    for below in command.below:
        _collect(f"{place}/{below.name}", below, into)


def _flag(flag: Flag) -> str:
    words = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in flag.names]
    if flag.choices:
        words.append(f"-x -a {_quoted(' '.join(flag.choices))}")
    elif flag.value in FILES:
        words.append("-r -F")
    elif flag.value in PROGRAMS:
        words.append("-x -a '(complete -C (commandline -ct))'")
    elif flag.value:
        words.append("-x")
    return " ".join([*words, "-d", _quoted(flag.brief)])


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
