"""Node programs of which nothing is known but that they ask a model: what they showed is stored.

The real SDKs of OpenAI, Anthropic and Google from npm, in `.agents/node_modules` (`make
test-agents` installs them), in programs that are written as their documentation shows.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.supervisor.cli.proof.scripted_model import WORD, ScriptedModel, words
from hermes_supervise.supervisor.storage import run_lock
from real_agents import ROOT, reply
from support import Supervised, World, kill, until, wait_dead

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
MODULES = ROOT / ".agents" / "node_modules"

# Each asks the model with all that was said, prints what comes, and answers the calls of a tool.
AGENTS = {
    "chat": ("openai", """\
import OpenAI from 'openai';
const client = new OpenAI({ apiKey: 'a-secret-key', baseURL: `${URL_}/v1` });
const tools = [{ type: 'function', function: { name: 'bash', parameters: SCHEMA } }];
const said = [{ role: 'system', content: 'a system prompt' }];
async function ask(question) {
  if (question) said.push({ role: 'user', content: question });
  const about = { model: 'm', messages: said, tools, stream: true };
  const stream = await client.chat.completions.create(about);
  let text = '';
  const calls = [];
  for await (const chunk of stream) {
    const { content, tool_calls } = chunk.choices[0].delta;
    if (content) { text += content; show(content); }
    for (const call of tool_calls || []) {
      calls[call.index] ||= { ...call, function: { name: call.function.name, arguments: '' } };
      calls[call.index].function.arguments += call.function.arguments || '';
    }
  }
  const made = calls.length ? { tool_calls: calls } : {};
  said.push({ role: 'assistant', content: text || null, ...made });
  for (const { id } of calls) said.push({ role: 'tool', tool_call_id: id, content: RESULT });
  return calls.length;
}
"""),
    "responses": ("openai", """\
import OpenAI from 'openai';
const client = new OpenAI({ apiKey: 'a-secret-key', baseURL: `${URL_}/v1` });
const tools = [{ type: 'function', name: 'bash', parameters: SCHEMA, strict: false }];
const said = [];
async function ask(question) {
  if (question) said.push({ role: 'user', content: question });
  const about = { model: 'm', input: said, tools, instructions: 'a system prompt', stream: true };
  let done;
  for await (const event of await client.responses.create(about)) {
    if (event.type === 'response.output_text.delta') show(event.delta);
    if (event.type === 'response.completed') done = event.response;
  }
  said.push(...done.output);
  const calls = done.output.filter((item) => item.type === 'function_call');
  said.push(...calls.map(({ call_id }) => (
    { type: 'function_call_output', call_id, output: RESULT }
  )));
  return calls.length;
}
"""),
    "only what is new": ("openai", """\
import OpenAI from 'openai';
const client = new OpenAI({ apiKey: 'a-secret-key', baseURL: `${URL_}/v1` });
const tools = [{ type: 'function', name: 'bash', parameters: SCHEMA, strict: false }];
let input = [];
let last;
async function ask(question) {
  if (question) input.push({ role: 'user', content: question });
  const about = { model: 'm', input, tools, stream: true };
  if (last) about.previous_response_id = last.id;
  for await (const event of await client.responses.create(about)) {
    if (event.type === 'response.output_text.delta') show(event.delta);
    if (event.type === 'response.completed') last = event.response;
  }
  const calls = last.output.filter((item) => item.type === 'function_call');
  input = calls.map(({ call_id }) => ({ type: 'function_call_output', call_id, output: RESULT }));
  return calls.length;
}
"""),
    "messages": ("@anthropic-ai/sdk", """\
