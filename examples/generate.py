"""Generate from several prompts at once, and stream one.

Usage: python examples/generate.py [MODEL_DIR]   (default: the small model that comes with Tandem)
"""

from __future__ import annotations

import sys

from tandem import LLM, SamplingParams


def main() -> None:
    llm = LLM(sys.argv[1] if len(sys.argv) > 1 else None, backend="cpu")
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=7, logprobs=1)
    for result in llm.generate(["A first prompt", "A second one", ""], params):
        print(result.error if result.error is not None else repr(result.text))
    for piece in llm.stream("Streamed: ", SamplingParams(max_tokens=24, temperature=0.0)):
        print(piece.text, end="", flush=True)
    print()
    llm.close()


if __name__ == "__main__":
    main()
