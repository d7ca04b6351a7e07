"""Completion for zsh: an `_arguments` specification for each place. Pure.

A place is where the cursor can be: empty for the command line of a run, otherwise one of our
commands, such as "ps" or "hooks retry".
"""

from __future__ import annotations

from .schema import FILES, PROGRAMS, SESSIONS, Command, Flag

# A value that cannot be completed.
_NOTHING = " "
_TEMPLATE = r"""#compdef hermes-supervise
# Completion for zsh, made by `hermes-supervise completions zsh`.

_hermes_supervise_sessions() {
  local -a ids expl
  ids=(${(f)"$(_call_program sessions hermes-supervise completions sessions 2>/dev/null)"})
  _wanted sessions expl session compadd -a ids
}

# One of these subcommands, or a session.
_hermes_supervise_sessions_or() {
  local -a words
  words=("$@")
  _describe -t commands 'subcommand' words
  _hermes_supervise_sessions
}

# The first word that is not an option: one of our commands, or the agent's.
# Programs only if none of our commands matches; after `--` there are only programs.
_hermes_supervise_first() {
  if (( CURRENT == 2 )); then
    local -a ours
    ours=(
@COMMANDS@
    )
    _describe -t commands 'command of hermes-supervise' ours && return
  fi
  _command_names -e
}

# The agent's own command line, which starts at this word.
_hermes_supervise_agent() {
  if (( $1 == CURRENT )); then
    _command_names -e
  else
    words=("${(@)words[$1,-1]}")
    (( CURRENT -= $1 - 1 ))
    _normal
  fi
}

# The options of a place that have a value, its subcommands, whether an agent's command follows.
_hermes_supervise_place() {
  valued=() below=() agent=0
  case $1 in
@PLACES@
  esac
}

_hermes-supervise() {
  local curcontext=$curcontext state line place= agent
  local -a valued below
  integer i=2 begin=1
  typeset -A opt_args
  if (( CURRENT > 2 )) && [[ $words[2] == (@NAMES@) ]]; then
    place=$words[2] i=3 begin=2
  fi
  _hermes_supervise_place "$place"
  while (( i < CURRENT )); do
    if [[ $words[i] == -- ]]; then
      (( agent )) && _hermes_supervise_agent $(( i + 1 ))
      return
    elif (( ${valued[(Ie)$words[i]]} )); then
      (( i += 2 ))
    elif [[ $words[i] == -* ]]; then
      (( i++ ))
    elif (( ${below[(Ie)$words[i]]} )); then
      place="$place $words[i]" begin=$i
      _hermes_supervise_place "$place"
      (( i++ ))
    elif (( agent )); then
      _hermes_supervise_agent $i
      return
    else
      (( i++ ))
    fi
  done
  words=("${(@)words[begin,-1]}")
  (( CURRENT -= begin - 1 ))
  case $place in
@SPECIFICATIONS@
  esac
}

if [[ $funcstack[1] == _hermes-supervise ]]; then
  _hermes-supervise "$@"
else
  compdef _hermes-supervise hermes-supervise
fi
"""


def render(flags: list[Flag], commands: list[Command]) -> str:
    places = {"": Command("", "", "", flags, "COMMAND")}
    for command in commands:
        _collect(command.name, command, places)
    names = [f"      {_quoted(f'{c.name}:{_escaped(c.meaning)}')}" for c in commands]
    return (
        _TEMPLATE.replace("@COMMANDS@", "\n".join(names))
        .replace("@NAMES@", "|".join(command.name for command in commands))
        .replace("@PLACES@", "\n".join(_place(place, c) for place, c in places.items()))
        .replace(
            "@SPECIFICATIONS@",
            "\n".join(_specification(place, c) for place, c in places.items()),
        )
    )


def _collect(place: str, command: Command, into: dict[str, Command]) -> None:
    into[place] = command
    for below in command.below:
        _collect(f"{place} {below.name}", below, into)


def _place(place: str, command: Command) -> str:
    valued = " ".join(name for flag in command.flags if flag.value for name in flag.names)
    below = " ".join(below.name for below in command.below)
    agent = int(command.takes == "COMMAND")
    return f"  '{place}') valued=({valued}) below=({below}) agent={agent} ;;"


def _specification(place: str, command: Command) -> str:
    specs = [spec for flag in command.flags for spec in _flag(flag)]
    action = _action(command.takes, command.choices)
    if not place:
        specs.append("'1: :_hermes_supervise_first'")
    elif command.below:
        if action == _NOTHING:
            described = [f"{b.name}\\:{_quoted(_escaped(b.meaning))}" for b in command.below]
            specs.append(_quoted(f"1: :(({' '.join(described)}))"))
        else:
            names = " ".join(_quoted(f"{b.name}:{_escaped(b.meaning)}") for b in command.below)
            specs.append(_quoted(f"1: : _hermes_supervise_sessions_or {names}"))
            specs.append(f"'*: :{action}'")
    elif action != _NOTHING:
        specs.append(f"'*: :{action}'")
    return f"  '{place}')\n    _arguments -S :" + "".join(f" \\\n      {s}" for s in specs) + " ;;"


def _flag(flag: Flag) -> list[str]:
    brief = f"[{_escaped(flag.brief)}]"
    value = f":{flag.value}:{_action(flag.value, flag.choices)}" if flag.value else ""
    return [
        _quoted(f"*{name}{'=' if flag.value and name.startswith('--') else ''}{brief}{value}")
        for name in flag.names
    ]


def _action(value: str, choices: list[str]) -> str:
    if choices:
        return f"({' '.join(choices)})"
    if value in FILES:
        return "_files"
    if value in PROGRAMS:
        return "_command_names -e"
    return "_hermes_supervise_sessions" if value in SESSIONS else _NOTHING


def _escaped(text: str) -> str:
    """For use between brackets or after a colon."""
    return "".join(f"\\{c}" if c in "[]:\\" else c for c in text)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
