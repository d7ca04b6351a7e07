"""What people type: options, settings, commands, output, completions.

May import every other room. No other room imports it.
"""
