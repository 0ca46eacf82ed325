"""The command ``needle`` in processes of its own: arguments, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import needle as ndl
from needle import cli, core, recipes
from needle.errors import OptionError


def start(*arguments, cwd=None, **environment):
    """Start a command; its standard output and error are pipes of text."""
    package = str(Path(ndl.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", **environment}
    env["PYTHONWARNINGS"] = "ignore:needle runs without its native module"
    return subprocess.Popen(
        [sys.executable, "-m", "needle", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=env,
        preexec_fn=default_signals,
    )  # fmt: skip


def default_signals():
    """Undo what a shell ignores for programs in the background: children inherit it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def run(*arguments, cwd=None, **environment):
    """Run a command to its end; return exit code, standard output and standard error."""
    process = start(*arguments, cwd=cwd, **environment)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.fixture
def source(tmp_path):
    """A standard library of two modules."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "abc.py").write_text("def f(x):\n    return x + 1\n" * 20)
    (folder / "filecmp.py").write_text("def g(y):\n    return y - 1\n" * 2)
    return folder


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("THREADS", "x", "must be an integer"),
        ("MODE", "fast", "must be one of eager, lazy"),
        ("MEMORY_LIMIT", "much", "KiB, MiB, GiB or TiB"),
        ("DEVICE", "cpuu", "did you mean 'cpu'"),
        ("ISA", "v9", "expected one of"),
    ],
)
def test_wrong_settings_are_told_in_a_line(name, value, says):
    if name == "ISA" and core.native is None:
        pytest.skip("needs the native module")
    code, out, err = run("doctor", **{f"NEEDLE_{name}": value})
    assert code == 2 and out == "" and says in err and err.count("\n") == 1, err
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import needle"], text=True, capture_output=True,
        env=ndl.config.environment(**{name: value}),
    )  # fmt: skip
    kind = "DeviceError" if name == "DEVICE" else "OptionError"
    assert done.returncode == 1 and f"needle.errors.{kind}: " in done.stderr


SMALL = ("--batch-size", 4, "--threads", 1)


@pytest.mark.parametrize("native", ["on", "off"])
def test_train_saves_a_run(tmp_path, source, native):
    code, out, err = run(
        "train", "--data", source, "--steps", 3, *SMALL, cwd=tmp_path, NEEDLE_NATIVE=native
    )
    assert code == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("byte-lstm-")
    saved = {path.name for path in folder.iterdir()}
    assert {"metrics.jsonl", "config.json", "weights.safetensors"} <= saved
    assert "step 1/3" in out and "bits/byte" in out and "zlib" in out and "left" in out
    assert "\x1b" not in out  # plain lines off a terminal
    assert str(folder.relative_to(tmp_path)) in out
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["steps"] == 3 and config["environment"]["threads"] == 1
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "train"] == [1, 2, 3]
    assert lines[-1]["final"] and {"bits_per_byte", "zlib", "bz2", "lzma"} <= set(lines[-1])


def test_quiet_prints_the_result_only(tmp_path, source):
    code, out, _ = run(
        "train", "--data", source, "--steps", 2, *SMALL, "--quiet", "--out", tmp_path / "here"
    )
    assert code == 0 and "step 1" not in out and "zlib" in out
    assert (tmp_path / "here" / "weights.safetensors").exists()


@pytest.mark.parametrize(
    "number, expected", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_training_with_one_line_and_the_last_weights(
    tmp_path, source, number, expected
):
    arguments = ("train", "--data", source, "--steps", 10**7, *SMALL, "--out", tmp_path / "run")
    process = start(*arguments)
    for line in process.stdout:
        if line.startswith("step 1/"):
            break
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == expected
    assert len(err.splitlines()) == 1 and number.name in err and "last weights" in err
    assert f"needle resume {tmp_path / 'run'} continues the run" in err
    state = ndl.io.load(tmp_path / "run" / "weights.safetensors")
    assert state["head.weight"].shape[-1] == 256


@pytest.mark.parametrize("how", ["killed", "read"])
def test_a_run_whose_process_or_reader_goes_away_is_not_lost(tmp_path, source, how):
    """It is killed before any evaluation, or its output is closed; the end is the same."""
    arguments = ("train", "byte-mlp", "--data", source, "--steps", 200, *SMALL)
    process = start(*arguments, "--out", tmp_path / "run")
    process.stdout.readline()
    if how == "killed":
        while not (tmp_path / "run" / "checkpoints" / "latest").exists():
            assert process.poll() is None
        process.kill()
        process.communicate(timeout=60)
    else:
        process.stdout.close()
        assert process.wait(60) == 0 and process.stderr.read() == ""
        process.stderr.close()
        assert "bits per byte" in (tmp_path / "run" / "log.txt").read_text()
    code, out, err = run("resume", tmp_path / "run", "--json")
    result = json.loads(out)
    assert code == 0 and result["steps"] == 200 and result["stopped"] is None, err
    code, out, _ = run("list", tmp_path, "--json")
    (found,) = json.loads(out)
    assert (found["state"], found["done"], found["steps"]) == ("complete", 200, 200)
    assert found["figures"]["bits_per_byte"] == result["figures"]["bits_per_byte"]


def test_list(capsys, tmp_path):
    for command in (["train", "--list"], ["list"]):
        assert cli.main(command) == 0
        shown = capsys.readouterr().out
        assert [line.split()[0] for line in shown.splitlines()] == recipes.names()
    assert cli.main(["list", "--json"]) == 0
    assert [x["name"] for x in json.loads(capsys.readouterr().out)] == recipes.names()
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.json").write_text("{")
    assert cli.main(["list", str(tmp_path)]) == 0
    assert "one" in (text := capsys.readouterr().out) and "damaged" in text
    (tmp_path / "one" / "config.json").write_text('{"recipe": "line", "settings": {"steps": 3}}')
    with ndl.io.FolderLock(tmp_path / "one"):
        assert cli.main(["list", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"line 0/3 in use by process {os.getpid()} on " in told


def test_help_has_examples_and_exit_codes(capsys):
    for name in cli._COMMANDS:
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--help"])
        text = capsys.readouterr().out
        assert ended.value.code == 0 and f"  needle {name}" in text and "exit codes:" in text
        assert f"\n  {name} " in cli._HELP


def test_version_and_help():
    assert run("--version")[:2] == (0, f"needle {ndl.__version__}\n")
    assert run()[0] == 2 and run("--help")[0] == 0
    code, out, _ = run("train", "--help")
    assert code == 0 and "--batch-size" in out


def fails(capsys, *arguments, code=2):
    """Run a command in this process; return its one line on standard error."""
    assert cli.main([str(a) for a in arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1, err
    assert err.startswith("needle: ")
    return err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train", "byte-mpl"], "unknown recipe 'byte-mpl'; did you mean 'byte-mlp'?"),
        (["train", "--epoch", "3"], "unknown option '--epoch'; did you mean '--epochs'?"),
        (["train", "--stepz=3"], "unknown option '--stepz'; did you mean '--steps'?"),
        (["doctor", "--jsn"], "unknown option '--jsn'; did you mean '--json'?"),
        (["train", "byte-mlp", "again"], "unexpected argument 'again'"),
        (["train", "--steps", "0"], "expected a positive integer, got '0'"),
        (["train", "--epochs", "two"], "expected a positive integer, got 'two'"),
        (["train", "--lr", "nan"], "expected a positive number, got 'nan'"),
        (["train", "--seed", "-1"], "--seed"),
        (["train", "byte-lstm", "--preset", "lng"], "unknown preset 'lng'; did you mean 'long'?"),
        (["train", "mlp-mnist", "--preset", "x"], "mlp-mnist has no presets"),
        (["train", "gpt"], "--data FILE"),
        (["sample", "x", "--prompt", "y"], "x holds no language model: no config.json"),
        (["sample", "x"], "the following arguments are required: --prompt"),
        (["sample", "x", "--promt", "y"], "the following arguments are required: --prompt"),
        (["train", "--batch-size", "9" * 23], "an integer, at least 1 and at most 2147483647"),
        (["train", "--steps", "1", "--epochs", "1"], "cannot be combined"),
        (["train", "--steps", "9" * 23], "an integer, at least 1 and at most 2147483647"),
        (["train", ""], "unknown recipe ''; known: "),
        (["train", "--resume", ""], "does not contain a run"),
        (["resume", "x"], "'x' does not contain a run: no config.json"),
        (["list", "nowhere"], "'nowhere' is not a folder"),
        (["torture", "byte-mlp", "--epochz", "3"], "unknown option '--epochz'"),
        (["train", "--resume", "x", "--seed", "0"], "remove --seed"),
        (["train", "--out", ""], "the folder name is empty"),
        (["train", "--backend", "tf"], "invalid choice: 'tf'"),
        (
            ["train", "--device", "cpu_numpi"],
            "unknown device 'cpu_numpi'; did you mean 'cpu_numpy'?",
        ),
        (["train", "--device", "cuda"], "device 'cuda' is not available: "),
        (["train", "--device", "meta"], "cannot compute"),
    ],
)
def test_wrong_arguments_are_one_line_and_code_2(capsys, arguments, message):
    if arguments[-1] == "cuda" and ndl.cuda().enabled():
        pytest.skip("there is a CUDA device")
    assert message in fails(capsys, *arguments)


def test_an_output_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").touch()
    message = fails(capsys, "train", "--out", tmp_path / "file" / "run")
    assert "cannot be written" in message and str(tmp_path / "file" / "run") in message


def test_an_output_folder_that_holds_a_run(capsys, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert "already contains a run" in fails(capsys, "train", "--out", tmp_path)


def test_data_that_is_not_there_leaves_no_empty_folder(capsys, tmp_path):
    arguments = ["train", "mlp-mnist", "--data", str(tmp_path), "--out", str(tmp_path / "run")]
    assert cli.main(arguments) == 1
    assert "do not hold train-images" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_where_it_ran(monkeypatch, tmp_path):
    from needle.tools import training
    from needle.tools.run import environment

    where = []

    def run(*args, **_):
        settings = ndl.config.current()
        where.append((settings.backend, settings.device))
        return 0

    monkeypatch.setattr(training, "run", run)
    for name, changes in (("a", {"backend": "np"}), ("b", {"device": "cpu_numpy"})):
        (tmp_path / name).mkdir()
        with ndl.config(**changes):
            values = {"recipe": "byte-mlp", "chosen": {}, "environment": environment()}
        (tmp_path / name / "config.json").write_text(json.dumps(values))
        assert cli.main(["train", "--resume", str(tmp_path / name)]) == 0
    assert where == [("np", "cpu_numpy"), (ndl.config.current().backend, "cpu_numpy")]
    assert cli.main(["train", "--resume", str(tmp_path / "a"), "--device", "cpu_numpy"]) == 0
    assert where[2] == (ndl.config.current().backend, "cpu_numpy")


def test_device_backend_and_threads_hold_within_the_command_only():
    args = cli._train_parser().read(["--device", "cpu_numpy", "--backend", "np", "--threads", "1"])
    before = ndl.config.current()
    with cli._in_force(args):
        inside = ndl.config.current()
        assert (inside.device, inside.backend, inside.threads) == ("cpu_numpy", "np", 1)
        assert ndl.default_device().name == "cpu_numpy"
    assert ndl.config.current() is before


def test_an_option_error_inside_is_one_line(capsys, monkeypatch):
    def broken(arguments):
        raise OptionError("first\n  second: third")

    monkeypatch.setitem(cli._COMMANDS, "train", broken)
    assert fails(capsys, "train") == "needle: first; second: third\n"


def test_what_memory_does_not_hold_is_told_in_a_line(capsys, monkeypatch):
    def broken(arguments):
        raise MemoryError("Unable to allocate 34.0 GiB")

    monkeypatch.setitem(cli._COMMANDS, "train", broken)
    assert "out of memory: Unable to allocate" in fails(capsys, "train", code=1)


def test_a_full_disk_is_told_in_a_line(capsys, monkeypatch):
    def broken(arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(cli._COMMANDS, "train", broken)
    assert "No space left on device" in fails(capsys, "train", code=1)


def test_interrupted_before_training(capsys, monkeypatch):
    def broken(arguments):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli._COMMANDS, "train", broken)
    assert "interrupted" in fails(capsys, "train", code=130)
