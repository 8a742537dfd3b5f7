"""The command line as people and programs meet it: what it prints where, how it refuses, how it is stopped."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
import termios
import textwrap
import time
from pathlib import Path

import pytest

import practicum
from practicum.environments.retail_data import DATA
from practicum.environments.retail_rows import read_rows
from practicum.errors import UserError
from practicum.runs.database import Database

ROOT = Path(__file__).parents[2]
RETAIL, TINY = str(ROOT / "recipes" / "retail.toml"), str(ROOT / "recipes" / "tiny.toml")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"}
COMMAND = [sys.executable, "-m", "practicum.cli.main"]
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
FIGURES = {"success", "ci_low", "ci_high", "n_tasks", "n_attempts", "endings", "skipped", "invalid"}
QUICK = [f"--set={name}" for name in ("tasks.dev=4", "tasks.test=4", "trainer.tasks_per_step=4")]


def run(*arguments, **rest):
    """The real command in a process of its own."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, **rest
    )


def refused(outcome):
    """The message of a command that was a mistake: all that was printed, and exit code 2."""
    code, out, err = outcome
    assert (code, out) == (2, "")
    assert "Traceback" not in err and err.startswith("practicum: ") and err.count("practicum: ") == 1
    return err.removeprefix("practicum: ")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with everything that can be wrong, and the working folder of the test."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "unknown.toml": "[trainer]\nlerning_rate = 1.0\n",
        "negative.toml": "[simulator]\nepisode_seconds = -5\n",
        "slots.toml": "[sampler]\nslots = 0\n",
        "endless.toml": "[trainer]\nlearning_rate = inf\n",
        "levels.toml": "[environment]\nkind = 'retail'\nlevels = [5]\n",
        "level.toml": "[environment]\nkind = 'retail'\nlevels = 1\n",
        "option.toml": "[environment]\nkind = 'retail'\nlevel = [1]\n",
        "moon.toml": "[environment]\nkind = 'moon'\n",
        "no.toml": "a = = 1\n",
        "empty.jsonl": "\n",
        "broken.jsonl": json.dumps(ROWS["mine_1"]) + "\n\n{'id': 3}\n",
        "twice.jsonl": (json.dumps(ROWS["mine_1"]) + "\n") * 2,
        "file": "not a folder",
        "old/config.toml": "seed = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    return tmp_path


def row(task_id, user_id, request, name, **arguments):
    return {
        "id": task_id,
        "user_id": user_id,
        "instruction": request,
        "actions": [{"name": name, "kwargs": arguments}],
        "outputs": [],
    }


ROWS = {
    row["id"]: row
    for row in (
        row(
            "mine_1",
            "james_li_5688",
            "Return #W4435622 via gift_card_1725971: Water Bottle",
            "return_delivered_order_items",
            order_id="#W4435622",
            item_ids=["6777246137"],
            payment_method_id="gift_card_1725971",
        ),
        row(
            "mine_2",
            "ava_nguyen_2175",
            "For #W1504875, exchange Notebook {'size': 'A6'} to {'size': 'A5'}; via paypal_6262583.",
            "exchange_delivered_order_items",
            order_id="#W1504875",
            item_ids=["9421195098"],
            new_item_ids=["9799386954"],
            payment_method_id="paypal_6262583",
        ),
        row(
            "mine_beyond",
            "james_li_5688",
            "Wrap #W4435622 as a present",
            "wrap_order",
            order_id="#W4435622",
        ),
        row(
            "mine_refused",
            "james_li_5688",
            "Cancel #W4435622",
            "cancel_pending_order",
            order_id="#W4435622",
            reason="no longer needed",
        ),
    )
}


# --- mistakes -------------------------------------------------------------------------------------------------------

