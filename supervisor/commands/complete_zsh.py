"""pure: how zsh completes our command lines: a specification for `_arguments` a place.

A place is where the cursor may be: nothing for a run of an agent, else one of our commands, as
"ps" or "hooks retry".
"""

from __future__ import annotations

from .surface import FILES, PROGRAMS, SESSIONS, Command, Flag

# A value that cannot be guessed.
_NOTHING = " "
_TEMPLATE = r"""#compdef hermes-supervise
# Completion for zsh, made by `hermes-supervise completions zsh`.

_hermes_supervise_sessions() {
  local -a ids expl
  ids=(${(f)"$(_call_program sessions hermes-supervise completions sessions 2>/dev/null)"})
  _wanted sessions expl session compadd -a ids
}

# The first word that is no option: ours if it is the very first, or else the agent's.
_hermes_supervise_first() {
  if (( CURRENT == 2 )); then
    local -a ours
    ours=(
@COMMANDS@
    )
    _describe -t commands 'command of hermes-supervise' ours
  fi
  _command_names -e
}

# The agent's own command line, which begins at this word.
_hermes_supervise_agent() {
  if (( $1 == CURRENT )); then
    _command_names -e
  else
    words=("${(@)words[$1,-1]}")
    (( CURRENT -= $1 - 1 ))
    _normal
  fi
}

# Options of a place that have a value, words that it knows, whether an agent's command follows.
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
    for one in commands:
        _gather(one.name, one, places)
    ours = [f"      {_quoted(f'{one.name}:{_plain(one.meaning)}')}" for one in commands]
    return (
        _TEMPLATE.replace("@COMMANDS@", "\n".join(ours))
        .replace("@NAMES@", "|".join(one.name for one in commands))
        .replace("@PLACES@", "\n".join(_place(place, one) for place, one in places.items()))
        .replace(
            "@SPECIFICATIONS@",
            "\n".join(_specification(place, one) for place, one in places.items()),
        )
    )


def _gather(place: str, one: Command, into: dict[str, Command]) -> None:
    into[place] = one
    for below in one.below:
        _gather(f"{place} {below.name}", below, into)


def _place(place: str, one: Command) -> str:
    valued = " ".join(name for flag in one.flags if flag.value for name in flag.names)
    below = " ".join(b.name for b in one.below)
    agent = int(one.takes == "COMMAND")
    return f"  '{place}') valued=({valued}) below=({below}) agent={agent} ;;"


def _specification(place: str, one: Command) -> str:
    specs = [spec for flag in one.flags for spec in _flag(flag)]
    if not place:
        specs.append("'1: :_hermes_supervise_first'")
    elif one.below:
        known = " ".join(f"{b.name}\\:{_quoted(_plain(b.meaning))}" for b in one.below)
        specs.append(_quoted(f"1: :(({known}))"))
    elif (action := _action(one.takes, one.choices)) != _NOTHING:
        specs.append(f"'*: :{action}'")
    return f"  '{place}')\n    _arguments -S :" + "".join(f" \\\n      {s}" for s in specs) + " ;;"


def _flag(flag: Flag) -> list[str]:
    told = f"[{_plain(flag.brief)}]"
    value = f":{flag.value}:{_action(flag.value, flag.choices)}" if flag.value else ""
    return [
        _quoted(f"*{name}{'=' if flag.value and name.startswith('--') else ''}{told}{value}")
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


def _plain(text: str) -> str:
    """What stands between brackets or behind a colon."""
    return "".join(f"\\{c}" if c in "[]:\\" else c for c in text)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
