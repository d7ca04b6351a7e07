"""The page that `report` writes: whole, harmless, self-contained, and fit for sharing if asked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from typing import Any

import pytest
from hermes_supervise.supervisor.cli.fleet import page as fleet_page
from hermes_supervise.supervisor.cli.output import page, redact, story
from hermes_supervise.supervisor.process.cause import Cause
from hermes_supervise.supervisor.recovery.report import SessionReport
from hermes_supervise.supervisor.statedb.reconcile import Counts
from support import World
from test_commands import in_terminal

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
    assert (code, "<html" in raw) == (2, False), "a terminal is no place for it"
    assert "hermes-supervise report chat -o death.html" in raw
    again = world.call("report", "nobody")
    assert (again.returncode, again.stdout) == (2, "")
    assert "nobody" in again.stderr


# -- whatever is in a report -------------------------------------------------------------------


def settled(**more: Any) -> SessionReport:
    at = time.time()
    known: dict[str, Any] = {
        "session": "s", "run": "r", "stream": "0" * 32, "db": "/x", "outcome": "interrupted",
        "cause": "killed by SIGKILL", "died_at": at,
    }  # fmt: skip
    return SessionReport(**{**known, **more})


@pytest.mark.parametrize(
    "report",
    [
        settled(),
        settled(died_at=0.0, cause=str(Cause())),
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
def test_a_page_can_be_made_of_whatever_little_is_known(report: SessionReport) -> None:
    rows = [
        {"id": 1, "role": HOSTILE, "content": HOSTILE, "timestamp": "yesterday"},
        {"id": 2, "role": "assistant", "content": None, "tool_calls": "[{]", "timestamp": None},
        {"id": 3, "role": "assistant", "tool_calls": json.dumps([{"id": 1}]), "timestamp": 1e300},
    ]
    for messages in ([], rows):
        seen = checked(page.page([report], None, messages))
        assert report.outcome in seen.text
        shown, hidden = redact.transcript(None, messages, report)
        checked(page.page([redact.report(report)], shown, hidden, redacted=True))


def test_a_redacted_page_hides_the_options_of_the_resume_command() -> None:
    report = settled(resume="hermes --resume s", resume_full="hermes -m my-model --resume s")
    assert "my-model" in page.page([report], None, [])
    assert "my-model" not in page.page([redact.report(report)], None, [], redacted=True)


def test_the_last_words_are_not_the_answer_to_what_the_agent_asked_itself() -> None:
    """A closed window makes Hermes ask its model "received signal 1"; nobody sees the answer."""
    said = [("user", "hello"), ("assistant", "some words"), ("user", "received signal 1"),
            ("assistant", "unseen")]  # fmt: skip
    rows = [
        {"id": i, "role": role, "content": text, "timestamp": 10.0 + i}
        for i, (role, text) in enumerate(said)
    ]
    report = settled(agent="hermes 0.19.0", died_at=20.0)
    assert [text for _, text in story.last_words(report, rows)] == ["hello", "some words"]
    replies = [event for event in story.timeline(report, rows) if event.kind == "reply"]
    assert [event.at for event in replies] == [11.0]
    later = [*rows, {"id": 9, "role": "user", "content": "again", "timestamp": 15.0}]
    assert [text for _, text in story.last_words(report, later)] == ["some words", "again"]


def test_a_reply_to_an_earlier_question_is_not_shown_as_the_answer_to_the_last() -> None:
    rows = [
        {"id": i, "role": role, "content": text, "timestamp": 10.0 + i}
        for i, (role, text) in enumerate([("user", "one"), ("assistant", "1"), ("user", "two")])
    ]
    [earlier, question] = story.last_words(settled(died_at=20.0), rows)
    assert (earlier[1], question[1]) == ("1", "two"), "in order of time"
    rows.append({"id": 9, "role": "assistant", "content": "2", "timestamp": 15.0})
    [asked, reply] = story.last_words(settled(died_at=20.0), rows)
    assert (asked[1], reply[1]) == ("two", "2")
    assert reply[0] != earlier[0], "and called something else"


def test_a_label_in_the_drawing_does_not_cross_the_mark_of_the_death() -> None:
    call = {"id": "c", "function": {"name": "read_file", "arguments": "{}"}}
    rows = [
        {"id": 1, "role": "user", "content": "x", "timestamp": 10.1},
        {"id": 2, "role": "assistant", "content": "", "tool_calls": json.dumps([call]),
         "timestamp": 10.2},
        {"id": 3, "role": "tool", "content": "x", "tool_call_id": "c", "timestamp": 10.7},
    ]  # fmt: skip
    hooks = [{"command": "true", "outcome": "ok", "at": 11.4 + i / 100} for i in range(2)]
    report = settled(launched=10.0, began=10.05, died_at=11.3, doing="replying", doing_since=10.7,
                     settled_at=11.35, hooks=hooks)  # fmt: skip
    shown = page.page([report], None, rows)
    for drawing in re.findall(r"<svg.*?</svg>", shown):
        death = float(re.findall(r'<g class="death"><line x1="([\d.]+)"', drawing)[0])
        [label] = re.findall(
            r'<text x="([\d.]+)" y="\d+"( text-anchor="end")?>(tool [^<]*)', drawing
        )
        left, end = float(label[0]), bool(label[1])
        assert label[2] == "tool read_file" and (left if end else left + 6.7 * 14) < death


def test_an_agent_that_is_known_by_a_file_alone_is_called_the_agent() -> None:
    shown = checked(page.page([settled(agent="a transcript", launched=1.0)], None, [])).text
    assert "launched the agent" in shown
    assert "tracked through its transcript" in shown


def test_only_the_command_of_a_hook_or_a_process_is_set_as_code() -> None:
    hook = {"id": "h", "event": "on_session_end", "command": "save notes", "outcome": "exit 1",
            "attempt": 3, "state": "dead", "at": 2.0}  # fmt: skip
    left = {"kind": "other", "pid": 5, "age": 3.0, "done": "left running", "command": "sleep 9",
            "dumps": [], "memory": None, "below": []}  # fmt: skip
    shown = page.page([settled(hooks=[hook], orphans=[left])], None, [])
    assert "exit 1, attempt 3, abandoned: <code>save notes</code>" in shown
    assert "process 5, 3 s old, left running: <code>sleep 9</code>" in shown


def test_several_ends_are_numbered_counts_agree_and_labels_have_one_case(world: World) -> None:
    died(world, "chat", "x", "--on-session-end", "true")
    died(world, "chat", "x", "--on-session-end", "true")
    answer = world.call("report", "chat").stdout
    text = checked(answer).text
    assert text.index("End 2 of 2") < text.index("End 1 of 2")
    assert "1Character of the reply in progress" in text
    assert "4Messages recovered" in text
    labels = re.findall(r"<dt>(.*?)</dt>|<h3>(\w+)|<span>([A-Za-z ]+)</span></li></ul>", answer)
    shown = {label for group in labels for label in group if label}
    assert {label for label in shown if not label[:1].isupper()} == {"state.db"}
    assert f"<code>{world.db}</code>" in answer
    assert "ok: <code>true</code>" in answer
    assert "hook <code>true</code>: ok" in answer, "in the list of the timeline"
    assert re.search(r"hermes-supervise \d+\.\d+\.\d+", text)


# Reads the page as a browser has laid it out: what sticks out, and where the mark of the death is.
LOOK = """<!DOCTYPE html>
<body><iframe src="page.html" width="{width}" height="900"></iframe><script>
addEventListener("load", () => {{
  const page = frames[0].document, mark = [...page.querySelectorAll("g.death line")]
    .map(one => one.getBoundingClientRect()).find(box => box.height > 0);
  const small = [...page.querySelectorAll("svg text")].map(one => one.getBoundingClientRect())
    .filter(box => box.height > 0).map(box => box.height);
  document.title = JSON.stringify([page.documentElement.scrollWidth, mark.left, mark.right,
    Math.min(...small), getComputedStyle(page.body).backgroundColor]);
}});
</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(("scheme", "paper"), [(1, "rgb(251, 250, 248)"), (0, "rgb(22, 21, 19)")])
def test_in_a_browser_nothing_sticks_out_and_the_death_is_in_view(
    world: World, width: int, scheme: int, paper: str
) -> None:
    died(world, "20261116_091500_a1b2c3_with_a_long_name", "a long question " * 20)
    world.call("report", "last", "-o", "page.html")
    (world.folder / "look.html").write_text(LOOK.format(width=width))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
               "--allow-file-access-from-files", f"--user-data-dir={world.folder}/browser",
               f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=5000",
               f"file://{world.folder}/look.html"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found, done.stdout[:2000] + done.stderr[-2000:]
    whole, left, right, text, colour = json.loads(found[1])
    assert whole <= width
    assert 0 < left <= right < width
    assert text > 9, "readable"
    assert colour == paper


