"""Agents that are followed without a change to them: one module each, loaded when it is met."""
