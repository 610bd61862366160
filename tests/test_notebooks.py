"""Notebooks run, twice in one kernel, and are committed with their outputs."""

import ast
import copy
from pathlib import Path

import nbformat
import optax
import pytest
from nbclient import NotebookClient

import parsgd

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, 4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.slow
# Of the machinery between this process and the kernel, not of the notebook.
@pytest.mark.filterwarnings("ignore")
def test_K3_runs_twice_in_one_kernel(notebook, tmp_path):
    again = copy.deepcopy(notebook.cells)
    for number, cell in enumerate(again):
        cell["id"] = f"again-{number}"
    notebook.cells += again
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()  # raises at the first cell that fails
    texts = [printed(cell) for cell in code_cells(notebook)]
    half = len(texts) // 2
    assert texts[:half] == texts[half:]
    assert any(texts)


def printed(cell):
    return "".join(out.text for out in cell.outputs if out.output_type == "stream")


def test_K3_device_count_is_asserted(notebook):
    first = code_cells(notebook)[0].source
    asked, asserted = first.index("jax_num_cpu_devices"), first.index("assert jax.")
    assert asked < asserted < first.index("import parsgd")


def test_is_committed_as_executed_in_order(notebook):
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == [*range(1, len(counts) + 1)]
    outputs = [out for cell in code_cells(notebook) for out in cell.outputs]
    kinds = {out.output_type for out in outputs}
    assert "error" not in kinds
    assert not any(out.get("name") == "stderr" for out in outputs)
    assert any("image/png" in out.get("data", {}) for out in outputs)


def test_outputs_name_no_machine(notebook):
    for cell in code_cells(notebook):
        for out in cell.outputs:
            out.get("data", {}).pop("image/png", None)
            text = str(out)
            for path in (str(ROOT), str(Path.home()), "/tmp", "/usr/", "site-packages"):
                assert path not in text, text


def test_only_public_names_are_imported(notebook):
    source = "\n".join(cell.source for cell in code_cells(notebook))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not node.module.startswith("parsgd."), node.module


def test_the_bytes_that_are_shown_of_the_papers_methods_are_those_they_send():
    cells = code_cells(nbformat.read(ROOT / "notebooks" / "ef_signsgd.ipynb", 4))
    (source,) = [cell.source for cell in cells if "def methods(" in cell.source]
    names: dict = {"optax": optax, "parsgd": parsgd}
    exec(source, names)
    (text,) = [printed(cell) for cell in cells if "bytes per step" in printed(cell)]
    shown = {row.split()[0]: row.split()[-1] for row in text.splitlines()[1:]}
    sizes = {"workers": 4, "worker_batch": 8, "rounds": 1, "evaluations": 1}
    for name, method in names["methods"](0.1).items():
        run = parsgd.fit(parsgd.digits(), method, **sizes)
        assert shown[name] == f"{run.summary['bytes_per_round']:,.0f}", name


def test_a_strategy_of_ones_own_takes_under_15_lines():
    notebook = nbformat.read(ROOT / "notebooks" / "tour.ipynb", 4)
    (source,) = [
        cell.source
        for cell in code_cells(notebook)
        if "return Strategy(" in cell.source
    ]
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert len([line for line in source.splitlines() if line.strip()]) < 15
