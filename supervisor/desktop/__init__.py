"""The desktop: launchers that start an agent under supervision, and words for who has no terminal.

One description of a launcher, a renderer for each system that can have one.
"""