NOOP = "--policy noop"
MISTAKES = [
    (f"evaluate unknown.toml {NOOP}", r"unknown.toml: unknown key trainer.lerning_rate; did you mean learning_rate\?"),
    (f"evaluate negative.toml {NOOP}", r"simulator.episode_seconds must be above 0, found -5.0"),
    (f"evaluate slots.toml {NOOP}", r"sampler.slots must be at least 1, found 0"),
    (f"evaluate endless.toml {NOOP}", r"trainer.learning_rate needs a finite number, found inf"),
    (f"evaluate levels.toml {NOOP}", r"retail has the levels 1, 2, 3, 4, written as in levels = \[1\]; found \[5\]"),
    (f"evaluate level.toml {NOOP}", r"written as in levels = \[1\]; found 1"),
    (f"evaluate option.toml {NOOP}", r"unknown key environment.level for kind 'retail'; known here: kind, levels"),
    (f"evaluate moon.toml {NOOP}", r"environment.kind 'moon' is unknown; known: retail, tiny"),
    (f"evaluate no.toml {NOOP}", r"the recipe no.toml is not TOML: .*line 1"),
    (f"evaluate absent.toml {NOOP}", r"the recipe absent.toml cannot be read: No such file"),
    (f"evaluate elsewhere/retail.toml {NOOP}", r"elsewhere/retail.toml cannot be read: No such file"),
    (f"evaluate folder {NOOP}", r"the recipe folder cannot be read: Is a directory"),
    (f"evaluate {RETAIL} {NOOP} --set seed", r"--set needs section.key=value, found 'seed'"),
    (f"evaluate {RETAIL} {NOOP} --set .=1", r"--set needs section.key=value, found '.=1'"),
    (f"evaluate {RETAIL} {NOOP} --set seed.x=1", r"--set seed.x=1: seed is not a section"),
    (f"evaluate {RETAIL} {NOOP} --set trainer.stesp=1", r"with --set trainer.stesp=1: unknown key trainer.stesp"),
    (f"evaluate {RETAIL} {NOOP} --set trainer.steps=many", r"trainer.steps needs int, found 'many'"),
    (f"evaluate {RETAIL} {NOOP} --model x", r"--model and --policy exclude each other"),
    (f"evaluate {RETAIL} {NOOP} --split train --tasks x", r"--tasks and --split exclude each other"),
    (f"evaluate {RETAIL} {NOOP} --split exam", r"there is no split 'exam'; known: train, dev, test"),
    (f"evaluate {RETAIL} {NOOP} --attempts 0", r"--attempts must be at least 1, found 0"),
    (f"evaluate {RETAIL} --policy king", r"there is no policy 'king'; known: expert, noop, random"),
    (f"evaluate {RETAIL} {NOOP} --tasks absent.jsonl", r"cannot read the tasks file absent.jsonl: .*No such file"),
    (f"evaluate {RETAIL} {NOOP} --tasks folder", r"cannot read the tasks file folder: .*Is a directory"),
    (f"evaluate {RETAIL} {NOOP} --tasks empty.jsonl", r"empty.jsonl holds no row; write one JSON object per line"),
    (f"evaluate {RETAIL} {NOOP} --tasks broken.jsonl", r"broken.jsonl, line 3: this is not JSON"),
    (f"evaluate {RETAIL} {NOOP} --tasks twice.jsonl", r"twice.jsonl, line 2: id 'mine_1' is already that of line 1"),
    (f"evaluate {TINY} {NOOP} --tasks empty.jsonl", r"empty.jsonl holds no task; write one JSON object per line"),
    (f"evaluate {RETAIL} {NOOP} --out file", r"file is there already; name a new file"),
    ("show absent", r"absent does not exist; name the folder that was trained into"),
    ("show folder", r"folder holds none; name the folder that was trained into"),
    ("show file", r"database file cannot be opened: file is not a database"),
    ("show old", r"database old/run.sqlite cannot be opened"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES)
def test_a_mistake_is_one_message_on_stderr_and_exit_code_2(called, place, command, message):
    said = refused(called(*command.split()))
    assert re.search(message, said) and said.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate", "Missing argument 'RECIPE'"),
        ("evaluate --nonsense", "No such option: --nonsense"),
        (f"evaluate {RETAIL} --attempts x", "Invalid value for '--attempts'"),
        ("practise", "No such command 'practise'"),
        ("show a b", "unexpected extra argument"),
    ],
)
def test_a_wrong_use_says_how_it_is_used(called, command, message):
    code, out, err = called(*command.split())
    assert (code, out) == (2, "")
    assert err.startswith("Usage: practicum") and "--help" in err and message in err


