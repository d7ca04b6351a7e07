"""What `hermes-supervise fleet doctor` finds: the connection, the rights, the clock, the lag, and
what the server promises."""

from __future__ import annotations

import time

from ...replica import places, seal
from ..output.formatting import number


def findings(where: str, key: str | None) -> list[tuple[str, str, str]]:
    from ...replica.server import NotReady, Server, Unreachable  # psycopg is an extra

    try:
        server = Server(where)
    except (Unreachable, NotReady) as error:
        return [("connection", "bad", str(error))]
    found: list[tuple[str, str, str]] = []
    try:
        before = time.time()
        clock = server.clock()
        off = clock - (before + time.time()) / 2
        took = f"answers in {(time.time() - before) * 1000:.1f} ms"
        found.append(("connection", "ok", took))
        encrypted = server.is_encrypted()
        if encrypted is not None:
            text = "TLS" if encrypted else "not encrypted; set sslmode=verify-full"
            found.append(("encryption", "ok" if encrypted else "bad", text))
        found.append(_privacy(key))
        lacking = server.lacking_rights()
        text = f"lacking on {', '.join(lacking)}; GRANT them" if lacking else "sufficient"
        found.append(("rights", "bad" if lacking else "ok", text))
        text = f"this machine is {abs(off):.1f} s {'behind' if off > 0 else 'ahead'}"
        text += "; leases go by the database's clock"
        text += "; set it, so that times on the pages agree" if abs(off) > 2 else ""
        found.append(("clock", "note" if abs(off) > 2 else "ok", text))
        found += _durability(server.settings())
    finally:
        server.close()
    found.append(_lag(where))
    return found


def _privacy(key: str | None) -> tuple[str, str, str]:
    if key is None:
        text = "stored as they are: who reads the tables reads the sessions; "
        text += "--replica-key encrypts them"
        return "records", "note", text
    try:
        first = seal.id_of(seal.read_keys(key)[0]).hex()
    except seal.KeyProblem as error:
        return "records", "bad", str(error)
    if not seal.is_installed():
        return "records", "bad", seal.INSTALL
    return "records", "ok", f"encrypted before they leave this machine, with key {first}"


def _durability(settings: dict[str, str]) -> list[tuple[str, str, str]]:
    """What `replicated` means on this server."""
    if settings.get("fsync") == "off":
        return [("durability", "bad", "fsync is off: a crash of the server loses records; set it")]
    if not settings.get("synchronous_standby_names"):
        text = "a replicated record survives a crash of the server, not the loss of its disk; set "
        return [("durability", "note", text + "synchronous_standby_names for that")]
    text = "a replicated record survives the loss of the server: a standby has it as well"
    return [("durability", "ok", text)]


def _lag(where: str) -> tuple[str, str, str]:
    status = places.status(places.target_folder(where))
    streams = (status.get("streams") or {}).values()
    behind = sum(1 for read, replicated in streams if replicated < read)
    if status.get("problem"):
        return "lag", "bad", str(status["problem"])
    if not behind:
        return "lag", "ok", "everything that this machine read is replicated"
    text = f"{number(behind, 'stream')} not replicated to the end; the rest follows by itself"
    return "lag", "note", text
