"""What the folder's modules share."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.sinks.behaviour")
