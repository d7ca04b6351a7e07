"""The floor: requests to a model and its answers are captured in any agent built on httpx."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hermes_supervise.agent_shim import sdk
from hermes_supervise.agent_shim.adapters import floor, model_http
from hermes_supervise.agent_shim.adapters.model_messages import Answer, asked

Records = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Records]:
    """Every record that a session sends, instead of a link to a supervisor."""
    found: Records = []

    def send(self: Any, kind: str, fields: dict[str, Any], *, soon: bool = False) -> None:
        found.append((kind, {"session": self.id, **fields}))

    def delta(self: Any, text: str, *, reasoning: bool = False, restart: bool = False) -> None:
        found.append(("reasoning" if reasoning else "delta", {"text": text, "restart": restart}))

    monkeypatch.setitem(sys.modules, "aider", ModuleType("aider"))
    monkeypatch.setattr(floor, "_SDK", "a module that nobody has")
    monkeypatch.setattr(sdk, "connection", lambda: SimpleNamespace(stream="s" * 32, generation=0))
    monkeypatch.setattr(sdk.Session, "_send", send)
    monkeypatch.setattr(sdk.Session, "delta", delta)
    monkeypatch.setattr(floor, "_is_command", {})
    monkeypatch.setattr(floor, "_lineages", {})
    for held in (floor.steps_aside, floor.belongs_to, floor._conversations, floor._began):
        monkeypatch.setattr(floor, _name_of(held), [])
    yield found


def _name_of(held: object) -> str:
    return next(name for name, value in vars(floor).items() if value is held)


# -- an httpx that needs no network ------------------------------------------------------------


class Request:
    def __init__(self, path: str, body: object, method: str = "POST") -> None:
        self.method, self.url = method, SimpleNamespace(path=path)
        self.content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.headers = {"authorization": "Bearer a-secret-key"}


def stand_in() -> Any:
    """The part of httpx that is tapped, fresh, tapped."""

    class Response:
        def __init__(self, request: Request, data: list[bytes], streams: bool, status: int) -> None:
            self.request, self.data, self.status_code = request, data, status
            self.headers = {"content-type": "text/event-stream" if streams else "application/json"}

        def iter_bytes(self) -> Iterator[bytes]:
            yield from self.data

        async def aiter_bytes(self) -> Any:
            for data in self.data:
                yield data

    class Client:
        def send(self, request: Request, **named: Any) -> str:
            return "sent"

    class AsyncClient:
        async def send(self, request: Request, **named: Any) -> str:
            return "sent"

    module = ModuleType("httpx")
    vars(module).update(Client=Client, AsyncClient=AsyncClient, Response=Response)
    model_http.loaded(module)
    return module


def events(*events: object) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


def ask(
    httpx: Any, messages: list[Any], *answer: bytes, path: str = "/v1/chat/completions",
    status: int = 200, **more: Any,
) -> list[bytes]:  # fmt: skip
    """One request and its answer, as an SDK would make it; what the SDK reads."""
    request = Request(path, {"model": "m", "messages": messages, "stream": True, **more})
    assert httpx.Client().send(request) == "sent"
    streams = bool({"stream": True, **more}["stream"])
    return list(httpx.Response(request, list(answer), streams, status).iter_bytes())


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(sent: Records) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for kind, fields in sent:
        if kind == "message":
            found.append((fields["message"]["role"], fields["message"]["content"]))
        elif kind in ("delta", "reasoning"):
            found.append((kind, fields["text"]))
    return found


def test_a_question_its_streamed_answer_and_the_next_one(sent: Records) -> None:
    httpx = stand_in()
    system = {"role": "system", "content": "be good"}
    data = events(chunk(content="Hi "), chunk(content="you"), chunk("stop")) + b"data: [DONE]\n\n"
    # However the network cuts it into pieces, the SDK gets the same, and we understand it.
    for size in (1, 7, len(data)):
        sent.clear()
        floor._conversations.clear()
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert b"".join(ask(httpx, [system, user("hello")], *parts)) == data
        answer = {"role": "assistant", "content": "Hi you"}
        ask(httpx, [system, user("hello"), answer, user("and?")])
        assert said(sent) == [
            ("user", "hello"), ("delta", "Hi "), ("delta", "you"), ("assistant", "Hi you"),
            ("user", "and?"),
        ]  # fmt: skip
        assert [kind for kind, _ in sent].count("session") == 1


def test_calls_are_sent_with_the_answer_and_results_with_the_next_request(sent: Records) -> None:
    httpx = stand_in()
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"a"'}}
    rest = {"index": 0, "function": {"arguments": ":1}"}}
    ask(httpx, [user("look")],
        events(chunk(reasoning_content="hm"), chunk(tool_calls=[call]), chunk(tool_calls=[rest]),
               chunk("tool_calls")))  # fmt: skip
    made = sent[-1][1]["message"]["tool_calls"]
    assert made == [{"id": "c1", "type": "function",
                     "function": {"name": "look", "arguments": '{"a":1}'}}]  # fmt: skip
    ask(httpx, [user("look"), {"role": "assistant", "content": None, "tool_calls": made},
                {"role": "tool", "tool_call_id": "c1", "content": "seen"}])  # fmt: skip
    assert said(sent) == [("user", "look"), ("reasoning", "hm"), ("assistant", None),
                          ("tool", "seen")]  # fmt: skip


def test_an_answer_that_is_cut_off_stays_in_progress_and_a_retry_begins_anew(sent: Records) -> None:
    httpx = stand_in()
    ask(httpx, [user("hello")], events(chunk(content="Hi ")))
    ask(httpx, [user("hello")], events(chunk(content="Ho")))
    assert said(sent) == [("user", "hello"), ("delta", "Hi "), ("delta", "Ho")]
    assert [fields["restart"] for kind, fields in sent if kind == "delta"] == [True, True]


@pytest.mark.parametrize("agent", ["hermes_cli", "aider"])
def test_only_the_last_question_is_new_and_what_is_before_it_is_hermes_history(
    sent: Records, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    monkeypatch.setitem(sys.modules, agent, ModuleType(agent))
    httpx = stand_in()
    past = [user("long ago"), {"role": "assistant", "content": "yes"}]
    ask(httpx, [*past, user("now")])
    assert [fields["messages"] for kind, fields in sent if kind == "history"] == (
        [past] if agent == "hermes_cli" else []
    ), "another agent may have put examples there"
    assert said(sent) == [("user", "now")]


def test_two_conversations_are_two(sent: Records) -> None:
    httpx = stand_in()
    ask(httpx, [user("one thing")], events(chunk("stop", content="a")))
    ask(httpx, [user("another")], events(chunk("stop", content="b")))
    ask(httpx, [user("one thing"), {"role": "assistant", "content": "a"}, user("more")])
    assert [kind for kind, _ in sent].count("session") == 2


@pytest.mark.parametrize("tools", [False, True])
def test_an_aside_is_kept_only_if_it_goes_on(sent: Records, tools: bool) -> None:
    httpx = stand_in()
    body = json.dumps({"choices": [{"message": {"content": "A title"}}]}).encode()
    more = {"tools": [{}]} if tools else {}
    ask(httpx, [user("a title for it")], body, stream=False, **more)
    kept = [("user", "a title for it"), ("delta", "A title"), ("assistant", "A title")]
    assert said(sent) == (kept if tools else [])
    answer = {"role": "assistant", "content": "A title"}
    ask(httpx, [user("a title for it"), answer, user("shorter")], stream=False)
    if not tools:
        kept.remove(("delta", "A title"))  # it is known when it goes on
    assert said(sent) == [*kept, ("user", "shorter")]


@pytest.mark.parametrize(
    "request_",
    [
        Request("/v1/models", {}, "GET"),
        Request("/v1/embeddings", {"messages": [user("x")]}),
        Request("/v1/chat/completions", b"\xff not JSON"),
        Request("/v1/chat/completions", {"no": "messages"}),
        Request("/v1/messages", [1, 2]),
        Request("/v1/chat/completions", {"messages": [3, {"role": 4}]}),
    ],
)
def test_what_is_not_for_a_model_is_let_alone(sent: Records, request_: Request) -> None:
    httpx = stand_in()
    assert httpx.Client().send(request_) == "sent"
    assert list(httpx.Response(request_, [b"x"], True, 200).iter_bytes()) == [b"x"]
    assert sent == []


@pytest.mark.parametrize(
    "data", [b"data: not JSON\n", b"data: 3\n", b"data: []\n", b"\xff\xfe\n", b"data: \xff\n",
             b'data: {"choices": [3]}\n', b'data: {"choices": [{"delta": {"tool_calls": 7}}]}\n'],
)  # fmt: skip
def test_an_answer_that_is_not_understood_reaches_the_agent(sent: Records, data: bytes) -> None:
    assert ask(stand_in(), [user("hello")], data, data) == [data, data]
    assert said(sent) == [("user", "hello")]


def test_what_follows_an_event_that_is_not_understood_is_captured(sent: Records) -> None:
    bad = b'data: {"choices": [3]}\n\ndata: {"choices": [{"delta": 5}]}\n\n'
    ask(stand_in(), [user("hello")], bad + events(chunk(content="hi")))
    assert said(sent) == [("user", "hello"), ("delta", "hi")]


def test_a_refusal_is_no_answer(sent: Records) -> None:
    ask(stand_in(), [user("hello")], b'{"choices": [{"message": {"content": "no"}}]}',
        status=429, stream=False, tools=[{}])  # fmt: skip
    assert said(sent) == [("user", "hello")]


def test_nothing_but_the_messages_is_kept(sent: Records) -> None:
    httpx = stand_in()
    ask(httpx, [{"role": "system", "content": "a-secret-prompt"}, user("hello")],
        events(chunk("stop", content="hi")), user="a-secret-user", model="a-secret-model",
        metadata={"key": "a-secret-key"})  # fmt: skip
    assert said(sent)
    assert "secret" not in json.dumps(sent)


def test_an_adapter_that_has_it_all_makes_it_idle(sent: Records) -> None:
    floor.steps_aside.append(lambda: True)
    request = Request("/v1/chat/completions", {"messages": [user("hello")]})
    del request.content  # not even looked at
    assert stand_in().Client().send(request) == "sent"
    assert sent == []


def test_a_process_that_is_no_agent_or_speaks_itself_is_let_alone(
    sent: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floor, "_SDK", "hermes_supervise.agent_shim.sdk")
    ask(stand_in(), [user("hello")])
    monkeypatch.setattr(floor, "_SDK", "a module that nobody has")
    monkeypatch.delitem(sys.modules, "aider")
    ask(stand_in(), [user("hello")])
    assert sent == []


def test_an_adapter_gets_what_it_lacks_also_where_the_sdk_is_used(
    sent: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Adapter:
        has_all_pieces = True
        model_asked = model_answered = lambda self, *said: heard.append(said)
        model_piece = lambda self, text, reasoning: heard.append(text)  # noqa: E731

    heard: list[Any] = []
    mine: list[Any] = [user("of the adapter's agent")]
    floor.belongs_to.append(lambda messages, lasting: Adapter() if messages == mine else None)
    monkeypatch.setattr(floor, "_SDK", "hermes_supervise.agent_shim.sdk")
    ask(stand_in(), mine, events(chunk("stop", content="hi")))
    assert heard == [(mine,), "hi", ({"role": "assistant", "content": "hi"},)]
    ask(stand_in(), [user("of somebody who reports it")], events(chunk("stop", content="hi")))
    assert len(heard) == 3
    assert sent == []


def test_async_clients_are_captured_as_well(sent: Records) -> None:
    import asyncio

    httpx = stand_in()

    async def talk() -> list[bytes]:
        body = {"messages": [user("hello")], "stream": True}
        request = Request("/v1/chat/completions", body)
        assert await httpx.AsyncClient().send(request) == "sent"
        response = httpx.Response(request, [events(chunk("stop", content="hi"))], True, 200)
        return [data async for data in response.aiter_bytes()]

    assert asyncio.run(talk())
    assert said(sent) == [("user", "hello"), ("delta", "hi"), ("assistant", "hi")]


# -- the forms of other providers --------------------------------------------------------------


def test_anthropic_messages() -> None:
    body = {"messages": [
        user("look"),
        {"role": "assistant", "content": [{"type": "text", "text": "I look"},
         {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1",
             "content": [{"type": "text", "text": "seen"}]}]},
    ]}  # fmt: skip
    question, call, answer = asked(body)
    assert (question["role"], answer["role"]) == ("user", "tool")
    assert (call["content"], call["tool_calls"][0]["id"]) == ("I look", "t1")
    assert (answer["content"], answer["tool_call_id"]) == ("seen", "t1")
    reply = Answer()
    for event in (
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
        {"type": "content_block_delta", "index": 0, "delta": {"thinking": "hm"}},
        {"type": "content_block_delta", "index": 1, "delta": {"text": "Hi"}},
        {"type": "content_block_start", "index": 2,
         "content_block": {"type": "tool_use", "id": "t2", "name": "do", "input": {}}},
        {"type": "content_block_delta", "index": 2, "delta": {"partial_json": "{}"}},
        {"type": "message_stop"},
    ):  # fmt: skip
        reply.event(event)
    assert reply.pieces == [(True, "hm"), (False, "Hi")]
    assert reply.complete
    assert [call["id"] for call in reply.message["tool_calls"]] == ["t2"]


# -- a conversation that the provider keeps ------------------------------------------------------


def respond(
    httpx: Any, id: str, question: object, answer: str | None = "a", *, call: str = "", **more: Any
) -> None:
    """A streamed request of the Responses API, which may carry only what is new."""
    given = [question] if isinstance(question, dict) else question
    request = Request("/v1/responses", {"model": "m", "input": given, "stream": True, **more})
    httpx.Client().send(request)
    made = {"type": "function_call", "call_id": call, "name": "look", "arguments": "{}"}
    data = events(
        {"type": "response.created", "response": {"id": id}},
        *([{"type": "response.output_text.delta", "delta": answer}] if answer else []),
        *([{"type": "response.output_item.done", "item": made}] if call else []),
        *([{"type": "response.completed"}] if answer or call else []),
    )
    list(httpx.Response(request, [data], True, 200).iter_bytes())


def by_session(sent: Records) -> list[list[tuple[Any, ...]]]:
    """What was said in each session, without the pieces of replies."""
    names = [fields["session"] for kind, fields in sent if kind == "session"]
    return [
        [
            (fields["message"]["role"], fields["message"]["content"])
            for kind, fields in sent
            if kind == "message" and fields["session"] == name
        ]
        for name in names
    ]


def test_a_request_that_carries_only_what_is_new_continues_its_session(sent: Records) -> None:
    httpx = stand_in()
    output = {"type": "function_call_output", "call_id": "c1", "output": "seen"}
    respond(httpx, "r1", user("look"), None, call="c1")
    respond(httpx, "r2", output, "found it", previous_response_id="r1")
    # A result of a kind that is no message of ours; the answer is one.
    respond(httpx, "r3", {"type": "computer_call_output"}, "and", previous_response_id="r2")
    respond(httpx, "r4", user("go on"), "more", previous_response_id="r3")
    assert by_session(sent) == [[
        ("user", "look"), ("assistant", None), ("tool", "seen"), ("assistant", "found it"),
        ("assistant", "and"), ("user", "go on"), ("assistant", "more"),
    ]]  # fmt: skip


def test_equal_conversations_that_the_provider_keeps_are_kept_apart(sent: Records) -> None:
    httpx = stand_in()
    respond(httpx, "a1", user("hi"), "from a")
    respond(httpx, "b1", user("hi"), "from b")
    respond(httpx, "a2", user("to a"), previous_response_id="a1")
    respond(httpx, "b2", user("to b"), previous_response_id="b1")
    first, second = by_session(sent)
    assert [text for _, text in first] == ["hi", "from a", "to a", "a"]
    assert [text for _, text in second] == ["hi", "from b", "to b", "a"]


def test_an_earlier_response_is_continued_in_a_session_of_its_own(sent: Records) -> None:
    httpx = stand_in()
    respond(httpx, "r1", user("one"))
    respond(httpx, "r2", user("two"), previous_response_id="r1")
    respond(httpx, "r3", user("another two"), previous_response_id="r1")
    respond(httpx, "r4", user("three"), previous_response_id="r3")
    first, second = by_session(sent)
    assert [text for _, text in first] == ["one", "a", "two", "a"]
    assert [text for _, text in second] == ["another two", "a", "three", "a"]


def test_a_response_of_another_process_begins_a_session_with_what_is_new(sent: Records) -> None:
    httpx = stand_in()
    respond(httpx, "r8", user("still there?"), previous_response_id="r7, of yesterday")
    respond(httpx, "r9", user("good"), previous_response_id="r8")
    [said_] = by_session(sent)
    assert [text for _, text in said_] == ["still there?", "a", "good", "a"]


def test_a_conversation_by_its_id_and_a_question_that_was_cut_off_in_it(sent: Records) -> None:
    httpx = stand_in()
    respond(httpx, "r1", user("one"), conversation="conv_1")
    respond(httpx, "r2", user("two"), None, conversation={"id": "conv_1"})
    respond(httpx, "r3", user("two"), conversation={"id": "conv_1"})
    respond(httpx, "r4", user("three"), conversation="conv_1")
    [said_] = by_session(sent)
    assert [text for _, text in said_] == ["one", "a", "two", "a", "three", "a"]


def test_the_memory_of_earlier_responses_is_bounded(sent: Records) -> None:
    httpx = stand_in()
    for number in range(200):
        more = {"previous_response_id": f"r{number - 1}"} if number else {}
        respond(httpx, f"r{number}", user(f"question {number}"), **more)
    assert len(floor._lineages) == 64
    [said_] = by_session(sent)
    assert len(said_) == 400


def test_openai_responses() -> None:
    call = {"type": "function_call", "call_id": "r1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "r1", "output": "seen"}
    messages = asked({"input": [user("look"), call, output]})
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert asked({"input": "just this"}) == [user("just this")]
    reply = Answer()
    for event in (
        {"type": "response.reasoning_summary_text.delta", "delta": "hm"},
        {"type": "response.output_text.delta", "delta": "Hi"},
        {"type": "response.output_item.done", "item": {**call, "call_id": "r2"}},
        {"type": "response.completed"},
    ):
        reply.event(event)
    assert reply.pieces == [(True, "hm"), (False, "Hi")]
    assert [call["id"] for call in reply.message["tool_calls"]] == ["r2"]
