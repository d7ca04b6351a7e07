"""An empty state.db, made by Hermes: hermes_schema.py ANSWER DB."""

import sys
from pathlib import Path

from hermes_state import SessionDB

SessionDB(db_path=Path(sys.argv[2])).close()
with open(sys.argv[1], "w") as file:
    file.write("true")
