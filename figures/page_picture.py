"""The picture of a report in the README: a real report, as headless Chromium shows it.

python -m figures.page_picture [FILE]        (`make pictures`; needs chromium)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "report.png"
WIDE, HIGH = 1000, 720
AGENT = """
import os, time
from hermes_supervise.agent_shim import session
with session("20261116_091500_a1b2c3", source="cli", model="gpt-x") as chat:
    chat.title("Why does the login page lose its query?")
    chat.message("user", "Fix the login page and run the tests.")
    with chat.tool("read_file", {"path": "src/login.py"}) as tool:
        time.sleep(0.5)
        tool.result = "def login(): ..."
    with chat.tool("terminal", {"command": "make test"}) as tool:
        time.sleep(1.0)
        tool.result = "3 passed"
    for word in "All tests pass now. The query was lost because the redirect".split():
        chat.delta(word + " ")
        time.sleep(0.05)
    os.kill(os.getpid(), 9)
"""


def main() -> None:
    goal = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    browser = shutil.which("chromium")
    if browser is None:
        raise SystemExit("chromium is not installed")
    with tempfile.TemporaryDirectory() as home:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES_", "XDG_"))}
        env = {**kept, "HOME": home, "XDG_RUNTIME_DIR": home}
        ours = [sys.executable, "-m", "hermes_supervise.supervisor"]
        agent = Path(home, "agent.py")
        agent.write_text(AGENT)
        command = [*ours, "--quiet", "--on-session-end", "true", "--", sys.executable, str(agent)]
        subprocess.run(command, env=env)
        page = Path(home, "page.html")
        subprocess.run([*ours, "report", "last", "-o", str(page)], env=env, check=True)
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={home}/browser", f"--window-size={WIDE},{HIGH}",
             f"--screenshot={goal.absolute()}", f"file://{page}"],
            check=True, capture_output=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
