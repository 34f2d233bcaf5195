"""Serve several requests concurrently from async code.

Usage: python examples/async_generate.py [MODEL_DIR]   (default: the small model that comes with Tandem)
"""

from __future__ import annotations

import asyncio
import sys

from tandem import AsyncLLM, SamplingParams


async def main() -> None:
    async with AsyncLLM(sys.argv[1] if len(sys.argv) > 1 else None, backend="cpu") as llm:
        params = SamplingParams(max_tokens=16, seed=1)
        outputs = await asyncio.gather(*(llm.generate(f"Prompt {i}", params) for i in range(4)))
        for output in outputs:
            print(repr(output.text))


if __name__ == "__main__":
    asyncio.run(main())
