"""An agent may change its folder: paths mean what they meant when they were given."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

from support import World, short


def test_relative_xdg_folders_are_ignored_as_their_specification_asks(world: World) -> None:
    for name in ("STATE_HOME", "CONFIG_HOME", "DATA_HOME", "RUNTIME_DIR"):
        world.env[f"XDG_{name}"] = "relative"
    (world.folder / "relative").mkdir(mode=0o700)
    run = world.supervise("""
os.mkdir("elsewhere")
os.chdir("elsewhere")
with session("s1") as chat:
    chat.message("user", "hello")
    chat.delta("not yet comp")
    ready()
    forever()
""")
    run.wait_for("ready")
    run.kill_agent()
    assert run.finish() == -signal.SIGKILL
    assert short(world.messages("s1")) == [("user", "hello"), ("assistant", "not yet comp")]
    assert list((world.folder / "relative").iterdir()) == []
    assert (world.folder / ".local" / "state" / "hermes-supervise").is_dir()


def test_a_relative_db_is_in_the_folder_where_the_agent_named_it(world: World) -> None:
    (world.folder / "elsewhere").mkdir()
    run = world.supervise("""
session("first").message("user", "from here")
os.chdir("elsewhere")
chat = session("second", db="mine.db")
os.chdir("..")
chat.message("user", "from elsewhere")
ready()
forever()
""")
    run.wait_for("ready")
    run.kill_agent()
    run.finish()
    path = world.folder / "elsewhere" / "mine.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        assert db.execute("SELECT content FROM messages").fetchall() == [("from elsewhere",)]
    assert short(world.messages("first")) == [("user", "from here")]
