"""Everything that knows an agent by name: a file or folder for each agent.

`protocol.py` says what an agent can be asked; `registry.py` finds the agent. The rest of the
supervisor asks these two and names no agent. To add an agent, add one file here with an `AGENT` in
it (docs/adding-an-agent.md shows how).

May import `statedb`, `storage`, `model` and `process`. Never imports an agent's own code.
"""
