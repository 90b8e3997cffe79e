"""Between the world's records and the Responses form that NeMo Gym's servers speak."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.environments.base import NativeCall
from experiment.records.episode import Message, ToolSpec
from experiment.sealing.canonical import encode

_EPOCH = 0
"""A response's time says nothing here, and would differ between two runs."""


def make_request(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> dict[str, object]:
    """Return `responses_create_params` of a prompt whose tools take strings."""
    return {
        "input": [message.model_dump() for message in messages],
        "parallel_tool_calls": False,
        "tools": [_tool(tool) for tool in tools],
    }


def make_response(calls: Sequence[NativeCall], written: Sequence[str], final_text: str) -> dict[str, object]:
    """Return the response of a finished rollout: each executed call with its output, and the last message.

    Args:
        calls: What was executed, in order.
        written: Per call its arguments as JSON text, as they were sent.
        final_text: Text of the last turn; empty where a limit or a fault ended the rollout.
    """
    output: list[dict[str, object]] = []
    for number, (call, arguments) in enumerate(zip(calls, written, strict=True)):
        output.append(make_call(f"call_{number}", call.name, arguments))
        output.append({"type": "function_call_output", "call_id": f"call_{number}", "output": call.result.text})
    output.append(make_message("message_0", final_text))
    return envelope("response_0", output)


def envelope(key: str, output: Sequence[dict[str, object]]) -> dict[str, object]:
    """Return a response around its items."""
    return {
        "id": key,
        "created_at": _EPOCH,
        "model": "policy",
        "object": "response",
        "output": list(output),
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }


def make_call(key: str, name: str, arguments_json: str) -> dict[str, object]:
    """Return the item of a call."""
    return {"type": "function_call", "call_id": key, "name": name, "arguments": arguments_json}


def make_message(key: str, text: str) -> dict[str, object]:
    """Return the item of an assistant's message."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": key, "role": "assistant", "status": "completed", "content": content}


def write_arguments(arguments: dict[str, object]) -> str:
    """Return a call's arguments as JSON text."""
    return encode(arguments).decode("utf-8")


def _tool(tool: ToolSpec) -> dict[str, object]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "string", "description": text} for name, text in tool.parameters},
            "required": [name for name, _ in tool.parameters],
            "additionalProperties": False,
        },
        "strict": True,
    }
