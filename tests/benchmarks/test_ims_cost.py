import ims_cost


def test_every_cell_of_the_paper_is_near() -> None:
    rows = list(ims_cost.measured(rounds=40))
    assert len(rows) == 12
    assert ims_cost.worst(rows) <= ims_cost.LIMIT


def test_the_worst_row_counts() -> None:
    assert ims_cost.worst([{"difference %": "+1.00"}, {"difference %": "-3.50"}]) == 0.035