# Reads the fleet's page: its width, the name of a machine as it is shown, and lines of a run's id.
LOOK_AT_FLEET = """<!DOCTYPE html>
<body><iframe src="page.html" width="{width}" height="900"></iframe><script>
addEventListener("load", () => {{
  const page = frames[0].document, id = page.querySelector("dt code");
  document.title = JSON.stringify([page.documentElement.scrollWidth,
    page.querySelector("h2").innerText, id.getClientRects().length]);
}});
</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser_the_fleet_fits_and_names_keep_their_case(world: World, width: int) -> None:
    now = time.time()
    machine = {"machine": "5dff8312dee1d6b1", "name": "Alices-laptop", "state": "lost", "seen": now,
               "lost_because": "it burnt down"}  # fmt: skip
    talk = {"session": "20261118_111500_d4e5f6", "title": "a long title " * 20}
    run = {"machine": machine["machine"], "run": "20261118-140000-8ebf6fd1", "state": "lost",
           "claimed_by": None, "hooks": "due", "records": 7, "heard": now,
           "sessions": [talk]}  # fmt: skip
    (world.folder / "page.html").write_text(fleet_page.page([machine], [run]))
    (world.folder / "look.html").write_text(LOOK_AT_FLEET.format(width=width))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
               "--allow-file-access-from-files", f"--user-data-dir={world.folder}/browser",
               "--virtual-time-budget=5000", f"file://{world.folder}/look.html"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found, done.stdout[:2000] + done.stderr[-2000:]
    whole, name, lines = json.loads(found[1])
    assert (whole <= width, name, lines) == (True, "Alices-laptop", 1)
