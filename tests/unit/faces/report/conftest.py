from __future__ import annotations

import pytest
import sample_result

from windtunnel.physics.step.result import Result


@pytest.fixture(scope="session")
def result() -> Result:
    return sample_result.sample()


@pytest.fixture(scope="session")
def faster() -> Result:
    return sample_result.faster()


@pytest.fixture(scope="session")
def infeasible() -> Result:
    return sample_result.infeasible()


@pytest.fixture(scope="session")
def bare() -> Result:
    """An infeasible job that was never replayed: no times, no memory, no excerpt."""
    return sample_result.bare()


@pytest.fixture(scope="session")
def disturbed() -> Result:
    return sample_result.disturbed()


@pytest.fixture(scope="session")
def hostile(result: Result) -> Result:
    return sample_result.hostile()
