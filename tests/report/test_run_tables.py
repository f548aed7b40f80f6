"""The tables of the runs themselves."""

import pytest
from given import Method, column, run, study, whole

from r2r2.report.run_tables import diagnostics_table, lacks_table, runs_table
from r2r2.report.study import MemberData, series_of

TD7 = Method("td7", 20)


def member(seed, rank, **known):
    series = {"effective_rank": series_of({100: 1.0, 200: rank})}
    whole = MemberData(f"Ant-v5_s{seed}", "Ant-v5", seed, 900, 9, series, (), (), "")
    return whole._replace(**known)


def test_runs_say_what_was_read_and_what_became_of_it():
    members = (
        member(0, 5.0, collapses=(300, 400)),
        member(1, 7.0, stopped="a loss was not finite"),
    )
    table = runs_table(study(run(TD7, {"Ant-v5": [1.0, 2.0, 3.0]}, members=members)))
    (row,) = table.rows
    found = {n: entry.text for n, entry in zip(table.header, row, strict=True)}
    assert found["seeds"] == "0 to 2"
    assert found["environment steps"] == "1,000"
    assert found["remarks"] == (
        "Ant-v5_s0 was found collapsed first at environment step 300; "
        "Ant-v5_s1 was stopped at 900 environment steps: a loss was not finite"
    )


def test_what_is_missing_is_listed_and_what_is_whole_is_not():
    five = [1.0, 2.0, 3.0, 4.0, 5.0]
    table = lacks_table(study(whole(TD7, {"Ant-v5": five, "Hopper-v5": five[:2]})))
    (row,) = table.rows
    assert [e.text for e in row] == ["td7", "20", "Hopper-v5", "2", "2 of 5 seeds"]
    assert lacks_table(study(whole(TD7, {"Ant-v5": five}))) is None


def test_diagnostics_are_means_of_each_seeds_last():
    members = (member(0, 5.0), member(1, 7.0))
    table = diagnostics_table(study(run(TD7, {"Ant-v5": [1.0]}, members=members)))
    (rank,) = column(table, "effective rank")
    assert rank.numbers["mean"] == 6.0
    assert rank.numbers["std"] == pytest.approx(2**0.5)
    assert column(table, "value bias")[0].text == "-"
    assert diagnostics_table(study(run(TD7, {"Ant-v5": [1.0]}))) is None
