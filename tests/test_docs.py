"""The documents cannot go stale: their code runs, their commands compose."""

import ast
import dataclasses
import json
import re
import sys

import documents
import numpy as np
import oracles
import pytest
import test_config
import test_placements
import test_strategies
import test_traffic
import zoo
from command_line import SHORT, command, in_new_process  # noqa: F401
from documents import (
    DOCUMENTS,
    ROOT,
    anchors,
    blocks,
    first_cells,
    links,
    named,
    read,
    sections,
)

import parsgd
from parsgd import cluster
from parsgd.cli import export, report, sweep, traffic_table
from parsgd.cluster import rendezvous
from parsgd.config import schema
from parsgd.config.choices import choices, conf_dir
from parsgd.data.dataset import Dataset, Split, as_floats

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
DOCS = ROOT / "docs"


@each_document
def test_K5_python_blocks_run(path, tmp_path, monkeypatch, capsys):
    """And print what stands beside their ``print``, to the digits shown."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": path.stem}
    for block in blocks(path):
        if block.language == "python" and not (block.file or "").startswith("tests/"):
            source = "\n" * (block.line - 1) + block.text  # errors name the line
            capsys.readouterr()
            exec(compile(source, str(path), "exec"), namespace)
            said = capsys.readouterr().out
            for shown in re.findall(r"^print\(.*\)  # (.+)$", block.text, re.M):
                parts = [re.escape(part) for part in re.split(r"\.\.\.,? ?", shown)]
                assert re.search(r"\d*\s+".join(parts), said), f"not {shown}: {said}"


# Optuna's import warns of what it uses of other packages.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@each_document
def test_K5_commands_compose(path, command, tmp_path, monkeypatch):  # noqa: F811
    for module in (report, sweep):  # there are no results to show
        monkeypatch.setattr(module, "show_report", lambda *args: 0)
    for act in ("_export", "_evaluate"):  # there is no run to read
        monkeypatch.setattr(export, act, lambda *args: None)
    # There are no other processes to join; whether it could be tried is checked.
    start = cluster.start

    def alone(settings):
        if rendezvous.arguments(settings) is None:
            start(settings)

    monkeypatch.setattr(cluster, "start", alone)
    (tmp_path / "my_conf").mkdir()
    for block in blocks(path):
        if block.file:
            # A choice to be added to conf/ is tried in a folder beside it.
            file = tmp_path / re.sub(r"^conf/", "my_conf/", block.file)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
            monkeypatch.delitem(sys.modules, file.stem, raising=False)
    images = Split(
        np.zeros((60000, 28, 28, 1), "u1"), np.arange(60000, dtype="i4") % 10
    )
    clothes = Dataset("fashion_mnist", images, images, 10, as_floats)
    monkeypatch.setattr("parsgd.data.load_fashion_mnist", lambda *, data_dir: clothes)
    show, shown = traffic_table.show, []
    for name, *words in documents.commands(path):
        options = ["--dry-run"] if name == "train" else []
        if name in ("train", "traffic") and "--config-dir" not in words:
            options += ["--config-dir", "my_conf"]
        asked = [(name, *options, *words)]
        # `traffic` builds all that the config names, and trains nothing.
        if name == "train" and documents.can_be_built(words):
            asked.append(("traffic", *options[1:], *documents.first_job(words)))
        monkeypatch.setattr(
            traffic_table, "show", show if name == "traffic" else shown.append
        )
        for arguments in asked:
            code, out, err = command(*arguments)
            assert code == 0, f"parsgd {' '.join([name, *words])}: {err or out}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_K5_commands_that_help_shows_compose(
    command,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    file = tmp_path / "help.md"
    file.write_text(documents.usages())
    found = {words[0] for words in documents.commands(file)}
    assert found == {*documents.COMMANDS}
    test_K5_commands_compose(file, command, tmp_path, monkeypatch)


def test_commands_of_launch_are_found_and_their_options_checked(tmp_path):
    file = tmp_path / "a.md"
    file.write_text("```sh\nparsgd launch --processes 2 train workers=2\n```\n")
    assert documents.commands(file) == [["train", "workers=2"]]
    file.write_text("```sh\nmpirun -n 4 parsgd train workers=4\n```\n")
    assert documents.commands(file) == [["train", "workers=4"]]
    file.write_text("Here `parsgd launch --process 2 train workers=2`.")
    with pytest.raises(AssertionError, match=r"launch has no option --process$"):
        documents.commands(file)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("parsgd export DIR step=best out=digits", 0),
        ("parsgd evaluate DIR step=400", 0),
        ("parsgd export DIR stp=best", 2),
        ("parsgd evaluate DIR out=digits", 2),
        ("parsgd report DIR sort=bytes", 0),
        ("parsgd train epoch=1", 2),
    ],
)
def test_K5_commands_with_wrong_options_are_found(
    text,
    code,
    command,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    file = tmp_path / "a.md"
    file.write_text(f"```sh\n{text}\n```\nor `{text}`.\n")
    assert documents.commands(file) == 2 * [text.split()[1:]]
    if code:
        with pytest.raises(AssertionError, match=text):
            test_K5_commands_compose(file, command, tmp_path, monkeypatch)
    else:
        test_K5_commands_compose(file, command, tmp_path, monkeypatch)


def test_J8_the_readme_shows_how_a_launcher_is_chosen():
    shown = {word for words in documents.commands(ROOT / "README.md") for word in words}
    launchers = choices(conf_dir())["hydra/launcher"]
    assert shown & {f"hydra/launcher={name}" for name in launchers}


@pytest.mark.slow
def test_K5_the_demo_runs_to_its_table(tmp_path):
    words = ("+experiment=demo", "epochs=1", "seed=0", "workers=2")
    done = in_new_process(tmp_path, "train", "-m", *words)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("multirun/*/*/report")
    made = {file.suffix for file in folder.iterdir()}
    assert {".md", ".csv", ".parquet", ".html"} <= made
    for row in ("block_momentum", "one_bit_sgd", "sync_sgd"):
        assert row in done.stdout and row in read(folder / "table.md")


@each_document
def test_links_lead_somewhere(path):
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_document
def test_named_scripts_and_make_targets_exist(path):
    text = read(path)
    makefile = read(ROOT / "Makefile")
    for target in re.findall(r"(?:^|`)make ([a-z][\w-]*)", text, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), f"make {target}"
    for script in re.findall(r"(?:experiments|benchmarks|notebooks)/\w+\.\w+", text):
        assert (ROOT / script).exists(), script
    for module in re.findall(r"python -m ((?:parsgd|benchmarks)[\w.]*)", text):
        place = ROOT / module.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").exists(), module


def test_algorithms_names_tests_that_exist():
    tests = "".join(read(file) for file in (ROOT / "tests").glob("test_*.py"))
    names = re.findall(r"`(test_\w+)`", read(DOCS / "algorithms.md"))
    assert names
    for name in names:
        assert f"def {name}(" in tests, name


@pytest.fixture
def contributing():
    """What CONTRIBUTING.md adds to each file."""
    files: dict[str, str] = {}
    for block in blocks(ROOT / "CONTRIBUTING.md"):
        if block.file:
            files[block.file] = files.get(block.file, "") + block.text
    return files


@pytest.fixture(params=["soft_local_sgd", "lookahead"])
def contributed(request, contributing, monkeypatch):
    """Follows CONTRIBUTING.md: algorithm, oracle and rows, put where they belong."""
    algorithm: dict = {"__name__": "soft_local_sgd"}
    exec(contributing["parsgd/strategies/soft_local_sgd.py"], algorithm)
    loop = dict(vars(oracles))
    exec(contributing["tests/oracles.py"], loop)
    for place, names in ((parsgd, algorithm), (oracles, loop)):
        function = names["soft_local_sgd"]
        monkeypatch.setattr(place, "soft_local_sgd", function, raising=False)
    rows = {}
    for entry in ast.parse(contributing["tests/zoo.py"]).body:
        assert isinstance(entry, ast.Expr)
        rows |= eval(compile(ast.Expression(entry.value), "zoo", "eval"), vars(zoo))
    monkeypatch.setattr(zoo, "ZOO", zoo.ZOO | rows)
    for module in (test_strategies, test_traffic):
        monkeypatch.setattr(module, "ZOO", zoo.ZOO)
    monkeypatch.setattr(test_placements, "ROWS", zoo.ZOO)
    return request.param


def test_contributing_examples_pass_the_batteries(contributed):
    test_strategies.test_follows_its_oracle(contributed, 3)
    if zoo.ZOO[contributed].plain:
        test_strategies.test_C11_one_worker_is_the_plain_optimizer(contributed)
    test_strategies.test_A2_same_data_on_all_workers_is_one_worker(contributed)
    test_placements.test_what_workers_share_is_stored_once(contributed)
    test_traffic.test_K4_bytes_equal_the_formula(contributed, 4)


@pytest.mark.slow
def test_contributing_examples_agree_in_all_placements(contributed):
    test_placements.test_placements_agree_on_the_whole_state(contributed)


def test_contributing_choices_pass_the_tests_of_choices(
    contributed, contributing, tmp_path, monkeypatch
):
    name = f"strategy/{contributed}.yaml"
    (tmp_path / "strategy").mkdir()
    (tmp_path / name).write_text(contributing[f"conf/{name}"])
    monkeypatch.setattr(test_config, "CONF", tmp_path)
    test_config.test_files_of_methods_list_every_argument(name)
    test_config.test_files_state_the_defaults_of_the_signature(name)


def test_contributing_rows_are_those_that_a_strategy_needs(contributing, tmp_path):
    for file in ("README.md", "docs/algorithms.md"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        added = contributing[file].replace("lookahead", "new")
        (tmp_path / file).write_text(read(ROOT / file) + added)
    check_rows("new", tmp_path / "README.md", tmp_path / "docs/algorithms.md")


def test_configuration_names_every_key_group_and_variable():
    keys = named(first_cells(DOCS / "configuration.md"))
    groups = set(choices(conf_dir()))
    fields = {field.name for field in dataclasses.fields(schema.Config)}
    assert fields <= keys | groups
    assert {name.split("/")[0] for name in groups} <= keys
    rules = {*choices(conf_dir())["scaling"]}
    assert rules <= keys
    code = "".join(read(path) for path in (ROOT / "parsgd").rglob("*.py"))
    variables = re.findall(r"environ(?:\.get)?[(\[]\"(\w+)\"", code)
    assert {*variables} - {"HYDRA_FULL_ERROR"} <= keys


def test_every_strategy_has_its_rows():
    for name in choices(conf_dir())["strategy"]:
        check_rows(name, ROOT / "README.md", DOCS / "algorithms.md")


# Of a strategy's section: what it does is above them.
PARTS = ("Arguments", "Sends", "Differences", "Tests")


def check_rows(name, readme, algorithms):
    assert name in named(first_cells(readme)), name
    # A row in the index; and a section with its identities and differences.
    assert first_cells(algorithms).count(f"`{name}`") == 1, name
    found = [text for title, text in sections(algorithms) if title == name]
    assert len(found) == 1, name
    assert found[0].startswith("    "), f"{name}: no equation"
    assert [part for part in PARTS if f"- **{part}" not in found[0]] == [], name


@pytest.mark.parametrize("missing", ["row", "section", *PARTS])
def test_a_strategy_that_is_not_documented_is_found(missing, tmp_path):
    file, text = tmp_path / "algorithms.md", read(DOCS / "algorithms.md")
    start = text.index("### diloco\n")
    before, section, after = text[:start], *text[start:].split("\n### ", 1)
    if missing == "row":
        before = before.replace("| `diloco` |", "| diloco |")
    elif missing == "section":
        section = ""
    else:
        section = section.replace(f"**{missing}", missing)
    file.write_text(f"{before}{section}\n### {after}")
    with pytest.raises(AssertionError, match="diloco"):
        check_rows("diloco", ROOT / "README.md", file)


def test_architecture_maps_every_file_of_the_package():
    text = read(DOCS / "architecture.md")
    for path in (ROOT / "parsgd").iterdir():
        known = path.stem in ("__init__", "errors", "py", "__pycache__")
        assert known or f"{path.name}" in text, path.name


def imported(path):
    """What a file imports of the package, without its name: ``training.plan.Plan``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("parsgd."):
            for alias in node.names:
                yield f"{node.module}.{alias.name}".removeprefix("parsgd.")