def test_no_mistake_shows_a_traceback_in_a_process_of_its_own_either(place):
    done = run("evaluate", "unknown.toml", "--policy", "noop", "--json", cwd=place)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


WITHOUT_TORCH = """
    import sys
    class Nothing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("torch", "transformers", "safetensors", "tokenizers", "gguf"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Nothing())
    from practicum.cli.main import main
    for command in sys.argv[1:]:
        sys.argv = ["practicum", *command.split()]
        try:
            main()
        except SystemExit as done:
            print(f"exit {done.code}", file=sys.stderr)
"""


def test_without_torch_what_needs_it_says_how_to_install_it_and_the_rest_works(tmp_path):
    commands = (f"train {RETAIL} --folder run", f"evaluate {RETAIL}", f"evaluate {RETAIL} --policy expert --json")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_TORCH), *commands],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    words = 'practicum: this needs torch, which is not installed; install it with: pip install "practicum[train]"'
    assert done.stderr.splitlines()[:4] == [words, "exit 2"] * 2 and done.stderr.endswith("exit 0\n")
    assert json.loads(done.stdout)["success"] == 1.0
    assert list(tmp_path.iterdir()) == []


# --- help -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("--help", "train evaluate show --version stdout stderr Exit codes 130"),
        ("", "train evaluate show"),
        ("train --help", "RECIPE --set --folder --json checkpoints/ report.md [train] Ctrl-C"),
        (
            "evaluate -h",
            "--model --policy expert noop random --tasks --split --attempts --examples --out --json skipped invalid",
        ),
        ("show --help", "RUN --task --phase test/rl green «+…»"),
    ],
)
def test_help_names_every_option_and_what_comes_of_it(called, command, words):
    code, out, err = called(*command.split())
    assert (code, err) == (0, "")
    assert [word for word in words.split() if word not in out] == []
    assert "\x1b" not in out and max(map(len, out.splitlines())) <= 100


def test_the_version_is_that_of_the_package(called):
    assert called("--version") == (0, f"practicum {practicum.__version__}\n", "")


def test_the_command_answers_within_half_a_second():
    seconds = []
    while len(seconds) < 6 and min(seconds, default=1.0) >= 0.5:
        began = time.perf_counter()
        assert run("--help").returncode == 0
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.5


# --- evaluate -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train", "dev", "test"])
def test_every_row_of_the_benchmarks_files_is_measured_or_invalid(called, name):
    file = DATA / f"tasks_{name}.jsonl.gz"
    ids = {row["id"] for row in read_rows(file)}
    nothing = {"train": 0.0, "dev": 1 / 20, "test": 3 / 57}[name]  # rows of which nothing is asked but to be left alone
    for policy, successes in (("expert", {1.0}), ("noop", {nothing}), ("random", {0.0, nothing})):
        code, out, _ = called("evaluate", RETAIL, "--policy", policy, "--tasks", file, "--json")
        result = json.loads(out)
        assert code == 0 and out.count("\n") == 1 and set(result) >= FIGURES
        assert result["success"] in successes
        assert 0.0 <= result["ci_low"] < result["ci_high"] <= 1.0
        assert result["endings"] == {"finished": result["n_attempts"]}
        assert result["n_tasks"] == len(ids - set(result["invalid"])) > 0
        assert result["skipped"] == {} and set(result["invalid"]) < ids and all(result["invalid"].values())


