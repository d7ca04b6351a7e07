"""What watchers are made of: names, lines, and each record once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hermes_supervise.ipc.endpoint import RUN_VARIABLE
from hermes_supervise.supervisor.agents import registry
from hermes_supervise.supervisor.agents.command_line import assignments
from hermes_supervise.supervisor.agents.jsonl.transcript import JsonlFiles
from hermes_supervise.supervisor.agents.messages import moment, result_of, text_of
from hermes_supervise.supervisor.agents.opencode.transcript import records_of
from hermes_supervise.supervisor.agents.protocol import LineFiles, Place
from hermes_supervise.supervisor.transcripts import lines
from hermes_supervise.supervisor.transcripts.deduplicator import HISTORY_LIMIT, Deduplicator, Known
from hermes_supervise.supervisor.transcripts.follow import MALFORMED, Follower
from hermes_supervise.supervisor.transcripts.ownership import Ownership
from hypothesis import given, settings
from hypothesis import strategies as st

# -- which agent -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "agent"),
    [
        ("claude", "claude"),
        ("/usr/local/bin/claude --resume x", "claude"),
        ("env A=b CLAUDE_CONFIG_DIR=/x claude", "claude"),
        ("npx -y @anthropic-ai/claude-code@latest -p hello", "claude"),
        ("node /usr/lib/node_modules/@anthropic-ai/claude-code/cli.js", "claude"),
        ("nice -n 10 timeout 60 codex exec do-it", "codex"),
        ("pnpm dlx @openai/codex", "codex"),
        ("node /x/node_modules/@openai/codex/bin/codex.js", "codex"),
        ("npx https://example.org/gemini-cli", "gemini"),
        ("bunx opencode-ai@1.2.3 run x", "opencode"),
        ("node_modules/.bin/codex exec do-it", "codex"),
        ("/x/node_modules/.bin/opencode", "opencode"),
        ("hermes chat", "hermes"),
        ("python3 -m run_agent", "hermes"),
        ("python3 -m tui_gateway.main", "hermes"),
        ("python claude", None),
        ("vim claude", None),
        ("npx -y", None),
        ("sh -c claude", None),
        ("", None),
    ],
)
def test_an_agent_is_known_by_its_name_behind_any_launcher(line: str, agent: str | None) -> None:
    assert (registry.recognised(line.split()).name or None) == agent


def test_what_env_sets_for_the_agent_is_seen() -> None:
    found = assignments(["env", "-i", "A=1", "B=x=y", "claude", "C=3"])
    assert found == {"A": "1", "B": "x=y"}
    assert assignments(["claude", "A=1"]) == {}


# -- lines -------------------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"")), max_size=8),
    st.binary(max_size=10).map(lambda b: b.replace(b"\n", b"")),
    st.lists(st.integers(1, 12), max_size=40),
)
def test_lines_are_the_same_however_the_file_grew(
    whole: list[bytes], torn: bytes, steps: list[int]
) -> None:
    data = b"".join(line + b"\n" for line in whole) + torn
    reader = lines.Lines()
    found, position = [], 0
    for step in [*steps, len(data)]:
        found += list(reader.feed(data[position : position + step]))
        position = min(position + step, len(data))
        assert reader.offset == position
    assert [line for _, line in found] == [line for line in whole if line.strip()]
    assert all(data[place : place + len(line)] == line for place, line in found)
    assert reader.rest() == (len(data) - len(torn), torn)


def test_a_line_without_an_end_is_given_up_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "LONGEST", 100)
    reader = lines.Lines()
    found = [line for _ in range(50) for line in reader.feed(b"x" * 10)]
    found += list(reader.feed(b"the end of it\nnext\n"))
    assert [line for _, line in found] == [b"next"]
    assert reader.skipped == 1


# -- each record once --------------------------------------------------------------------------


def message(uid: str, text: str, session: str = "s") -> dict[str, object]:
    body = {"role": "user", "content": text}
    return {"kind": "message", "session": session, "uid": uid, "message": body, "at": 1.0}


def said(deduplicator: Deduplicator, record: dict[str, object], *, live: bool = True) -> list[str]:
    return [str(sent["kind"]) for _, sent in deduplicator.new(record, "key", 2.0, live=live)]


def test_a_session_is_announced_with_its_first_new_message_and_history_before_it() -> None:
    deduplicator = Deduplicator(Known(), "/here")
    assert said(deduplicator, {"kind": "session", "session": "s", "source": "x"}, live=False) == []
    assert said(deduplicator, message("1", "old"), live=False) == []
    assert said(deduplicator, message("2", "new")) == ["session", "history", "message"]
    assert said(deduplicator, message("2", "new")) == []
    assert said(deduplicator, message("2", "newer")) == ["message"]
    assert said(deduplicator, message("1", "old")) == [], "should the file be written anew"


def test_a_history_that_is_too_long_is_said_to_be_missing() -> None:
    deduplicator = Deduplicator(Known(), "/here")
    for number in range(3):
        said(deduplicator, message(str(number), "x" * (HISTORY_LIMIT // 2)), live=False)
    assert said(deduplicator, message("new", "new")) == ["session", "trouble", "message"]
    assert said(deduplicator, message("0", "x" * (HISTORY_LIMIT // 2))) == []


def test_a_watcher_in_anothers_place_says_only_what_was_not_acknowledged() -> None:
    first = Deduplicator(Known(), "/here")
    stream = [message("1", "a"), message("2", "b"), message("2", "bc"), message("3", "d")]
    marks = [mark for record in stream for mark, _ in first.new(record, "", 2.0, live=True)]
    for heard, left in ((3, ["bc", "d"]), (4, ["d"])):  # the session, 1, the forms of 2
        second = Deduplicator(Known(b"".join(marks[:heard]) + b"torn"), "/here")
        again = [r for record in stream for _, r in second.new(record, "", 3.0, live=True)]
        assert [record["message"]["content"] for record in again] == left


# -- files -------------------------------------------------------------------------------------


class Files:
    """A follower over one file, and what it has said."""

    def __init__(self, path: Path, launched: float, run: str = "") -> None:
        self.said: list[str] = []
        self.run = run or tempfile.mkdtemp(prefix="run-", dir=path.parent)
        self.ownership = Ownership(self.run)
        self._follower = Follower(
            [JsonlFiles(str(path))], launched, {}, self.ownership, Deduplicator(Known(), "/"),
            self._say, lambda: 1.0,
        )  # fmt: skip

    def look(self, *, final: bool = False) -> list[str]:
        self._follower.look(final=final)
        said, self.said = self.said, []
        return said

    def unread(self) -> list[str]:
        return self._follower.unread

    def _say(self, sent: list[tuple[bytes, dict[str, object]]]) -> None:
        for _, record in sent:
            if record["kind"] == "message":
                self.said.append(record["message"]["content"])  # type: ignore[index]


def line(text: str) -> str:
    return json.dumps({"role": "user", "content": text}) + "\n"


EVENTS = st.tuples(
    st.sampled_from(["append", "replace", "in place"]), st.integers(0, 3), st.integers(0, 6)
)


@settings(max_examples=25, deadline=None)
@given(events=st.lists(EVENTS, max_size=6))
def test_whatever_happens_to_a_file_no_message_is_said_twice_and_none_is_missed(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("grow") / "chat.jsonl"
    files = Files(path, 0.0)
    number, kept, lines = 0, [], []
    path.write_text("")
    try:
        for event, count, drop in events:
            if event == "append":
                kept += (new := [f"m{number + n}" for n in range(count)])
                number += count
                with path.open("a") as file:
                    file.write("".join(map(line, new)))
            else:  # the oldest are forgotten, and something may be new
                kept = [*kept[drop:], *(f"m{number + n}" for n in range(count))]
                number += count
                other = path.with_suffix(".new") if event == "replace" else path
                other.write_text("".join(map(line, kept)))
                os.replace(other, path)
            lines += files.look()
    finally:
        files.ownership.close()
    assert lines == [f"m{n}" for n in range(number)]


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    whole = line("one") + line("two")
    path.write_text(whole[:-5])
    files = Files(path, 0.0)
    assert files.look() == ["one"]
    path.write_text(whole)
    assert files.look() == ["two"]
    path.write_text(whole + line("three")[:-1])
    assert files.look() == []
    assert files.look(final=True) == ["three"], "its writer is dead, and it is whole"
    files.ownership.close()


def test_a_file_that_another_watcher_has_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(line("one"))
    first, second = Files(path, 0.0), Files(path, 0.0)
    assert (first.look(), second.look()) == (["one"], [])
    first.ownership.close()
    with path.open("a") as file:
        file.write(line("two"))
    assert second.look(final=True) == [], "what was another's stays so"
    second.ownership.close()


def test_a_file_that_a_stranger_has_open_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(line("one"))
    child = os.fork()
    if child == 0:
        os.open(path, os.O_WRONLY | os.O_APPEND)
        os.kill(os.getpid(), 19)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    ownership = Ownership(str(tmp_path))
    try:
        assert not ownership.decide(str(path), [])
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert not ownership.decide(str(path), []), "nor when he has died"
    ownership.close()
    ownership = Ownership(str(tmp_path))
    assert not ownership.decide(str(path), []), "nor for whoever comes after us"
    ownership.close()


def test_a_zombie_has_no_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(line("one"))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    ownership = Ownership(str(tmp_path))
    assert ownership.decide(str(path), [child]), "it is dead, and was the agent's"
    ownership.close()
    os.waitpid(child, 0)


def test_an_agent_that_dies_while_it_is_asked_whose_its_file_is_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(line("one"))
    env = {**os.environ, RUN_VARIABLE: tmp_path.name}
    agent = subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE)
    ownership = Ownership(str(tmp_path))
    list_processes = ownership._processes

    def die_first() -> set[int]:
        agent.kill()
        agent.communicate()
        return list_processes()

    monkeypatch.setattr(ownership, "_processes", die_first)
    assert ownership.decide(str(path), [agent.pid])
    ownership.close()


def test_a_file_of_this_run_that_another_process_has_claimed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(line("one"))
    files = Files(path, 0.0)
    assert files.look() == ["one"]
    path.write_text(line("one") + line("two"))
    files.ownership.close()
    other = Ownership(str(tmp_path))
    assert other.claim(str(path))
    successor = Files(path, 0.0, run=files.run)
    assert successor.look(final=True) == []
    assert successor.unread() == [
        "chat.jsonl could not be read to its end: another process has claimed it"
    ]
    other.close()
    assert successor.look(final=True) == ["one", "two"]
    successor.ownership.close()


# -- anything at all ---------------------------------------------------------------------------

NAMES = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "message",
        "payload",
        "id",
        "uuid",
        "text",
        "tool_calls",
        "toolCalls",
        "$set",
        "messages",
        "timestamp",
        "call_id",
        "output",
        "isSidechain",
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
ENTRIES = st.dictionaries(NAMES, ANYTHING, max_size=4)
KINDS = st.none() | st.sampled_from(
    ["user", "assistant", "gemini", "response_item", "event_msg", "session_meta", "compacted",
     "message", "function_call", "function_call_output", "tool_use", "tool_result", "summary"]
)  # fmt: skip


@pytest.mark.parametrize(
    "files",
    [
        source
        for agent in map(registry.named, registry.names())
        for source in agent.sources(Place(cwd="/c", env={"HOME": "/h"}, paths=["/c/x.jsonl"]))
        if isinstance(source, LineFiles)
    ],
    ids=lambda files: type(files).__name__,
)
@settings(max_examples=40, deadline=None)
@given(entries=st.lists(st.tuples(ENTRIES, KINDS), max_size=3))
def test_no_line_brings_a_reader_down(
    files: LineFiles, entries: list[tuple[dict[str, object], str | None]]
) -> None:
    fold = files.fold("/c/any.jsonl")
    deduplicator = Deduplicator(Known(), "/")
    for entry, kind in entries:
        if kind is not None:
            entry["type"] = kind
        try:
            records = fold.line(entry, "key")
        except MALFORMED:
            continue  # named once, and skipped
        for record in records:
            for _, reported in deduplicator.new(record, "key", 1.0, live=True):
                json.dumps(reported)


@settings(max_examples=40, deadline=None)
@given(ANYTHING, ANYTHING)
def test_no_row_of_opencodes_brings_a_reader_down(info: object, part: object) -> None:
    try:
        records_of("s", "m", info, [part], None)  # type: ignore[arg-type, list-item]
    except (ValueError, TypeError, AttributeError, LookupError):
        pass  # what the caller takes for not understood


def test_times_and_texts_in_the_forms_that_agents_use() -> None:
    assert moment("2026-01-31T12:00:00.250Z") == 1769860800.25
    assert moment(1769860800250) == moment(1769860800.25) == 1769860800.25
    assert moment("soon") is moment(None) is moment(True) is None
    assert text_of([{"type": "text", "text": "a"}, {"type": "image"}, "b"]) == "a\n[image]\nb"
    assert result_of({"rows": 3}) == '{"rows": 3}'


def test_what_is_said_in_an_unknown_shape_is_reported_once_and_makes_no_empty_message() -> None:
    fold = JsonlFiles("/c/x.jsonl").fold("/c/x.jsonl")
    lines = [
        {"role": "assistant", "content": [{"type": "hologram", "data": 1}]},
        {"role": "assistant", "content": [{"type": "text", "text": "hi"}, {"type": "smell"}]},
        {"role": "user", "utterance": "hello"},
        {"role": "assistant", "content": ""},
        {"type": "system", "subtype": "ui_telemetry"},
    ]
    found = [record for line in lines for record in fold.line(line, "key")]
    said = [record["message"]["content"] for record in found if record["kind"] == "message"]
    assert said == ["hi", ""]
    [trouble] = [record["text"] for record in found if record["kind"] == "trouble"]
    assert "(hologram)" in trouble
