"""The programs that are compared, as data: the words before the command, or the files of a daemon.

`{child}` stands for the command, `{folder}` for a folder of its own. A contender that is not
installed is left out, and the page says so.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from .environment import PEERS, PRODUCT, PYTHON, SUPERVISE

_EXEC = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
_WAIT = (
    "import os, sys; "
    "os.waitpid(os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ), 0); os._exit(0)"
)

OUR_NAME = "hermes-supervise"
FLOOR = "bare Python that execs"
WAITER = "bare Python that waits"
# What pip made of our entry point before 25.1.
_OLDER_SCRIPT = (
    "import re; import sys; from hermes_supervise.supervisor.__main__ import main; "
    r"sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0]); sys.exit(main())"
)


@dataclass
class Contender:
    name: str
    words: list[str]
    files: dict[str, str] = field(default_factory=dict)
    """Name to text, for contenders that read their command from a file."""
    python: bool = False
    """Written in Python, like us: we should be faster."""
    stays: bool = False
    """A daemon: it goes on running after its child has ended."""

    @property
    def found(self) -> bool:
        return not self.words or shutil.which(self.words[0]) is not None

    def command(self, child: list[str], folder: Path) -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        quoted = shlex.join(child)
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("{child}", quoted).replace("{folder}", str(folder)))
            path.chmod(0o700)
        words = [word.replace("{folder}", str(folder)) for word in self.words]
        return words if self.files else [*words, *child]


def _peer(name: str) -> str:
    return str(PEERS / name)


_RUN = "#!/bin/sh\nexec {child}\n"
_SUPERVISORD = """\
[supervisord]
nodaemon=true
logfile=/dev/null
logfile_maxbytes=0
pidfile={folder}/pid
[program:child]
command={child}
startsecs=0
autorestart=false
"""
_CIRCUS = """\
[circus]
endpoint = ipc://{folder}/a
pubsub_endpoint = ipc://{folder}/b
[watcher:child]
cmd = {child}
singleton = true
"""

ALL = (
    Contender("plain exec", []),
    Contender("tini", ["tini", "-s", "--"]),
    Contender("dumb-init", ["dumb-init", "--"]),
    Contender("runsv", ["runsv", "{folder}/service"], {"service/run": _RUN}, stays=True),
    Contender("s6-supervise", ["s6-supervise", "{folder}/service"], {"service/run": _RUN},
              stays=True),
    Contender("bare Python -I -S that execs", [PYTHON, "-I", "-S", "-c", _EXEC]),
    Contender(FLOOR, [PYTHON, "-c", _EXEC]),
    Contender(WAITER, [PYTHON, "-c", _WAIT]),
    Contender(OUR_NAME, [*SUPERVISE, "--"]),
    Contender("honcho run", [_peer("honcho"), "run"], python=True),
    Contender("opentelemetry-instrument", [_peer("opentelemetry-instrument")], python=True),
    Contender("circusd", [_peer("circusd"), "{folder}/circus.ini"], {"circus.ini": _CIRCUS},
              python=True, stays=True),
    Contender("supervisord", [_peer("supervisord"), "-c", "{folder}/supervisord.conf"],
              {"supervisord.conf": _SUPERVISORD}, python=True, stays=True),
)  # fmt: skip

# Only its launch differs.
OLDER = Contender(
    "hermes-supervise, installed by an older pip", [PYTHON, "-c", _OLDER_SCRIPT, "--"]
)

BY_NAME = {contender.name: contender for contender in ALL}


def present() -> tuple[list[Contender], list[str]]:
    """The contenders that are installed, and the names of the others."""
    return [c for c in ALL if c.found], [c.name for c in ALL if not c.found]


def installed() -> bool:
    return (PRODUCT / "hermes-supervise").exists()
