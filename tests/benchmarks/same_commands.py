"""The fixed list of command lines whose results must not change, for every model.

Each is complete: it runs in an empty folder that holds its files alone, so none depends on
what another left, and no result holds a path of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from .models import LIGHT, ROOT, SAMPLES, SHARED, bindings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

Words = tuple[str, ...]

INSTANCES = SHARED.parent / "instances"
CONFIGS = ROOT / "configs"

PROTOTXT = 'level: 1\nmem_param {\n  optimize_train: true\n  exclude_blob: "fc1*"\n}\n'


class Extent(Enum):
    """How much is run: few models, all of them, or with runs of the models too."""

    QUICK = "quick"
    ALL = "all"
    RUNS = "runs"


@dataclass(frozen=True)
class Case:
    """Command lines run one after another in a folder with these files.

    ``texts`` are files written there; ``made`` are files that the commands write and that
    belong to the result, as the last command's output does.
    """

    subject: str
    command: str
    steps: tuple[Words, ...]
    files: tuple[Path, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    made: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A model, and values for its free dims."""

    path: Path
    dims: Words

    @property
    def name(self) -> str:
        """Return its name, which says of which collection it is."""
        where = self.path.parent.name
        return f"messy/{self.path.stem}" if where == "messy" else self.path.stem


def _any(_: Subject) -> bool:
    return True


def _trains(subject: Subject) -> bool:
    return subject.name.startswith("train_")


def _infers(subject: Subject) -> bool:
    return not _trains(subject)


def _has_dims(subject: Subject) -> bool:
    return bool(subject.dims)


def _is_sample(subject: Subject) -> bool:
    return subject.path.parent == SAMPLES


def _has_weights(subject: Subject) -> bool:
    return subject.path.parent in (SAMPLES, LIGHT)


@dataclass(frozen=True)
class Command:
    """Command lines for a model: ``MODEL``, ``DIMS`` and the like stand for its words."""

    steps: tuple[Words, ...]
    suits: Callable[[Subject], bool] = _any
    made: tuple[str, ...] = ()
    runs_model: bool = False


def _report(*options: str) -> tuple[Words, ...]:
    return (("report", "MODEL", "DIMS", "--format", "json", *options),)


def _drawn(form: str) -> Command:
    return Command((("report", "MODEL", "DIMS", "--format", form),))


def _optimize(*options: str) -> Words:
    words = ("optimize", "MODEL", "DIMS", "-o", "o.onnx", "--plan", "plan.json")
    return (*words, "--no-validate", "--format", "json", *options)


_WRITTEN = ("o.onnx", "plan.json")

COMMANDS: Mapping[str, Command] = {
    **{
        f"report --level {level} --order {order}": Command(
            _report("--level", level, "--order", order)
        )
        for level in "012"
        for order in ("keep", "auto")
    },
    **{
        f"optimize --level {level}": Command((_optimize("--level", level),), made=_WRITTEN)
        for level in "012"
    },
    "optimize --order keep": Command((_optimize("--order", "keep"),), made=_WRITTEN),
    "optimize --recompute auto": Command(
        (_optimize("--recompute", "auto", "--budget", "60%"),), _trains, made=_WRITTEN
    ),
    "report, symbolic": Command((("report", "MODEL", "--format", "json"),), _has_dims),
    "report --bounds": Command(
        (("report", "MODEL", "BOUNDS", "--format", "json"),), _has_dims
    ),
    "report --skip-grads": Command(_report("--skip-grads"), _trains),
    "report --donate": Command(_report("--donate", "in.*=new.*"), _trains),
    "report --alignment": Command(_report("--alignment", "256")),
    "report --exclude": Command(_report("--exclude", "*1*", "--expose")),
    "report --config, YAML": Command(_report("--config", "train.yaml"), _is_sample),
    "report --config, prototxt": Command(_report("--config", "p.prototxt"), _is_sample),
    "report of a plan": Command(
        (_optimize(), ("report", "plan.json", "--format", "json", "--print-log")), _is_sample
    ),
    "report --print-log": Command((("report", "MODEL", "DIMS", "--print-log"),)),
    **{
        f"report --format {form}": _drawn(form)
        for form in (
            "markdown", "html", "svg", "csv", "chrome-trace", "c-header", "tflm", "minimalloc",
        )
    },
    "why": Command((("why", "MODEL", "DIMS", "--format", "json"),)),
    "gate": Command(
        (("gate", "MODEL", "DIMS", "--update-baseline", "--baseline", "baseline.json",
          "--format", "json"),),
        made=("baseline.json",),
    ),
    "gate, failing": Command(
        (("gate", "MODEL", "DIMS", "--max-memory", "1KiB", "--format", "json"),)
    ),
    "diff": Command((_optimize(), ("diff", "MODEL", "plan.json", "--format", "json"))),
    "fit": Command(
        (("fit", "MODEL", "FREE", "--memory", "4GiB", "--format", "json"),), _has_dims
    ),
    "pack": Command(
        (
            ("report", "MODEL", "DIMS", "--format", "minimalloc", "-o", "p.csv"),
            ("pack", "p.csv", "--format", "json", "--time-limit", "60"),
        )
    ),
    "train-step": Command(
        (
            ("train-step", "MODEL", "-o", "t.onnx", "--loss-fn", "mse", "--optimizer", "adam",
             "--format", "json"),
            ("report", "t.onnx", "DIMS", "--order", "keep", "--format", "json"),
        ),
        _infers,
        made=("t.onnx",),
    ),
    "train-step --gradients": Command(
        (
            ("train-step", "MODEL", "-o", "t.onnx", "--loss-fn", "softmax-cross-entropy",
             "--gradients", "--format", "json"),
        ),
        _infers,
        made=("t.onnx",),
    ),
    "settings": Command(
        (("settings", "MODEL", "DIMS", "--provider", "cpu", "--format", "json"),),
        _has_weights,
    ),
    "simulate": Command(
        (("simulate", "MODEL", "DIMS", "--format", "json"),), _has_weights, runs_model=True
    ),
    "optimize, validated": Command(
        (
            ("optimize", "MODEL", "DIMS", "-o", "o.onnx", "--plan", "plan.json",
             "--provider", "cpu", "--format", "json"),
        ),
        _has_weights,
        made=_WRITTEN,
        runs_model=True,
    ),
}  # fmt: skip
"""What is run on each model that it suits."""

