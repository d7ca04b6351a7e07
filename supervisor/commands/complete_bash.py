"""pure: how bash completes our command lines.

A place is where the cursor may be: nothing for a run of an agent, else one of our commands, as
"ps" or "hooks retry".
"""

from __future__ import annotations

from .surface import Command, Flag, known_kind

_TEMPLATE = r"""# Completion for bash, made by `hermes-supervise completions bash`.

# Options of a place; then the words that it knows, and what else it takes.
_hermes_supervise_place() {
    flags= words= takes=
    case $1 in
@PLACES@
    esac
}

# Sets `kind`, what the value of an option is. Fails if it has none.
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
        local id # an agent has made it up: compgen -W would run what is in it
        while IFS= read -r id; do
            [[ $id == "$cur"* ]] && COMPREPLY+=("$(printf %q "$id")")
        done < <("${COMP_WORDS[0]}" completions sessions 2>/dev/null) ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$kind" -- "$cur") ;;
    esac
}

# The agent's own command line, which begins at this word.
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
        # All programs there are would bury ours; behind `--` there are only they.
        ((${#COMPREPLY[@]})) || _hermes_supervise_agent "$i"
        return
    elif [[ -n $words ]]; then
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
    _place("", Command("", "", "", flags, "COMMAND"), places, values)
    for one in commands:
        _place(one.name, one, places, values)
    return (
        _TEMPLATE.replace("@PLACES@", "\n".join(places))
        .replace("@VALUES@", "\n".join(values))
        .replace("@COMMANDS@", " ".join(one.name for one in commands))
    )


def _place(name: str, one: Command, places: list[str], values: list[str]) -> None:
    flags = " ".join(name for flag in one.flags for name in flag.names)
    words = " ".join([below.name for below in one.below] + one.choices)
    takes = "" if one.choices else known_kind(one.takes)
    places.append(f"    '{name}') flags='{flags}' words='{words}' takes='{takes}' ;;")
    for flag in one.flags:
        if flag.value:
            known = " | ".join(f"'{name}:{word}'" for word in flag.names)
            values.append(
                f"    {known}) kind='{' '.join(flag.choices) or known_kind(flag.value)}' ;;"
            )
    for below in one.below:
        _place(f"{name} {below.name}", below, places, values)
