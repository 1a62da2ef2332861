"""Rewrite real and random models in every way, and run each file at extreme inputs beside its original.

    PYTHONPATH=tests:tests/e2e python -m tests.benchmarks.extreme [--only TEXT] [--no-table]

Each case is a model and a way to rewrite it, both drawn with a seed, until `optimize` writes a file, with
``--validate outputs``. The written file is then opened by `memplan.load`, and the original as the reference of its report
says, both with one thread. Both run on the same inputs: the floats are all NaN, contain NaN with a payload, are
infinite, denormal, zero, negative zero or the largest ones; integers and booleans are drawn as in `optimize`, because
they are indices and conditions. Where the written file has free batch sizes, two more are run. Outputs are compared bit for
bit, as `optimize` does: any two NaN are equal; those with other bits are counted. Two runs that both fail are equal.
Models of `make field` are used if they are in ``$OUT/field`` (default: out/field).

Guards the claim of docs/measurements/extreme.md: a written file has the outputs of its reference, also at inputs that
its check does not try.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort

import memplan_cli
from cache_models import Shape, decoder
from features.chunk_graphs import mixed
from features.chunk_models import convolutions, segmentation, transformer
from memplan_cli import Check, Settings, api
from memplan_cli.errors import MemplanError
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.train_step import Recipe, make_train_step
from memplan_cli.onnx_io.interface import free_dims
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.workers.inputs import draw_all
from perceptrons import perceptron

from .cases import asked, cell, publish
from .models import ROOT, SAMPLES, SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memplan_cli.core.results.report import Report

    Build = Callable[[], onnx.ModelProto]
    Array = np.ndarray[Any, np.dtype[Any]]
    Feeds = dict[str, Any]

PAGE = ROOT / "docs" / "measurements" / "extreme.md"
FIELD = Path(os.environ.get("OUT", ROOT / "out")) / "field" / "models"
CASES = 60
ATTEMPTS = 8
"""Draws of a case until one is written: a budget may be too small for a model."""

SEED = 7


@dataclass(frozen=True)
class Case:
    """One rewrite: a model, as a file or built, and how `optimize` rewrites it."""

    name: str
    model: Path | Build
    settings: Settings
    check: Check


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        rewritten: what was rewritten, by the report; empty if nothing was written.
        reference: the run of the original that the report names.
        runs: runs whose outputs were compared, those with other batch sizes, and those that failed on both sides.
        differences: one sentence for each output that differs.
        nan: outputs in which a NaN has another sign or payload.
        failed: why the case could not be run.
        name: the name of the model.
    """

    rewritten: str = ""
    reference: str = ""
    runs: tuple[int, int, int] = (0, 0, 0)
    differences: tuple[str, ...] = ()
    nan: int = 0
    failed: str = ""
    name: str = ""


# Models.


def step(model: Build, optimizer: str) -> onnx.ModelProto:
    """Return a training step of a model."""
    recipe = Recipe(LossFunction("mse"), Optimizer(optimizer))
    return make_train_step(model(), recipe).model


FLOAT_MODELS = (
    *("silero-vad/silero_vad", "silero-vad/silero_vad_half", "silero-vad/silero_vad_op18_ifless"),
    *("silero-vad/silero_vad_16k_op15", "silero-vad/silero_vad_openvino_16k", "torch/torch_masked_ts"),
    *("torch/torch_pyramid_ts", "torch/torch_pyramid_dynamo", "torch/torch_lstm_ts", "torch/torch_lstm_dynamo"),
    *("light/spox_if", "light/spox_loop", "light/spox_range", "light/quantise_dynamic", "light/quantise_qdq"),
    *("light/quantise_qoperator", "light/skl2onnx_mlp", "light/skl2onnx_forest", "light/skl2onnx_boosting"),
)  # fmt: skip
LARGE_ACTIVATIONS = ("torch/torch_pyramid_ts",)
MESSY = ("vit_ts", "gru_decoder_ts")


def files(names: tuple[str, ...]) -> dict[str, Path | Build]:
    """Return the files of the field that are there, by name."""
    paths = {name.split("/")[-1]: FIELD / f"{name}.onnx" for name in names}
    return {name: path for name, path in paths.items() if path.exists()}


