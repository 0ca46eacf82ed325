"""The command ``needle``: its arguments and exit codes (see ``_CODES``)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

from needle import config, devices
from needle.errors import DeviceError, NeedleError, OptionError, unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        if config.problem is not None:
            raise config.problem
        return _dispatch(arguments)
    except (OptionError, DeviceError) as error:
        return _fail("; ".join(line.strip() for line in str(error).splitlines()), 2)
    except NeedleError as error:
        return _fail(str(error), 1)
    except MemoryError as error:
        return _fail(f"out of memory: {error}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has closed it, as head does
        sys.stderr.close()
        return 1
    except OSError as error:  # for example a full disk
        return _fail(str(error), 1)


def _fail(message: str, code: int) -> int:
    print(f"needle: {message}", file=sys.stderr)
    return code


def _dispatch(arguments: list[str]) -> int:
    import needle

    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"needle {needle.__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in _COMMANDS:
        raise unknown("command", name, _COMMANDS)
    return int(_COMMANDS[name](rest))


class _Parser(argparse.ArgumentParser):
    """Raise OptionError for wrong arguments, with the nearest option for unknown ones.

    Args:
        command: name of the command.
        description: what it does.
        examples: commands, each with what it does.
    """

    def __init__(self, command: str, description: str, examples: dict[str, str]) -> None:
        wide = max(map(len, examples))
        lines = [f"  {example:{wide}}  {what}" for example, what in examples.items()]
        super().__init__(
            prog=f"needle {command}", allow_abbrev=False, description=description,
            epilog="\n".join(["examples:", *lines, "", _CODES]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        self.command = command
        self.known: list[str] = ["--help"]

    def option(self, name: str, **settings: Any) -> None:
        """Add an option."""
        self.known.append(name)
        self.add_argument(name, **settings)

    def read(self, arguments: list[str]) -> argparse.Namespace:
        """Return the values of the arguments."""
        values, extra = self.parse_known_args(arguments)
        for text in extra:
            if text.startswith("-"):
                raise unknown(f"{self.command}: option", text.split("=")[0], self.known)
            raise OptionError(f"{self.command}: unexpected argument {text!r}")
        return values

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{self.command}: {message}")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return value


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected an integer >= 0, got {text!r}")
    return int(text)


# ---- needle train, needle resume ------------------------------------------------------


def _train_parser() -> _Parser:
    parser = _Parser("train", "Train a model, and save the run in a folder.", {
        "needle train": "the default recipe, for about a minute",
        "needle train mlp-mnist --epochs 3 --workers 2": "with batches made ahead",
        "needle train mlp-mnist --set hidden=512": "a wider model",
        "needle train gpt --data book.txt --out runs/book": "a text of your own",
    })  # fmt: skip
    parser.add_argument("recipe", nargs="?", help="recipe to train (default: byte-lstm)")
    add = parser.option
    add("--list", action="store_true", help="list the recipes and exit")
    add("--preset", metavar="NAME", help="one of the recipe's presets (--list names them)")
    add("--set", metavar="NAME=VALUE", action="append", default=[],
        help="a setting of the recipe, as hidden=256; an unknown name lists them")  # fmt: skip
    add("--epochs", type=_count, metavar="N", help="passes over the training data")
    add("--steps", type=_count, metavar="N", help="updates, instead of --epochs")
    add("--batch-size", type=_count, metavar="N", help="training examples per update")
    add("--lr", type=_rate, metavar="RATE", help="peak learning rate")
    add("--seed", type=_seed, metavar="N", help="seed of weights and data order (default: 0)")
    add("--out", metavar="FOLDER", help="folder for the run (default: runs/<recipe>-<time>)")
    add("--resume", metavar="FOLDER", help="as needle resume FOLDER")
    add("--record", action="store_true", help="record fingerprints of all steps, for needle diff")
    _add_running(parser)
    return parser


def _add_running(parser: _Parser) -> None:
    """Add the options that change how a run is made, and not what it gives."""
    add = parser.option
    add("--data", metavar="PATH", help="folder or file of the data (default: NEEDLE_DATA)")
    add("--device", metavar="NAME", help="device to compute on, for example cpu or cpu_numpy")
    add("--backend", choices=("nd", "np"), help="nd: native; np: NumPy (default: NEEDLE_BACKEND)")
    add("--threads", type=_count, metavar="N", help="kernel threads (default: all cores)")
    add("--workers", type=_count, metavar="N",
        help="threads or processes that make batches ahead (default: none)")  # fmt: skip
    add("--worker-kind", choices=("thread", "process"),
        help="what workers are (default: as the data needs it)")  # fmt: skip
    add("--no-compile", dest="compile", action="store_const", const="off",
        help="run each training step as Python, operation by operation")  # fmt: skip
    add("--save-every", type=_count, metavar="N",
        help="steps between checkpoints (default: those between evaluations)")  # fmt: skip
    add("--quiet", action="store_true", help="print only the result")
    add("--json", action="store_true", help="print only the result, as JSON")


def _train(arguments: list[str]) -> int:
    args = _train_parser().read(arguments)
    from needle import recipes

    if args.list:
        return _list_recipes(False)
    if args.steps and args.epochs:
        raise OptionError("train: --steps and --epochs cannot be combined")
    if args.resume is not None:
        settings = ("epochs", "steps", "batch_size", "lr", "seed", "preset", "set", "out")
        given = [name for name in settings if getattr(args, name) not in (None, [])]
        if given:
            option = "--" + given[0].replace("_", "-")
            raise OptionError(f"train: --resume keeps the settings of the run; remove {option}")
        return _resumed(args.resume, args, args.recipe)
    recipe = recipes.get(recipes.DEFAULT if args.recipe is None else args.recipe)
    with _in_force(args):
        from needle.tools.training import run

        chosen = recipes.Settings(
            args.data, args.epochs, args.steps, args.batch_size, args.lr, args.seed or 0,
            args.preset, recipes.read_choices(recipe, args.set),
        )  # fmt: skip
        return run(recipe, chosen, args.out, record=args.record, **_shown(args))


def _resume(arguments: list[str]) -> int:
    parser = _Parser(
        "resume", "Go on with a run that was stopped or killed, at its last checkpoint.",
        {"needle resume runs/book": "as if it had never been stopped"},
    )  # fmt: skip
    parser.add_argument("run", help="folder of the run")
    _add_running(parser)
    args = parser.read(arguments)
    return _resumed(args.run, args)


def _resumed(path: str, args: argparse.Namespace, recipe: str | None = None) -> int:
    from needle import recipes
    from needle.tools.run import RunFolder

    folder = RunFolder.open(path)
    known = folder.config()
    if recipe not in (None, known["recipe"]):
        raise OptionError(f"{path} is a run of recipe {known['recipe']}, not of {recipe}")
    if args.backend is None and args.device is None:
        vars(args).update(known["where"])
    settings = recipes.Settings(**{**known["chosen"], **({"data": args.data} if args.data else {})})
    with _in_force(args):
        from needle.tools.training import run

        return run(recipes.get(known["recipe"]), settings, resume=folder, **_shown(args))


def _shown(args: argparse.Namespace) -> dict[str, Any]:
    workers = (args.workers or 0, args.worker_kind)
    return {"quiet": args.quiet, "as_json": args.json, "save_every": args.save_every,
            "workers": workers}  # fmt: skip


def _in_force(args: argparse.Namespace) -> ExitStack:
    """Return a context in which --backend, --device, --threads and --no-compile hold.

    Raises:
        DeviceError: if the device is not available.
    """
    changes = {
        name: value
        for name in ("backend", "device", "threads", "compile")
        if (value := getattr(args, name, None)) is not None
    }
    stack = ExitStack()
    stack.enter_context(config.override(**changes))
    where = devices.default_device()
    if where.backend is not None and where not in devices.all_devices():
        raise DeviceError(f"device {where.name!r} cannot compute")
    return stack


# ---- needle list ---------------------------------------------------------------------


def _list(arguments: list[str]) -> int:
    parser = _Parser("list", "List the recipes, or the runs in a folder.", {
        "needle list": "the recipes, with their presets",
        "needle list runs": "the runs, with their steps and figures",
    })  # fmt: skip
    parser.add_argument("folder", nargs="?", help="folder of runs")
    parser.option("--json", action="store_true", help="print the list as JSON")
    args = parser.read(arguments)
    if args.folder is None:
        return _list_recipes(args.json)
    from needle.tools import listing

    found = listing.runs(args.folder)
    print(json.dumps(found, indent=2) if args.json else listing.as_text(found))
    return 0


def _list_recipes(as_json: bool) -> int:
    from needle import recipes

    found = [recipes.get(name) for name in recipes.names()]
    if as_json:
        rows = [{"name": r.name, "summary": r.summary, "presets": list(r.presets),
                 "default": r.name == recipes.DEFAULT} for r in found]  # fmt: skip
        print(json.dumps(rows, indent=2))
        return 0
    for recipe in found:
        default = "  (default)" if recipe.name == recipes.DEFAULT else ""
        presets = f"  (presets: {', '.join(recipe.presets)})" if recipe.presets else ""
        print(f"{recipe.name:16} {recipe.summary}{presets}{default}")
    return 0


# ---- needle sample -------------------------------------------------------------------


def _sample(arguments: list[str]) -> int:
    parser = _Parser("sample", "Continue a text with the model of a run.", {
        "needle sample runs/book --prompt 'It was'": "400 tokens more",
        "needle sample runs/book --prompt 'It was' --temperature 0": "always the likeliest",
    })  # fmt: skip
    parser.add_argument("run", help="folder of the run")
    add = parser.option
    add("--prompt", metavar="TEXT", required=True, help="beginning of the text")
    add("--count", type=_count, metavar="N", default=400, help="tokens to add (default: 400)")
    add("--temperature", type=float, metavar="T", default=0.8,
        help="divides the logits; 0: always the likeliest token (default: 0.8)")  # fmt: skip
    add("--top-k", type=_count, metavar="K", help="draw among the K likeliest tokens only")
    add("--top-p", type=float, metavar="P", help="draw among the likeliest that reach P together")
    add("--seed", type=_seed, metavar="N", default=0, help="of the draws (default: 0)")
    args = parser.read(arguments)
    from needle.tools.sample import sample

    sample(
        args.run, args.prompt, args.count,
        temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, seed=args.seed,
    )  # fmt: skip
    return 0


# ---- needle report, needle compare -----------------------------------------------------


def _report(arguments: list[str]) -> int:
    parser = _Parser("report", "Write report.html and report.json into the folder of a run.", {
        "needle report runs/book": "a page that needs nothing else",
        "needle report runs/book --json": "its facts, for a program",
    })  # fmt: skip
    parser.add_argument("run", help="folder of the run")
    parser.option("--out", metavar="FILE", help="path of the page instead")
    parser.option("--json", action="store_true", help="print the facts as JSON, and write nothing")
    args = parser.read(arguments)
    from needle.tools import report

    if args.json:
        print(report.as_json(args.run))
    else:
        print(report.write(args.run, args.out))
    return 0


def _compare(arguments: list[str]) -> int:
    parser = _Parser(
        "compare", "Tell what runs differ in; with --out, draw their curves on one page.",
        {"needle compare runs/first runs/second --out both.html": "settings, figures, curves"},
    )  # fmt: skip
    parser.add_argument("runs", nargs="+", help="folders of the runs")
    parser.option("--out", metavar="FILE", help="path of the page")
    parser.option("--json", action="store_true", help="print the differences as JSON")
    args = parser.read(arguments)
    from needle.tools import report

    found = report.compare(args.runs, args.out)
    print(json.dumps(found, indent=1) if args.json else report.as_text(found))
    return 0


def _diff(arguments: list[str]) -> int:
    parser = _Parser(
        "diff", "Find where the numbers of two runs part: step, op, line and units in the last "
        "place. Both were made with --record. Exit code 1 if they differ.",
        {"needle diff runs/first runs/second": "runs that should be equal"},
    )  # fmt: skip
    parser.add_argument("runs", nargs=2, help="folders of the runs")
    parser.option("--quick", action="store_true", help="only the step and the tensor; no replay")
    parser.option("--json", action="store_true", help="print the findings as JSON")
    args = parser.read(arguments)
    from needle.tools import diff

    first, second = args.runs
    found = diff.diff(first, second, args.quick)
    print(json.dumps(found, indent=1) if args.json else diff.as_text(found))
    return 1 if found["step"] is not None else 0


def _show(arguments: list[str]) -> int:
    parser = _Parser(
        "show",
        "Print a saved program: its inputs, its parameters and its nodes.",
        {
            "needle show model.needle": "print what Module.save wrote",
            "needle show model.needle --draw model.html": "and draw its graph",
        },
    )
    parser.add_argument("file", help="file of the program")
    parser.option("--draw", metavar="PAGE", help="HTML file for a picture of the graph")
    args = parser.read(arguments)
    from needle.io import load_program

    program = load_program(args.file)
    if args.draw is not None:
        from needle.tools.draw import draw

        draw(program, args.draw)
    print(program)
    for name, x in program.parameters.items():
        print(f"  {name}: {x.spec}")
    print(program.show())
    return 0


def _profile(arguments: list[str]) -> int:
    parser = _Parser("profile", "Run a saved program and tell what each operation costs.", {
        "needle profile model.needle": "the costliest operations, predicted and measured",
        "needle profile model.needle --trace t.json": "and a trace for ui.perfetto.dev",
    })  # fmt: skip
    parser.add_argument("file", help="file of the program")
    parser.option("--trace", metavar="FILE", help="JSON file for the trace events")
    parser.option("--times", type=_count, metavar="N", default=10,
                  help="runs, of which the mean counts (default: 10)")  # fmt: skip
    args = parser.read(arguments)
    from needle import ops
    from needle.io import load_program
    from needle.tools.costs import profile

    program = load_program(args.file)
    given = [ops.zeros(x.shape, dtype=x.dtype, device=x.device) for x in program.inputs]
    print(profile(program, *given, path=args.trace, times=args.times))
    return 0


# ---- needle doctor -------------------------------------------------------------------


def _doctor(arguments: list[str]) -> int:
    parser = _Parser("doctor", "Check this installation; exit code 1 on a failure.", {
        "needle doctor": "all devices, kernels and ops",
        "needle doctor --json": "the same for a program",
    })  # fmt: skip
    parser.option("--json", action="store_true", help="print the findings as JSON")
    args = parser.read(arguments)
    from needle.tools import doctor

    findings = doctor.examine()
    print(doctor.as_json(findings) if args.json else doctor.as_text(findings))
    return 0 if findings["ok"] else 1


# ---- needle completion ---------------------------------------------------------------


def _completion(arguments: list[str]) -> int:
    parser = _Parser("completion", "Print what lets a shell complete commands and options.", {
        "source <(needle completion bash)": "in ~/.bashrc",
        "source <(needle completion zsh)": "in ~/.zshrc, after compinit",
        "needle completion fish > ~/.config/fish/completions/needle.fish": "once",
    })  # fmt: skip
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    args = parser.read(arguments)
    from needle import recipes
    from needle.tools import completion

    print(completion.script(args.shell, _COMMANDS, recipes.names()), end="")
    return 0


# ---- needle torture ------------------------------------------------------------------


def _torture(arguments: list[str]) -> int:
    parser = _Parser(
        "torture", "Kill runs at random, resume them, and compare their ends with an unharmed run. "
        "Options that are not listed are those of needle train.", {
            "needle torture byte-mlp --minutes 5": "about a hundred kills",
            "needle torture mlp-mnist --workers 2": "workers are killed too",
        },
    )  # fmt: skip
    parser.add_argument("recipe", help="recipe to train")
    add = parser.option
    add("--minutes", type=_rate, metavar="N", default=1.0, help="how long (default: 1)")
    add("--steps", type=_count, metavar="N", default=200, help="updates of a run (default: 200)")
    add("--chance", type=_seed, metavar="N", default=0, help="seed of the attacks (default: 0)")
    add("--quiet", action="store_true", help="print only the result")
    add("--json", action="store_true", help="print only the result, as JSON")
    args, rest = parser.parse_known_args(arguments)
    _train_parser().read([args.recipe, *rest])
    from needle.tools.torture import torture

    quiet = args.quiet or args.json
    report = torture(
        ["train", args.recipe, *rest], args.minutes, args.chance, args.steps,
        (lambda text: None) if quiet else lambda text: print(text, flush=True),
    )  # fmt: skip
    print(json.dumps(report.as_json()) if args.json else report.text())
    return 0


_COMMANDS = {
    "train": _train, "resume": _resume, "sample": _sample, "report": _report,
    "compare": _compare, "diff": _diff, "show": _show, "profile": _profile,
    "list": _list, "doctor": _doctor, "torture": _torture, "completion": _completion,
}  # fmt: skip
_CODES = """exit codes:
  0    success
  1    failure: an error, or a training that diverged
  2    wrong arguments
  129, 130, 143   stopped by SIGHUP, SIGINT (Ctrl-C) or SIGTERM; a training was saved before"""
_HELP = f"""usage: needle COMMAND [options]

  train [RECIPE]   train a model
  resume RUN       go on with a run that was stopped or killed
  sample RUN       continue a text with the model of a run
  report RUN       write a page about a run
  compare RUN RUN  tell what runs differ in
  diff RUN RUN     find where the numbers of two runs part
  show FILE        print or draw a saved program
  profile FILE     tell what each operation of a saved program costs
  list [FOLDER]    list the recipes, or the runs in a folder
  doctor           check this installation
  completion SHELL print what lets bash, zsh or fish complete commands
  torture RECIPE   kill runs at random, resume them, compare their ends

needle COMMAND --help lists the options, with examples; needle --version prints the version.

{_CODES}"""
