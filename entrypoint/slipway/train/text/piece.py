"""The pieces of `slipway data prepare`: a pool of processes turns each piece of the input into tokens.

python -m slipway.train.text.piece FOLDER   # with FOLDER/plan.json; reads a piece's number from each line of stdin

A process answers each number with a line of JSON. When its stdin ends it exits; a piece in progress is then either finished or
not there. The processes are separate programs and not multiprocessing's: those would load the training's main module, and
torch with it, again, and would survive when their parent is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from slipway.protocol.durable import replace_file
from slipway.protocol.mistake import ConfigurationError
from slipway.train.text.coverage import Coverage
from slipway.train.text.inputs import TRAIN, VALIDATION, Chunk, Span, TextSource, read_chunks
from slipway.train.text.token_folder import DTYPES
from slipway.train.text.tokenizer import BYTES, Tokenizer, open_tokenizer

PLAN = "plan.json"
COVERAGE = "coverage"  # key in the record of a piece, and in the manifest


@dataclass(frozen=True)
class Written:
    """What a piece contributed to one part. `bytes` counts its text, without the tokens that end documents."""

    documents: int
    tokens: int
    bytes: int
    sha256: str
    largest: int


@dataclass(frozen=True)
class PiecePlan:
    """Everything that decides the content of the pieces."""

    sources: tuple[TextSource, ...]
    pieces: tuple[tuple[Span, ...], ...]
    tokenizer: str  # as `open_tokenizer` takes it
    identity: str  # the tokenizer's
    column: str
    share: float  # of documents for validation
    dtype: str


def read_plan(folder: Path) -> PiecePlan:
    """Read `plan.json`. Raises OSError."""
    stored = json.loads((folder / PLAN).read_bytes())
    sources = tuple(TextSource(**source) for source in stored.pop("sources"))
    pieces = tuple(tuple(Span(**span) for span in spans) for spans in stored.pop("pieces"))
    return PiecePlan(sources, pieces, **stored)


def work_through(
    work: Path, todo: Sequence[int], processes: int, done: Callable[[int], None], tick: Callable[[], None]
) -> None:
    """Make all pieces in `todo`; `done` is called for each, in this thread. Raises the first error."""
    free: SimpleQueue[PieceWorker] = SimpleQueue()

    def make(number: int) -> None:
        worker = free.get()
        try:
            worker.make(number, tick)
        finally:
            free.put(worker)  # another thread may wait for it, even if this one failed

    count = min(processes, len(todo))
    with ThreadPoolExecutor(max(1, count)) as pool, ExitStack() as workers:
        for _ in range(count):
            free.put(workers.enter_context(PieceWorker(work)))
        pieces = {pool.submit(make, number): number for number in todo}
        try:
            for piece in as_completed(pieces):
                piece.result()
                done(pieces[piece])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # when the processes are killed, the threads end as well


class PieceWorker:
    """A process that tokenises, one piece at a time."""

    def __init__(self, work: Path) -> None:
        """Start it on the plan in `work`."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "slipway.train.text.piece", str(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},  # the processes are the parallelism
            start_new_session=True,  # Ctrl-C is handled by the parent
        )

    def __enter__(self) -> Self:
        """Return the worker."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process, with its piece unfinished."""
        self._process.kill()
        self._process.communicate()

    def make(self, number: int, tick: Callable[[], None]) -> None:
        """Make a piece, with a `tick` on each progress. Raises what went wrong: ConfigurationError or OSError."""
        answer = self._ask(f"{number}\n")
        while answer == {"more": True}:
            tick()
            answer = self._ask("")
        if "mistake" in answer:
            raise ConfigurationError(answer["mistake"])
        if answer:
            raise OSError(answer["errno"], answer["strerror"], answer["filename"])

    def _ask(self, words: str) -> dict[str, Any]:
        """Return its next answer. Raises ConfigurationError if it was killed, RuntimeError if it ended."""
        sent, answered = self._process.stdin, self._process.stdout
        line = ""
        if sent and answered:
            with suppress(BrokenPipeError):
                sent.write(words)
                sent.flush()
                line = answered.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = self._process.wait()
        if code >= 0:
            raise RuntimeError(f"a process that tokenises ended with {code}; what it printed says why")
        raise ConfigurationError(
            f"A process that tokenises was killed by signal {-code}. Where memory is short fewer of them do: "
            "slipway data prepare --processes N"
        )


