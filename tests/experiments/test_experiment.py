"""Experiments as files: grids, and what is wrong with them, in one sentence."""

import re

import pytest

from r2r2 import UserError
from r2r2.experiments import experiment as module
from r2r2.experiments.experiment import (
    Experiment,
    finalize_cells,
    find_experiment,
    preset_names,
    read_experiment,
    run_keys,
)

SMALL = "[base]\nsteps = 2000\nwarmup = 100\n"


@pytest.fixture
def file(tmp_path):
    """Write an experiment's file and return its path."""

    def write(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def problem(file):
    """Return the sentence about a file, without its path."""

    def sentence(text, name="mine.toml", scale=1.0):
        path = file(text, name)
        with pytest.raises(UserError) as error:
            finalize_cells(find_experiment(str(path)), scale)
        text = str(error.value)
        assert "\n" not in text
        assert text.count(str(path)) == 1
        assert text.startswith(f"{path}: ")
        return text.removeprefix(f"{path}: ")

    return sentence


def grids(**fields):
    return Experiment("x", base={"steps": 2000, "warmup": 100}, grids=[fields])


def test_a_grid_is_the_product_of_its_values():
    cells = grids(agent=["td7", "minphi"], env=["Pendulum-v1", "Hopper-v5"], utd=[1, 2]).cells()
    assert [(c.agent.name, c.env, c.utd, c.seeds) for c in cells] == [
        (agent, (task,), utd, (0,))
        for agent in ("td7", "minphi")
        for task in ("Pendulum-v1", "Hopper-v5")
        for utd in (1, 2)
    ]


def test_seeds_belong_to_a_cell_and_tasks_do_not():
    (cell,) = grids(env="Hopper-v5", seeds=[3, 7]).cells()
    assert cell.seeds == (3, 7)
    assert [key.seed for key in run_keys(cell)] == [3, 7]
    cells = grids(env="Hopper-v5,Ant-v5", seeds=2).cells()
    assert [(c.env, c.seeds) for c in cells] == [(("Hopper-v5",), (0, 1)), (("Ant-v5",), (0, 1))]


def test_any_field_can_vary_by_any_of_its_names():
    names = ("lambda-rr", "representation.lambda_rr", "agent.representation.lambda_rr")
    for name in names:
        cells = grids(env="Hopper-v5", **{name: [0.0, 0.5]}).cells()
        assert [c.agent.representation.lambda_rr for c in cells] == [0.0, 0.5]
    nested = grids(env="Hopper-v5", agent={"name": "td7", "width": [32, 64]}).cells()
    assert [(c.agent.name, c.agent.width) for c in nested] == [("td7", 32), ("td7", 64)]


def test_environment_arguments_are_values(file):
    text = f"{SMALL}[[grids]]\nenv = 'Pendulum-v1'\nenv_args = [{{g = 9.0}}, {{g = 3.0}}]\n"
    cells = read_experiment(file(text)).cells()
    assert [c.env_args for c in cells] == ['{"g": 9.0}', '{"g": 3.0}']
    text = f"{SMALL}[[grids]]\nenv = 'Pendulum-v1'\n[grids.env_args]\ng = 9.0\n"
    assert [c.env_args for c in read_experiment(file(text)).cells()] == ['{"g": 9.0}']


def test_values_of_a_grid_take_precedence_over_the_base():
    base = {"steps": 2000, "warmup": 100, "utd": 5, "env": "Hopper-v5"}
    one, two = Experiment("x", base=base, grids=[{}, {"utd": 7}]).cells()
    assert (one.utd, two.utd) == (5, 7)


def test_cells_are_finalized_in_their_order():
    experiment = grids(agent=["simbav2", "td7"], env=["Pendulum-v1", "InvertedPendulum-v5"])
    plain, final = experiment.cells(), finalize_cells(experiment)
    assert [(c.agent.name, c.env) for c in plain] == [(c.agent.name, c.env) for c in final]
    assert [c.agent.discount for c in plain[:2]] == [0, 0]
    assert [c.agent.discount for c in final[:2]] == [0.975, 0.995]
    assert all(c.replay_size for c in final)


def test_cells_are_scaled_before_they_are_finalized():
    cells = finalize_cells(grids(agent=["td7", "minphi"], env="Pendulum-v1"), 0.1)
    assert [(c.steps, c.warmup) for c in cells] == [(200, 10), (200, 10)]


def test_a_scale_must_suit_the_shortest_cell():
    long, short = {"env": "Pendulum-v1", "steps": 2000}, {"env": "Hopper-v5", "steps": 1000}
    assert finalize_cells(Experiment("x", base={"warmup": 100}, grids=[long]), 0.05)
    with pytest.raises(UserError, match=r"^scale: expected a number from 0.1 to 1, so that runs"):
        finalize_cells(Experiment("x", base={"warmup": 100}, grids=[long, short]), 0.05)


def test_a_file_is_named_and_located_in_messages(problem):
    assert problem(f"{SMALL}[[grids]]\nenv = 'Hopper-v5'\n\n[[grids]]\nlatnt = 3\n") == (
        "line 8: latnt: unknown field; did you mean 'latent'?"
    )
    assert problem("[base]\n'steps' = 'many'\n[[grids]]\nenv = 'Hopper-v5'\n") == (
        "line 2: steps: expected an integer >= 1, got 'many'"
    )
    text = f"{SMALL}[[grids]]\nenv = 'Hopper-v5'\nutd = [1, 2,\n 0]\n"
    assert problem(text) == "line 6: utd: expected an integer >= 1, got 0"
    text = f"{SMALL}[[grids]]\nenv = 'Hopper-v5'\n[grids.agent]\nname = 'td8'\n"
    assert problem(text).startswith("line 7: agent: expected one of td7, ")
    text = f"{SMALL}[[grids]]\nenv = 'Hopper-v5'\nagent = {{name = 'td7', widht = 3}}\n"
    assert problem(text) == "line 6: agent.widht: unknown field; did you mean 'agent.width'?"
    assert problem("grids = [{env = 'Hopper-v5', utd = 0}]\n").endswith(
        "utd: expected an integer >= 1, got 0"
    )


def test_fields_that_contradict_each_other_name_the_file(problem):
    assert problem("[base]\nsteps = 9\n[[grids]]\nenv = 'Hopper-v5'\n").startswith(
        "steps: expected more than warmup (25000), got 9;"
    )
    assert problem(SMALL + "[[grids]]\n").startswith("env: expected one or more tasks")
    assert "Hoper-v5" in problem(SMALL + "[[grids]]\nenv = 'Hoper-v5'\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected at least one table [[grids]], got none"),
        ("grids = []", "expected at least one table [[grids]], got none"),
        ("grids = 3", "expected at least one table [[grids]], got 3"),
        ("grids = [1]", "expected at least one table [[grids]], got [1]"),
        ("[grids]\nutd = 1", "expected at least one table [[grids]], got {'utd': 1}"),
        ("base = 3\n[[grids]]", "expected a table [base], got 3"),
        ("[[base]]\n[[grids]]", "expected a table [base], got [{}]"),
        ("title = 3\n[[grids]]", "title: expected a text, got 3"),
        ("reproduces = []\n[[grids]]", "reproduces: expected a text, got []"),
        (
            "minutes = 3\n[[grids]]",
            "line 1: unknown key 'minutes'; expected one of title, reproduces, base, grids",
        ),
        (
            "\n[bas]\nutd = 1\n[[grids]]",
            "unknown key 'bas'; expected one of title, reproduces, base, grids; did you mean "
            "'base'?",
        ),
        (
            "[[grids]]\nenv = 'Hopper-v5'\nagent = []",
            "line 3: grid field 'agent' is empty; expected at least one value",
        ),
        (
            "[base]\nenv = 'Hopper-v5'\nutd = [1, 2]\n[[grids]]",
            "line 3: base field 'utd' is a list; expected one value, got [1, 2]; several values "
            "belong to [[grids]]",
        ),
        ("[[grids]]\nseeds = [[1, 2], [3]]", "line 2: seeds: expected "),
        ("[[grids]]\nenv = [['Hopper-v5', 3]]", "line 2: env: expected "),
        ("[[grids]]\nutd = 1\nutd = 2", "cannot read: Cannot overwrite a value"),
        ("[[grids]", "cannot read: "),
        (f"[[grids]]\nutd = {'9' * 5000}", "cannot read: "),
        ("x = 1\n" * 30_000, "cannot read: is longer than 131072 bytes"),
    ],
)
def test_files_that_are_no_experiments_are_reported(problem, text, expected):
    assert problem(text).startswith(expected)


