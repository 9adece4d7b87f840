"""Texts that are no token."""

from __future__ import annotations

import pytest

from jellybean_agent import PlanViewError
from jellybean_agent.enrolment.join_token import parse_token


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "the token is empty"), (" \n", "the token is empty"), ("jbt0.a.b.c", "not a token of this version")],
)
def test_what_is_no_token_is_said_with_the_command_that_makes_one(text, reason):
    with pytest.raises(PlanViewError, match=rf"{reason}.*: make one with `jellybean token`"):
        parse_token(text)
