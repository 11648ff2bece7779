"""Groups by sorting are those by selection, element by element; both run on a CPU here."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmr.submodels.selection import Selection
from fedgmr.submodels.sorting import Sorting

# Few different values, so that ties are the rule.
AWKWARD = [-math.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, 1.0000001, 2.5, math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_sorting_places_as_selection_does(dtype: torch.dtype, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    values = st.lists(st.sampled_from(AWKWARD), min_size=size, max_size=size)
    keys = [torch.tensor(data.draw(values), dtype=dtype) for _ in range(data.draw(st.integers(1, 2)))]
    ends = sorted(data.draw(st.lists(st.integers(0, size + 2), min_size=1, max_size=4)))
    flags = data.draw(st.none() | st.lists(st.booleans(), min_size=size, max_size=size))
    exempt = None if flags is None else torch.tensor(flags)
    found = Sorting(keys).cut(ends, exempt)
    assert found.dtype == torch.uint8
    assert found.tolist() == Selection(keys).cut(ends, exempt=exempt).tolist()


@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_floors_by_sorting(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, 40), min_size=2, max_size=7, unique=True)))
    size = cuts[-1] + data.draw(st.integers(0, 3))
    pairs = list(itertools.pairwise(cuts))
    parts = [pair for pair in pairs if data.draw(st.booleans())]
    values = st.lists(st.sampled_from(AWKWARD), min_size=size, max_size=size)
    keys = [torch.tensor(data.draw(values)) for _ in range(data.draw(st.integers(1, 2)))]
    floors = [data.draw(st.integers(0, min(3, stop - start))) for start, stop in parts]
    ends = sorted(sum(floors) + extra for extra in data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=4)))
    found = Sorting(keys).cut_across(parts, floors, ends)
    assert found.tolist() == Selection(keys).cut_across(parts, floors, ends).tolist()


def test_what_is_not_a_number_ranks_first_and_takes_no_more_room() -> None:
    scores = torch.tensor([1.0, math.nan, 3.0, -math.inf, math.nan, 2.0])
    assert Sorting([scores]).cut([1, 3], None).tolist() == [2, 0, 1, 2, 1, 2]
    assert Sorting([scores]).cut_across([(1, 6)], [1], [2, 4]).tolist() == [0, 0, 1, 2, 0, 1]
