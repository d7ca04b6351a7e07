"""How commands show things: tables, styles, formatting, progress, the HTML page.

Never decides anything.
"""
