"""`rn50 config`: what a config means, and whether it keeps the closed division's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..config.leaves import yaml_value
from ..host.errors import failing_as
from .console import (
    TYPER_OPTIONS,
    Config,
    Json,
    Overrides,
    SystemName,
    argument,
    exit_bad_if,
    on_machine,
    option,
    print_json,
    print_table,
    say,
)

config_app = typer.Typer(help="Show and check configs.", **TYPER_OPTIONS)


@config_app.command("show")
def config_show(
    config: Config,
    overrides: Overrides = None,
    system: SystemName = None,
    as_json: Json = False,
) -> None:
    """Every value of a config and where it comes from.

    That is a file and line, the command line, the image set's manifest.json, or the default. Paths
    are shown as seen from the current folder.

    Example: `rn50 config show abci_2048_open batch.per_rank=40`
    """
    from ..config.load import load
    from ..config.plan import build_plan

    loaded = load(config, on_machine(overrides or [], system))
    plan = build_plan(loaded.run)
    if as_json:
        origins = {path: str(origin) for path, _, origin in loaded.leaves()}
        print_json(
            {"config": loaded.to_dict(), "sha256": loaded.sha256, "origins": origins}
        )
        return
    rows = [
        (path, yaml_value(value), str(origin))
        for path, value, origin in loaded.leaves()
    ]
    print_table(("key", "value", "from"), rows, free=(1,))
    print()
    print(
        f"{plan.ranks} ranks, global batch {plan.global_batch_size}, "
        f"{plan.steps_per_epoch:g} steps an epoch, {plan.epochs} epochs = {plan.total_steps} "
        f"steps, warm-up {plan.warmup_steps}, decay {plan.decay_steps}, evaluations after epochs "
        f"{', '.join(map(str, plan.eval_epochs))}\nsha256 {loaded.sha256}"
    )


@config_app.command("check")
def config_check(
    config: Config,
    overrides: Overrides = None,
    strict: Annotated[
        bool, option("Policy findings and warnings fail too: exit 1.", "--strict")
    ] = False,
    system: SystemName = None,
    as_json: Json = False,
) -> None:
    """Check a config against the closed division and for consistency, before it runs.

    FAIL: the official checker would refuse the run, the counts are not those of the image set, or
    no machine of its kind can run it. POLICY: the rules forbid it and no tool checks it. WARN:
    likely a mistake, such as a learning rate for another batch. Notes list the choices of an open
    config that the closed division forbids.

    Exit 0: PASS, WARN or POLICY; 1: FAIL, with `--strict` WARN and POLICY too.

    Example: `rn50 config check abci_2048_closed_32k batch.per_rank=42`
    """
    from ..compliance.config_rules import check_config
    from ..config.load import load
    from ..launch.preflight import refusals, with_refusals

    loaded = load(config, on_machine(overrides or [], system))
    result = with_refusals(check_config(loaded), refusals(loaded.run))
    if as_json:
        print_json(result.to_dict())
    else:
        say(f"{result.verdict} {config}: {result.cause} (ruleset {result.ruleset})")
        for finding in result.findings:
            say(f"  {finding.severity:7} {finding.rule}: {finding.message}")
        facts = [(key, yaml_value(value)) for key, value in result.facts.items()]
        print_table(("", ""), facts, free=(1,))
    exit_bad_if(result.verdict == "FAIL" or (strict and result.verdict != "PASS"))


@config_app.command("explain")
def config_explain(
    key: Annotated[
        str | None, argument("A key or a section; default: all.", show_default=False)
    ] = None,
    write: Annotated[
        Path | None,
        option(
            "Write the reference of all keys into a page such as docs/config.md.",
            metavar="PAGE",
        ),
    ] = None,
) -> None:
    """What a key means, its allowed values and default.

    Example: `rn50 config explain optimizer.base_lr`

    Example: `rn50 config explain data`
    """
    from ..config import reference

    # for those who change the schema: docs/config.md has the same rows
    if write is not None:
        from ..host.atomic import write_output

        with failing_as(f"--write: {write}: cannot read"):
            page = write.read_text()
        write_output(write, reference.replace_in_page(page))
        return
    keys = [*reference.all_keys()]
    if key is not None:
        keys = reference.find_keys(key)
    rows = [(key.path, key.default, key.values, key.meaning) for key in keys]
    print_table(("key", "default", "values", "meaning"), rows, free=(1, 2, 3))


@config_app.command("list")
def config_list(
    systems: Annotated[
        bool, option("List the machines for `system=NAME` instead.", "--systems")
    ] = False,
) -> None:
    """The presets (CONFIG in other commands; `base: NAME` in a YAML), and what each is for.

    Example: `rn50 config list --systems`
    """
    from ..config.names import PRESETS, list_presets, list_systems

    what = "preset"
    paths = [PRESETS / f"{name}.yaml" for name in list_presets()]
    if systems:
        what = "machine"
        paths = [PRESETS / f"system/{name}.yaml" for name in list_systems()]
    # the first line of a preset or machine file says what it describes
    rows = [
        (path.stem, path.read_text().partition("\n")[0].lstrip("# ")) for path in paths
    ]
    print_table((what, "what"), rows, free=(1,))
