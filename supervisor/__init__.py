"""The sidecar: launches the agent, journals what it says, and finishes for it when it dies.

While it idles it is one process with one loop; what recovery needs is imported in a
process of its own.
"""
