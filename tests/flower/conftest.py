import pytest

flwr = pytest.importorskip("flwr")


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    from flower.grid import identify

    identify(monkeypatch)
