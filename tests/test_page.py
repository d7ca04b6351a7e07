"""The page that `report` writes: whole, harmless, self-contained, and fit for sharing if asked."""

from __future__ import annotations

import json
import os
import re
import time
from html.parser import HTMLParser
from typing import Any

import pytest
from hermes_supervise.supervisor.commands import page, redact
from hermes_supervise.supervisor.recovery.reconcile import Counts
from hermes_supervise.supervisor.recovery.report import Settled
from support import World
from test_desk import in_terminal

HOSTILE = (
    "</pre></style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[2J\u202e"
)
SECRETS = ("hunter2", "alice", "db.example.org", "/home/alice")
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Checked(HTMLParser):
    """Reads a page and complains of what should not be in it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert tag not in ("script", "img", "link", "iframe", "object", "embed", "base", "form")
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "href", "srcset", "xlink:href", "action", "style")
            assert "javascript:" not in (value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def checked(text: str) -> Checked:
    assert not re.search(r"url\(|@import|https?:", text), "nothing is fetched"
    return Checked(text)


SOURCE = """
import json, subprocess
chat = session({name!r}, model="gpt-x")
chat.title({title!r})
chat.message("user", {said!r})
function = {{"name": "terminal", "arguments": json.dumps({{"command": {said!r}}})}}
chat.message("assistant", {said!r},
             tool_calls=[{{"id": "c1", "type": "function", "function": function}}])
with chat.tool("terminal", call="c1") as tool:
    tool.result = {said!r}
chat.delta({said!r}, reasoning=True)
chat.delta({said!r})
ready()
forever()
"""


def died(world: World, name: str, said: str, *options: str) -> None:
    agent = world.supervise(SOURCE.format(name=name, title=said[:60], said=said), *options)
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()


def test_the_page_is_whole_says_it_all_and_needs_nothing_from_elsewhere(world: World) -> None:
    died(world, "chat", "a plain question", *world.hook)
    answer = world.call("report", "chat")
    assert (answer.returncode, answer.stderr) == (0, "")
    seen = checked(answer.stdout)
    assert {"svg", "ol", "dl", "article", "time"} <= seen.seen
    for part in ("killed by SIGKILL", "replying for", "a plain question", "4 messages", "gpt-x"):
        assert part in seen.text, part
    assert "prefers-color-scheme:dark" in answer.stdout
    assert "@media print" in answer.stdout
    assert "default-src 'none'" in answer.stdout


def test_no_text_of_an_agent_becomes_a_part_of_the_page(world: World) -> None:
    died(world, HOSTILE, HOSTILE)
    for options in ((), ("--redact",)):
        answer = world.call("report", HOSTILE, *options)
        assert answer.returncode == 0, answer.stderr
        seen = checked(answer.stdout)
        assert not set(answer.stdout) & {"\x1b", "\u202e"}
        assert ("alert(1)" in seen.text) == (not options)


def test_a_redacted_page_keeps_the_structure_and_not_a_word(world: World) -> None:
    said = f"my password is {SECRETS[0]}, write to {SECRETS[1]} at {SECRETS[2]} in {SECRETS[3]}/x"
    died(world, "20261116_alice", said, "--on-session-end", f"/home/alice/{SECRETS[0]}")
    whole = world.call("report", "20261116_alice").stdout
    shared = world.call("report", "20261116_alice", "--redact").stdout
    for secret in (*SECRETS, str(world.folder), os.uname().nodename):
        assert secret in whole or secret == os.uname().nodename
        assert secret not in shared, secret
    seen = checked(shared)
    assert f"[text: {len(said)} characters]" in seen.text
    assert "terminal" in seen.text, "the tool's name is what it is read for"
    assert shared.count("<article") == whole.count("<article")
    times = re.compile(r'<li class="\w+"><time datetime="([^"]+)"')
    assert times.findall(shared) == times.findall(whole) != []


def test_the_page_goes_into_a_file_that_is_the_owners_alone(world: World) -> None:
    died(world, "chat", "x")
    answer = world.call("report", "chat", "-o", "page.html")
    assert (answer.returncode, answer.stdout) == (0, "")
    path = world.folder / "page.html"
    assert str(path) in answer.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    checked(path.read_text())
    code, raw = in_terminal(world, 80, "report", "chat")
    assert (code, "<html" in raw) == (1, False), "a terminal is no place for it"
    assert "hermes-supervise report chat -o death.html" in raw
    again = world.call("report", "nobody")
    assert (again.returncode, again.stdout) == (1, "")
    assert "no report of a session nobody" in again.stderr


# -- whatever is in a report -------------------------------------------------------------------


def settled(**more: Any) -> Settled:
    at = time.time()
    known: dict[str, Any] = {
        "session": "s", "run": "r", "stream": "0" * 32, "db": "/x", "outcome": "interrupted",
        "cause": "killed by SIGKILL", "died_at": at,
    }  # fmt: skip
    return Settled(**{**known, **more})


@pytest.mark.parametrize(
    "one",
    [
        settled(),
        settled(died_at=0.0, cause="ended, how is not known"),
        settled(outcome="exited", recovered=Counts(messages=3)),
        settled(launched=time.time() + 3600, began=1.0, doing="calling"),
        settled(
            hooks=[{"command": HOSTILE, "outcome": HOSTILE, "attempt": 2, "output": "", "at": 5.0}],
            problems=[HOSTILE],
            open_calls=[{"name": HOSTILE, "call": HOSTILE, "since": None, "started": True}],
            memory={"last": 1, "last_at": 1.0, "group_limit": 5},
        ),
    ],
    ids=["bare", "unseen", "clean", "clock set back", "hostile"],
)
def test_a_page_can_be_made_of_whatever_little_is_known(one: Settled) -> None:
    rows = [
        {"id": 1, "role": HOSTILE, "content": HOSTILE, "timestamp": "yesterday"},
        {"id": 2, "role": "assistant", "content": None, "tool_calls": "[{]", "timestamp": None},
        {"id": 3, "role": "assistant", "tool_calls": json.dumps([{"id": 1}]), "timestamp": 1e300},
    ]
    for messages in ([], rows):
        seen = checked(page.page([one], None, messages))
        assert one.outcome in seen.text
        told, hidden = redact.transcript(None, messages, one)
        checked(page.page([redact.settled(one)], told, hidden, redacted=True))
