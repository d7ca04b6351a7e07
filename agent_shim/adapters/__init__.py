"""Adapters for unmodified agents: one module each, loaded when the agent is imported."""
