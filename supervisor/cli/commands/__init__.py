"""Our own commands, a module each: `parser()` describes the command line, `main(argv)` runs it.

`main` returns the exit status and raises CommandError (errors.py). A module with subcommands that
argparse cannot mix with its arguments has them in SUBCOMMANDS: name to meaning and parser.
"""