def test_a_file_must_exist_and_have_a_name(tmp_path, file, monkeypatch):
    with pytest.raises(UserError, match=r"none.toml: cannot read: No such file"):
        find_experiment(str(tmp_path / "none.toml"))
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    with pytest.raises(UserError, match=r"folder.toml: cannot read"):
        find_experiment(str(folder))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"bytes.toml: cannot read"):
        find_experiment(str(tmp_path / "bytes.toml"))
    with pytest.raises(UserError, match="expected a name of at most 61 letters"):
        find_experiment(str(file("[[grids]]\n", "my grid.toml")))
    file("[[grids]]\n", "mine.toml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"unknown experiment 'mine'.*did you mean 'mine.toml'\?"):
        find_experiment("mine")


def test_an_unknown_preset_is_reported_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown experiment 'main_tabel'; .*'main-table'\?$"):
        find_experiment("main_tabel")
    with pytest.raises(UserError, match=f"or one of {', '.join(preset_names())}$"):
        find_experiment("zzz")


def test_a_file_cannot_have_the_name_of_a_preset(problem):
    expected = "expected another file name, since 'smoke' is a preset"
    assert problem("[[grids]]\nenv = 'Hopper-v5'\n", "smoke.toml") == expected
    assert find_experiment(str(module.PRESETS / "smoke.toml")).name == "smoke"


def test_runs_that_collide_are_reported(problem):
    text = f"{SMALL}[[grids]]\nenv = 'Hopper-v5'\nagent = 'td7'\nseeds = 2\n"
    assert re.fullmatch(
        r"two runs have the name td7_Hopper-v5_utd1_\w{8} and the seed 1: the grids contain td7 on "
        r"Hopper-v5 at UTD 1 twice; expected each run once",
        problem(f"{text}[[grids]]\nenv = 'Hopper-v5'\nagent = 'td7'\nseeds = [1]\n"),
    )
    assert "at UTD 1 twice, with 2000 and 3000 steps; expected" in problem(
        text + "steps = [2000, 3000]\n"
    )
    assert "twice" in problem(text + "utd = [1, 1]\n")
    assert "twice" in problem(text + "env_faults = [1, 2]\n")


def test_runs_that_collide_once_they_are_finalized_are_reported(problem):
    text = f"{SMALL}[[grids]]\nenv = 'Pendulum-v1'\nagent = 'simbav2'\ncritics = [0, 2]\n"
    assert "simbav2 on Pendulum-v1 at UTD 1 twice" in problem(text)
    other = Experiment(
        "x",
        base={"steps": 2000, "warmup": 100},
        grids=[{"agent": "simbav2", "env": "Pendulum-v1", "critics": [0, 2]}],
    )
    assert len(other.cells()) == 2


def test_absurd_sizes_are_reported(problem):
    many = f"[{', '.join(map(str, range(1, 200)))}]"
    text = f"{SMALL}[[grids]]\nenv = 'Hopper-v5'\nutd = {many}\nwidth = {many}\n"
    assert problem(text) == "expected at most 10000 combinations, got 39601"
    text = f"{SMALL}[[grids]]\nenv = 'Hopper-v5'\nutd = {many}\nseeds = 1000\n"
    assert problem(text) == "expected at most 100000 runs, got 199000"
    assert "seeds: expected a count up to 1000" in problem(
        f"{SMALL}[[grids]]\nenv = 'Hopper-v5'\nseeds = 1000000\n"
    )


def test_an_experiment_from_python_is_checked_too():
    for name in ("", "../x", "a b", "x" * 62, 3):
        with pytest.raises(UserError, match="name: expected a name of at most 61 letters"):
            Experiment(name, grids=[{}])
    with pytest.raises(UserError, match=r"x: expected at least one table \[\[grids\]\], got none"):
        Experiment("x")
    with pytest.raises(UserError, match=r"x: expected at least one table \[\[grids\]\]"):
        Experiment("x", grids={"utd": 1})
    with pytest.raises(UserError, match=r"x: expected a table \[base\], got 'td7'"):
        Experiment("x", base="td7", grids=[{}])
    with pytest.raises(UserError, match="x: grid field 'utd' is empty"):
        grids(env="Hopper-v5", utd=[]).cells()
    with pytest.raises(UserError, match=r"^x: utd: expected an integer >= 1, got 0$"):
        grids(env="Hopper-v5", utd=(1, 0)).cells()
