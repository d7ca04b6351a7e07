"""The agent's own transcript is shipped as it is, and put back on another machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fleet import Fleet, Machine
from hermes_supervise.supervisor.agents import registry
from hermes_supervise.supervisor.cli.proof.scripted_model import ScriptedModel
from hermes_supervise.supervisor.replica import raw
from real_agents import Claude
from support import until
from transcripts import CLAUDE, install

TALK = """
chat = Chat("aaaa-1", pid=True)
chat.user("a question")
chat.text("m1", "an answer on quetzals")
chat.other(type="file-history-snapshot", snapshot={"nothing": "we know"})
ready()
wait()
chat.user("another question")
ready("more")
forever()
"""


def transcript(machine: Machine, folder: Path) -> Path:
    slug = "".join(c if c.isascii() and c.isalnum() else "-" for c in str(folder))
    return machine.folder / ".claude" / "projects" / slug / "aaaa-1.jsonl"


def test_claude_codes_transcript_is_the_same_on_another_machine(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    agent = install(here, "claude", CLAUDE, TALK)
    run = here.run([agent], stdin=subprocess.PIPE)
    run.wait_for("pid")
    run.wait_for("ready")
    fleet.until_there("nothing")
    path = transcript(here, here.folder)
    first = path.read_bytes()
    assert first.count(b"\n") == 3
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    run.wait_for("more")
    whole = path.read_bytes()
    fleet.until_there("another question")
    pieces = "SELECT body FROM hermes_supervise.frame WHERE seq = 0 ORDER BY stream, position"

    def shipped() -> list[bytes]:
        found = raw.put_together(bytes(row[0]) for row in fleet.query(pieces))
        return [contents for _, contents in found.values()]

    until(lambda: shipped() == [whole], "the transcript is shipped")
    lost = here.id
    folder = here.folder
    here.lose()
    fleet.declare_lost(lost, there)
    # The session began on this machine: the beginning of its file is here.
    placed = transcript(there, folder)
    placed.parent.mkdir(parents=True)
    placed.write_bytes(first)
    done = there.call("fleet", "recover", "aaaa-1")
    assert done.returncode == 0, done.stderr
    assert "claude --resume aaaa-1" in done.stdout
    assert placed.read_bytes() == whole
    assert [row["content"] for row in there.messages("aaaa-1")][:2] == [
        "a question", "an answer on quetzals",
    ]  # fmt: skip


def test_a_transcript_that_differs_is_left_alone_and_the_user_is_warned(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    agent = install(here, "claude", CLAUDE, TALK)
    run = here.run([agent], stdin=subprocess.PIPE)
    run.wait_for("pid")
    run.wait_for("ready")
    fleet.until_there("nothing")
    lost, folder = here.id, here.folder
    here.lose()
    fleet.declare_lost(lost, there)
    placed = transcript(there, folder)
    placed.parent.mkdir(parents=True)
    placed.write_text("something else\n")
    assert there.call("fleet", "recover", "aaaa-1").returncode == 0
    assert placed.read_text() == "something else\n"
    assert "is left alone" in " ".join(there.call("show", "aaaa-1").stdout.split())


def test_a_file_is_shipped_in_pieces_of_whole_lines_and_again_if_it_is_another_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.jsonl"
    file = raw.RawFile(str(path), "s", "ab" * 16)
    assert file.read(final=False) == [] and file.is_whole
    path.write_bytes(b'{"a": "\xc3\xa9"}\n{"torn')
    made = file.read(final=False)
    assert raw.put_together(made) == {str(path): ("s", b'{"a": "\xc3\xa9"}\n')}
    again = raw.restored(str(path), file.as_record())
    with path.open("ab") as more:
        more.write(b'": 1}\n' + b"x" * 1_200_000 + b"\xff\n" + b"the end")
    made += again.read(final=False)
    whole = path.read_bytes()
    assert raw.put_together(made) == {str(path): ("s", whole[: -len(b"the end")])}
    made += again.read(final=True)
    assert raw.put_together(made) == {str(path): ("s", whole)}
    # Without a piece: what comes before it.
    assert raw.put_together(made[:1] + made[2:]) == {str(path): ("s", whole[:12])}
    path.write_bytes(b"new\n")
    made += again.read(final=False)
    assert raw.put_together(made) == {str(path): ("s", b"new\n")}


def test_no_path_of_the_database_leads_out_of_the_agents_folder() -> None:
    claude = registry.named("claude")
    for path in ("/x/../aaaa.jsonl", "/x/p/..jsonl", "/x/p/a.txt", "/x/p q/a.jsonl", "a.jsonl", ""):
        assert claude.transcript_here(path) is None, path
    found = claude.transcript_here("/there/.claude/projects/-home-me/aaaa-1.jsonl")
    assert found is not None and found.endswith("/projects/-home-me/aaaa-1.jsonl")
    assert registry.named("codex").transcript_here("/x/y.jsonl") is None


def test_the_real_claude_code_resumes_on_another_machine(fleet: Fleet, tmp_path: Path) -> None:
    """Its machine is lost in the middle of a tool; its own `--resume` sends the model all of it."""
    model = ScriptedModel()
    here, there = fleet.machine(), fleet.machine()
    work = tmp_path / "work"
    work.mkdir()
    agents = [_InFolder(machine, model, work) for machine in (here, there)]
    begun = tmp_path / "begun"
    try:
        prompt = f"a question on quetzals\nCALL touch {begun}; sleep 300"
        here.run(agents[0].once(prompt), cwd=str(work))
        until(begun.exists, "the tool runs", 60)
        [path] = (here.folder / ".claude" / "projects").glob("*/*.jsonl")
        session = path.stem
        fleet.until_there("tool_use")
        lost = here.id
        here.lose()
        fleet.declare_lost(lost, there)
        done = there.call("fleet", "recover", session)
        assert done.returncode == 0, done.stderr
        assert f"claude --resume {session}" in done.stdout
        command = [*agents[1].tui(), "--resume", session, "-p", "WORDS 20"]
        again = there.run(command, cwd=str(work))
        assert again.finish(90) == 0, again.errors
        asked = [str(body.get("messages")) for _, body in model.requests]
        assert any("quetzals" in text and "WORDS 20" in text for text in asked)
    finally:
        model.close()


class _InFolder(Claude):
    """Both machines have the project at the same path, as Claude Code wants it."""

    def __init__(self, machine: Machine, model: ScriptedModel, work: Path) -> None:
        super().__init__(machine, model)
        self.work = work
        machine.env["PWD"] = str(work)
        self.configure()
