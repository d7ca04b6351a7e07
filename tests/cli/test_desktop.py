"""Launchers: written so that every desktop reads them as they were meant, and taken away without
a trace; and what is said where there is no terminal to say it on.

The rules of desktop entries are checked by `desktop-file-validate` (desktop-file-utils) where it is
installed, and launched by `gio` (GLib) where that is; else only by what this file knows of them.
"""

from __future__ import annotations

import json
import os
import plistlib
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hermes_supervise.supervisor.desktop import entry, files, mac, systemd
from hermes_supervise.supervisor.desktop.launcher import (
    CHANGED,
    FOREIGN,
    OURS,
    CannotWrite,
    Launcher,
    signed,
    state_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support import World, until

NASTY = ["a b", 'say "hi"', "it's", "100%", "%f", "%%", "$HOME", "`x`", "back\\slash", "\\", "",
         "grüße 日本", "tab\there", "new\nline", "a;b&c|d", "~", "#x", "*?", "-n", "=", "\\n",
         "'"]  # fmt: skip
THEIRS = """\
# A comment
[Desktop Entry]
Type=Application
Name=Agent
Name[de]=Agent auf Deutsch
GenericName=Assistant
Icon=agent-icon
Exec={program} --open %U
Terminal=false
DBusActivatable=true
MimeType=x-scheme-handler/agent;
Categories=Utility;
StartupWMClass=Agent
Actions=new;

[Desktop Action new]
Name=New window
Exec={program} --new
"""
WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))


@pytest.fixture
def desk(world: World) -> World:
    """A world with a desktop: folders for launchers, a program, and one that shows notices."""
    for name, folder in (("DATA_HOME", "data"), ("CONFIG_HOME", "config"), ("DATA_DIRS", "system")):
        world.env[f"XDG_{name}"] = str(world.folder / folder)
    tools = world.folder / "tools"
    tools.mkdir()
    world.env["PATH"] = f"{tools}:{world.env['PATH']}"
    program(world, "notify-send", "import json; a = sys.argv[1:]\n"
            "open(os.environ['HOME'] + '/shown', 'a').write(json.dumps(a) + chr(10))")  # fmt: skip
    program(world, "agent", "print(sys.argv[1:])")
    return world


def program(world: World, name: str, source: str) -> Path:
    path = world.folder / "tools" / name
    path.write_text(f"#!{sys.executable}\nimport os, sys\n{source}\n")
    path.chmod(0o755)
    return path


def shown(world: World) -> list[list[str]]:
    """What was shown to the user: title and text of each."""
    path = world.folder / "shown"
    return (
        [json.loads(line)[-2:] for line in path.read_text().splitlines()] if path.exists() else []
    )


def launchers(world: World) -> dict[str, str]:
    return {p.name: p.read_text() for p in world.folder.glob("data/applications/*")}


def theirs(world: World, folder: str = "system", text: str = THEIRS) -> Path:
    path = world.folder / folder / "applications" / "agent.desktop"
    path.parent.mkdir(parents=True)
    path.write_text(text.format(program=world.folder / "tools" / "agent"))
    return path


def install(world: World, *arguments: str) -> str:
    done = world.call("desktop", "install", *arguments)
    assert done.returncode == 0, done.stderr
    for path in [
        *world.folder.glob("data/applications/*"),
        *world.folder.glob("config/autostart/*"),
    ]:
        prove_valid(path)
    return done.stdout