def drawn_model(kind: str, rng: random.Random) -> tuple[str, Path | Build]:
    """Return a model that suits a kind of rewrite."""
    seed = rng.randrange(1000)
    random_graph: dict[str, Path | Build] = {f"random graph {seed}": partial(mixed, seed, 14)}
    built: dict[str, Path | Build] = {
        "attention": partial(transformer, 96),
        "convolutions": convolutions,
        "joined maps": segmentation,
    }
    messy = {name: SHARED / "messy" / f"{name}.onnx" for name in MESSY}
    shared: dict[str, Path | Build] = {n: p for n, p in messy.items() if p.exists()}
    vit = {name: path for name, path in shared.items() if name == "vit_ts"}
    samples: dict[str, Path | Build] = {
        path.stem: path for path in sorted(SAMPLES.glob("*.onnx"))
    }
    steps: dict[str, Path | Build] = {
        f"step of a perceptron, {optimizer}": partial(
            step, partial(perceptron, 8, 64), optimizer
        )
        for optimizer in ("sgd", "momentum", "adam")
    }
    of_kind: dict[str, dict[str, Path | Build]] = {
        "chunks": {**random_graph, **built, **vit, **files(LARGE_ACTIVATIONS)},
        "copies": {**random_graph, **built, **steps},
        "donated outputs": {**steps, "train_mlp": SAMPLES / "train_mlp.onnx"},
        "caches in place": {
            "decoder": partial(extreme_decoder, Shape(layers=2, groups=2)),
            "decoder of rows": partial(extreme_decoder, Shape(layers=2, layout="rows")),
            "decoder with casts": partial(extreme_decoder, Shape(means="cast")),
        },
    }
    any_model = {**random_graph, **built, **shared, **samples, **files(FLOAT_MODELS)}
    return rng.choice(sorted(of_kind.get(kind, any_model).items(), key=lambda item: item[0]))


# Ways to rewrite.


def unoptimized(settings: Settings) -> tuple[Settings, Check]:
    return settings, Check("cpu", depth="outputs", reference="unoptimized")


def as_given(settings: Settings) -> tuple[Settings, Check]:
    return settings, Check("cpu", depth="outputs")


WAYS: tuple[tuple[str, Callable[[random.Random], tuple[Settings, Check]]], ...] = (
    ("order", lambda _: as_given(Settings())),
    ("levels", lambda rng: as_given(Settings(level=rng.choice((0, 1))))),
    ("the runtime's graph", lambda _: as_given(Settings(target="cpu"))),
    ("folded constants", lambda _: as_given(Settings(fold_constants=True))),
    ("chunks", lambda rng: unoptimized(Settings(chunk="auto", budget=rng.choice((0.4, 0.6, 0.8))))),
    ("chunks", lambda rng: as_given(Settings(chunk="auto", budget=rng.choice((0.5, 0.7, 0.9)), target="cpu"))),
    ("copies", lambda rng: unoptimized(Settings(recompute="auto", budget=rng.choice((0.8, 0.9, 0.95))))),
    ("copies", lambda rng: as_given(Settings(recompute="auto", budget=rng.choice((0.9, 0.95)), target="cpu"))),
    ("donated outputs", lambda _: unoptimized(Settings(donate={"in.*": "new.*"}))),
    ("caches in place", lambda rng: as_given(Settings(kv_cache="in-place", capacity=rng.choice((8, 12))))),
)  # fmt: skip
"""The kinds of rewrites, each with a function that draws settings and a check."""


def drawn_case(number: int, attempt: int) -> Case:
    """Return a case: of all ways in turn, with a model and settings that are the same in each run."""
    rng = random.Random((SEED * CASES + number) * ATTEMPTS + attempt)
    kind, way = WAYS[number % len(WAYS)]
    settings, check = way(rng)
    name, model = drawn_model(kind, rng)
    if settings.chunk == "auto":
        loaded = load_model(model) if isinstance(model, Path) else model()
        dims = {dim: 2 if leads else 64 for dim, leads in free_dims(loaded).items()}
        settings = replace(settings, dims=dims)
    return Case(name, model, settings, check)


# Inputs.


