"""The programs that build the site lie in docs/ and find each other because that folder is on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs"))
