"""The guest in a Node agent sees the model's stream, harms nobody, and is met by nobody else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.agents import node_guest, registry
from hermes_supervise.supervisor.cli.proof.scripted_model import ScriptedModel, words

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")

FETCH = """\
const response = await fetch(process.argv[2], {method: 'POST', body: process.argv[3]});
let text = '';
const decoder = new TextDecoder();
READ
process.stdout.write(JSON.stringify([text.length, process.env.NODE_OPTIONS || null]));
"""
READS = {
    "iterated": "for await (const chunk of response.body) text += decoder.decode(chunk);",
    "a reader": "const reader = response.body.getReader();"
    "for (;;) {const {done, value} = await reader.read(); if (done) break;"
    "text += decoder.decode(value);}",
    "piped": "const through = response.body.pipeThrough(new TextDecoderStream());"
    "for await (const chunk of through) text += chunk;",
    "teed": "const [one, two] = response.body.tee();"
    "for await (const chunk of one) text += decoder.decode(chunk);",
}
HTTP = """\
const request = require('http').request(process.argv[2], {method: 'POST'}, (response) => {
  let text = '';
  response.on('data', (chunk) => { text += chunk; });
  response.on('end', () => process.stdout.write(JSON.stringify([text.length, null])));
});
request.end(process.argv[3]);
"""
APIS = {
    "/v1/chat/completions": {"stream": True, "messages": [{"role": "user", "content": "ASK"}]},
    "/v1/responses": {"stream": True, "input": [{"role": "user", "content": "ASK"}]},
    "/v1/messages": {"stream": True, "messages": [{"role": "user", "content": "ASK"}]},
    "/v1beta/models/m:streamGenerateContent": {
        "contents": [{"role": "user", "parts": [{"text": "ASK"}]}]
    },
}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    made = ScriptedModel()
    made.pace = 0
    yield made
    made.close()


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a state folder"))
    (tmp_path / "tap").mkdir()
    base = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    base.pop("NODE_OPTIONS", None)
    started = node_guest.start_with(["node"], base, str(tmp_path / "tap"))
    assert started is not None
    return started[1]


def run(script: str, env: dict[str, str], tmp_path: Path, *words: str) -> str:
    path = tmp_path / ("script.mjs" if "await" in script else "script.js")
    path.write_text(script)
    done = subprocess.run([str(NODE), str(path), *words], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def seen(tmp_path: Path) -> list[dict[str, object]]:
    found = []
    for path in sorted((tmp_path / "tap").glob("*.frames")):
        decoder = frames.Decoder()
        numbered = decoder.feed(path.read_bytes())
        assert (decoder.damage, decoder.pending) == (None, 0)
        assert [number for number, _ in numbered] == list(range(len(numbered)))
        found += [records.unpack(frames.payload_of(frame)) for _, frame in numbered]
    return found


def streamed(tmp_path: Path) -> str:
    return "".join(str(record["text"]) for record in seen(tmp_path) if record["kind"] == "delta")


def asking(model: ScriptedModel, path: str, question: str) -> list[str]:
    return [model.url + path, json.dumps(APIS[path]).replace("ASK", question)]


@pytest.mark.parametrize("api", APIS)
def test_the_stream_of_each_api_is_seen(
    model: ScriptedModel, env: dict[str, str], tmp_path: Path, api: str
) -> None:
    script = FETCH.replace("READ", READS["iterated"])
    run(script, env, tmp_path, *asking(model, api, "WORDS 30"))
    assert streamed(tmp_path) == "".join(words(30))
    [asked] = [record for record in seen(tmp_path) if record["kind"] == "asked"]
    assert asked["question"] == "WORDS 30"
    assert seen(tmp_path)[-1]["kind"] == "over"


@pytest.mark.parametrize("how", READS)
def test_a_response_is_seen_however_it_is_read_and_comes_whole(
    model: ScriptedModel, env: dict[str, str], tmp_path: Path, how: str
) -> None:
    words_ = asking(model, "/v1/chat/completions", "WORDS 12")
    script = FETCH.replace("READ", READS[how])
    with_guest, _ = json.loads(run(script, env, tmp_path, *words_))
    alone, _ = json.loads(run(script, {**env, "NODE_OPTIONS": ""}, tmp_path, *words_))
    assert with_guest == alone
    assert streamed(tmp_path) == "".join(words(12))


def test_a_request_by_http_is_seen(
    model: ScriptedModel, env: dict[str, str], tmp_path: Path
) -> None:
    run(HTTP, env, tmp_path, *asking(model, "/v1/chat/completions", "WORDS 12"))
    assert streamed(tmp_path) == "".join(words(12))


# A server that compresses each event as it comes, and an agent that is killed with the last one.
COMPRESSED = """\
const http = require('http');
const zlib = require('zlib');
const [, , make, open, encoding, body] = process.argv;
const event = (text) => `data: ${JSON.stringify({choices: [{delta: {content: text}}]})}\\n\\n`;
const server = http.createServer((request, response) => {
  response.writeHead(200, {'content-encoding': encoding});
  const packed = zlib[make]();
  packed.pipe(response);
  const say = (n) => {
    packed.write(event(`w${n} ä `));
    packed.flush(() => n < 19 && setImmediate(say, n + 1));
  };
  request.resume().on('end', () => say(0));
}).listen(0, '127.0.0.1', () => {
  const { port } = server.address();
  const about = {port, method: 'POST', path: '/v1/chat/completions'};
  http.request(about, (response) => {
    let text = '';
    response.pipe(zlib[open]()).on('data', (chunk) => {
      text += chunk;
      if (text.includes('w19')) process.kill(process.pid, 'SIGKILL');
    });
  }).end(body);
});
"""


@pytest.mark.parametrize(
    ("encoding", "make", "open"),
    [
        ("gzip", "createGzip", "createGunzip"),
        ("x-gzip", "createGzip", "createGunzip"),
        ("deflate", "createDeflate", "createInflate"),
        ("deflate", "createDeflateRaw", "createInflateRaw"),
        ("br", "createBrotliCompress", "createBrotliDecompress"),
        ("zstd", "createZstdCompress", "createZstdDecompress"),
    ],
)
def test_a_compressed_response_by_http_is_written_down_before_the_agent_has_it(
    env: dict[str, str], tmp_path: Path, encoding: str, make: str, open: str
) -> None:
    known = [str(NODE), "-p", f"typeof require('zlib').{make}"]
    if subprocess.check_output(known, text=True).strip() != "function":
        pytest.skip(f"this Node has no {encoding}")
    script = tmp_path / "script.js"
    script.write_text(COMPRESSED)
    body = json.dumps(APIS["/v1/chat/completions"])
    command = [str(NODE), str(script), make, open, encoding, body]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert streamed(tmp_path) == "".join(f"w{n} ä " for n in range(20))


def test_a_compressed_response_that_is_not_what_it_says_costs_the_agent_nothing(
    env: dict[str, str], tmp_path: Path
) -> None:
    script = """\
