import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Generated series go to a folder of this test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIME2DECIDE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
