import importlib.util
from types import ModuleType

import pytest

from benchmarks.conftest import BENCHMARKS
from fedgmr.wire import ValueType, map_bytes, values_bytes


@pytest.fixture(scope="module")
def wire() -> ModuleType:
    """The script by its path: the tests of the wire format are a package of the same name."""
    spec = importlib.util.spec_from_file_location("wire_benchmark", BENCHMARKS / "wire.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_have_the_bytes_of_their_objects(wire: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "COORDINATES", 50_000)
    values, both = wire.measure(1, ValueType.FP16, repeats=1)
    kept = round((int(str(values["bytes"])) - values_bytes(0, 0, ValueType.FP16)) / 2)
    assert kept == pytest.approx(5_000, rel=0.1)
    assert [values["density"], values["objects"], both["objects"]] == [0.1, "values", "map + values"]
    # The map's size depends on how the kept ones fall on the two levels, a little.
    part = map_bytes([kept // 2, kept - kept // 2], 50_000, 0, 1)
    assert int(str(both["bytes"])) - int(str(values["bytes"])) == pytest.approx(part, rel=0.05)


def test_a_rate_below_its_target_is_a_miss(wire: ModuleType) -> None:
    row: dict[str, object] = {"encode MB/s": 200.0, "decode MB/s": 900.0, "target MB/s": 200.0}
    assert wire.met(row)
    assert not wire.met({**row, "decode MB/s": 199.9})
    assert not wire.met({**row, "encode MB/s": 1.0})
