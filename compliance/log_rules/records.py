"""Rules on records: can they be read, are their stamps times, do they belong to one run."""

from unicodedata import normalize

from ...host.finding import ERROR, NOTE, POLICY, plain, printable
from ...logging.events import MLL, PLAIN_KEY, RUN_KEYS, cut
from ..logged_run import READ_KEYS, SAME_MS, LoggedRun, spread_ms
from ..rule import CHECKER, LOG, Violations, against, only_if, rule, rules_on, violation
from ..ruleset import FIRST_MS, LATEST_MS

_SECONDS = range(1_200_000_000, 4_100_000_000)
"""Unix seconds of 2008 to 2099."""


@rule("MLP001", "broken-record", ERROR, f"{CHECKER}, mlp_parser")
def records(run: LoggedRun) -> Violations:
    """Every record is complete: one blank after its token, JSON with key, value, metadata and time,
    nothing after it. (The official parser skips what follows a token with a tab.)"""
    for problem in run.log.problems:
        message = f"line {problem.line}: {printable(problem.message)}"
        advice = "write from rank 0 alone, one record a line, nothing else on that line"
        if problem.fault == "truncated":
            message = f"truncated: {message}"
            advice = "the job was killed or the disk was full: run again"
        yield violation(
            message=message,
            line=problem.line,
            expected="a whole record",
            found=printable(problem.message),
            advice=advice,
        )
    more = run.log.problem_count - len(run.log.problems)
    if more > 0:
        yield violation(
            message=f"{more} more records cannot be read", expected="0", found=f"{more}"
        )


@rule("MLP002", "impossible-stamp", ERROR, "a clock that cannot be right")
def stamps(run: LoggedRun) -> Violations:
    """Stamps are milliseconds since 1970 (0.6.0: seconds), from 2018, when MLPerf began, to 2099.
    If all are before 2018 and none looks like one in seconds, that is policy: a clock that was
    never set still measures. zero-stamp has stamps of 0."""
    unit = "seconds" if run.log.dialect == MLL else "milliseconds"
    timed = [event for event in run.log.events if event.time_ms]
    impossible = [
        event for event in timed if not FIRST_MS <= event.time_ms <= LATEST_MS
    ]
    if impossible:
        # a clock that was never set puts every record before 2018
        early = len(impossible) == len(timed) and all(
            0 < event.time_ms < FIRST_MS for event in impossible
        )
        in_seconds = any(int(event.time_ms) in _SECONDS for event in impossible)
        actual = f"is stamped {plain(impossible[0].time_ms)}"
        if len(impossible) > 1:
            actual += f" (and {len(impossible) - 1} more records)"
        yield against(
            impossible[0],
            actual,
            f"{unit} since 1970, from 2018 on",
            severity=only_if(early and not in_seconds, POLICY),
        )


@rule("MLP006", "joined-records", NOTE, "a newline that was lost between two writers")
def joined(run: LoggedRun) -> Violations:
    """One record a line. (The official checker reads the last record of a line alone.)"""
    lines, first = run.log.joined
    if lines:
        lines_text = f"line {first}"
        if lines > 1:
            lines_text += f" (and {lines - 1} more lines)"
        yield against(
            lines_text,
            "holds two records",
            "one record a line",
            "a newline was lost; the official checker reads the last record alone",
            line=first,
        )


@rule("MLP007", "two-runs", ERROR, f"{CHECKER}, init_start before init_stop")
def two_runs(run: LoggedRun) -> Violations:
    """A file holds one run: no second one after it, or mixed with it, and none in the records
    of the other format (:::MLL, :::MLLOG)."""
    advice = "give each run its own result_N.txt; the first one is judged here"
    lines = {}
    foreign = run.log.other_dialect
    if foreign and foreign.key in RUN_KEYS:
        actual = f"one in :::{run.log.dialect} records, one in another format ({foreign.place})"
        lines[actual] = foreign.line
    starts = run.all("run_start")
    if run.second_run_line is not None:
        lines[f"another from line {run.second_run_line} on"] = run.second_run_line
    elif min(spread_ms(starts), spread_ms(run.all("init_stop"))) > SAME_MS:
        actual = f"their records mixed, run_start in lines {starts[0].line} and {starts[-1].line}"
        lines[actual] = starts[-1].line
    for actual, line in lines.items():
        yield against(
            "two runs in one file:", actual, "one run", line=line, advice=advice
        )


_LETTERS = str.maketrans(
    "аеіјӏорсухѕһԁԛԝкмнтвɡɑαικνορυτϲ", "aeijlopcyxshdqwkmhtbgaaiknopytc"
)
"""Cyrillic, Greek and Latin letters by the letter of a key that they look like."""
_MOST_LETTERS = 100
"""Names that are read have up to 39."""
_READ_METADATA = ("epoch_num", "first_epoch_num", "epoch_count", "status", "tensor")


@rule("MLP009", "look-alike-name", POLICY, "no reader finds what another name hides")
def look_alikes(run: LoggedRun) -> Violations:
    """No key, and no name of metadata, looks like one that a rule reads and is another: by
    invisible characters or letters of other scripts."""
    keys = READ_KEYS.union(*(log_rule.keys for log_rule in rules_on(LOG)))
    metadata = {_plain_letters(name): name for name in _READ_METADATA}
    read_keys = {_plain_letters(key): key for key in keys}
    names = [(event, event.key, read_keys) for event in run.log.odd_keys.values()]
    for event in run.log.events:
        unusual = (name for name in event.metadata if PLAIN_KEY.fullmatch(name) is None)
        names += [(event, name, metadata) for name in unusual]
    for event, name, known_names in names:
        imitated = known_names.get(_plain_letters(name), name)
        if imitated != name:
            yield against(
                f"line {event.line}: the name {cut(name)!a}",
                f"looks like {imitated}",
                "plain letters",
                line=event.line,
            )
            return


def _plain_letters(name: str) -> str:
    """The letters and digits of a name as they look, up to more than any name has that is read: one
    character can stand for 18."""
    letters = ""
    for character in name:
        # NFKD takes accents, full-width forms and ligatures apart; what is left looks alike
        plain_form = normalize("NFKD", character).casefold().translate(_LETTERS)
        letters += "".join(filter(str.isalnum, plain_form))
        if len(letters) > _MOST_LETTERS:
            break
    return letters
