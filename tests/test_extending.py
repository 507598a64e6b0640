"""A dummy of each kind, added to a copy of the tree by the files of docs/architecture.md alone.

Schedulers: `tests/launch/test_extending.py`.
"""

import json
import sys
from pathlib import Path

import pytest

from rn50.config import choices, groups
from rn50.logging.records import ABORTED, Result, read
from rn50.predict import cost
from tests.checkout import copy_to
from tests.conftest import ROOT, RUN
from tests.waiting import finished, output_of

ROW = '    "dummy": "a dummy",\n'
# What is added -> (file, the line before it, the lines added); no line: a new file.
ADDED: dict[str, tuple[tuple[str, str, str], ...]] = {
    "network": (
        ("config/choices.py", "NETWORKS = {", ROW),
        (
            "train/network/dummy.py",
            "",
            "from mxnet.gluon import nn\n\nfrom .layers import Network, build_convolution\n\n\n"
            "class Dummy(Network):\n"
            "    def __init__(self, model, classes):\n"
            "        super().__init__(model, classes)\n"
            "        with self.name_scope():\n"
            "            first = build_convolution(model.layout, 'first', 3, 16, 3, 2, 1)\n"
            "            pool = nn.GlobalAvgPool2D(layout=model.layout)\n"
            "            last = nn.Dense(classes, in_units=16, prefix='last_')\n"
            "            self.body.add(first, pool, nn.Flatten(), last)\n",
        ),
        (
            "train/network/build.py",
            "from .alexnet import AlexNet",
            "from .dummy import Dummy\n",
        ),
        (
            "train/network/build.py",
            "NETWORKS: dict[str, Callable[[Model, int, int], Network]] = {",
            '    "dummy": lambda model, classes, _: Dummy(model, classes),\n',
        ),
    ),
    "schedule": (
        ("config/choices.py", "SHAPES = {", ROW),
        (
            "train/schedule.py",
            "SHAPES: dict[str, Callable[[Run, Plan], LearningRate]] = {",
            '    "dummy": lambda run, plan: lambda step: 1.0 / step,\n',
        ),
    ),
    "grouping": (
        ("config/choices.py", "GROUPINGS = {", ROW),
        (
            "config/groups.py",
            "GROUPINGS: dict[str, Callable[[Sequence[int], list[int]], list[int]]] = {",
            '    "dummy": lambda sizes, _: [1, 0],\n',
        ),
    ),
    "algorithm": (
        ("config/choices.py", "ALGORITHMS = {", ROW),
        (
            "predict/cost.py",
            "ALGORITHMS: dict[str, Callable[[Topology, float, tuple[int, int]], float]] = {",
            '    "dummy": lambda on, n, _: ring(on.ranks, 2 * n, on.ring(1, on.ranks)),\n',
        ),
        ("config/engines.py", '    "gloo": {', '        "dummy": {"DUMMY": "1"},\n'),
    ),
    "variant": (
        (
            "config/variants.py",
            "VARIANTS = {",
            '    "dummy": Rule(ALL, WEIGHTS, "dummy"),\n',
        ),
    ),
    "config key": (
        (
            "config/schema.py",
            "class Comm(Section):",
            '    dummy_s: Seconds = 3.0\n    """A dummy."""\n',
        ),
    ),
    "log rule": (
        (
            "compliance/log_rules/dummy.py",
            "",
            "from ..rule import NOTE, rule, violation\n\n\n"
            '@rule(code="MLP098", name="a-dummy", severity=NOTE, source="nowhere")\n'
            'def dummy(run):\n    """A dummy."""\n    yield violation(message="a dummy")\n',
        ),
    ),
    # Open MPI's ranks, which find themselves in other variables than Open MPI's.
    "launcher": (
        ("config/choices.py", "LAUNCHERS = {", ROW),
        (
            "launch/launchers.py",
            "        return tuple(names.split()) if names else ()",
            """

@registered
class Dummy(OpenMpi):
    name = "dummy"
    rank_variables = RankVariables("X_RANK", "X_SIZE", "X_LOCAL_RANK", "X_LOCAL_SIZE")

    def command(self, job):
        renamed = [f'X_{name}="$OMPI_COMM_WORLD_{name}"' for name in PLACE]
        hidden = [f"-u OMPI_COMM_WORLD_{name}" for name in PLACE]
        rank = ["sh", "-c", f'exec env {" ".join([*hidden, *renamed])} "$@"', "sh", *job.command]
        return super().command(job._replace(command=rank))


PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
""",
        ),
    ),
}
# Run in the copy: for each kind, what the harness makes of its dummy, as JSON.
USES = {
    "network": """
import mxnet as mx
from rn50.train.network.build import build_networks
from rn50.train.operators import Operators
run = load("base", ["model.network=dummy"]).run
net, *_ = build_networks(run.model, 10, crop_px=64, seed=1, operators=Operators(mx.cpu()))
weights = {name: float(p.data().asnumpy().std()) for name, p in net.collect_params().items()}
is_used = 0.008 < weights["last_weight"] < 0.012 and 0.2 < weights["first_weight"] < 0.4
""",
    "schedule": """
from rn50.config.plan import build_plan
from rn50.train.schedule import step_settings
run = load("smoke", ["schedule.shape=dummy"]).run
is_used = step_settings(run, build_plan(run))(4).lr == 0.25
""",
    "grouping": """
from rn50.config.groups import gradient_groups
groups = gradient_groups(load("smoke", ["comm.groups=dummy"]).run.comm.groups, [4, 4, 4])
is_used = groups == [(2, 1), (0,)]
""",
    "algorithm": """
from rn50.config.engines import ALGORITHMS
from rn50.config.algorithms import parse_algorithm
name = load("smoke", ["comm.algorithm=dummy"]).run.comm.algorithm
is_used = parse_algorithm(name, 4) == ("dummy", None) and ALGORITHMS["gloo"][name] == {"DUMMY": "1"}
""",
    "variant": """
rule = load("smoke", ["optimizer.variant=dummy"]).run.optimizer.rule
is_used = rule.optimizer == "dummy"
""",
    "config key": """
from rn50.config.reference import find_keys
is_used = load("smoke", ["comm.dummy_s=4.0"]).run.comm.dummy_s == 4.0
is_used = is_used and find_keys("dummy_s")[0].meaning == "A dummy."
""",
    "log rule": """
from pathlib import Path
from rn50.compliance.check_log import check_log
log = Path("tests/golden/smoke_result_0.txt")
is_used = "MLP098" in {finding.id for finding in check_log(log).findings}
""",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with all dummies."""
    tree = tmp_path_factory.mktemp("tree")
    copy_to(tree)
    for changes in ADDED.values():
        for name, line, added in changes:
            if not line:
                (tree / name).write_text(added)
                continue
            source = (tree / name).read_text()
            head, anchor, after = source.partition(f"{line}\n")
            assert anchor, f"{name} has no line {line}"
            if line.startswith("class "):  # a section's docstring comes first
                doc, quotes, after = after.partition('."""\n')
                anchor += doc + quotes
            (tree / name).write_text(head + anchor + added + after)
    return tree


@pytest.fixture(scope="module")
def used(tree: Path) -> dict[str, bool]:
    """Whether the dummy of each kind works, in one process that runs on the copy."""
    body = "import json\nfrom rn50.config.load import load\nused = {}\n"
    for kind, code in USES.items():
        body += f"{code}used[{kind!r}] = is_used\n"
    printed = output_of(
        [sys.executable, "-c", f"{body}print(json.dumps(used))"], cwd=tree
    )
    return dict(json.loads(printed.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", USES)
def test_a_dummy_works(used: dict[str, bool], kind: str) -> None:
    assert used[kind]


@pytest.mark.slow
def test_two_ranks_of_the_launcher_train_the_network(
    tree: Path, small_data: Path, tmp_path: Path
) -> None:
    name, *overrides = RUN
    overrides += [f"model.{key}" for key in ("network=dummy", "depth=50", "width=64")]
    overrides += [
        "model.stem=imagenet",
        "model.zero_gamma=false",
        "schedule.length=2 epochs",
    ]
    overrides += [f"data.path={small_data}", f"system.results={tmp_path}"]
    command = ("rn50.cli.entry", "launch", name, "--launcher", "dummy", *overrides)
    done = finished([sys.executable, "-m", *command], cwd=tree)
    assert done.returncode == 1, done.stdout + done.stderr
    (path,) = tmp_path.rglob("result.json")
    result = read(path, Result)
    assert result is not None
    assert (result.status, result.ranks) == (ABORTED, 2)  # the target is out of reach
    assert list(tmp_path.rglob("step_*.ckpt"))


@pytest.mark.parametrize("kind", ADDED)
def test_the_page_names_the_files_touched(kind: str) -> None:
    """The row of docs/architecture.md, "To add ... touch"."""
    rows = (ROOT / "docs/architecture.md").read_text().split("## To add ... touch")[1]
    (row,) = [
        line for line in rows.splitlines() if line.startswith(f"| {article(kind)} |")
    ]
    for name, *_ in ADDED[kind]:
        assert f"`{name}`" in row or f"`{name.removesuffix('dummy.py')}`" in row, name


def article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def test_each_table_has_the_names_of_the_schema() -> None:
    """`auto` is chosen by other code; the networks' and shapes' tables load MXNet or need a run."""
    assert set(choices.GROUPINGS) == set(groups.GROUPINGS)
    assert set(choices.ALGORITHMS) == {"auto", *cost.ALGORITHMS}
