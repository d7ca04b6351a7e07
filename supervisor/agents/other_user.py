"""Commands that run the agent as another user: only our own user's processes may connect (G8), so
this is said before the agent starts.

Never looks at a process: the command line tells it, or nobody knows it yet.
"""

from __future__ import annotations

import os

from .command_line import program_of

# By program: the options that name the user, the other options with a value, and who it is if
# nobody is named. A user without an option is the first word that is no option.
_BY_OPTION: dict[str, tuple[tuple[str, ...], tuple[str, ...], str | None]] = {
    "chpst": (("-u",), ("-U", "-b", "-e", "-/", "-n", "-l", "-L", "-m", "-d", "-o", "-p"), None),
    "doas": (("-u",), ("-C", "-a"), "root"),
    "pkexec": (("--user",), (), "root"),
    "runuser": (("-u", "--user"), ("-g", "-G", "-w", "--group", "--supp-group"), None),
    "setpriv": (("--reuid", "--euid"), ("--regid", "--rgid", "--egid", "--groups"), None),
    "sudo": (
        ("-u", "--user"),
        ("-C", "-D", "-g", "-h", "-p", "-R", "-r", "-T", "-t", "-U", "--chdir", "--group", "--host",
         "--prompt", "--chroot", "--role", "--command-timeout", "--type", "--close-from"),
        "root",
    ),
}  # fmt: skip
_BY_WORD: dict[str, tuple[tuple[str, ...], str | None]] = {
    "gosu": ((), None),
    "runuser": (("-c", "--command", "-s", "--shell", "-g", "-G", "-w"), "root"),
    "s6-setuidgid": ((), None),
    "setuidgid": ((), None),
    "su": (("-c", "--command", "-s", "--shell", "-g", "--group", "-G", "-w"), "root"),
    "su-exec": ((), None),
}


def becomes(command: list[str]) -> tuple[str, str] | None:
    """The program that runs the agent as another user than we are, and that user's name."""
    found = program_of(command)
    if found is None:
        return None
    program, words = found[1], command[found[0] + 1 :]
    user = None
    if program in _BY_OPTION:
        named, valued, user = _BY_OPTION[program]
        user = _named(words, named, valued) or user
    if user is None and program in _BY_WORD:
        valued, user = _BY_WORD[program]
        user = _first(words, valued) or user
    if user is None or _uid_of(user) == os.getuid():
        return None
    return program, user.partition(":")[0]


def why(program: str, user: str) -> str:
    return (
        f"nothing that the agent says will be captured: {program} runs it as user {user}, and only "
        f"your own processes are captured; start hermes-supervise as that user, behind {program}"
    )


def seen(uid: int) -> str:
    """What was seen while the agent ran, or is seen now."""
    return (
        f"it runs as user {_name_of(uid)}, and only your own processes are captured; start "
        "hermes-supervise as that user"
    )


def after(uid: int) -> str:
    """The same when it is over."""
    return (
        f"what the agent said as user {_name_of(uid)} was not captured: only your own processes "
        "are; start hermes-supervise as that user"
    )


def _named(words: list[str], named: tuple[str, ...], valued: tuple[str, ...]) -> str | None:
    """The value of the option that names the user."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option in named:
            return value if equals else rest[0] if rest else None
        if option in valued and not equals:
            del rest[:1]
        elif not word.startswith("--"):  # several in one word: -nu root, -uroot
            letters, found, attached = word[1:].partition("u")
            if found and "-u" in named and letters.isalpha() | (not letters):
                return attached or (rest[0] if rest else None)
    return None


def _first(words: list[str], valued: tuple[str, ...]) -> str | None:
    """The first word that is neither an option nor the value of one."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            return word
        if word in valued:
            del rest[:1]
    return None


def _uid_of(user: str) -> int | None:
    """None: there is no such user, and the program will say so."""
    import pwd  # only for a command that changes the user

    user = user.partition(":")[0].removeprefix("#")
    try:
        return int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
    except KeyError:
        return os.getuid()


def _name_of(uid: int) -> str:
    import pwd  # the same

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
