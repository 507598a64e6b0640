"""The `rn50` command. Frameworks load inside the commands that need them, never here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..config.errors import UserError

EXIT_BAD = 1
EXIT_USAGE = 2

_OPTIONS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "markdown",
    "pretty_exceptions_enable": False,
    "add_completion": False,
}
app = typer.Typer(help="Train ResNet-50 against the clock, MLPerf style, and prove it.", **_OPTIONS)
config_app = typer.Typer(help="Look at configs.", **_OPTIONS)
data_app = typer.Typer(help="Make, pack and verify image sets.", **_OPTIONS)
log_app = typer.Typer(help="Read MLPerf logs.", **_OPTIONS)
bench_app = typer.Typer(help="Measure side by side in one run.", **_OPTIONS)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(log_app, name="log")
app.add_typer(bench_app, name="bench")

Config = Annotated[str, typer.Argument(help="A preset's name (`rn50 config list`) or a YAML file.")]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045 (Typer reads this at run time)
    typer.Argument(help="`key.path=value`, such as `batch.per_rank=16`.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Ranks = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=1, help="Ranks on this machine, instead of the config's nodes and ranks."),
]
Launcher = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="`mpirun` or `gloo`; default: mpirun where there is one."),
]


def main() -> None:
    """Entry point: user errors are one line each on stderr and exit code 2, never a traceback."""
    try:
        app()
    except UserError as error:
        for line in str(error).splitlines():
            print(f"rn50: error: {line}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except OSError as error:
        print(f"rn50: error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        print("rn50: stopped", file=sys.stderr)
        sys.exit(130)


def split_config(config: str, overrides: list[str] | None) -> tuple[str, list[str]]:
    """A first argument that is an override means the default preset."""
    if "=" in config:
        return "quick", [config, *(overrides or [])]
    return config, overrides or []


@app.command()
def launch(
    config: Config = "quick",
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
) -> None:
    """Run a config on this machine or allocation: data, ranks, log, official checker.

    Exit 0: target reached and the official checker passes; 1: not; 2: bad input or a failed rank.

    Example: `rn50 launch quick --ranks 2 --launcher gloo seed=1`
    """
    from .launch import launch as run_launch
    from .launch import load_for_launch

    loaded = load_for_launch(*split_config(config, overrides), ranks)
    with _tracker() as track:
        result = run_launch(loaded, launcher, track)
    good = result["status"] == "success" and result["official_checker"]["verdict"] == "PASS"
    raise typer.Exit(0 if good else EXIT_BAD)


@app.command()
def train(
    config: Config,
    overrides: Overrides = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder for the run's files; default: a new one below `results/`."),
    ] = None,
) -> None:
    """Train as one rank: what launchers start. By hand it is a run on one rank.

    Example: `rn50 train smoke system.ranks_per_node=1`
    """
    from ..config.load import load
    from ..train.__main__ import run_rank
    from .launcher import new_run_folder

    run = load(config, overrides or []).run
    folder = out or new_run_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    run_rank(config, overrides or [], folder)


@config_app.command("show")
def config_show(config: Config, overrides: Overrides = None, as_json: Json = False) -> None:
    """Every value of a config and where it comes from: file and line, command line, default.

    Example: `rn50 config show abci_2048_open batch.per_rank=40`
    """
    from ..config.load import load
    from ..config.plan import build_plan

    loaded = load(config, overrides or [])
    plan = build_plan(loaded.run)
    if as_json:
        print(json.dumps({"config": loaded.to_dict(), "sha256": loaded.sha256}, indent=1))
        return
    rows = [(path, _yaml(value), str(origin)) for path, value, origin in loaded.leaves()]
    _print_table(("key", "value", "from"), rows)
    print(
        f"\n{plan.ranks} ranks, global batch {plan.global_batch_size}, "
        f"{plan.steps_per_epoch:g} steps an epoch, {plan.epochs} epochs = {plan.total_steps} "
        f"steps, warm-up {plan.warmup_steps}, decay {plan.decay_steps}, evaluations after epochs "
        f"{', '.join(map(str, plan.eval_epochs))}\nsha256 {loaded.sha256}"
    )


@config_app.command("list")
def config_list(as_json: Json = False) -> None:
    """The presets, and what each is for."""
    from ..config.load import PRESETS, list_presets

    rows = []
    for name in list_presets():
        first = (PRESETS / f"{name}.yaml").read_text().splitlines()[0]
        rows.append((name, first.lstrip("# ")))
    if as_json:
        print(json.dumps(dict(rows), indent=1))
        return
    _print_table(("preset", "what"), rows)


@config_app.command("diff")
def config_diff(
    left: Config, right: Annotated[str, typer.Argument(help="The other config.")]
) -> None:
    """The values in which two configs differ. Exit 1 if there are any.

    Example: `rn50 config diff dgx1_8 abci_2048_open`
    """
    from ..config.load import flatten, load

    one = dict(flatten(load(left).to_dict()))
    other = dict(flatten(load(right).to_dict()))
    keys = sorted(key for key in one | other if one.get(key) != other.get(key))
    rows = [(key, _yaml(one.get(key, "-")), _yaml(other.get(key, "-"))) for key in keys]
    if not rows:
        print("no difference")
        return
    _print_table(("key", left, right), rows)
    raise typer.Exit(EXIT_BAD)


@data_app.command("make")
def data_make(
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist yet.")],
    train_samples: Annotated[int, typer.Option("--train", min=1, help="Training images.")] = 4000,
    eval_samples: Annotated[int, typer.Option("--val", min=1, help="Held-out images.")] = 1000,
    classes: Annotated[int, typer.Option(min=2, max=10, help="Texture classes.")] = 10,
    min_px: Annotated[int, typer.Option(min=16, max=1024, help="Shortest side.")] = 40,
    max_px: Annotated[int, typer.Option(min=16, max=1024, help="Longest side.")] = 56,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same bytes.")] = 0,
) -> None:
    """Draw the synthetic set as JPEG files in ImageNet's folder layout.

    Example: `rn50 data make images --train 4000 --val 1000`
    """
    from ..config.schema import Synthetic
    from ..data.synthetic import make_images

    settings = Synthetic(
        classes=classes,
        train_samples=train_samples,
        eval_samples=eval_samples,
        min_px=min_px,
        max_px=max_px,
        seed=seed,
    )
    with _tracker() as track:
        count = make_images(out, settings, track("drawing images"))
    print(f"{out}: {count} images in {classes} classes")


@data_app.command("pack")
def data_pack(
    images: Annotated[Path, typer.Argument(help="Folder with train/<class>/* and val/<class>/*.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist yet.")],
    shuffle_seed: Annotated[int, typer.Option(min=0, help="Order of the records.")] = 0,
) -> None:
    """Pack an image folder into RecordIO: original bytes, index, sample table, manifest.

    Example: `rn50 data pack /scratch/ILSVRC2012 datasets/imagenet`
    """
    from ..data.pack import pack_images

    with _tracker() as track:
        manifest = pack_images(
            images, out, shuffle_seed=shuffle_seed, progress=track("packing records")
        )
    counts = ", ".join(f"{split.samples} {name}" for name, split in manifest.splits.items())
    print(f"{out}: {counts} images in {len(manifest.classes)} classes")


@data_app.command("verify")
def data_verify(
    folder: Annotated[Path, typer.Argument(help="A packed set.")],
    decode: Annotated[bool, typer.Option("--decode", help="Decode every image as well.")] = False,
) -> None:
    """Check every byte of a packed set against its manifest, index and sample table.

    Exit 0: whole; 1: not, with file and offset.

    Example: `rn50 data verify datasets/quick --decode`
    """
    from ..data.dataset import verify

    with _tracker() as track:
        try:
            manifest = verify(folder, decode=decode, progress=track("checking records"))
        except UserError as error:
            print(f"rn50: error: {error}", file=sys.stderr)
            raise typer.Exit(EXIT_BAD) from None
    print(f"{folder}: whole, {sum(s.samples for s in manifest.splits.values())} records")


@data_app.command("prepare")
def data_prepare(config: Config = "quick", overrides: Overrides = None) -> None:
    """Make sure that the set a config names is there: drawn and packed if it is synthetic.

    Example: `rn50 data prepare quick`
    """
    from ..config.load import load
    from ..data.prepare import prepare

    run = load(*split_config(config, overrides)).run
    with _tracker() as track:
        prepare(run.data, track)
    print(f"{run.data.path}: ready")


@log_app.command("show")
def log_show(
    path: Annotated[Path, typer.Argument(help="A log, or the folder of a run.")],
    as_json: Json = False,
) -> None:
    """Time to train, epochs, accuracy, init time and images/s of a run, from its MLPerf log.

    Example: `rn50 log show results/quick/20261121T080000Z`
    """
    from ..logging.summary import find_log, summarise

    log = find_log(path)
    summary = summarise(log)
    if as_json:
        print(json.dumps(summary._asdict(), indent=1))
        return
    rows = [
        ("status", summary.status or "no run_stop: the run did not finish"),
        ("time to train", _unit(summary.time_to_train_s, "s", 3)),
        ("init (not counted)", _unit(summary.init_s, "s", 2)),
        ("epochs", _unit(summary.epochs, "", 0)),
        ("top-1 accuracy", _unit(summary.eval_accuracy, "", 5)),
        ("global batch", str(summary.global_batch_size or "-")),
        ("training rate", _unit(summary.images_per_s, "images/s", 1)),
    ]
    rows += [
        (f"epoch {epoch:g}", f"{accuracy:.5f} after {seconds:.1f} s")
        for epoch, accuracy, seconds in summary.evaluations
    ]
    _print_table((str(log), ""), rows)


@bench_app.command("loop")
def bench_loop(
    config: Config = "quick",
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each times both loops.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Steps a loop in each round.")] = 20,
    as_json: Json = False,
) -> None:
    """Trainer against a bare loop: the same model, batch and ranks, data already in memory.

    The bare loop is forward, backward, grouped allreduce and fused update on one batch that never
    changes. The ratio is trainer throughput over bare throughput; 1 means that the pipeline, the
    log and everything else around the step cost nothing.

    Example: `rn50 bench loop quick --rounds 10 --steps 20`
    """
    from .bench import bench_loop as run_bench
    from .launch import load_for_launch

    loaded = load_for_launch(*split_config(config, overrides), ranks)
    with _tracker() as track:
        figures = run_bench(loaded, launcher, rounds=rounds, steps=steps, track=track)
    _print_bench(figures, as_json)


@bench_app.command("optimizer")
def bench_optimizer(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each times every contender.")] = 15,
    threads: Annotated[int, typer.Option(min=1, help="OpenMP threads.")] = 1,
    as_json: Json = False,
) -> None:
    """One LARS step of ResNet-50: ours, MXNet's own, a textbook loop, and the memory floor.

    The floor is the bytes that must move (two passes for the norms, five for the update) over the
    copy bandwidth of the same round; ours can be below it where a tensor stays in cache between its
    norms and its update.

    Example: `rn50 bench optimizer --rounds 15`
    """
    from .bench import bench_optimizer as run_bench

    _print_bench(run_bench(rounds=rounds, threads=threads), as_json)


def _print_bench(figures: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    _print_table(
        ("ratio", "median", "min", "max", "n"),
        [
            (name, f"{r['median']:.3f}", f"{r['min']:.3f}", f"{r['max']:.3f}", str(r["n"]))
            for name, r in figures["ratios"].items()
        ],
    )
    for name, value in figures["figures"].items():
        print(f"{name}: {value:.1f}" if isinstance(value, float) else f"{name}: {value}")


class _tracker:
    """Progress bars on stderr: `track(name)` gives the callback (done, total) of a named task."""

    def __enter__(self) -> Callable[[str], Callable[[int, int], None]]:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bars = Progress(
            *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
        )
        self._started = False
        return self._track

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._bars.stop()

    def _track(self, name: str) -> Callable[[int, int], None]:
        print(f"{name} ...", file=sys.stderr, flush=True)
        self._bars.start()
        self._started = True
        task = self._bars.add_task(name, total=None)

        def advance(done: int, total: int) -> None:
            self._bars.update(task, completed=done, total=total)
            if done == total:
                self._bars.stop()

        return advance


def _print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A plain table; on a pipe as wide as it needs to be, so that nothing is cut."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)
    table = Table(box=None, pad_edge=False)
    for title in header:
        table.add_column(escape(title), overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _yaml(value: Any) -> str:
    """A value as one would write it in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def _unit(value: float | None, unit: str, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f} {unit}".rstrip()