import Anthropic from '@anthropic-ai/sdk';
const client = new Anthropic({ apiKey: 'a-secret-key', baseURL: URL_ });
const tools = [{ name: 'bash', input_schema: SCHEMA }];
const said = [];
async function ask(question) {
  if (question) said.push({ role: 'user', content: question });
  const stream = client.messages.stream({
    model: 'm', max_tokens: 99, system: 'a system prompt', messages: said, tools,
  });
  stream.on('text', show);
  const { content } = await stream.finalMessage();
  said.push({ role: 'assistant', content });
  const calls = content.filter((block) => block.type === 'tool_use');
  const results = calls.map(({ id }) => (
    { type: 'tool_result', tool_use_id: id, content: RESULT }
  ));
  if (calls.length) said.push({ role: 'user', content: results });
  return calls.length;
}
"""),
    "gemini": ("@google/genai", """\
import { GoogleGenAI } from '@google/genai';
const client = new GoogleGenAI({ apiKey: 'a-secret-key', httpOptions: { baseUrl: URL_ } });
const tools = [{ functionDeclarations: [{ name: 'bash', parametersJsonSchema: SCHEMA }] }];
const contents = [];
async function ask(question) {
  if (question) contents.push({ role: 'user', parts: [{ text: question }] });
  const config = { tools, systemInstruction: 'a system prompt' };
  const parts = [];
  const about = { model: 'm', contents, config };
  for await (const chunk of await client.models.generateContentStream(about)) {
    if (chunk.text) show(chunk.text);
    parts.push(...(chunk.candidates[0].content.parts || []));
  }
  contents.push({ role: 'model', parts });
  const calls = parts.filter((part) => part.functionCall);
  const results = calls.map(({ functionCall: { name } }) => (
    { functionResponse: { name, response: { output: RESULT } } }
  ));
  if (calls.length) contents.push({ role: 'user', parts: results });
  return calls.length;
}
"""),
}  # fmt: skip
HEAD = """\
const [, , URL_, ...questions] = process.argv;
const RESULT = 'tool-says-hi';
const SCHEMA = { type: 'object', properties: { command: { type: 'string' } } };
const show = (text) => process.stdout.write(text);
"""
TAIL = "for (const question of questions) for (let q = question; await ask(q); q = null);\n"


@pytest.fixture(autouse=True)
def alone(world: World) -> None:
    for name in [name for name in world.env if "proxy" in name.lower()]:
        del world.env[name]
    world.env.pop("NODE_OPTIONS", None)


def program(world: World, form: str, name: str = "agent.mjs", head: str = "") -> Path:
    package, script = AGENTS[form]
    if not (MODULES / package).exists():
        pytest.skip(f"{package} is not installed ({MODULES})")
    folder = world.folder / "an agent"
    folder.mkdir(exist_ok=True)
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(MODULES)
    path = folder / name
    path.write_text(head + HEAD + script + TAIL)
    return path


def start(world: World, model: ScriptedModel, form: str, *questions: str) -> Supervised:
    return world.run([str(NODE), str(program(world, form)), model.url, *questions])


def sessions(world: World) -> list[dict[str, Any]]:
    if not world.db.exists():
        return []
    with world.database() as db:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sessions'").fetchone() is None:
            return []
        return [dict(row) for row in db.execute("SELECT * FROM sessions ORDER BY started_at")]


def kill_in_reply(world: World, model: ScriptedModel, run: Supervised) -> None:
    until(lambda: model.sent == 15, "it streams", 60)
    until(lambda: b"w014" in world.said(), "the last word is handed over")
    run.kill_agent()
    assert run.finish(60) == -signal.SIGKILL


@pytest.mark.parametrize("form", AGENTS)
def test_killed_in_a_streamed_reply_after_a_tool(
    world: World, model: ScriptedModel, form: str
) -> None:
    model.hold_after(15)
    run = start(world, model, form, "CALL echo hi", "WORDS 40")
    until(lambda: model.sent == 15, "it streams", 60)
    until(lambda: b"w014" in world.said(), "the last word is handed over")
    for secret in (b"a-secret", b"system prompt", b'"properties"'):
        assert secret not in world.said()
    assert b'"tool_name":"bash"' in world.said()
    run.kill_agent()
    assert run.finish(60) == -signal.SIGKILL
    [session] = sessions(world)
    assert (session["source"], session["end_reason"], session["model"]) == (
        "node", "interrupted", "m"
    )  # fmt: skip
    asked, called, answered, done, again, partial = world.messages(session["id"])
    assert (asked["content"], again["content"]) == ("CALL echo hi", "WORDS 40")
    [made] = json.loads(called["tool_calls"])
    assert json.loads(made["function"]["arguments"])["command"] == "echo hi"
    assert answered["tool_call_id"] == made["id"]
    assert "tool-says-hi" in answered["content"]
    # A model that is sent a tool's result alone does not see what it was asked.
    assert done["content"] == ("ok" if form == "only what is new" else "done")
    assert partial["content"].strip() == reply(15)
    assert partial["finish_reason"] == "interrupted"
    assert set(WORD.findall(run.output.decode())) <= set(WORD.findall(partial["content"]))


@pytest.mark.parametrize("form", AGENTS)
def test_a_conversation_that_came_to_its_end_is_stored_once(
    world: World, model: ScriptedModel, form: str
) -> None:
    world.env["HERMES_SUPERVISE_CHECKPOINT"] = "0.05"
    run = start(world, model, form, "CALL echo hi", "WORDS 12")
    assert run.finish(60) == 0, run.errors
    [session] = sessions(world)
    assert session["end_reason"] == "exited"
    rows = world.messages(session["id"])
    roles = ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [row["role"] for row in rows] == roles
    assert rows[-1]["content"].strip() == reply(12)
    assert run.output.decode().endswith("".join(words(12)))


def test_all_at_once_are_killed_and_recover_finds_it(world: World, model: ScriptedModel) -> None:
    model.hold_after(15)
    path = program(world, "chat")
    run = world.run([str(NODE), str(path), model.url, "WORDS 40"], "--no-adopt")
    until(lambda: world.said().count(b"WORDS 40") > 0, "it asks", 60)
    supervisor, agent = run.pid, run.agent
    os.kill(supervisor, signal.SIGSTOP)  # from here on the guest alone keeps what is shown
    until(lambda: b"w014" in world.said(), "it is written down", 60)
    for pid in (agent, supervisor):
        kill(pid)
        wait_dead(pid)
    run.finish(60)
    assert world.call("recover").returncode == 0
    [session] = sessions(world)
    assert world.messages(session["id"])[-1]["content"].strip() == reply(15)
    assert session["end_reason"] == "interrupted"


def test_it_is_seen_while_it_runs(world: World, model: ScriptedModel) -> None:
    world.env["HERMES_SUPERVISE_CHECKPOINT"] = "0.05"
    model.hold_after(15)
    run = start(world, model, "chat", "WORDS 40")
    until(lambda: sessions(world), "its question is in state.db", 60)
    [found] = json.loads(world.call("ps", "--json").stdout)["runs"]
    assert [one["session"] for one in found["sessions"]] == [sessions(world)[0]["id"]]
    kill_in_reply(world, model, run)


def test_it_is_captured_by_whoever_supervises_it_next(world: World, model: ScriptedModel) -> None:
    model.hold_after(5)
    run = start(world, model, "chat", "WORDS 10", "WORDS 12")
    until(lambda: b"w004" in world.said(), "it streams", 60)
    [folder] = world.runs()
    before = run.pid
    kill(before)
    until(lambda: run_lock.holder_of(str(folder)) not in (None, before), "it is taken over", 60)
    model.gate.set()
    until(lambda: [row for row in sessions(world) if row["ended_at"]], "it ends", 60)
    [session] = sessions(world)
    assert [row["content"].strip() for row in world.messages(session["id"])] == [
        "WORDS 10", reply(10), "WORDS 12", reply(12)
    ]  # fmt: skip
    assert session["end_reason"] == "exited"


# Sends more than the guest keeps of what the supervisor has.
LONG = """const fs = require('fs');
const { Link } = require(process.env.LINK);
const link = new Link(process.env.HERMES_SUPERVISE_SPOOL, process.env.HERMES_SUPERVISE_SOCKET);
const file = `${process.env.HERMES_SUPERVISE_SPOOL}/${link.stream}.spool`;
link.connect();
link.record({ kind: 'session', session: 's', source: 'node' });
const say = (n) => {
  const message = { role: 'user', content: `${n} ${'x'.repeat(5e4)}` };
  link.record({ kind: 'message', session: 's', uid: `m${n}`, message });
};
let sent = 0;
const timer = setInterval(() => {
  for (let n = 0; n < 4 && sent < 80; n++) say(sent++);
  link.connect();
  const { size } = fs.statSync(file);
  if (sent === 80 && size < 1024 * 1024) {
    clearInterval(timer);
    process.stdout.write(String(size));
  }
}, 5);
setTimeout(() => process.exit(9), 60000).unref();
"""


def test_a_spool_keeps_only_what_the_supervisor_has_not(world: World) -> None:
    world.env["LINK"] = str(ROOT / "agent_shim" / "node" / "link.js")
    script = world.folder / "long.js"
    script.write_text(LONG)
    run = world.run([str(NODE), str(script)])
    assert run.finish(90) == 0, run.errors
    assert int(run.output) < 1024 * 1024 < 80 * 50000
    assert [row["content"].split()[0] for row in world.messages("s")] == list(map(str, range(80)))


# -- what is no conversation -------------------------------------------------------------------

ASIDES = """\
import OpenAI from 'openai';
const client = new OpenAI({ apiKey: 'x', baseURL: `${process.argv[2]}/v1` });
const ask = async (...messages) => {
  const done = await client.chat.completions.create({ model: 'm', messages });
  return done.choices[0].message;
};
const user = (content) => ({ role: 'user', content });
await ask(user('A title for this'));
const first = await ask(user('WORDS 3'));
if (process.argv[3]) await ask(user('WORDS 3'), first, user('WORDS 4'));
"""


def test_a_title_is_left_out_and_a_conversation_that_goes_on_is_not(
    world: World, model: ScriptedModel
) -> None:
    script = program(world, "chat", "asides.mjs")
    script.write_text(ASIDES)
    run = world.run([str(NODE), str(script), model.url])
    assert run.finish(60) == 0, run.errors
    assert sessions(world) == []
    run = world.run([str(NODE), str(script), model.url, "goes on"])
    assert run.finish(60) == 0, run.errors
    [session] = sessions(world)
    assert [row["content"].strip() for row in world.messages(session["id"])] == [
        "WORDS 3", reply(3), "WORDS 4", reply(4)
    ]  # fmt: skip


def test_what_an_agent_says_in_the_users_name_does_not_hide_the_question(
    world: World, model: ScriptedModel
) -> None:
    script = program(world, "chat", "reminder.mjs")
    script.write_text("""\
