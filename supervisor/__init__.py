"""The supervisor: runs the agent, journals its messages, and recovers them when it dies.

While it idles it is one process with one loop; what recovery needs is imported in a
process of its own.
"""
