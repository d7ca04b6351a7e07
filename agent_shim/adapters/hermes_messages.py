"""Hermes' messages in the form in which it stores them, so that rows can be matched.

Never changes a message: it is Hermes' own object.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Hermes marks messages of its own making that are never stored with keys that end like this.
_SCAFFOLDING = ("_synthetic", "_sentinel", "_prefill", "_nudge", "_scaffolding", "_ephemeral")
# And messages that it does store with keys that begin like this.
_REAL = ("_db_", "_row", "_persist", "_compressed", "_micro_compact", "_display", "_multimodal")
# Newer releases say it themselves, in one of these modules.
_ITS_OWN_RULE = "_is_ephemeral_scaffolding"
_RULE_IS_IN = ("run_agent", "agent.session_persistence")
_STORED = (
    "tool_calls", "tool_call_id", "finish_reason", "reasoning", "reasoning_content",
    "reasoning_details", "codex_reasoning_items", "codex_message_items", "api_content",
    "display_kind", "display_metadata", "platform_message_id", "effect_disposition",
    "_compressed_summary",
)  # fmt: skip


def is_scaffolding(message: dict[str, Any]) -> bool:
    """Made up by Hermes to drive its model on, and never stored.

    By its own rule, or by the flags: a flag of a name that we know, or, on what claims to be the
    user's, any that is not known to be on real messages. What the user said comes with the turn.
    """
    flags = [
        name
        for name, value in message.items()
        if isinstance(name, str) and name.startswith("_") and value
    ]
    if not flags:
        return False
    if any(name.endswith(_SCAFFOLDING[:3]) for name in flags):
        return True
    for module in _RULE_IS_IN:
        rule = getattr(sys.modules.get(module), _ITS_OWN_RULE, None)
        if rule is not None:
            try:
                return bool(rule(message))
            except Exception:
                break
    if any(name.endswith(_SCAFFOLDING) for name in flags):
        return True
    return message.get("role") == "user" and any(
        message[name] is True and not name.startswith(_REAL) for name in flags
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
