"""The installed package: its version and its directory."""

from pathlib import Path

VERSION = "0.1.0"

DIRECTORY = Path(__file__).parent