def test_imports_point_down_the_map():
    lines = read(DOCS / "architecture.md").splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    rank = {}
    for number, row in enumerate(rows):
        for name in re.findall(r"`([^`]+)`", row):
            part = name.removeprefix("parsgd/").rstrip("/").removesuffix(".py")
            rank.setdefault(part, number)
    package = ROOT / "parsgd"
    upwards = [
        f"{path.relative_to(package)} imports {name}"
        for path in package.rglob("*.py")
        if path != package / "__init__.py"
        for name in imported(path)
        if not name.startswith(("cluster", "config.choices"))
        and rank.get(name.partition(".")[0], 99)
        < rank[path.relative_to(package).parts[0].removesuffix(".py")]
    ]
    # The command once more, behind a link.
    assert {line.split()[0] for line in upwards} == {"lab/inside.py"}, upwards


def test_results_explains_every_key(command, tmp_path):  # noqa: F811
    code, _, err = command(
        "train", "optimizer=adam", "scaling=adam_sqrt", "workers=2", *SHORT
    )
    assert code == 0, err
    (file,) = tmp_path.glob("outputs/*/*/result.json")
    result = json.loads(file.read_text())
    lines = file.with_name("metrics.jsonl").read_text().splitlines()
    explained = named(first_cells(DOCS / "results.md"))
    written = {*result, *result["summary"], *json.loads(lines[-1])}
    assert written <= explained
    # What is explained is written, but for the files' own names.
    files = {"config.yaml", "metrics.jsonl", "result.json", "train.log", ".hydra/"}
    files |= {"overrides.yaml"}
    assert explained - written <= files | {"summary"}
    text = read(DOCS / "results.md")
    for key in (
        *result["machine"],
        *result["versions"],
        *result["summary"]["placement"],
    ):
        assert f"`{key}`" in text, key
