"""What tests of pods share with the tests of serving: small models."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))  # for serving_models
