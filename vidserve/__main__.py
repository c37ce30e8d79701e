"""``python -m vidserve`` and the console script."""

from __future__ import annotations

from vidserve.cli import main

if __name__ == "__main__":
    main()
