"""The chat template's properties that the protocol relies on, checked without a model and without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiment.errors import UsageError
from experiment.sealing.digests import digest_bytes


def verify_template(tokenizer_dir: Path) -> str:
    """Return the digest of the folder's chat template, which keeps earlier text when a tool result is added.

    A template that rewrites history (for example one that drops earlier reasoning) would train on contexts that
    were never sampled.

    Raises:
        UsageError: There is no template, or it is not prefix-preserving.
    """
    template = _read_template(tokenizer_dir)
    call = {"type": "function", "function": {"name": "tool", "arguments": {"argument": "value"}}}
    dialogue: list[dict[str, Any]] = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "<think>\nreason\n</think>\n\ntext", "tool_calls": [call]},
    ]
    before = _render(template, dialogue, generation=False)
    result = {"role": "tool", "name": "tool", "content": "result"}
    after = _render(template, [*dialogue, result], generation=True)
    if not after.startswith(before) or "reason" not in before:
        message = f"{tokenizer_dir}: the chat template changes earlier text when a tool result is added"
        raise UsageError(message, remedy="Use a prefix-preserving training template for this model.")
    return digest_bytes(template.encode())


def _read_template(tokenizer_dir: Path) -> str:
    path = tokenizer_dir / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    config = tokenizer_dir / "tokenizer_config.json"
    try:
        found = json.loads(config.read_text(encoding="utf-8")).get("chat_template") if config.is_file() else None
    except (ValueError, AttributeError) as error:
        message = f"{config}: not a JSON object ({error})"
        raise UsageError(message) from error
    if not isinstance(found, str):
        message = f"{tokenizer_dir}: no chat template (chat_template.jinja or tokenizer_config.json)"
        raise UsageError(message, remedy="Name a tokenizer with a chat template in `inputs.tokenizer`.")
    return found


def _render(template: str, messages: list[dict[str, Any]], *, generation: bool) -> str:
    # The engine comes with the training extra; the offline tools do not need it.
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The `generation` block, which marks assistant tokens and renders as its content."""

        tags = {"generation"}  # noqa: RUF012 - the engine's own form

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(template).render(
            messages=messages, tools=None, add_generation_prompt=generation, enable_thinking=False
        )
    except jinja2.TemplateError as error:
        message = f"the chat template cannot be rendered: {error}"
        raise UsageError(message, remedy="Use a chat template that knows tool calls and tool results.") from error


def _refuse(message: str) -> None:
    text = f"the chat template refuses a tool dialogue: {message}"
    raise UsageError(text)