import OpenAI from 'openai';
const client = new OpenAI({ apiKey: 'x', baseURL: `${process.argv[2]}/v1` });
const user = (content) => ({ role: 'user', content });
const messages = [
  user('an example'), { role: 'assistant', content: 'its answer' },
  user('Here is a file.'), user('WORDS 5'),
  user('<system-reminder>\\nNobody said this.\\n</system-reminder>'),
];
for await (const _ of await client.chat.completions.create({ model: 'm', messages, stream: true }));
""")
    run = world.run([str(NODE), str(script), model.url])
    assert run.finish(60) == 0, run.errors
    [session] = sessions(world)
    assert [row["content"].strip() for row in world.messages(session["id"])] == [
        "Here is a file.", "WORDS 5", reply(5)
    ]  # fmt: skip


def test_a_program_that_asks_no_model_leaves_nothing(world: World) -> None:
    script = world.folder / "plain.js"
    script.write_text("process.stdout.write(String(process.env.NODE_OPTIONS))")
    run = world.run([str(NODE), str(script)])
    assert (run.finish(60), run.output) == (0, b"undefined")
    assert sessions(world) == []
    assert not list(Path(world.state).glob("hermes-supervise/runs/*"))


# Speaks the protocol itself (docs/protocol.md), as far as this test needs it.
SPEAKS = """\
import net from 'node:net';
import crypto from 'node:crypto';
import { createRequire } from 'node:module';
const { ofRecord } = createRequire(import.meta.url)(process.env.FRAMES);
const stream = crypto.randomBytes(16).toString('hex');
const socket = net.connect(process.env.HERMES_SUPERVISE_SOCKET);
const hello = { kind: 'hello', version: 1, oldest: 1, stream, pid: process.pid };
const message = { role: 'user', content: 'said by itself' };
for (const [number, record] of [hello, { kind: 'session', session: 'own', source: 'cli' },
  { kind: 'message', session: 'own', uid: 'u', message }].entries()) {
  socket.write(ofRecord(number, record));
}
await new Promise((resolve) => socket.once('data', resolve));
socket.unref();
"""


def test_a_program_that_reports_itself_is_not_reported_twice(
    world: World, model: ScriptedModel
) -> None:
    world.env["FRAMES"] = str(ROOT / "agent_shim" / "node" / "frames.js")
    script = program(world, "chat", head=SPEAKS)
    run = world.run([str(NODE), str(script), model.url, "WORDS 5"])
    assert run.finish(60) == 0, run.errors
    assert [(row["id"], row["source"]) for row in sessions(world)] == [("own", "cli")]


# -- how it is started -------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["a script", "npx", "npm start", "env"])
def test_it_is_found_however_it_is_started(world: World, model: ScriptedModel, way: str) -> None:
    script = program(world, "chat", head="#!/usr/bin/env node\n")
    script.chmod(0o755)
    folder, rest = script.parent, [model.url, "WORDS 5"]
    if way == "a script":
        command = [str(script), *rest]
    elif way == "env":
        command = ["env", "NODE_OPTIONS=--no-warnings", str(NODE), str(script), *rest]
    else:
        about = {"name": "own", "version": "1.0.0", "scripts": {"start": "node agent.mjs"}}
        (folder / "package.json").write_text(json.dumps(about))
        command = ["npm", "start", "--", *rest]
        if way == "npx":
            bin = folder / "node_modules" / ".bin"
            (folder / "node_modules").unlink()
            bin.mkdir(parents=True)
            for name in ("openai",):
                (folder / "node_modules" / name).symlink_to(MODULES / name)
            (bin / "own").symlink_to(script)
            command = ["npx", "--no-install", "own", *rest]
    run = world.run(command, cwd=str(folder))
    assert run.finish(90) == 0, run.errors
    [session] = sessions(world)
    assert world.messages(session["id"])[-1]["content"].strip() == reply(5)


def test_no_tap_leaves_it_alone(world: World, model: ScriptedModel) -> None:
    path = program(world, "chat")
    run = world.run([str(NODE), str(path), model.url, "WORDS 5"], "--no-tap")
    assert run.finish(60) == 0, run.errors
    assert sessions(world) == []


def test_a_node_that_may_not_read_our_files_starts_all_the_same(world: World) -> None:
    script = world.folder / "plain.js"
    script.write_text("process.stdout.write('it runs')")
    flag = "--permission"
    if subprocess.run([str(NODE), flag, "-e", "0"], capture_output=True).returncode:
        flag = "--experimental-permission"  # as it is called before Node 24
    run = world.run([str(NODE), flag, f"--allow-fs-read={script}", str(script)])
    assert (run.finish(60), run.output) == (0, b"it runs"), run.errors


def test_doctor_says_what_would_be_captured(world: World) -> None:
    script = world.folder / "plain.js"
    script.write_text("")
    found = {}
    for options in ([], ["--experimental-permission"]):
        done = world.call("doctor", "--json", "--", str(NODE), *options, str(script))
        [check] = [one for one in json.loads(done.stdout)["checks"] if one["name"] == "agent"]
        found[bool(options)] = check["state"]
    assert found == {False: "ok", True: "note"}