def test_a_file_of_ones_own_gives_one_json_object_with_a_reason_for_whatever_is_not_measured(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS.values()))
    done = run("evaluate", RETAIL, "--policy", "expert", "--tasks", file, "--attempts", 3, "--json")
    result = json.loads(done.stdout)
    assert done.returncode == 0 and "tasks: 2 done" in done.stderr
    assert (result["success"], result["n_tasks"], result["n_attempts"]) == (1.0, 2, 6)
    assert result["skipped"] == {"mine_beyond": "it needs wrap_order (no tool of the benchmark)"}
    assert list(result["invalid"]) == ["mine_refused"] and "#W4435622 is delivered" in result["invalid"]["mine_refused"]


def test_a_file_of_which_nothing_can_be_measured_says_so_and_is_no_failure(called, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(ROWS["mine_beyond"]) + "\n")
    code, out, err = called("evaluate", RETAIL, "--policy", "expert", "--tasks", file, "--json")
    result = json.loads(out)
    assert (code, err, result["success"], result["n_tasks"]) == (0, "", None, 0)
    code, out, _ = called("evaluate", RETAIL, "--policy", "expert", "--tasks", file)
    assert code == 0 and out.startswith("no task was left to evaluate\nskipped: mine_beyond: it needs wrap_order")


def test_where_no_attempt_could_be_scored_the_exit_code_is_1_and_the_first_failure_is_told(called):
    code, out, err = called("evaluate", RETAIL, "--policy", "expert", "--set", "simulator.reset_seconds=1e-9", "--json")
    assert (code, out) == (1, "")
    assert "practicum: no attempt could be scored; endings: {'environment_failed': 160}" in err
    assert "TimeoutError: no answer within 1e-09 s" in err


def test_trajectories_of_an_evaluation_are_kept_and_shown(called, tmp_path):
    out = tmp_path / "kept.sqlite"
    assert called("evaluate", TINY, "--policy", "expert", "--split", "dev", "--out", out)[0] == 0
    with Database(out, read_only=True) as database:
        assert database.damage() == [] and len(database.task_ids()) == 32
        task_id = database.task_ids()[0]
    code, table, _ = called("show", out)
    assert code == 0 and re.search(rf"{task_id} +1/1 @0", table)
    code, trajectory, _ = called("show", out, "--task", task_id)
    assert code == 0 and "press(" in trajectory and "finished, reward 1: success 1" in trajectory


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def long_evaluation(tmp_path):
    """An evaluation that would take a minute, some tasks into it; killed at the end if the test did not end it."""
    out = tmp_path / "kept.sqlite"
    arguments = ["evaluate", RETAIL, "--policy", "random", "--attempts", "200", "--out", str(out)]
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not (out.exists() and stored_tasks(out)):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    yield process, out
    process.kill()
    process.communicate()


def stored_tasks(path):
    try:
        with Database(path, read_only=True) as database:
            return len(database.task_ids())
    except UserError:  # its tables are just being made
        return 0


def test_ctrl_c_ends_an_evaluation_with_one_line_that_says_what_is_kept(long_evaluation):
    process, file = long_evaluation
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert (process.returncode, out) == (130, "") and "Traceback" not in err
    with Database(file, read_only=True) as database:
        assert database.damage() == []
        kept = len(database.task_ids())
    line = f"practicum: stopped by Ctrl-C: {kept} of 160 tasks were finished; their trajectories are in {file}"
    assert err.splitlines()[-1] == line and 0 < kept < 160


def test_a_second_ctrl_c_ends_at_once_even_where_the_first_has_to_wait(long_evaluation):
    process, file = long_evaluation
    blocker = sqlite3.connect(file, timeout=30)
    blocker.execute("BEGIN IMMEDIATE")  # the command now waits for its database, deaf to Python's own signal handlers
    time.sleep(1)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 3
    blocker.close()
    assert (process.returncode, out) == (130, "") and "Traceback" not in err
    assert err.endswith("practicum: stopped at once by a second Ctrl-C\n")
    with Database(file) as database:
        assert database.damage() == []


