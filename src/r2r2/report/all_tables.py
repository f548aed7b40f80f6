"""All tables of a report, in the order in which it shows them."""

from r2r2.report.comparison_tables import (
    beside_aggregates_table,
    beside_normalised_table,
    beside_table,
    pair_table,
    timing_table,
)
from r2r2.report.run_tables import diagnostics_table, lacks_table, runs_table
from r2r2.report.score_tables import (
    ablation_table,
    aggregates_table,
    main_table,
    score_tables,
)
from r2r2.report.study import Study
from r2r2.report.tables import Table


def tables_of(study: Study) -> list[Table]:
    """Every table that the runs give something to put in.

    Example:
        >>> from r2r2.storage.evaluations import Row
        >>> from r2r2.stats.scores import Method, Results
        >>> from r2r2.report.study import RunData, study_of
        >>> rows = [Row("x", "Hopper-v5", 0, "return", 1000, 12.5)]
        >>> run = RunData("a", "runs/a", "finished", Results(Method("td7", 1), rows))
        >>> [table.name for table in tables_of(study_of([run]))][:4]
        ['main', 'aggregates', 'raw_utd1', 'normalised_utd1']
    """
    found = [
        main_table(study),
        aggregates_table(study),
        *score_tables(study),
        ablation_table(study),
        pair_table(study),
        beside_aggregates_table(study),
        beside_table(study),
        beside_normalised_table(study),
        diagnostics_table(study),
        timing_table(study),
        runs_table(study),
        lacks_table(study),
    ]
    return [table for table in found if table is not None]
