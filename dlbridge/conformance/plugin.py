"""A pytest plug-in: each rule of DLPack as a test of one library, for the library's own CI.

``pytest -p dlbridge.conformance.plugin --dlpack-conformance=mylib.testing:make_array``
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dlbridge.errors import ExchangeError

from .runner import Check, rules

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


def read_expected(path: str) -> dict[str, str]:
    """Line -> reason, of a file with ``P40 the reason`` in each line, and comments after ``#``.

    ValueError for a line that no rule has, that stands twice, or that has no reason.
    """
    reasons: dict[str, str] = {}
    for number, text in enumerate(Path(path).read_text(encoding="utf-8-sig").splitlines(), 1):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        line, *reason = text.split(None, 1)
        if line not in rules():
            raise ValueError(f"{path}:{number}: no rule has the number {line!r}")
        if line in reasons or not reason or reason[0].startswith("#"):
            wrong = "it stands twice" if line in reasons else "a reason must follow"
            raise ValueError(f"{path}:{number}: {line}: {wrong}")
        reasons[line] = reason[0].strip()
    return reasons


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plug-in."""
    group = parser.getgroup("dlpack", "the rules of DLPack")
    group.addoption(
        "--dlpack-conformance",
        metavar="LIBRARY",
        help="test the rules of DLPack on a library: torch, torch@cuda:0, or a function "
        "that makes an array of it from one of numpy, as mylib.testing:make_array",
    )
    group.addoption(
        "--dlpack-expected",
        metavar="FILE",
        help="the failures that are known, as 'P40 the reason' in each line; "
        "one that passes fails the run",
    )
    group.addoption("--dlpack-alone", action="store_true", help="collect no other tests")
    group.addoption(
        "--dlpack-lines",
        metavar="LINES",
        help="test these rules only, as P40,X6; dlpack::P40 among the tests is the same",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the rules alone, unless the command line names other tests."""
    options = config.option
    ids = [test for test in config.args if test.startswith(_PREFIX)]
    tests = [test for test in config.args if test not in ids]
    if ids:
        named = [options.dlpack_lines] if options.dlpack_lines else []
        options.dlpack_lines = ",".join([*named, *(test.removeprefix(_PREFIX) for test in ids)])
    if options.dlpack_expected:
        _check_expected(config)
    if options.dlpack_conformance == "":
        raise pytest.UsageError("--dlpack-conformance= names no library")
    if not options.dlpack_conformance:
        if what := ids[0] if ids else options.dlpack_expected and "--dlpack-expected":
            raise pytest.UsageError(f"{what} needs --dlpack-conformance=LIBRARY")
        return
    if unknown := [line for line in _lines(config) if line not in rules()]:
        raise pytest.UsageError(f"there is no rule {', '.join(unknown)}")
    if config.args_source is not pytest.Config.ArgsSource.ARGS or not tests:
        options.dlpack_alone = True  # a process of pytest-xdist gets the options, not the source
    config.args = [] if options.dlpack_alone else tests
    if getattr(options, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        _check_library(config)


_PREFIX = "dlpack::"


def _lines(config: pytest.Config) -> list[str]:
    """The rules that are asked for; all if none are."""
    named: str | None = config.option.dlpack_lines
    return named.split(",") if named else list(rules())


def _check_library(config: pytest.Config) -> None:
    """UsageError for a library that cannot be checked: a process of pytest-xdist does not tell."""
    name = config.option.dlpack_conformance
    try:
        with closing(Check(name)) as checking:
            checking.run(_lines(config)[0])
    except ExchangeError as exc:
        raise pytest.UsageError(f"--dlpack-conformance: {exc}") from exc


def _check_expected(config: pytest.Config) -> None:
    """UsageError for a file that cannot be read, or has changed which settings pytest reads."""
    path = config.option.dlpack_expected
    try:
        read_expected(path)
    except (OSError, ValueError) as exc:
        raise pytest.UsageError(f"--dlpack-expected: {exc}") from exc
    folder = config.invocation_params.dir
    # Plug-ins are loaded after the settings: until then it stands for a file of tests.
    if path in config.invocation_params.args and not (folder / path).is_relative_to(folder):
        raise pytest.UsageError(
            f"pytest looks for its settings beside {path}, which stands alone; write "
            f"--dlpack-expected={path}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Put the rules before the other tests of the session."""
    report = yield
    name = collector.config.option.dlpack_conformance
    if name and isinstance(collector, pytest.Session):
        library = Library.from_parent(collector, name="dlpack", nodeid="dlpack")
        report.result = [library, *report.result]
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Where every rule was skipped, nothing was tested: it is pytest's own code for that."""
    if exitstatus == pytest.ExitCode.OK and _tested_nothing(session.config):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say so."""
    if _tested_nothing(config):
        name = config.option.dlpack_conformance
        terminalreporter.write_line(f"{name}: nothing was tested; no rule is offered")


def _tested_nothing(config: pytest.Config) -> bool:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a process of pytest-xdist
        return False
    kinds = {
        kind
        for kind, reports in reporter.stats.items()
        for report in reports
        if kind and getattr(report, "nodeid", "").startswith(_PREFIX)
    }
    return kinds == {"skipped"}


class Library(pytest.Collector):
    """The rules of one library, which one worker process checks."""

    checking: Check

    def collect(self) -> Iterator[pytest.Item]:
        """One test for each rule."""
        options = self.config.option
        path = options.dlpack_expected
        expected = read_expected(path) if path else {}
        self.checking = Check(options.dlpack_conformance)
        self.config.add_cleanup(self.checking.close)
        for line in _lines(self.config):
            item = RuleItem.from_parent(self, name=line)
            if line in expected:
                item.add_marker(pytest.mark.xfail(reason=expected[line], strict=True))
            yield item


class _Broken(Exception):
    """A rule that the library does not keep."""


class RuleItem(pytest.Item):
    """One rule as a test."""

    parent: Library

    def runtest(self) -> None:
        """Fail with the evidence; skip what the library does not offer."""
        try:
            _, _, result, evidence = self.parent.checking.run(self.name)
        except ExchangeError as exc:
            pytest.exit(f"--dlpack-conformance: {exc}", returncode=pytest.ExitCode.USAGE_ERROR)
        if result == "not offered":
            pytest.skip(evidence)
        if result != "pass":
            raise _Broken(f"{result}: {evidence}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any) -> Any:
        """The rule, its source and what the library does."""
        if not isinstance(excinfo.value, _Broken):
            return super().repr_failure(excinfo)
        rule = rules()[self.name]
        library = self.parent.checking.library
        return (
            f"{self.name}: {rule.text}\n  source: {rule.source}\n  {excinfo.value}\n"
            f"  again: python -m dlbridge conformance {library} --lines {self.name}"
        )

    def reportinfo(self) -> tuple[str, None, str]:
        """The rule in words."""
        return "dlpack", None, f"{self.name} {rules()[self.name].text}"
