"""How tests are shared out among processes."""

import pytest


@pytest.mark.xdist_group("distribution")
def test_tests_that_share_what_is_slow_to_start_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist knows the tests of a group by their ids; where it does not, each process starts its own brokers."""
    shares_out = request.config.getoption("loadgroup", default=False)
    assert request.node.nodeid.endswith("@distribution") == shares_out
