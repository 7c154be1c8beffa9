"""The flags of a program that installs paged caches."""

_NAMES = ("--paged-kv-quantization", "--paged-kv-quant", "--kv-quant")


def add_paged_arguments(parser):
    """Adds --paged-kv-quantization (= --paged-kv-quant, --kv-quant) off|q8|q6|q4 to an
    argparse.ArgumentParser.

    `paged_options` turns what it parsed into options of `install`.
    """
    parser.add_argument(
        *_NAMES,
        dest="paged_kv_quantization",
        choices=("off", "q8", "q6", "q4"),
        default=None,
        help="low-bit storage of keys and values in paged caches (default: KVIK_PAGED_KV_QUANT, "
        "else off)",
    )


def paged_options(arguments):
    """Options of `install` from a namespace with what `add_paged_arguments` added."""
    mode = arguments.paged_kv_quantization
    return {} if mode is None else {"kv_quant_config": mode}
