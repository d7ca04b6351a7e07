"""Completion for bash. Pure.

A place is where the cursor can be: empty for the command line of a run, otherwise one of our
commands, such as "ps" or "hooks retry".
"""

from __future__ import annotations

from .schema import Command, Flag, known_kind

_TEMPLATE = r"""# Completion for bash, made by `hermes-supervise completions bash`.

# The options of a place, the words it accepts, and the kind of argument it takes.
_hermes_supervise_place() {
    flags= words= takes=
    case $1 in
@PLACES@
    esac
}

# Sets `kind` to the kind of an option's value. Fails if the option has none.
_hermes_supervise_value() {
    kind=
    case $1:$2 in
@VALUES@
    *) return 1 ;;
    esac
}

_hermes_supervise_complete() {
    case $kind in
    PATH | FILE | ICON) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    CMD | COMMAND) mapfile -t COMPREPLY < <(compgen -c -- "$cur") ;;
    SESSION)
        local id # chosen by an agent: compgen -W would execute $(…) in it
        while IFS= read -r id; do
            [[ $id == "$cur"* ]] && COMPREPLY+=("$(printf %q "$id")")
        done < <("${COMP_WORDS[0]}" completions sessions 2>/dev/null) ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$kind" -- "$cur") ;;
    esac
}

# The agent's own command line, which starts at this word.
_hermes_supervise_agent() {
    compopt -o default -o bashdefault
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif (($1 == COMP_CWORD)); then
        kind=COMMAND _hermes_supervise_complete
    fi
}

_hermes_supervise() {
    local cur=${COMP_WORDS[COMP_CWORD]} place= i=1 word kind flags words takes
    COMPREPLY=()
    if ((COMP_CWORD > 1)) && [[ " @COMMANDS@ " == *" ${COMP_WORDS[1]} "* ]]; then
        place=${COMP_WORDS[1]} i=2
    fi
    _hermes_supervise_place "$place"
    while ((i < COMP_CWORD)); do
        word=${COMP_WORDS[i]}
        if [[ $word == -- ]]; then
            [[ $takes == COMMAND ]] && _hermes_supervise_agent $((i + 1))
            return
        elif _hermes_supervise_value "$place" "$word"; then
            # `--option=value` is three words.
            [[ ${COMP_WORDS[i + 1]} == = ]] && ((i++))
            ((i == COMP_CWORD)) && cur=
            if ((i + 1 >= COMP_CWORD)); then
                _hermes_supervise_complete
                return
            fi
            ((i += 2))
        elif [[ $word == -* ]]; then
            ((i++))
        elif [[ -n $words && " $words " == *" $word "* ]]; then
            place="$place $word"
            _hermes_supervise_place "$place"
            ((i++))
        elif [[ $takes == COMMAND ]]; then
            _hermes_supervise_agent "$i"
            return
        else
            takes=
            ((i++))
        fi
    done
    if [[ $cur == -* ]]; then
        kind=$flags
    elif [[ -z $place ]]; then
        ((COMP_CWORD == 1)) && mapfile -t COMPREPLY < <(compgen -W "@COMMANDS@" -- "$cur")
        # Programs only if none of our commands matches; after `--` there are only programs.
        ((${#COMPREPLY[@]})) || _hermes_supervise_agent "$i"
        return
    elif [[ -n $words ]]; then
        if [[ $takes == SESSION ]]; then
            kind=SESSION
            _hermes_supervise_complete
            mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "$words" -- "$cur")
            return
        fi
        kind=$words
    elif [[ $takes == COMMAND ]]; then
        _hermes_supervise_agent "$i"
        return
    else
        kind=$takes
        [[ $kind == SESSION ]] || return
    fi
    _hermes_supervise_complete
}

complete -F _hermes_supervise hermes-supervise
"""


def render(flags: list[Flag], commands: list[Command]) -> str:
    places: list[str] = []
    values: list[str] = []
    _add_place("", Command("", "", "", flags, "COMMAND"), places, values)
    for command in commands:
        _add_place(command.name, command, places, values)
    return (
        _TEMPLATE.replace("@PLACES@", "\n".join(places))
        .replace("@VALUES@", "\n".join(values))
        .replace("@COMMANDS@", " ".join(command.name for command in commands))
    )


def _add_place(name: str, command: Command, places: list[str], values: list[str]) -> None:
    flags = " ".join(name for flag in command.flags for name in flag.names)
    words = " ".join([below.name for below in command.below] + command.choices)
    takes = "" if command.choices else known_kind(command.takes)
    places.append(f"    '{name}') flags='{flags}' words='{words}' takes='{takes}' ;;")
    for flag in command.flags:
        if flag.value:
            patterns = " | ".join(f"'{name}:{word}'" for word in flag.names)
            kind = " ".join(flag.choices) or known_kind(flag.value)
            values.append(f"    {patterns}) kind='{kind}' ;;")
    for below in command.below:
        _add_place(f"{name} {below.name}", below, places, values)