QUICK = (
    "branchy_cnn", "dynamic_batch", "nested_if_loop", "train_mlp", "light_squeezenet",
    "cond_early_exit", "loop_greedy_gru", "scan_lstm", "resnet50_dynbatch", "train_mlp_sgd",
    "wiring_darts_cell", "wiring_nasnet_cell", "messy/gru_decoder_ts",
)  # fmt: skip
"""Small models that have everything: nested graphs, free dims, training, branches."""

HELP = (
    "optimize", "report", "validate", "gate", "diff", "why", "fit", "settings", "simulate",
    "train-step", "pack", "sweep", "doctor", "schema",
)  # fmt: skip


def subjects() -> list[Subject]:
    """Return all models: samples, those of the onnx package, shared ones, messy ones."""
    folders = (SAMPLES, LIGHT, SHARED, SHARED / "messy")
    paths = (path for folder in folders for path in sorted(folder.glob("*.onnx")))
    return [Subject(path, bindings(path)) for path in paths]


def cases(extent: Extent) -> list[Case]:
    """Return everything that is run, those without a model first."""
    chosen = [s for s in subjects() if extent is not Extent.QUICK or s.name in QUICK]
    found = list(_without_model())
    for subject in chosen:
        found += [
            _case(subject, name, command)
            for name, command in COMMANDS.items()
            if command.suits(subject) and (extent is Extent.RUNS or not command.runs_model)
        ]
    return found


def _without_model() -> Iterator[Case]:
    for name in HELP:
        yield Case("memplan", f"{name} --help", ((name, "--help"),))
    for kind in ("plan", "report", "config", "baseline"):
        yield Case("memplan", f"schema {kind}", (("schema", kind, "--quiet"),))
    for path in sorted(INSTANCES.glob("*.csv")):
        words = ("pack", path.name, "--format", "json", "--time-limit", "60", "--quiet")
        yield Case(path.stem, "pack an instance", (words,), (path,))
    samples = tuple(sorted(SAMPLES.glob("*.onnx")))
    names = [path.name for path in samples]
    swept = ("sweep", *names, "--jobs", "1", "--format", "json", "--quiet")
    yield Case("samples", "sweep", (swept,), samples)


def _case(subject: Subject, name: str, command: Command) -> Case:
    meant: Mapping[str, Words] = {
        "MODEL": (subject.path.name,),
        "DIMS": tuple(word for dim in subject.dims for word in ("--dim", dim)),
        "BOUNDS": tuple(
            word
            for dim in subject.dims
            for word in ("--bounds", "{}=1..{}".format(*dim.split("=")))
        ),
        "FREE": tuple(
            word
            for place, dim in enumerate(subject.dims)
            for word in ("--dim", dim if place else dim.split("=")[0] + "=?")
        ),
    }
    steps = tuple(
        (*(word for given in step for word in meant.get(given, (given,))), "--quiet")
        for step in command.steps
    )
    files: tuple[Path, ...] = (subject.path,)
    texts: tuple[tuple[str, str], ...] = ()
    if any("train.yaml" in step for step in steps):
        files += (CONFIGS / "train.yaml",)
    if any("p.prototxt" in step for step in steps):
        texts = (("p.prototxt", PROTOTXT),)
    return Case(subject.name, name, steps, files, texts, command.made)
