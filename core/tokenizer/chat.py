"""Chat messages to token ids, in the prompt format of the model (rendered by deepseek-recipe)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import deepseek_recipe

from tandem.errors import RequestError
from tandem.tokenizer.tokenizer import Tokenizer

_MODEL_NAME = "tandem"


def render_chat(
    messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, thinking: bool = False
) -> list[int]:
    """Token ids of a conversation, up to and including the start of the assistant's answer.

    Args:
        messages: OpenAI-style messages, each with ``role`` and ``content``.
        tokenizer: must hold the special tokens of the format.
        thinking: let the model reason before it answers.

    Special tokens come from the format only: where a message spells one, it is plain text.

    Raises:
        RequestError: the messages are malformed, or hold images.
    """
    options = deepseek_recipe.ConversionOptions(default_thinking_mode=thinking).with_model_alias(
        _MODEL_NAME, deepseek_recipe.ModelVersion.DeepseekV41Flash
    )
    try:
        body = {"model": _MODEL_NAME, "messages": [dict(message) for message in messages]}
        conversation = deepseek_recipe.ChatCompletionRequest(body).convert(options).conversation
        if any(message.image_sources for message in conversation.messages):
            raise _error("images cannot be used in this text-only interface")
        return list(tokenizer.chat_encoding.encode(conversation))
    except (deepseek_recipe.ConversionError, ValueError, TypeError, RuntimeError) as error:
        raise _error(str(error)) from error


def _error(why: str) -> RequestError:
    return RequestError(
        "the chat messages cannot be rendered",
        where="messages",
        why=why,
        fix="give a list of {'role': 'system' | 'user' | 'assistant', 'content': text}",
    )
