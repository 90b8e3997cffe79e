"""The chat template's properties that the protocol relies on, checked without a model and without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Protocol

from experiment.errors import UsageError
from experiment.sealing.digests import digest_bytes

_TURNS: Final = ("<think>\nreason\n</think>\n\ntext", "text", "")
"""Texts of a turn beside its calls; templates have ways of their own for reasoning, for none, and for silence."""


def verify_template(tokenizer_dir: Path) -> str:
    """Return the digest of the folder's chat template, which keeps earlier text as a tool dialogue grows.

    A template that rewrites history (for example one that drops earlier reasoning) would train on contexts that
    were never sampled.

    Raises:
        UsageError: There is no template, or it is not prefix-preserving.
    """
    template = _read_template(tokenizer_dir)
    render = _build_renderer(template)
    if not all(_keeps_history(render, text, results) for text in _TURNS for results in (1, 2)):
        message = f"{tokenizer_dir}: the chat template changes earlier text when a tool result is added"
        raise UsageError(message, remedy="Use a prefix-preserving training template for this model.")
    return digest_bytes(template.encode())


def _keeps_history(render: _Renderer, text: str, results: int) -> bool:
    """Whether every stage of a dialogue of two tool turns begins with all that was shown before it."""
    call = {"type": "function", "function": {"name": "tool", "arguments": {"argument": "value"}}}
    turn = {"role": "assistant", "content": text, "tool_calls": [call] * results}
    answer = {"role": "tool", "name": "tool", "content": "result"}
    dialogue: list[dict[str, Any]] = [{"role": "user", "content": "question"}]
    shown = render(dialogue, generation=False)
    for added in ([turn], [answer] * results) * 2:
        dialogue = [*dialogue, *added]
        before, shown = shown, render(dialogue, generation=False)
        if not render(dialogue, generation=True).startswith(shown) or not shown.startswith(before):
            return False
    return "reason" in shown or "reason" not in text


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


class _Renderer(Protocol):
    """Shows a dialogue as the template does."""

    def __call__(self, messages: list[dict[str, Any]], *, generation: bool) -> str: ...


def _build_renderer(template: str) -> _Renderer:
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
        compiled = environment.from_string(template)
    except jinja2.TemplateError as error:
        raise _unusable(error) from error

    def render(messages: list[dict[str, Any]], *, generation: bool) -> str:
        try:
            return compiled.render(
                messages=messages, tools=None, add_generation_prompt=generation, enable_thinking=False
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            # A template is a program of others, and its mistakes come as they would from any program.
            raise _unusable(error) from error

    return render


def _unusable(error: Exception) -> UsageError:
    message = f"the chat template cannot be rendered: {error}"
    return UsageError(message, remedy="Use a chat template that knows tool calls and tool results.")


def _refuse(message: str) -> None:
    text = f"the chat template refuses a tool dialogue: {message}"
    raise UsageError(text)
