"""`rn50 data`: make, pack, verify, stage and prepare image sets, and measure their way in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..host.errors import UserError
from .console import (
    TYPER_OPTIONS,
    Config,
    Json,
    Overrides,
    argument,
    machine_option,
    option,
    output_file,
    say,
    split_config,
    track,
)

data_app = typer.Typer(help="Make, pack, verify and stage image sets.", **TYPER_OPTIONS)

Processes = Annotated[
    int | None, option("Processes; default: one for each core.", min=1)
]
LIKE_IMAGENET = (
    "data.path=datasets/like_imagenet",
    "data.synthetic={classes: 10, train_samples: 1000, eval_samples: 100}",
    "data.synthetic={min_px: 375, max_px: 500}",
    "data={crop_px: 224, eval_resize_px: 256, area: [0.08, 1.0]}",
    "batch.per_rank=32",
)
"""Images of ImageNet's size: 375 to 500 px a side, 110 KB in the mean."""
_NO_DALI = (
    "decoded with Pillow: DALI is not installed here, which decodes in training "
    "and refuses some images that Pillow takes"
)


@data_app.command("make")
def data_make(
    out: Annotated[Path, argument("Folder to write; must not exist yet.")],
    train_samples: Annotated[
        int, option("Training images.", "--train", min=1, max=10_000_000)
    ] = 4000,
    eval_samples: Annotated[
        int, option("Held-out images.", "--val", min=1, max=10_000_000)
    ] = 1000,
    classes: Annotated[int, option("Texture classes.", min=2, max=1000)] = 10,
    min_px: Annotated[int, option("Shortest side.", min=8, max=1024)] = 40,
    max_px: Annotated[int, option("Longest side.", min=8, max=1024)] = 56,
    seed: Annotated[
        int, option("The same seed draws the same bytes.", min=0, max=2**63 - 1)
    ] = 0,
) -> None:
    """Draw the synthetic set as JPEG files in ImageNet's folder layout.

    If it is stopped or killed, the same command continues where it was and gives the same bytes.

    Example: `rn50 data make images --train 4000 --val 1000`
    """
    from pydantic import ValidationError

    from ..config.load import explain
    from ..config.schema import Synthetic
    from ..data.synthetic import make_images

    try:
        settings = Synthetic(
            classes=classes,
            train_samples=train_samples,
            eval_samples=eval_samples,
            min_px=min_px,
            max_px=max_px,
            seed=seed,
        )
    except ValidationError as error:
        # two options that contradict each other: each alone was within its bounds
        raise UserError(*explain(error, {}, "data make", Synthetic)) from None
    make_images(out, settings, track("drawing images"))
    say(f"{out}: {train_samples + eval_samples} images in {classes} classes")


@data_app.command("pack")
def data_pack(
    images: Annotated[Path, argument("Photos in class folders, or ImageNet as it is.")],
    out: Annotated[Path, argument("Folder to write; must not exist yet.")],
    shuffle_seed: Annotated[int, option("Order of the records.", min=0)] = 0,
    processes: Processes = None,
    hold_out: Annotated[
        float | None,
        option(
            "Without a val: hold out this share of every class, such as 0.2, to evaluate on.",
            min=0.001,
            max=0.999,
        ),
    ] = None,
    recursive: Annotated[
        bool, option("Take images in folders below a class as its own.", "--recursive")
    ] = False,
    skip_bad: Annotated[int, option("Leave out up to this many bad files.", min=0)] = 0,
) -> None:
    """Pack images into RecordIO: original bytes, index, names, sample table, manifest.

    All bad files (unreadable, no JPEG or PNG, not decoded by DALI) are reported together, and what
    is no image by its name is listed by kind. If it is killed, the same command continues where it
    was and gives the same bytes.

    Example: `rn50 data pack photos datasets/mine --hold-out 0.2`

    Example: `rn50 data pack /scratch/ILSVRC2012 datasets/imagenet`
    """
    from ..data.decoder import has_dali
    from ..data.pack import pack_images
    from ..data.survey import shortened

    manifest = pack_images(
        images,
        out,
        shuffle_seed=shuffle_seed,
        processes=processes,
        skip_bad=skip_bad,
        hold_out=hold_out,
        recursive=recursive,
        progress=track("packing records"),
    )
    counts = ", ".join(
        f"{split.samples:,} {name}" for name, split in manifest.splits.items()
    )
    say(f"{out}: {counts} images in {len(manifest.classes):,} classes")
    if not has_dali():
        say(f"  {_NO_DALI}")
    evaluated = manifest.splits["val"].class_counts
    lacking = [
        name
        for name, count in zip(manifest.classes, evaluated, strict=True)
        if not count
    ]
    if lacking:
        of_all = f"{len(lacking):,} of {len(manifest.classes):,} classes"
        say(f"  val has no image of {of_all}: {shortened(lacking)}")
    if manifest.odd_files:
        say(
            f"  {len(manifest.odd_files):,} bad files left out, named in {out / 'manifest.json'}"
        )


