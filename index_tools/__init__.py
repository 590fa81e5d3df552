"""The command ``tfrecord-index``, also ``python -m index_tools``: indexes, checks and repairs TFRecord files."""

EXIT_OK, EXIT_DAMAGED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
