"""``python -m jaxtag.train``: train a tagger; without arguments, on a made-up demo corpus."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtag import config


def main(argv: Sequence[str]) -> None:
    """Parse the flags, then train; jax is imported only once they are right."""
    settings = config.parse(config.Config, argv, prog="jaxtag.train")
    from jaxtag import loop

    loop.train(settings)


if __name__ == "__main__":
    config.run_command(main)