const http = require('http');
const server = http.createServer((request, response) => {
  response.writeHead(200, {'content-encoding': process.argv[2]});
  request.resume().on('end', () => response.end('data: no gzip at all'));
}).listen(0, '127.0.0.1', () => {
  const { port } = server.address();
  const about = {port, method: 'POST', path: '/v1/chat/completions'};
  http.request(about, (response) => {
    response.on('data', (chunk) => process.stdout.write(chunk)).on('end', () => server.close());
  }).end(process.argv[3]);
});
"""
    body = json.dumps(APIS["/v1/chat/completions"])
    for encoding in ("gzip", "br", "deflate", "unheard of"):
        assert run(script, env, tmp_path, encoding, body) == "data: no gzip at all"
    assert streamed(tmp_path) == ""


def test_a_call_is_written_down_before_the_agent_has_it(
    model: ScriptedModel, env: dict[str, str], tmp_path: Path
) -> None:
    tool = {"function": {"name": "bash", "parameters": {}}}
    body = {"stream": True, "messages": [{"role": "user", "content": "CALL ls"}], "tools": [tool]}
    script = """\
import fs from 'node:fs';
const response = await fetch(process.argv[2], {method: 'POST', body: process.argv[3]});
let text = '';
for await (const chunk of response.body) {
  text += String.fromCharCode(...chunk);
  if (text.includes('"finish_reason": "tool_calls"}]}\\n')) {
    const [file] = fs.readdirSync(process.argv[4]);
    const written = fs.readFileSync(`${process.argv[4]}/${file}`, 'latin1');
    process.stdout.write(String(written.includes('"kind":"message"')));
    break;
  }
}
"""
    words_ = [model.url + "/v1/chat/completions", json.dumps(body), str(tmp_path / "tap")]
    assert run(script, env, tmp_path, *words_) == "true"
    [message] = [record["message"] for record in seen(tmp_path) if record["kind"] == "message"]
    assert isinstance(message, dict)
    assert message["tool_calls"][0]["function"]["name"] == "bash"


def test_a_child_of_the_agents_does_not_meet_it(env: dict[str, str], tmp_path: Path) -> None:
    child = "process.stdout.write(JSON.stringify([process.env.NODE_OPTIONS || null]))"
    script = f"""\
