"""Command infer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NoReturn

import numpy as np
import typer
from rich.text import Text

from jellybean.cli.app import Directory, Json, Overrides, app, example
from jellybean.cli.console import errors, print_json, print_texts, progress, warn
from jellybean.cli.documents import check_project
from jellybean.cli.failures import failure, status_of
from jellybean.cli.failures import text_of as text_of_error
from jellybean.cli.serving.gateway_options import (
    GatewayOptions,
    OfWorkflow,
    takes_gateway,
)
from jellybean.cli.serving.request_inputs import (
    input_values,
    parse_inputs,
    refusal_on_the_command_line,
    requests_by_row,
)
from jellybean.display.terminal import BAD
from jellybean.errors import InputError, JellyBeanError
from jellybean.serving.errors import RequestError
from jellybean.tensor_files import Array


@app.command(
    epilog=example(
        "jellybean infer my-digits --input strip=my-digits/samples/strip.png",
        "jellybean infer my-digits --input 'strip=my-digits/data/heldout.npz#strips[3]' --json",
        "jellybean infer my-flow --input rows=batch.npy --rows",
        "jellybean infer my-listen --input chunk=my-listen/samples/voice.npy --rows --stream me",
        "jellybean infer my-ocr --input picture=bytes:my-ocr/samples/receipt.jpg --text",
        "jellybean infer my-two --workflow digits --input strip=strip.png",
        "jellybean infer my-flow --input 'meta=[0.5, 12]' --input 'flags=uint8:[1, 0]'",
    )
)
@takes_gateway
def infer(
    directory: Directory,
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="SOURCE=VALUE",
            help="An image, FILE.npy, FILE.npz#array, a row of these (FILE.npy[3]), numbers as JSON: [0.5, 12], or "
            "bytes:FILE for the bytes of any file.",
        ),
    ],
    rows: Annotated[
        bool, typer.Option("--rows", help="Send each row of the inputs as a request; an answer a row.")
    ] = False,
    stream: Annotated[
        str,
        typer.Option(
            metavar="ID", help="Send the requests as a new stream, chunk by chunk: an operator keeps a state."
        ),
    ] = "",
    text: Annotated[bool, typer.Option("--text", help="Answers are text, UTF-8 bytes as uint8: print it.")] = False,
    workflow: OfWorkflow = "",
    overrides: Overrides = None,
    at: GatewayOptions = GatewayOptions(),
    json: Json = False,
) -> None:
    """Send one request, or one for each row of a file, and print the answers."""
    from jellybean.serving.client import Chunk, Client

    check_project(directory, overrides)
    tensors = parse_inputs(inputs)
    requests = list(requests_by_row(tensors)) if rows else [tensors]
    answers: list[dict[str, Array]] = []
    endpoint = at.endpoint(directory, workflow)
    with (
        Client.at(endpoint) if endpoint else Client.of(directory, workflow=workflow) as client,
        progress("infer") as advance,
    ):
        for number, request in enumerate(requests):
            advance(number, len(requests), f"request {number + 1}")
            chunk = Chunk(stream, begins=number == 0, ends=number == len(requests) - 1) if stream else None
            try:
                answer = client.infer(request, chunk=chunk)
            except RequestError as error:
                fault = _explained(error, inputs, rows=rows, stream=stream)
                if not rows:
                    raise fault from (None if fault is error else error)
                _end_at_row(number, fault, answers if json else None, text=text)
            answers.append(answer)
            if rows and not json:  # at once: a row that follows may fail
                advance.print(*_lines(answer, f"row {number}, ", text=text))
    if json:
        found = _as_json(answers, text=text)
        print_json(found if rows else found[0])
    elif not rows:
        print_texts(*_lines(answers[0], "", text=text))


def _lines(answer: Mapping[str, Array], where: str, *, text: bool) -> Iterator[Text]:
    return (Text(f"{where}{name}: {readable(value, is_text=text)}") for name, value in answer.items())


def _as_json(answers: Sequence[Mapping[str, Array]], *, text: bool) -> list[dict[str, Any]]:
    """The answers as JSON values."""
    from jellybean.answer_metrics import text_of

    if not text:
        _warn_of_null(answers)
    return [{name: text_of(value) if text else value.tolist() for name, value in answer.items()} for answer in answers]


def _end_at_row(
    number: int, fault: JellyBeanError, answers: Sequence[Mapping[str, Array]] | None, *, text: bool
) -> NoReturn:
    """End the command at a row that failed; with `answers` of the rows before it, these go into the JSON."""
    if answers is not None:
        print_json({**failure(fault), "answers": _as_json(answers, text=text)})
    errors.print(
        f"row {number} has no answer, and those after it were not sent: {text_of_error(fault)}",
        style=BAD,
        soft_wrap=True,
    )
    raise typer.Exit(status_of(fault)) from fault


def _explained(error: RequestError, inputs: Sequence[str], *, rows: bool, stream: str) -> JellyBeanError:
    """The error, in terms of the command line if an option is the reason why a request was refused."""
    if stream and error.status == "UNIMPLEMENTED":  # the gateway names parameters of the inference protocols
        return InputError("no operator of this plan keeps a state between requests: leave out --stream")
    refusal = refusal_on_the_command_line(error.reason, input_values(inputs), rows=rows)
    return error if refusal == error.reason else InputError(refusal)


def _warn_of_null(answers: Sequence[Mapping[str, Array]]) -> None:
    """Say which answers JSON cannot write: NaN and both infinities look alike in it."""
    for number, answer in enumerate(answers):
        for name, value in answer.items():
            if value.dtype.kind == "f" and (count := int(np.count_nonzero(~np.isfinite(value)))):
                warn(f"row {number}, {name}: {count} of {value.size} values are NaN or infinite, null in JSON")


def readable(value: Array, *, is_text: bool = False) -> str:
    """An answer as a person reads it: text, a number, or rows of numbers. MetricError for text that is no bytes."""
    from jellybean.answer_metrics import text_of

    if is_text:
        return text_of(value)
    return str(value.item()) if value.size == 1 else np.array2string(value, threshold=50)
