"""The outcomes that a change of the code's form may not change, as text to compare with `diff`.

python tests/lab/record.py verdicts FOLDER_OF_LOGS > before.txt
python tests/lab/record.py digests >> before.txt
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

RN50 = str(Path(sys.executable).with_name("rn50"))
RUNS = {
    "smoke, 2 ranks": ("smoke", "system.ranks_per_node=2"),
    "smoke, 1 rank": ("smoke", "system.ranks_per_node=1"),
    "quick": ("quick",),
}


def verdicts(logs: Path) -> None:
    """Prints our verdict and the codes of the findings for each file below a folder."""
    from rn50.compliance.check_log import check_log

    for path in sorted(logs.glob("*/**/*.txt")):
        check = check_log(path, official=False)
        ids = {finding.id for finding in check.findings}
        codes = " ".join(sorted(ids))
        print(path.relative_to(logs), check.verdict, check.ruleset, codes, sep="\t")


def digests() -> None:
    """Prints the digest of the trained weights of short runs with the seed 1."""
    for name, arguments in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [RN50, "launch", *arguments, "seed=1", f"system.results={folder}"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            (result,) = Path(folder).glob("*/*/result.json")
            digest = json.loads(result.read_text())["weights_digest"]
            print(name, digest, sep="\t", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["verdicts", folder]:
            verdicts(Path(folder))
        case ["digests"]:
            digests()
        case _:
            sys.exit(__doc__)