# --- train and show: what needs torch ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """A tiny run on a terminal in which someone typed Ctrl-C after the first step: folder, screen, exit code, seconds."""
    pytest.importorskip("torch", reason="training needs the extra [train]")
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    leader, follower = pty.openpty()
    before = termios.tcgetattr(leader)
    process = subprocess.Popen(
        [*COMMAND, "train", TINY, "--folder", str(folder), *QUICK],
        stdin=follower,
        stderr=follower,
        stdout=subprocess.PIPE,
        env={**ENVIRONMENT, "COLUMNS": "120"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(follower)
    screen = read_until(leader, r"reinforcement[^\r\n]*[1-9]\d*/\d+", 60)
    os.write(leader, b"\x03")
    began = time.monotonic()
    screen += read_until(leader, None, 30)
    process.wait(timeout=30)
    seconds = time.monotonic() - began
    assert termios.tcgetattr(leader) == before
    os.close(leader)
    process.stdout.close()
    return folder, screen, process.returncode, seconds


def read_until(descriptor, pattern, timeout_s):
    """What a terminal got until it shows the pattern, or, without one, until the other side closed it."""
    seen, deadline = b"", time.monotonic() + timeout_s
    while pattern is None or not re.search(
        pattern, re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", seen.decode(errors="replace"))
    ):
        assert time.monotonic() < deadline, seen.decode(errors="replace")[-2000:]
        if select.select([descriptor], [], [], 0.2)[0]:
            try:
                chunk = os.read(descriptor, 4096)
            except OSError:  # how Linux tells the end of a terminal
                break
            seen += chunk
            if not chunk:
                break
    return seen.decode(errors="replace")


def test_ctrl_c_ends_a_training_run_in_order_and_gives_the_terminal_back(stopped_run):
    folder, screen, code, seconds = stopped_run
    assert code == 130 and seconds < 15 and "Traceback" not in screen
    assert HIDE_CURSOR in screen and screen.rfind(SHOW_CURSOR) > screen.rfind(HIDE_CURSOR)
    (steps,) = re.findall(r"practicum: stopped by Ctrl-C: (\d+) of \d+ steps were finished; everything", screen)
    with Database(folder / "run.sqlite", read_only=True) as database:
        assert database.damage() == []
        trained = {step for phase, step in database.successes() if phase == "train"}
    assert trained == set(range(1, int(steps) + 1)) and trained
    assert str(folder) in screen and (folder / "checkpoints" / "step-000000" / "model" / "config.json").is_file()


def test_a_run_is_shown_with_what_was_trained_and_without_colour_codes_in_a_pipe(stopped_run, called):
    folder = stopped_run[0]
    code, table, err = called("show", folder)
    assert (code, err) == (0, "") and "\x1b" not in table
    with Database(folder / "run.sqlite", read_only=True) as database:
        trained = next(found for found in database.stored("train") if any(map(any, found.advantages.values())))
        assert all(task_id in table for task_id in database.task_ids())
    assert re.search(r"\na step took [\d.]+ s \(mean of \d+\): .*decode \d+%, .*; peak memory [\d.]+ GB\n$", table)
    task_id = trained.trajectory.task_id
    assert re.search(rf"{task_id} +\d/8 @\d", table)
    code, text, err = called("show", folder, "--task", task_id, "--phase", "train")
    assert (code, err) == (0, "") and "\x1b" not in text
    assert f"lamp {task_id.removeprefix('lamp_')}" in text and text.count("attempt") >= 8
    assert "«+" in text and "«-" in text and "finished, reward" in text


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("--task lamp_none", r"the run holds no attempt at task lamp_none"),
        ("--phase exam", r"holds no scored attempt of a phase exam; its phases: dev, train$"),
    ],
)
def test_what_a_run_does_not_hold_is_not_shown(stopped_run, called, rest, message):
    assert re.search(message, refused(called("show", stopped_run[0], *rest.split())).strip())


