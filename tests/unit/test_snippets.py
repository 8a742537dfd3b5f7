"""Whatever README.md, CONTRIBUTING.md and docs/ tell a reader to type is typed here.

A fence's info string says what its snippet needs:

    ```python                 executed by itself in an empty folder that has the project's recipes/ and examples/
    ```python needs=torch     skipped, visibly, where torch is not installed
    ```console                lines beginning `$ practicum …` are run, `$ make TARGET` must name a target that exists
    ```bash                   the same without the prompt
    ```console norun: why     not run; the reason is shown as a skip

Snippets of one page share a folder, in order, so that one can show the run that an earlier one made.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("console", "bash", "sh", "shell")
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]+)\n(?P<body>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL)
SECONDS_AT_MOST = 120
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}
CLI = [sys.executable, "-c", "from practicum.cli.main import main; main()"]


@dataclass(frozen=True)
class Snippet:
    """One fenced block: Snippet("README.md", 12, "console", "norun: takes 20 minutes", "$ make demo\\n")."""

    page: str
    line: int
    "Of the first line inside the fence, from 1."
    language: str
    options: str
    "What follows the language in the fence's info string."
    body: str

    @property
    def not_run(self) -> str | None:
        """The reason for which it is not run; None when it is."""
        found = re.search(r"\bnorun\b[:=]?\s*(.*)", self.options)
        return found[1].strip().strip('"') if found else None


def snippets_in(page: str, text: str) -> list[Snippet]:
    """The Python and shell snippets of a page, in order."""
    found = []
    for match in FENCE.finditer(text):
        language, _, options = match["info"].strip().partition(" ")
        if language in ("python", *SHELLS):
            body = "".join(line.removeprefix(match["indent"]) for line in match["body"].splitlines(keepends=True))
            found.append(Snippet(page, text[: match.start("body")].count("\n") + 1, language, options, body))
    return found


def commands_in(snippet: Snippet) -> list[str]:
    """The commands of a shell snippet, continued lines joined; in a console only what follows a prompt."""
    text = snippet.body.replace("\\\n", " ")
    if snippet.language == "console":
        return [line[2:].strip() for line in text.splitlines() if line.startswith("$ ")]
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def call(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_AT_MOST,
    )


def run_python(snippet: Snippet, folder: Path) -> None:
    """Execute in a fresh interpreter; tracebacks name the page's line."""
    program = folder / "snippet.py"
    program.write_text("\n" * (snippet.line - 1) + snippet.body)
    done = call([sys.executable, program.name], folder)
    assert done.returncode == 0, f"{snippet.page}: {done.stderr or done.stdout}"


def run_shell(snippet: Snippet, folder: Path) -> None:
    """Run what calls practicum, check what calls make; anything else must be fenced as norun."""
    commands = commands_in(snippet)
    assert commands, f"{snippet.page}:{snippet.line}: no command found; a console snippet marks commands with `$ `"
    for command in commands:
        program, *arguments = shlex.split(command, comments=True)
        if program == "make":
            done = call(["make", "--dry-run", *arguments], ROOT)
        elif program == "practicum":
            done = call([*CLI, *arguments], folder)
        else:
            pytest.fail(f"{snippet.page}:{snippet.line}: cannot run `{command}`; fence it as norun: why")
        assert done.returncode == 0, f"{snippet.page}:{snippet.line}: {command}\n{done.stdout}{done.stderr}"


def run(snippet: Snippet, folder: Path) -> None:
    if snippet.not_run is not None:
        assert snippet.not_run, f"{snippet.page}:{snippet.line}: norun needs a reason, as in `norun: takes 20 minutes`"
        pytest.skip(snippet.not_run)
    if "needs=torch" in snippet.options.split():
        pytest.importorskip("torch")
    (run_python if snippet.language == "python" else run_shell)(snippet, folder)


SNIPPETS = [
    snippet for page in PAGES if page.exists() for snippet in snippets_in(str(page.relative_to(ROOT)), page.read_text())
]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """One folder per page, with links to what a clone has beside it."""
    folders: dict[str, Path] = {}

    def folder(page: str) -> Path:
        if page not in folders:
            folders[page] = tmp_path_factory.mktemp("page")
            for name in ("recipes", "examples"):
                (folders[page] / name).symlink_to(ROOT / name)
        return folders[page]

    return folder


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[f"{snippet.page}:{snippet.line}" for snippet in SNIPPETS])
def test_a_snippet_of_the_documentation_runs(snippet: Snippet, folder_of: Callable[[str], Path]) -> None:
    run(snippet, folder_of(snippet.page))


PAGE = """# A page
```python
x = 1
assert x == {x}
```
1. In a list:
   ```console
   $ practicum {option}
   shown, not run
   ```
```toml
ignored = true
```
```bash norun: takes an hour
practicum train
```
"""


def test_snippets_are_found_with_language_options_and_line() -> None:
    python, console, bash = snippets_in("page.md", PAGE)
    assert (python.language, python.line, python.not_run) == ("python", 3, None)
    assert (console.language, console.line, commands_in(console)) == ("console", 8, ["practicum {option}"])
    assert (bash.not_run, commands_in(bash)) == ("takes an hour", ["practicum train"])


@pytest.mark.parametrize(("x", "option", "wrong"), [(1, "--help", 0), (2, "--help", 1), (1, "--no-such-option", 1)])
def test_a_snippet_that_fails_is_caught(tmp_path: Path, x: int, option: str, wrong: int) -> None:
    failed = []
    for snippet in snippets_in("page.md", PAGE.format(x=x, option=option))[:2]:
        try:
            run(snippet, tmp_path)
        except AssertionError as error:
            failed.append(str(error))
    assert len(failed) == wrong
    assert all("page.md" in words for words in failed)


def test_a_failing_python_snippet_names_the_line_of_its_page(tmp_path: Path) -> None:
    snippet = snippets_in("page.md", PAGE.format(x=2, option=""))[0]
    with pytest.raises(AssertionError, match="line 4"):
        run(snippet, tmp_path)


@pytest.mark.parametrize(
    ("fence", "body", "words"),
    [
        ("console norun", "$ practicum", "norun needs a reason"),
        ("console", "$ pip install practicum", "cannot run `pip install practicum`"),
        ("console", "practicum --help", "no command found"),
        ("bash", "make no-such-target", "no-such-target"),
    ],
)
def test_a_snippet_that_would_silently_not_run_is_refused(tmp_path: Path, fence: str, body: str, words: str) -> None:
    (snippet,) = snippets_in("page.md", f"```{fence}\n{body}\n```\n")
    with pytest.raises((AssertionError, pytest.fail.Exception), match=words):
        run(snippet, tmp_path)