def extremes(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return extreme values of a float dtype, by name."""
    info = np.finfo(dtype)
    payload: dict[int, Any] = {
        2: np.uint16(0x7E15),
        4: np.uint32(0x7FC12345),
        8: np.uint64(0x7FF8000000012345),
    }
    return {
        "NaN": np.array(np.nan, dtype),
        "NaN with a payload": payload[dtype.itemsize].view(dtype),
        "infinity": np.array(np.inf, dtype),
        "negative infinity": np.array(-np.inf, dtype),
        "denormal": info.smallest_subnormal,
        "zero": np.array(0.0, dtype),
        "negative zero": np.array(-0.0, dtype),
        "largest": info.max,
        "least": info.min,
    }


NAMES = tuple(extremes(np.dtype(np.float32)))


def feeds_of(model: onnx.ModelProto, dims: Mapping[str, int]) -> Iterator[tuple[str, Feeds]]:
    """Yield inputs: as drawn, with floats of one extreme value, with a tenth of them, and with all kinds mixed."""
    drawn: Feeds = dict(draw_all(feed_specs(model, dims), seed=3))
    yield "drawn", drawn
    if not any(map(is_float, drawn.values())):
        return
    rng = np.random.default_rng(4)
    for name in NAMES:
        yield name, with_extremes(drawn, partial(all_of, name=name))
        yield f"some {name}", with_extremes(drawn, partial(some_of, name=name, rng=rng))
    yield "all of them", with_extremes(drawn, partial(mix, rng=rng))


def is_float(value: Any) -> bool:  # noqa: ANN401 - an array, or a list of them
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def with_extremes(feeds: Feeds, change: Callable[[Array], Array]) -> Feeds:
    """Return inputs with other floats."""
    return {name: change(value) if is_float(value) else value for name, value in feeds.items()}


def all_of(value: Array, name: str) -> Array:
    """Return an array of one extreme value."""
    return np.full_like(value, extremes(value.dtype)[name])


def some_of(value: Array, name: str, rng: np.random.Generator) -> Array:
    """Return an array in which a tenth of the elements have an extreme value."""
    return np.where(rng.random(value.shape) < 0.1, all_of(value, name), value)


def mix(value: Array, rng: np.random.Generator) -> Array:
    """Return an array with an extreme value, any of them, in each place."""
    values = np.array(
        [np.asarray(each, value.dtype) for each in extremes(value.dtype).values()]
    )
    return np.asarray(values[rng.integers(len(values), size=value.shape)])


# Runs.


def session_of(path: Path, *, is_unoptimized: bool) -> ort.InferenceSession:
    """Return a session of the original: the reference, with one thread."""
    options = one_thread()
    if is_unoptimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def one_thread() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return options


def outputs(run: Callable[[Feeds], list[Any]], feeds: Feeds) -> list[Any] | str:
    """Return the outputs of a run, or that it failed."""
    copies = {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in feeds.items()
    }
    try:
        return run(copies)
    except Exception:  # noqa: BLE001 - ONNX Runtime has no class for what a model refuses
        return "fails"


def runner(session: Any) -> Callable[[Feeds], list[Any]]:  # noqa: ANN401 - ONNX Runtime has no types
    """Return how a session is run: with bound buffers if outputs are donated."""
    if not getattr(session, "donated", None):
        return lambda feeds: list(session.run(None, feeds))

    def bound(feeds: Feeds) -> list[Any]:
        binding = session.bound(feeds)
        session.run_with_iobinding(binding)
        return [np.array(each) for each in binding.copy_outputs_to_cpu()]

    return bound


NAN_BITS = "NaN with other bits"


def difference(expected: Any, actual: Any) -> str:  # noqa: ANN401 - outputs of any type
    """Return how two outputs differ; empty if their bits are equal."""
    if not isinstance(expected, np.ndarray) or expected.dtype == object:
        return "" if repr(expected) == repr(actual) else "another value"
    if (expected.dtype, expected.shape) != (actual.dtype, actual.shape):
        return f"{actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if expected.tobytes() == actual.tobytes():
        return ""
    width = f"u{expected.dtype.itemsize}"
    other_bits = np.ascontiguousarray(expected).view(width) != np.ascontiguousarray(
        actual
    ).view(width)
    if is_float(expected):
        both_nan = np.isnan(expected) & np.isnan(actual)
        if not (other_bits & ~both_nan).any():
            return NAN_BITS
    where = tuple(index[0] for index in np.nonzero(other_bits))
    return f"{int(other_bits.sum())} of {expected.size} elements, such as {actual[where]} for {expected[where]}"


def compare(original: Path, written: Path, report: Report) -> Outcome:
    """Run original and written file at all inputs, and at other batch sizes."""
    validation = report.validation
    assert validation is not None
    reference = session_of(original, is_unoptimized=validation.reference == "unoptimized")
    session = memplan_cli.load(written, one_thread())
    model = load_model(original)
    dims = {name: dim.value for name, dim in report.bindings.items()}
    fixed = {name for name in free_dims(model) if name not in free_dims(load_model(written))}
    batches = [name for name, leads in free_dims(model).items() if leads and name not in fixed]
    sizes = [dims]
    if batches:
        sizes += [
            {**dims, **dict.fromkeys(batches, dims.get(batches[0], 1) + n)} for n in (1, 3)
        ]
    run, counts, differences = runner(session), Counter[str](), []
    for index, at in enumerate(sizes):
        for name, feeds in feeds_of(model, at):
            expected = outputs(lambda each: list(reference.run(None, each)), feeds)
            actual = outputs(run, feeds)
            counts["runs"] += 1
            counts["batches"] += bool(index)
            if isinstance(expected, str) or isinstance(actual, str):
                counts["failed"] += 1
                if not (isinstance(expected, str) and isinstance(actual, str)):
                    differences.append(f"{name}: one of both fails")
                continue
            for value, one, other in zip(model.graph.output, expected, actual, strict=True):
                if text := difference(one, other):
                    differences.append(f"{name}: {value.name[:20]!r}: {text}")
    runs = counts["runs"], counts["batches"], counts["failed"]
    return outcome_of(report, validation.reference, runs, differences)


def compare_decoded(original: Path, written: Path, report: Report) -> Outcome:
    """Decode tokens whose embeddings are extreme with the original, and with caches in place."""
    reference = session_of(original, is_unoptimized=False)
    decoding = memplan_cli.Decoder(written, one_thread())
    caches = {cache.input: cache.output for cache in report.caches.buffers}
    names = [value.name for value in reference.get_outputs()]
    differences = []
    for token, name in enumerate(NAMES, FIRST_EXTREME):
        decoding.reset()
        # Dims with a name are the batch, in front, and the length of the cache.
        past = {
            value.name: np.zeros(
                [
                    dim if isinstance(dim, int) else int(not axis)
                    for axis, dim in enumerate(value.shape)
                ],
                np.float16 if "16" in value.type else np.float32,
            )
            for value in reference.get_inputs()
            if value.name in caches
        }
        for number, ids in enumerate(([0, 1], [token], [1], [token, 1])):
            fed = {"ids": np.array([ids], np.int64)}
            expected = dict(zip(names, reference.run(None, {**fed, **past}), strict=True))
            past = {past_name: expected[now] for past_name, now in caches.items()}
            text = difference(expected["logits"], decoding.step(fed)["logits"])
            if text:
                differences.append(f"{name}, step {number}: {text}")
    runs = 4 * len(NAMES)
    return outcome_of(report, "defaults", (runs, 0, 0), differences)


def outcome_of(
    report: Report, reference: str, runs: tuple[int, int, int], differences: Sequence[str]
) -> Outcome:
    """Return the outcome of a comparison; differences in the bits of NaN only are counted."""
    real = tuple(text for text in differences if not text.endswith(NAN_BITS))
    nan = len(differences) - len(real)
    return Outcome(rewritten(report), reference, runs, real, nan)


FIRST_EXTREME = 2
"""The first token whose embedding is extreme; those before are drawn."""


def extreme_decoder(like: Shape) -> onnx.ModelProto:
    """Return a decoder with caches, in which each extreme value is the embedding of a token."""
    model = decoder(like)
    embeddings = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    for row, value in enumerate(extremes(embeddings.dtype).values(), FIRST_EXTREME):
        embeddings[row] = value
    name = model.graph.initializer[0].name
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(embeddings, name))
    return model


def rewritten(report: Report) -> str:
    """Return what was done to a model, in words."""
    done = {
        "graph of the runtime": int(report.target != "portable"),
        "regions in chunks": len(report.chunked.regions),
        "copies": report.recompute.nodes,
        "constants folded": len(report.folded.tensors),
        "donated outputs": 0 if report.caches.buffers else len(report.donated.pairs),
        "caches in place": len(report.caches.buffers),
    }
    words = [f"{count} {name}" if count > 1 else name for name, count in done.items() if count]
    return ", ".join(words) or "order"


def outcome(number: int) -> Outcome:
    """Draw a case until `optimize` writes a file, and compare the file with its reference."""
    failed = Outcome()
    for attempt in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            failed = outcome_in(Path(folder), drawn_case(number, attempt))
            if not failed.failed:
                return failed
    return failed


def outcome_in(folder: Path, case: Case) -> Outcome:
    """Rewrite the model of a case, and compare."""
    if isinstance(case.model, Path):
        original = case.model
    else:
        original = folder / "net.onnx"
        onnx.save(case.model(), original)
    out = folder / "out.memplan.onnx"
    try:
        result = api.optimize(original, case.settings, out=out, check=case.check)
    except MemplanError as error:
        return Outcome(name=case.name, failed=str(error))
    if result.model is None:
        verdict = result.plan.report.validation
        reason = "the budget is not met" if verdict is None else "outputs differ"
        return Outcome(name=case.name, failed=f"nothing written: {reason}")
    report = result.plan.report
    compared = compare_decoded if report.caches.buffers else compare
    return replace(compared(original, result.model, report), name=case.name)


def outcomes(only: str) -> dict[str, Outcome]:
    """Run each case in a process of its own: ONNX Runtime's arena is registered once for a process."""
    names = {f"{number:02} {WAYS[number % len(WAYS)][0]}": number for number in range(CASES)}
    chosen = {name: number for name, number in names.items() if only in name}
    with get_context("spawn").Pool(4, maxtasksperchild=1) as pool:
        found: dict[str, Outcome] = {}
        for name, each in zip(
            chosen, pool.imap(outcome, chosen.values(), chunksize=1), strict=True
        ):
            print(f"{name}, {each.name}: {each.failed or each.rewritten}", flush=True)
            found[name] = each
        return found


def page(found: Mapping[str, Outcome]) -> Iterator[str]:
    """Yield the lines of the page."""
    ran = [each for each in found.values() if not each.failed]
    runs, batches, failing = (sum(each.runs[n] for each in ran) for n in range(3))
    nan, nan_files = sum(each.nan for each in ran), sum(bool(each.nan) for each in ran)
    different = sum(bool(each.differences) for each in ran)
    yield "# Extreme inputs"
    yield ""
    yield "Made by `PYTHONPATH=tests:tests/e2e python -m tests.benchmarks.extreme`: ONNX Runtime"
    yield f"{ort.__version__}, one thread, on the processor."
    yield ""
    yield f"{len(found)} rewrites were drawn, {len(ran)} of them wrote a file. Each file and the reference that its report"
    yield f"names were run {runs} times in all, {batches} of them at other batch sizes; {failing} runs failed, on both sides unless"
    yield f"listed. Outputs were compared bit for bit, as `optimize` does: any two NaN are equal. Files with a difference: {different}."
    yield f"In {nan} outputs of {nan_files} files a NaN has another sign or payload: which of two NaN a sum keeps depends on the place"
    yield "of an element in a kernel's block, and chunks begin elsewhere."
    yield ""
    yield "Inputs: all floats, then a tenth of them, are NaN, NaN with the payload 0x12345, infinite, denormal, zero, negative"
    yield "zero or the largest; then all of these mixed. Decoders get them as embeddings of tokens."
    yield ""
    yield "| case | model | what was rewritten | reference | runs | other batches | failed | NaN bits | differences |"
    yield "|---|---|---|---|---:|---:|---:|---:|---|"
    for name, each in found.items():
        if each.failed:
            yield f"| {name} | {each.name} | - | - | - | - | - | - | {cell(each.failed, 120)} |"
            continue
        counts = " | ".join(map(str, each.runs))
        text = (
            f"{len(each.differences)}: {'; '.join(each.differences)}"
            if each.differences
            else "none"
        )
        yield f"| {name} | {each.name} | {each.rewritten} | {each.reference} | {counts} | {each.nan} | {cell(text, 200)} |"


def main() -> None:
    """Run what is asked for, and write the page if that is all."""
    words = asked(__doc__)
    found = outcomes(words.only)
    publish(page(found), PAGE, words)
    if any(each.differences for each in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