def test_a_reader_that_leaves_early_is_no_traceback(stopped_run):
    folder = stopped_run[0]
    with Database(folder / "run.sqlite", read_only=True) as database:
        task_id = next(database.stored("train")).trajectory.task_id
    for arguments in (["show", str(folder), "--task", task_id], ["show", str(folder)], ["--help"]):
        process = subprocess.Popen(
            [*COMMAND, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        process.stdout.close()
        assert (process.stderr.read(), process.wait(timeout=30)) == ("", 1)
        process.stderr.close()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"train {TINY} --folder run --set model.name=nobody", "no model 'nobody' was found. Tried:"),
        (f"train {TINY} --folder run --set trainer.algorithm=magic", "there is no algorithm 'magic'; known: "),
        (f"train {TINY} --folder run --set tasks.train=5000", "the tiny world has 2600 lamps"),
        (f"train {TINY} --folder run --set model.name=narrow", "has 259 tokens, its model only 100"),
    ],
)
def test_a_run_that_cannot_begin_leaves_no_folder(called, place, command, message):
    from practicum.models.load import new_model, save_model

    save_model(new_model({**SHAPE, "vocab_size": 100}, seed=0), "narrow")
    code, out, err = called(*command.split())
    assert (code, out) == (2, "") and "Traceback" not in err and message in err.partition("practicum: ")[2]
    assert not (place / "run").exists()


SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train {tiny} --folder file --set model.name=nobody", "the run folder file cannot be written: File exists"),
        ("train {tiny} --folder file/run --set model.name=nobody", "the run folder file/run cannot be written"),
        ("train {tiny} --folder /proc/run --set model.name=nobody", "the run folder /proc/run cannot be written"),
        ("train {tiny} --folder old --set model.name=nobody", "old already holds a run; name another folder"),
        ("evaluate {tiny} --model nobody --out /proc/x.sqlite", "database /proc/x.sqlite cannot be opened"),
    ],
)
def test_where_nothing_can_be_written_is_said_before_a_model_is_looked_for(called, place, command, message):
    pytest.importorskip("torch", reason="training needs the extra [train]")
    assert message in refused(called(*command.format(tiny=TINY).split()))


def test_a_model_that_does_not_fit_is_refused_with_what_does_not_fit(called, place):
    pytest.importorskip("torch", reason="models need the extra [train]")
    from practicum.models.load import new_model, save_model

    for name, vocabulary in (("narrow", 100), ("wide", 1000), ("torn", 259), ("odd", 259)):
        save_model(new_model({**SHAPE, "vocab_size": vocabulary}, seed=0), name)
    Path("torn/model.safetensors").write_bytes(b"torn")
    shape = json.loads(Path("odd/config.json").read_text())
    Path("odd/config.json").write_text(json.dumps({**shape, "hidden_size": 32}))
    for name, message in {
        "narrow": "the tokenizer of narrow has 259 tokens, its model only 100",
        "wide": "wide has no tokenizer.json, so bytes would be its tokens, but its model has a vocabulary of 1000",
        "torn": "torn cannot be loaded",
        "odd": "odd do not fit its config.json",
        "folder": "the model folder folder cannot be used: folder has no config.json",
        "old": "the run old has no checkpoint yet; name another run, or a model",
        "nobody": "no model 'nobody' was found. Tried:",
    }.items():
        assert message in refused(called("evaluate", TINY, "--model", name))


@pytest.mark.parametrize(
    ("answers", "code", "words"),
    [
        ([401], 2, "refused a request with 401"),
        ([(200, {}, "<html>")], 1, "gave no chat completion"),
        ([503], 1, "gave no answer"),
        ([None], 2, "It has never answered"),
    ],
)
def test_an_endpoint_that_gives_no_usable_answer_is_one_message(endpoint, called, answers, code, words):
    pytest.importorskip("httpx")
    endpoint.answers = answers
    settings = f"kind=api dtype=auto slots=64 retry_seconds=0.5 url={endpoint.url}".split()
    asked = [f"--set=sampler.{setting}" for setting in settings]
    found, out, err = called("evaluate", TINY, "--model", "m", "--set=tasks.test=2", *asked)
    message = err[err.index("practicum: ") :]
    assert (found, out) == (code, "")
    assert words in message and endpoint.url in message and "Traceback" not in message