@data_app.command("verify")
def data_verify(
    folder: Annotated[Path, argument("A packed set.")],
    full: Annotated[
        bool, option("Check every byte, decode every image.", "--full")
    ] = False,
    processes: Processes = None,
) -> None:
    """Check a packed set: manifest, sizes, sample table, and a sample of records decoded.

    `--full` checks the SHA-256 of every file and decodes every image. A fault is an error with file
    and offset.

    Example: `rn50 data verify datasets/quick --full`
    """
    from ..data.dataset import verify
    from ..data.decoder import has_dali

    manifest = verify(
        folder,
        full=full,
        # the cores that this process may use, which a job limits
        processes=processes or len(os.sched_getaffinity(0)),
        track=track,
    )
    records = sum(split.samples for split in manifest.splits.values())
    looked = (
        "all decoded" if full else "a sample of them decoded; --full checks every byte"
    )
    say(f"{folder}: whole, {records:,} records, {looked}")
    if not has_dali():
        say(f"  {_NO_DALI}")


@data_app.command("stage")
def data_stage(
    config: Config,
    overrides: Overrides = None,
    to: Annotated[Path | None, option("Folder to make on the node's own disk.")] = None,
    remove: Annotated[bool, option("Delete the staged set.", "--remove")] = False,
) -> None:
    """Copy the set of a config to this node's disk: once a node, by local rank 0, with checksums.

    With `data.shards: node` only the training records of this node's ranks are copied.
    Prints the folder.

    Example: `srun --ntasks-per-node=1 rn50 data stage dgxa100_8 --to /scratch/rn50_data`
    """
    from ..config.manifest import WHOLE, Part
    from ..config.recorded import DATA, load_named
    from ..data import stage
    from ..data.dataset import MB
    from ..train.process_info import local_rank, read_process_info

    if to is None:
        raise UserError("--to is missing: a folder on the node's own disk")
    rank = local_rank()
    # before ranks that do not copy return: all of them refuse what is wrong alike
    run = load_named(*split_config(config, overrides), DATA).run
    source = Path(run.data.path)
    part = WHOLE
    if run.data.shards:
        process = read_process_info()
        nodes = run.system.nodes
        part = Part(process.rank * nodes // process.world_size, nodes)
    if source.resolve() == to.resolve():
        raise UserError(f"--to: another folder than data.path expected, found {to}")
    if rank:
        return
    if remove:
        was_there = os.path.lexists(to)
        stage.remove(source, to)
        say(f"{to}: {'removed' if was_there else 'nothing was there'}")
    else:
        show_mb = track("copying MB")

        def progress(done: int, total: int) -> None:
            """Show megabytes, where the copy counts bytes."""
            show_mb(done // MB, total // MB)

        stage.stage(source, to, part, progress=progress)
        say(f"{to}: staged, {part}")


@data_app.command("prepare")
def data_prepare(config: Config = "quick", overrides: Overrides = None) -> None:
    """Make sure that a config's image set exists: draw and pack it if it is synthetic.

    Example: `rn50 data prepare quick`
    """
    from ..config.recorded import DATA, load_named
    from ..data.describe import describe_data
    from ..data.prepare import prepare

    loaded = load_named(*split_config(config, overrides), DATA)
    manifest = prepare(loaded.run.data, track, loaded.origins)
    say(f"ready: {describe_data(loaded.run.data, manifest)}")


@data_app.command("bench")
def data_bench(
    config: Config = "quick",
    overrides: Overrides = None,
    like_imagenet: Annotated[
        bool,
        option("Drawn images of ImageNet's size, 224 px crops.", "--like-imagenet"),
    ] = False,
    passes: Annotated[int, option("Passes of each reader, in turn.", min=1)] = 7,
    images: Annotated[int, option("Images a pass.", min=1)] = 640,
    system: Annotated[
        str | None,
        machine_option("The roofline of this machine: a name or a YAML file."),
    ] = None,
    plot: Annotated[
        Path | None,
        output_file("Draw as SVG: the roofline of --system, or the measurements"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Images per CPU-second: decoding alone, and the whole pipeline.

    Example: `rn50 data bench --like-imagenet --system dgxa100 --plot roofline.svg`
    """
    from ..bench.harness import BenchJob
    from ..bench.input import SIZES_PX, bench_input, trained_machine, with_roofline
    from ..launch.launchers import pick_launcher
    from ..launch.run import load_for_launch
    from .bench import report

    name, more = split_config(config, overrides)
    # one rank is measured: a recipe's later batches and idle ranks would be refused
    alone = [*more, "batch.changes=[]", "batch.active_ranks=null"]
    if like_imagenet:
        alone = [*LIKE_IMAGENET, *alone]
    # before minutes of measuring
    described = trained_machine(system) if system else None
    sizes = SIZES_PX if system else ()
    job = BenchJob(track, pick_launcher(None), lambda: load_for_launch(name, alone, 1))
    outcome = bench_input(job, passes=passes, images=images, sizes_px=sizes)
    if described is not None:
        outcome = with_roofline(outcome, *described)
    report(outcome, job, plot, as_json)
