"""``python -m memory_service.encoders.worker ENCODER CACHE_DIR PARENT_PID``: encodes what comes in, one batch a time.

A process of its own, since encoding is a second of Python and numpy for every few hundred texts: the service's loop
must not feel it. Frames on standard input and output: length (4 bytes, little endian), then msgpack. It begins with
``{"encoder", "fingerprint", "dimensions", "reason"}``; a list of texts is answered by the vectors' bytes (float32).
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memory_service.encoders.abc import Encoder, Vectors

HEAD = struct.Struct("<I")
_NICE = 2


def main() -> int:
    """Serve until standard input ends."""
    # Before numpy, which reads it once.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    name, cache_dir, parent = sys.argv[1:4]

    from homeagent_sdk.process import die_with_parent

    die_with_parent(int(parent))
    os.umask(0o077)
    os.nice(_NICE)
    # What a library prints must not get among the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(name, Path(cache_dir), sys.stdin.buffer, answers)
    return 0


def _serve(name: str, cache_dir: Path, questions: BinaryIO, answers: BinaryIO) -> None:
    import msgpack

    from memory_service.encoders.registry import load

    encoder, reason = load(name, cache_dir)
    space = encoder.space
    greeting = {
        "encoder": space.encoder,
        "fingerprint": space.fingerprint,
        "dimensions": space.dimensions,
        "reason": reason,
    }
    _write(answers, msgpack.packb(greeting))
    while len(head := questions.read(HEAD.size)) == HEAD.size:
        texts = msgpack.unpackb(questions.read(*HEAD.unpack(head)), unicode_errors="surrogatepass")
        _write(answers, encode_each(encoder, texts).tobytes())


def encode_each(encoder: Encoder, texts: Sequence[str]) -> Vectors:
    """Encode texts; one that the encoder cannot take gets zeros, and the others their vectors.

    A text that ended this process would do so again whenever it is repeated, and nothing behind it would ever be
    encoded.
    """
    import numpy as np

    try:
        return encoder.encode(texts)
    except (OSError, MemoryError):
        # Not the text's fault: it is tried again.
        raise
    except Exception as error:  # whatever a package of others raises
        if len(texts) > 1:
            return np.concatenate([encode_each(encoder, [text]) for text in texts])
        sys.stderr.write(f"a text of {len(texts[0])} characters cannot be encoded: {type(error).__name__}: {error}\n")
        return np.zeros((1, encoder.space.dimensions), np.float32)


def _write(answers: BinaryIO, frame: bytes) -> None:
    answers.write(HEAD.pack(len(frame)) + frame)
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
