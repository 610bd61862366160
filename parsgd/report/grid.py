"""The table that sorts and filters in the page, by itables, with nothing to fetch."""

from typing import Any

import itables
import polars as pl
from itables.javascript import generate_init_offline_itables_html

from parsgd.results import COLUMNS
from parsgd.results.export import heading, needs_loss

SHOWN = (
    "workers",
    "local_steps",
    "accuracy",
    "seconds_to_target",
    "reached",
    "samples_to_target",
    "rounds_to_target",
    "bytes_to_target",
    "samples_per_second",
    "bytes_per_round",
    "dense_over_sent",
    "global_batch",
    "learning_rate",
    "placement",
    "status",
)
FORMS = {
    "workers": "count",
    "local_steps": "count",
    "global_batch": "count",
    "rounds_to_target": "count",
    "accuracy": "accuracy",
    "learning_rate": "number",
    "test_loss": "count",
    "seconds_to_target": "seconds",
    "samples_to_target": "count",
    "bytes_to_target": "bytes",
    "samples_per_second": "count",
    "bytes_per_round": "bytes",
    "dense_over_sent": "number",
}
PAGE = 25  # rows
# Columns that carry the error of another and its runs, shown with it.
ERRORS = {
    "accuracy": ("accuracy_sem", "n"),
    "test_loss": ("test_loss_sem", "n"),
    **{
        f"{cost}_to_target": (f"{cost}_to_target_sem", "reached")
        for cost in ("seconds", "samples", "rounds", "bytes")
    },
}


def grid(table: pl.DataFrame) -> str:
    """The table as an HTML fragment, which needs `assets` in the same page.

    Numbers stay numbers, so that sorting is by value; page.js formats them.
    """
    shown = _shown(table)
    extra = [name for key in ERRORS if key in shown for name in ERRORS[key]]
    names = [*dict.fromkeys([*shown, *extra])]
    frame = table.select(pl.col(name).alias(heading(name)) for name in names)
    hidden = list(range(len(shown), len(names)))
    definitions: list[dict[str, Any]] = [
        {"targets": hidden, "visible": False},
        {"targets": "_all", "type": itables.JavascriptCode("parsgd.missingLast($)")},
    ]
    for i, name in enumerate(names):
        if name in FORMS:
            beside = [names.index(other) for other in ERRORS.get(name, ())]
            definitions.append(
                {
                    "targets": i,
                    "className": "dt-right",
                    "render": itables.JavascriptFunction(
                        "function (data, type, row) {"
                        f" return parsgd.cell('{FORMS[name]}', data, type, row,"
                        f" {beside}); }}"
                    ),
                }
            )
        elif table[name].dtype.is_numeric():
            definitions.append({"targets": i, "className": "dt-right"})
    return itables.to_html_datatable(
        frame,
        connected=False,
        table_id="results",
        columnDefs=definitions,
        show_dtypes=False,
        showIndex=False,
        display_logo_when_loading=False,
        maxBytes=0,
        maxRows=0,
        maxColumns=0,
        classes="display compact",
        style="width:100%",
        scrollX=True,
        pageLength=PAGE,
        layout={
            # unlike itables' own layout, this one keeps the filter on a short table
            "topStart": "pageLength" if table.height > PAGE else None,
            "topEnd": {"search": {"text": "Filter:", "placeholder": "such as local 8"}},
            "bottomStart": "info",
            "bottomEnd": "paging" if table.height > PAGE else None,
        },
        lengthMenu=[PAGE, 100, {"label": "all", "value": -1}],
        text_in_header_can_be_selected=False,
        order=[],
        format_floats_in_python=False,
    )


def assets() -> str:
    """The JavaScript and CSS of the table, inline."""
    return generate_init_offline_itables_html(itables.options.dt_bundle)


def _shown(table: pl.DataFrame) -> list[str]:
    varied = [name for name in table.columns if name not in COLUMNS]
    several = ["task"] if table["task"].n_unique() > 1 else []
    names = ["strategy", *several, *varied, *SHOWN]
    if needs_loss(table):
        names.insert(names.index("accuracy"), "test_loss")
    return [name for name in names if name in varied or _says(table, name)]


def _says(table: pl.DataFrame, name: str) -> bool:
    return name in ("strategy", "status") or table[name].is_not_null().any()
