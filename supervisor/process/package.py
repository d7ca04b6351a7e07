"""Where the files are that run in an agent's own interpreter.

Never imports them: the shim belongs to the agent's process.
"""

from __future__ import annotations

import os

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHIM_FOLDER = os.path.join(_ROOT, "agent_shim")
INJECTED_FOLDER = os.path.join(SHIM_FOLDER, "inject")
NODE_FOLDER = os.path.join(SHIM_FOLDER, "node")