const {{ execFileSync }} = require('child_process');
process.stdout.write(execFileSync(process.execPath, ['-e', {json.dumps(child)}]));
"""
    assert json.loads(run(script, env, tmp_path)) == [None]
    own = {**env, "NODE_OPTIONS": "--no-warnings " + env["NODE_OPTIONS"]}
    assert json.loads(run(script, own, tmp_path)) == ["--no-warnings"], "the user's own stays"


RELAUNCH = """\
const { spawn } = require('child_process');
const fs = require('fs');
if (process.env.AGAIN) {
  const loaded = Object.keys(require.cache).some((name) => name.endsWith('taps.js'));
  process.stdout.write(JSON.stringify([loaded, process.env.NODE_OPTIONS || null]));
} else {
  if (process.argv[2]) fs.rmSync(process.argv[2], { recursive: true });
  const env = { ...process.env, AGAIN: '1' };
  spawn(process.execPath, [...process.execArgv, __filename], { env, stdio: 'inherit' });
}
"""


def test_an_agent_that_starts_itself_again_has_it_again(
    env: dict[str, str], tmp_path: Path
) -> None:
    assert json.loads(run(RELAUNCH, env, tmp_path)) == [True, None]


def test_a_guest_that_is_removed_during_a_run_stops_no_node(
    model: ScriptedModel, env: dict[str, str], tmp_path: Path
) -> None:
    folder = node_guest.installed()
    assert json.loads(run(RELAUNCH, env, tmp_path, folder)) == [False, None]
    assert not os.path.exists(folder)
    assert os.listdir(node_guest.installed()), "the next start puts it back"


def test_a_folder_that_is_gone_costs_the_agent_nothing(
    model: ScriptedModel, env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tap").rmdir()
    script = FETCH.replace("READ", READS["iterated"])
    count, _ = json.loads(
        run(script, env, tmp_path, *asking(model, "/v1/chat/completions", "WORDS 12"))
    )
    assert count > 12 * 100


def test_the_names_of_the_files_of_lines_that_it_writes_are_noted(
    env: dict[str, str], tmp_path: Path
) -> None:
    script = (
        "import { appendFileSync } from 'node:fs';\n"
        "await 0; appendFileSync(process.argv[2], 'x'); appendFileSync(process.argv[3], 'x');"
    )
    lines, other = str(tmp_path / "a.jsonl"), str(tmp_path / "a.txt")
    run(script, env, tmp_path, lines, other)
    assert [record["path"] for record in seen(tmp_path) if record["kind"] == "wrote"] == [lines]


def test_the_copy_in_the_state_folder_is_named_by_its_contents(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = node_guest.installed()
    changed = tmp_path / "changed"
    shutil.copytree(node_guest.NODE_FOLDER, changed)
    (changed / "guest.js").write_text("// another\n")
    monkeypatch.setattr(node_guest, "NODE_FOLDER", str(changed))
    assert node_guest.installed() != before
    assert os.path.exists(os.path.join(before, "guest.js")), "an agent may still name it"


# -- where it is not loaded --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("gemini --sandbox", {}),
        ("gemini -s", {}),
        ("gemini", {"GEMINI_SANDBOX": "docker"}),
        ("qwen", {"QWEN_SANDBOX": "true"}),
    ],
)
def test_a_sandbox_is_left_alone(tmp_path: Path, line: str, variables: dict[str, str]) -> None:
    home = {"HOME": str(tmp_path)}
    agent = registry.recognised(line.split())
    assert agent.name in line
    assert agent.tapped(line.split(), {**home, **variables}, str(tmp_path)) is None


def test_a_sandbox_in_the_settings_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / ".gemini").mkdir()
    settings = tmp_path / ".gemini/settings.json"
    agent = registry.named("gemini")
    for value, found in (("docker", True), ({"enabled": True}, True), (False, False)):
        settings.write_text(json.dumps({"tools": {"sandbox": value}}))
        tapped = agent.tapped(["gemini"], {"HOME": str(tmp_path)}, str(tmp_path))
        assert (tapped is None) is found


def test_options_on_the_command_line_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    command = ["env", "NODE_OPTIONS=--no-warnings", "gemini"]
    tapped = registry.named("gemini").tapped(command, {"HOME": str(tmp_path)}, str(tmp_path))
    assert tapped is not None
    assert tapped[0][1].startswith("NODE_OPTIONS=--no-warnings --require ")
