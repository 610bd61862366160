"""What a run says before its first step."""

import pytest
from composed import build


@pytest.mark.parametrize("policy", ["keep", "average", "reset"])
def test_C8_the_policy_for_momentum_is_said(policy):
    made = build("strategy=local_sgd", f"strategy.momentum={policy}", "workers=2")
    assert f"local optimizer's state at the end of a round: {policy}" in made.lines
