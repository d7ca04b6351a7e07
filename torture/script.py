"""The script of one process: a random sequence of operations.

Never depends on time or on anything outside: the same seed gives the same script, so that agent,
harness and model can each generate it for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .model import Conversation, Life, Step

# Repeated texts: they are the difficult case when a transcript is matched with a database.
FEW_WORDS = ("ok", "yes", "go on", "ok then", "Grüße")
PIECE = 48 * 1024
"""Only a few deltas of this size fit into a socket's buffer or a ring."""


@dataclass(frozen=True)
class Op:
    name: str
    on: int = 0
    uid: str = ""
    text: str | None = None
    ids: tuple[str, ...] = ()
    number: int = 0
    flag: bool = False
    how: str = ""


def steps(op: Op) -> list[Step]:
    """The steps of an operation. A kill can hit between any two of them."""
    on, text = op.on, op.text
    match op.name:
        case "open":
            sent: list[Step] = [("session", on, op.uid, op.flag, text or "")]
            return [("db_session", on, op.uid, op.flag, text or ""), *sent] if op.flag else sent
        case "user" | "aside" | "again":
            return [(op.name, on, op.uid, text)]
        case "assistant":
            return [("assistant", on, op.uid, text, op.ids)]
        case "delta":
            return [("delta", on, text, op.flag, op.how == "restart")]
        case "start":
            begun: list[Step] = [("tool_start", on, op.ids[0])]
            return begun if not op.flag else [("assistant", on, op.uid, None, op.ids), *begun]
        case "finish":
            answer: list[Step] = [("tool_message", on, op.ids[0], text)]
            return answer if op.flag else [("tool_end", on, op.ids[0], text), *answer]
        case "turn":
            return [("turn", on, op.how)]
        case "title":
            return [("title", on, text)]
        case "hook":
            return [("hook", on)]
        case "rotate":
            gone_on: list[Step] = [("rotated", on, op.uid)]
            return [*gone_on, ("db_rotated", on, op.how)] if op.flag else gone_on
        case "store":
            rows: list[Step] = [("db_rows", on, op.ids, op.how == "silent")]
            return rows if op.how == "silent" else [*rows, ("settled", on)]
        case "rewrite":
            return [("db_rewritten", on, op.ids), ("rewritten", on)]
        case "end":
            over: list[Step] = [("ended", on, op.how)]
            return [("db_ended", on, op.how), *over] if op.flag else over
        case "exit":
            return [("bye", on)] if op.how == "orderly" else []
    return []


