"""Hermes' messages in the form that it stores them in, so that ours can be told from its own.

Never changes a message: it is Hermes' own object.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Hermes marks messages of its own making that are never stored with keys that end like this.
_SCAFFOLDING = ("_synthetic", "_sentinel", "_prefill")
_STORED = (
    "tool_calls", "tool_call_id", "finish_reason", "reasoning", "reasoning_content",
    "reasoning_details", "codex_reasoning_items", "codex_message_items", "api_content",
)  # fmt: skip


def is_scaffolding(message: dict[str, Any]) -> bool:
    return any(
        isinstance(name, str) and name.startswith("_") and name.endswith(_SCAFFOLDING) and value
        for name, value in message.items()
    )


def stored_fields(message: dict[str, Any]) -> dict[str, Any]:
    """What a row holds of a message beside its role and content."""
    return {name: message[name] for name in _STORED if message.get(name) is not None}


def stored_content(content: Any) -> Any:
    """Text, with a word for what is not."""
    if isinstance(content, dict):
        content = content.get("text_summary") or content.get("content") or str(content)
    if isinstance(content, list):
        parts = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind in ("text", "input_text"):
                parts.append(str(part.get("text", "")))
            elif kind in ("image", "image_url", "input_image"):
                parts.append("[screenshot]")
        return "\n".join(parts) if parts else None
    return content