def prove_valid(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if state_of(text) == FOREIGN:
        return  # not ours to judge
    assert text.startswith("[Desktop Entry]\n")
    for line in text.splitlines():
        assert re.fullmatch(r"(\[[^\[\]]+\]|[A-Za-z0-9-]+(\[[^]]+\])?=.*|)", line), line
    if validate := shutil.which("desktop-file-validate"):
        done = subprocess.run([validate, path], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stdout, done.stdout


# -- what is written ---------------------------------------------------------------------------


@given(WORDS)
def test_any_arguments_are_read_back_as_they_were(words: list[str]) -> None:
    value = entry.quoted(words)
    assert "\n" not in value and "\r" not in value
    assert entry.arguments(value) == words
    # As the specification has it: reserved characters stand in quotes, and percent signs are two.
    outside = re.sub(r'"(?:[^"\\]|\\\\(?:\\\\|.)|\\[ntr])*"', "", value)
    assert not set("\"'><~|&;$*?#()`\\") & set(outside)
    assert value.replace("%%", "").count("%") == 0


def test_nasty_arguments_reach_the_agent_from_a_launcher(desk: World) -> None:
    install(desk, "--name", 'Grüße "x" \\ 100% $y', "--", "agent", *NASTY)
    [text] = launchers(desk).values()
    found = entry.parse("x", "x", text)
    assert found.get("Name") == 'Grüße "x" \\ 100% $y'
    command = entry.arguments(found.raw("Exec") or "")
    done = subprocess.run(command, env=desk.env, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{NASTY}\n", done.stderr


@pytest.mark.skipif(not shutil.which("gio"), reason="no desktop library is here to launch it")
def test_glib_launches_it_as_it_was_meant(desk: World) -> None:
    program(desk, "agent", "open(os.environ['HOME'] + '/got', 'w').write(repr(sys.argv[1:]))")
    install(desk, "--no-terminal", "--", "agent", *NASTY)
    [path] = desk.folder.glob("data/applications/*")
    subprocess.run(["gio", "launch", path], env=desk.env, check=True, timeout=60)
    got = desk.folder / "got"
    assert until(lambda: got.exists() and got.read_text()) == repr(NASTY)


def test_a_file_that_is_named_from_this_folder_is_found_from_the_menu(desk: World) -> None:
    (desk.folder / "my agent.py").touch()
    for options, expected in (((), ""), (("my agent.py",), str(desk.folder))):
        install(desk, "--force", "--", "agent", *options)
        [text] = launchers(desk).values()
        assert (entry.parse("x", "x", text).get("Path") or "") == expected
        unit = desk.call("desktop", "systemd", "--", "agent", *options).stdout
        assert (f"\nWorkingDirectory={desk.folder}\n" in unit) == bool(expected)


def test_a_launcher_that_is_wrapped_keeps_all_but_its_command(desk: World) -> None:
    path = theirs(desk)
    before = path.read_bytes()
    printed = install(desk, "--", "agent.desktop")
    assert str(path) in printed
    assert list(launchers(desk)) == ["agent.desktop"], "the same id: it hides the system's"
    made = entry.parse("x", "x", launchers(desk)["agent.desktop"])
    kept = ("Name", "Name[de]", "GenericName", "Icon", "Terminal", "MimeType", "StartupWMClass")
    original = entry.parse("x", "x", path.read_text())
    assert [made.raw(key) for key in kept] == [original.raw(key) for key in kept]
    assert made.raw("DBusActivatable") is None, "that would start it past us"
    assert (made.raw("Exec") or "").endswith(f" --notify -- {original.raw('Exec')}")
    assert "--notify --" in (made.raw("Exec", "Desktop Action new") or "")
    assert path.read_bytes() == before
    assert desk.call("desktop", "remove").returncode == 0
    assert launchers(desk) == {} and path.read_bytes() == before


@pytest.mark.parametrize("named", ["command", "path"])
def test_a_launcher_is_found_by_what_it_starts_or_by_its_path(desk: World, named: str) -> None:
    path = theirs(desk)
    install(desk, "--", *(["agent", "--open"] if named == "command" else [str(path)]))
    assert list(launchers(desk)) == ["agent.desktop"]
    install(desk, "--", "agent", "--other")
    made = launchers(desk).pop("hermes-supervise-agent.desktop")
    assert "Icon=agent-icon" not in made, "that is another command"


def test_another_name_and_icon_are_those_that_were_asked_for(desk: World) -> None:
    theirs(desk)
    install(desk, "--name", "Mine", "--icon", "star", "--terminal", "--", "agent.desktop")
    made = entry.parse("x", "x", launchers(desk)["hermes-supervise-mine.desktop"])
    assert (made.get("Name"), made.get("Icon"), made.raw("Name[de]")) == ("Mine", "star", None)
    assert made.says("Terminal")


def test_the_users_own_launcher_is_never_written_to(desk: World) -> None:
    path = theirs(desk, "data")
    before = path.read_bytes()
    assert "--name" in install(desk, "--", "agent.desktop")
    assert sorted(launchers(desk)) == ["agent.desktop", "hermes-supervise-agent.desktop"]
    (desk.folder / "data/applications/hermes-supervise-mine.desktop").write_text("mine")
    refused = desk.call("desktop", "install", "--force", "--name", "Mine", "--", "agent")
    assert refused.returncode == 125 and "hermes-supervise-mine.desktop" in refused.stderr
    desk.call("desktop", "remove", "--force")
    assert sorted(launchers(desk)) == ["agent.desktop", "hermes-supervise-mine.desktop"]
    assert path.read_bytes() == before


def test_what_was_changed_since_is_named_and_left_unless_forced(desk: World) -> None:
    install(desk, "--autostart-recover", "--", "agent")
    [path] = desk.folder.glob("data/applications/*")
    path.write_text(path.read_text().replace("Terminal=true", "Terminal=false"))
    [result] = json.loads(desk.call("desktop", "list", "--json").stdout)["launchers"]
    expected = {"path": str(path), "name": "agent", "changed": True, "recovers_at_login": True,
                "command": str(desk.folder / "tools" / "agent")}  # fmt: skip
    assert result == expected
    listed = desk.call("desktop", "list").stdout
    assert expected["command"] in listed and str(path) in listed
    refused = desk.call("desktop", "install", "--", "agent")
    assert refused.returncode == 125 and str(path) in refused.stderr
    left = desk.call("desktop", "remove")
    assert left.returncode == 1 and str(path) in left.stdout and path.exists()
    login = desk.folder / "config/autostart/hermes-supervise-recover.desktop"
    assert login.exists(), "a launcher is left that asked for it"
    assert desk.call("desktop", "remove", "--force").returncode == 0
    assert not path.exists() and not login.exists()


def test_remove_takes_away_what_that_launcher_needed_and_no_other(desk: World) -> None:
    install(desk, "--name", "A", "--autostart-recover", "--", "agent")
    install(desk, "--name", "B", "--autostart-recover", "--", "agent", "b")
    install(desk, "--name", "B", "--autostart-recover", "--", "agent", "b")  # again: the same
    install(desk, "--name", "C", "--", "agent", "c")
    assert desk.call("desktop", "remove", "--name", "A").returncode == 0
    login = desk.folder / "config/autostart/hermes-supervise-recover.desktop"
    assert login.exists() and sorted(launchers(desk)) == [
        "hermes-supervise-b.desktop",
        "hermes-supervise-c.desktop",
    ]
    assert desk.call("desktop", "remove", "--name", "B").returncode == 0
    assert not login.exists() and list(launchers(desk)) == ["hermes-supervise-c.desktop"]
    assert desk.call("desktop", "remove", "--name", "B").returncode == 1, "there is none"


def test_what_cannot_be_launched_or_written_is_refused(desk: World) -> None:
    for arguments in (["--", "no-such-agent"], ["--", "nothing.desktop"], [],
                      ["--icon", "/no/such.png", "--", "agent"], ["--name", "a\nb", "--", "agent"],
                      ["--", "agent", os.fsdecode(b"\xff")]):  # fmt: skip
        refused = desk.call("desktop", "install", *arguments)
        status = 125 if arguments else 2
        assert (refused.returncode, refused.stdout) == (status, ""), arguments
        assert refused.stderr.startswith("hermes-supervise: ") and "Traceback" not in refused.stderr
    assert launchers(desk) == {}


@pytest.mark.parametrize("variable", ["XDG_DATA_HOME", "XDG_CONFIG_HOME"])
def test_a_folder_that_cannot_be_written_is_named_with_what_moves_it(
    desk: World, variable: str
) -> None:
    folder = "/proc/nowhere"  # where not even root can make a folder
    desk.env[variable] = folder
    done = desk.call("desktop", "install", "--autostart-recover", "--", "sh")
    assert done.returncode == 125
    assert folder in done.stderr and f"{variable} moves it" in done.stderr
    assert "Errno" not in done.stderr


def test_the_digest_distinguishes_our_files_from_edited_and_foreign_ones() -> None:
    text = signed("a\n# X-HermesSupervise-Digest=\nb\n")
    assert state_of(text) == OURS
    assert state_of(text.replace("b", "c")) == CHANGED
    assert state_of("a\nb\n") == FOREIGN


# -- without a terminal ------------------------------------------------------------------------


def launch(world: World) -> subprocess.CompletedProcess[str]:
    """What a desktop does with the one launcher there is: no terminal, no input, no reader."""
    [path] = world.folder.glob("data/applications/*")
    command = entry.arguments(entry.parse("x", "x", path.read_text()).raw("Exec") or "")
    null = subprocess.DEVNULL
    return subprocess.run(
        command, env=world.env, cwd=world.folder, stdin=null, stdout=null, stderr=null,
        start_new_session=True, timeout=60, text=True,
    )  # fmt: skip


def test_a_crash_without_a_terminal_is_shown_on_the_desktop_and_logged(desk: World) -> None:
    source = "with session('<chat>') as c:\n    c.message('user', 'secret')\n    c.delta('Hel')\n"
    script = desk.script(source + "    os.kill(os.getpid(), signal.SIGKILL)\n")
    install(desk, "--no-terminal", "--", sys.executable, script)
    assert launch(desk).returncode == -signal.SIGKILL
    [[title, text]] = shown(desk)
    assert "killed by SIGKILL" in title
    assert "session &lt;chat&gt;: recovered 2 messages" in text, "servers take it for markup"
    log = desk.state / "hermes-supervise" / "notices.log"
    assert "session <chat>: recovered 2 messages" in log.read_text()
    assert "secret" not in log.read_text() and "Hel" not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_launcher_whose_agent_is_gone_says_so(desk: World) -> None:
    install(desk, "--no-terminal", "--", "agent")
    (desk.folder / "tools" / "agent").unlink()
    assert launch(desk).returncode == 127
    [[title, _]] = shown(desk)
    assert title.endswith("agent: not found")


def test_nothing_is_said_where_nothing_happened_and_no_notifier_is_no_trouble(desk: World) -> None:
    install(desk, "--no-terminal", "--", "agent")
    assert launch(desk).returncode == 0 and shown(desk) == []
    program(desk, "agent", "os.kill(os.getpid(), 9)")
    desk.env["PATH"] = str(desk.folder)
    assert launch(desk).returncode == -signal.SIGKILL


def test_the_log_is_bounded(desk: World) -> None:
    folder = desk.state / "hermes-supervise"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "notices.log").write_text("x" * 300_000)
    desk.call("--notify", "--", "no-such-agent")
    assert not (folder / "notices.log").exists() and (folder / "notices.log.old").exists()


def test_leftovers_are_finished_at_login_with_a_notification(desk: World) -> None:
    install(desk, "--autostart-recover", "--", "agent")
    login = (desk.folder / "config/autostart/hermes-supervise-recover.desktop").read_text()
    command = entry.arguments(entry.parse("x", "x", login).raw("Exec") or "")

    def log_in() -> None:
        subprocess.run(command, env=desk.env, check=True, timeout=60, stdout=subprocess.DEVNULL)

    log_in()
    assert shown(desk) == [], "there was nothing to tell"
    run = desk.supervise("chat = session('chat')\nchat.message('user', 'x')\nready()\nforever()")
    run.wait_for("ready")
    run.abandon()
    log_in()
    [[title, text]] = shown(desk)
    assert title.startswith("the agent was interrupted") and "session chat: recovered 1" in text
    assert [row["content"] for row in desk.messages("chat")] == ["x"]


# -- the same elsewhere ------------------------------------------------------------------------


def mac_launcher(tmp_path: Path) -> Launcher:
    command = [sys.executable, "-c", "import sys, os; print(sys.argv[1:], os.getcwd())", *NASTY]
    return Launcher("An agent/x", ["/usr/bin/env"], command, folder=str(tmp_path), autostart=True)


def test_on_a_mac_the_finder_runs_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "it's here").mkdir()
    launcher = mac_launcher(tmp_path / "it's here")
    where = files.place("darwin")
    made = files.files(launcher, where)
    files.write(made, force=False)
    path = tmp_path / "home/Applications/An agent-x.command"
    assert path.stat().st_mode & 0o777 == 0o755 and state_of(path.read_text()) == OURS
    done = subprocess.run([path], capture_output=True, text=True, check=True)
    assert done.stdout == f"{NASTY} {tmp_path / chr(105)}t's here\n"
    plist = tmp_path / f"home/Library/LaunchAgents/{mac.LABEL}.plist"
    text = plistlib.loads(plist.read_bytes())
    assert text["ProgramArguments"] == ["/usr/bin/env", "recover", "--notify"]
    assert text["RunAtLoad"] is True and text["Label"] == mac.LABEL
    [found] = files.installed(where)
    assert (found.name, found.autostart) == ("An agent-x", True)
    assert files.remove(where, None, force=False) == ([str(path), str(plist)], [])


@given(WORDS)
@settings(max_examples=50)
def test_a_plist_holds_any_words_or_they_are_refused(words: list[str]) -> None:
    try:
        text = mac.login_agent(words)
    except CannotWrite:
        return  # control characters, which XML cannot hold
    assert plistlib.loads(text.encode())["ProgramArguments"][: len(words)] == [
        re.sub("\r\n?", "\n", word) for word in words
    ]


def test_a_unit_is_what_systemd_takes(desk: World) -> None:
    done = desk.call("desktop", "systemd", "--name", "100% mine", "--", "agent", *NASTY)
    assert done.returncode == 0, done.stderr
    assert launchers(desk) == {}, "it is printed, and nothing is written"
    assert "Description=100%% mine, supervised\n" in done.stdout
    assert systemd.quoted('a "b" $c %d \\e;') == '"a \\"b\\" $$c %%d \\\\e;"'
    if analyze := shutil.which("systemd-analyze"):
        unit = desk.folder / "agent.service"
        unit.write_text(done.stdout)
        verified = subprocess.run(
            [analyze, "--user", "verify", unit], env=desk.env, capture_output=True, text=True
        )
        assert verified.returncode == 0 and "agent.service:" not in verified.stderr, verified.stderr
