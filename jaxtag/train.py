"""``python -m jaxtag.train``: train a tagger; without arguments, on a made-up demo corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxtag import config


def main(argv: Sequence[str]) -> None:
    """Parse the flags, then train; jax is imported only once they are right."""
    settings = config.parse(config.Config, argv, prog="jaxtag.train")
    from jaxtag import loop, run

    if settings.resume and settings.run is not None and (settings.run / run.RECORD).is_file():
        # What is not given is as it was.
        trained = replace(run.read_record(settings.run)[0], run=settings.run, resume=True)
        settings = config.parse(config.Config, argv, prog="jaxtag.train", default=trained)
    loop.train(settings)


if __name__ == "__main__":
    config.run_command(main)
