"""Removes a run folder that a killed run left unfinished: python examples/remove_unfinished.py FOLDER.

Refuses, with one line and exit code 2, where no run of ours began the folder, or where it holds a file that
no run wrote.
"""

from __future__ import annotations

import sys
from pathlib import Path

from recipe.rerule import io
from recipe.rerule.runs.run_folder import remove_unfinished


def main() -> int:
    """Remove the folder that the command line names."""
    folder = Path(sys.argv[1])
    try:
        remove_unfinished(folder)
    except (ValueError, OSError) as error:
        return io.fail(error, 2)
    print(f"removed {folder}, which an interrupted run left unfinished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