class Output:
    """The file of one part of a piece; it appears under its name only at `finish`."""

    def __init__(self, file: Path, dtype: str) -> None:
        """Create a temporary file beside `file`. Raises OSError."""
        self._file, self._temporary = file, file.with_name(f".{file.name}.{os.getpid()}")
        self._temporary.unlink(missing_ok=True)
        self._open = self._temporary.open("xb")  # a link that somebody put there is not followed
        self._dtype, self._digest = dtype, hashlib.sha256()
        self._documents = self._tokens = self._bytes = 0
        self._largest = 0

    def add(self, chunk: Chunk, tokens: npt.NDArray[Any], end: int | None) -> None:
        """Append a chunk's tokens. Raises OSError."""
        if chunk.ends and end is not None:
            tokens = np.append(tokens, np.asarray([end], tokens.dtype))
        data = tokens.astype(self._dtype).tobytes()
        self._open.write(data)
        self._digest.update(data)
        self._documents += chunk.ends
        self._tokens += len(tokens)
        self._bytes += len(chunk.text.encode())
        self._largest = max(self._largest, int(tokens.max(initial=0)))

    def finish(self) -> Written:
        """Sync the file and give it its name. Raises OSError."""
        self._open.flush()
        os.fsync(self._open.fileno())
        self._open.close()
        self._temporary.replace(self._file)
        return Written(self._documents, self._tokens, self._bytes, self._digest.hexdigest(), self._largest)

    def drop(self) -> None:
        """Remove the unfinished file."""
        self._open.close()
        self._temporary.unlink(missing_ok=True)


def piece_name(plan: PiecePlan, number: int) -> str:
    """Return a name that depends on all that a piece holds, so that pieces of another plan are never mistaken for it."""
    spans = [(asdict(plan.sources[span.source]), asdict(span)) for span in plan.pieces[number]]
    decided = [spans, plan.identity, plan.column, plan.share, plan.dtype]
    return f"piece-{hashlib.sha256(json.dumps(decided).encode()).hexdigest()[:32]}"


def piece_file(folder: Path, plan: PiecePlan, number: int, part: str) -> Path:
    """Return the file with a piece's tokens for one part."""
    return folder / f"{piece_name(plan, number)}.{part}.bin"


def record_file(folder: Path, plan: PiecePlan, number: int) -> Path:
    """Return the file that describes a finished piece."""
    return folder / f"{piece_name(plan, number)}.json"


def tokenise(folder: Path, plan: PiecePlan, number: int, tokenizer: Tokenizer, tick: Callable[[], None]) -> None:
    """Write the files of a piece; the last one marks it as finished. Raises ConfigurationError and OSError."""
    outputs = {part: Output(piece_file(folder, plan, number, part), DTYPES[plan.dtype]) for part in (TRAIN, VALIDATION)}
    coverage = Coverage()
    try:
        spans = plan.pieces[number]
        zero_ends = plan.tokenizer == BYTES
        chunks = (
            chunk for span in spans for chunk in read_chunks(plan.sources, span, plan.column, plan.share, zero_ends)
        )
        for batch in batches(chunks):
            texts = [chunk.text for chunk in batch]
            encoded, known = tokenizer.encode_all(texts)
            coverage += known
            for chunk, tokens in zip(batch, encoded, strict=True):
                outputs[chunk.part].add(chunk, tokens, tokenizer.end)
            tick()
        written = {part: asdict(output.finish()) for part, output in outputs.items()}
    finally:
        for output in outputs.values():
            output.drop()
    replace_file(record_file(folder, plan, number), json.dumps({**written, COVERAGE: asdict(coverage)}))


BATCH = 2**20  # characters per call of the tokenizer


def batches(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Group chunks into lists of about BATCH characters."""
    batch: list[Chunk] = []
    size = 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def reply(answer: Mapping[str, Any]) -> None:
    """Send an answer to the parent."""
    print(json.dumps(answer), flush=True)


def main() -> None:
    """Answer each number on stdin: `{"more": true}` on progress, `{}` when the piece is finished, else what went wrong."""
    folder = Path(sys.argv[1])
    plan = read_plan(folder)
    tokenizer = open_tokenizer(plan.tokenizer)
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        try:
            tokenise(folder, plan, int(line), tokenizer, lambda: reply({"more": True}))
        except ConfigurationError as error:
            answer = {"mistake": str(error)}
        except OSError as error:
            answer = {"errno": error.errno, "strerror": error.strerror or str(error), "filename": error.filename}
        reply(answer)


if __name__ == "__main__":
    main()