class Writer:
    """Writes the script of one process. A model runs along, to know which operation makes sense."""

    def __init__(
        self, rng: Random, name: str, self_storing: bool, resume: list[str], patient: bool
    ) -> None:
        self._rng = rng
        self._name = name
        self._self_storing = self_storing
        self._resume = resume
        self._patient = patient
        """No message is sent while calls are open. A checkpoint would answer such calls at once,
        and the model does not know when checkpoints happen."""
        self._count = 0
        self._few = rng.random() < 0.3
        self._model = Life()
        self.ops: list[Op] = []

    def write(self, length: int, handles: int, forks: list[int]) -> list[Op]:
        for on in range(handles):
            self._open(on)
        at = sorted(self._rng.randrange(length) for _ in forks)
        for index in range(length):
            while at and at[0] <= index:
                at.pop(0)
                self._add(Op("fork", number=forks[len(forks) - len(at) - 1]))
            self._next(self._rng.randrange(handles))
        return self.ops

    def exit(self) -> None:
        """Let the process exit by itself."""
        how = self._rng.choice(("orderly", "orderly", "abrupt"))
        self._add(Op("exit", number=self._rng.choice((0, 0, 0, 3)), how=how))

    def _open(self, on: int) -> None:
        if self._resume and not self._self_storing:
            self._add(Op("open", on, uid=self._resume.pop()))
            return
        self._add(Op("open", on, uid=f"{self._name}-{on}", flag=self._self_storing))

    def _add(self, op: Op) -> None:
        self.ops.append(op)
        for step in steps(op):
            self._model.take(step)

    def _uid(self, what: str = "m") -> str:
        self._count += 1
        return f"{self._name}.{what}{self._count}"

    def _words(self) -> str:
        if self._few:
            return self._rng.choice(FEW_WORDS)
        return f"{self._uid('w')} " + "lorem ipsum " * self._rng.choice((0, 1, 1, 40))

    # -- what makes sense next -----------------------------------------------------------------

    def _next(self, on: int) -> None:
        at = self._model.live[on]
        rng = self._rng
        if rng.random() < 0.06:
            self._add(Op("nap", number=rng.randrange(300)))
        if rng.random() < 0.04:
            self._add(Op("acked"))
        if at.self_storing and len(at.items) > at.stored and rng.random() < 0.3:
            self._store(on, at)
        elif at.calls and rng.random() < 0.9:
            self._work(on, at)
        else:
            self._talk(on, at)

    def _talk(self, on: int, at: Conversation) -> None:
        rng = self._rng
        streaming = bool(at.streamed or at.thought)
        waits = at.self_storing or self._patient
        may_break_off = not (at.self_storing and streaming) and not (waits and at.calls)
        names: dict[str, float] = {"delta": 10, "turn": 2, "title": 1, "nap": 0}
        if may_break_off and at.ended is None:
            names |= {"user": 5, "hook": 1, "end": 0.5}
        elif may_break_off:
            names = {"user": 1, "turn": 1}
        if at.ended is None:
            if not at.calls:
                names |= {"assistant": 4, "call": 4, "start": 1, "rotate": 0.8}
            if not at.self_storing and streaming and not at.calls:
                names |= {"aside": 0.5}
            if not at.self_storing and len(at.items) > 1:
                names |= {"again": 0.7}
            if at.self_storing and not streaming and not at.calls and not at.silent:
                names |= {"rewrite": 1}
        elif not may_break_off:
            names = {"nap": 1}
        [name] = rng.choices(list(names), list(names.values()))
        getattr(self, "_do_" + name)(on, at)

    def _do_nap(self, on: int, at: Conversation) -> None:
        self._add(Op("nap", number=100))

    def _do_user(self, on: int, at: Conversation) -> None:
        self._add(Op("user", on, self._uid(), self._words()))

    def _do_aside(self, on: int, at: Conversation) -> None:
        self._add(Op("aside", on, self._uid(), self._words()))

    def _do_again(self, on: int, at: Conversation) -> None:
        plain = [uid for uid, row in at.items[:-1] if uid not in at.partial and _is_plain(row)]
        if plain:
            self._add(Op("again", on, self._rng.choice(plain), self._words()))

    def _do_delta(self, on: int, at: Conversation) -> None:
        rng = self._rng
        large = rng.random() < 0.01
        for _ in range(rng.choice((1, 3, 12))):
            how = "restart" if rng.random() < 0.02 else ""
            text = self._words() + ("x" * PIECE if large else "")
            large = False
            self._add(Op("delta", on, text=text, flag=rng.random() < 0.15, how=how))

    def _do_assistant(self, on: int, at: Conversation) -> None:
        text = None if at.streamed and self._rng.random() < 0.5 else at.streamed + self._words()
        self._add(Op("assistant", on, self._uid(), text))

    def _do_call(self, on: int, at: Conversation) -> None:
        ids = tuple(self._uid("c") for _ in range(self._rng.choice((1, 1, 2, 3))))
        text = self._words() if self._rng.random() < 0.5 else None
        self._add(Op("assistant", on, self._uid(), text, ids))

    def _do_start(self, on: int, at: Conversation) -> None:
        """A tool call that no message announced: the SDK sends that message itself."""
        if not at.self_storing:  # an agent that stores messages itself has to know their uids
            self._add(Op("start", on, self._uid("t"), ids=(self._uid("c"),), flag=True))

    def _do_turn(self, on: int, at: Conversation) -> None:
        self._add(Op("turn", on, how="start" if at.ended else self._rng.choice(("start", "end"))))

    def _do_title(self, on: int, at: Conversation) -> None:
        self._add(Op("title", on, text=f"about {self._uid('t')}"))

    def _do_hook(self, on: int, at: Conversation) -> None:
        self._add(Op("hook", on))

    def _do_end(self, on: int, at: Conversation) -> None:
        if not at.self_storing:
            self._add(Op("end", on, how=self._rng.choice(("completed", "reset"))))

    def _do_rotate(self, on: int, at: Conversation) -> None:
        self._add(Op("rotate", on, f"{self._uid('r')}", flag=at.self_storing, how=at.id))

    def _do_rewrite(self, on: int, at: Conversation) -> None:
        """Everything is stored and settled before it is rewritten."""
        if len(at.items) > at.stored:
            self._store(on, at, whole=True)
        kept = tuple(self._words() for _ in range(self._rng.randrange(3)))
        self._add(Op("rewrite", on, ids=kept))

    def _work(self, on: int, at: Conversation) -> None:
        call = self._rng.choice(list(at.calls.values()))
        if call.started:
            self._add(Op("finish", on, ids=(call.id,), text=self._words(), flag=at.self_storing))
        else:
            self._add(Op("start", on, ids=(call.id,)))

    def _store(self, on: int, at: Conversation, whole: bool = False) -> None:
        left = [uid for uid, _ in at.items[at.stored :]]
        uids = left if whole else left[: self._rng.randint(1, 4)]
        how = "rows" if whole else self._rng.choice(("rows", "rows", "bare", "silent"))
        self._add(Op("store", on, ids=tuple(uids), how=how))


def _is_plain(row: object) -> bool:
    role, calls = getattr(row, "role", ""), getattr(row, "calls", ())
    return role in ("user", "assistant") and not calls and not getattr(row, "reasoning", None)
