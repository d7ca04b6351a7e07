"""What an agent that knows nothing of us writes itself, read and told as records.

A process of its own (`main`) follows the files (`follow`) and speaks to the run's supervisor
like any other client. An adapter a file says where an agent's transcripts are and what their
lines mean; the rest is the same for all.
"""
